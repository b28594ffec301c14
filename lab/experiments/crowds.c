/* D1 and D4 in crowds of other sizes. A lock inside the process, in one, two and three processes (as behind
 * a load balancer), and what it costs beside no lock at all. A version number with one, four, sixteen and
 * fifty buyers: how tries grow, and that the version ends at what was sold. */
#include "lab/hazards/actor.h"
#include "sessions.h"

static bool run(const lab_strategy *s, const lab_site *site, int processes, int threads, int loops,
                lab_result *r, lab_finding *out)
{
    const lab_plan plan = {.processes = processes,
                           .threads = threads,
                           .loops = loops,
                           .stock = (int64_t)processes * threads * loops,
                           .limit_ms = 60000,
                           .resource = "crowd"};

    lab_run(s, site, &plan, r);
    if (r->error[0])
        lab_found(out, LAB_NOT_RUN, "%s", r->error);
    return !r->error[0];
}

static double per_second(const lab_result *r)
{
    return r->seconds > 0 ? (double)r->sold / r->seconds : 0;
}

/* ---- Processes ------------------------------------------------------------------------------- */

static void processes(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("scheme\tprocesses\tsold\toversold\tper second");
    const lab_strategy *mutex = lab_twin("mutex", server), *nothing = lab_twin("nothing", server);
    lab_result r[4];
    bool ran = run(nothing, site, 1, 24, 40, &r[0], out);

    for (int i = 1; ran && i <= 3; i++)
        ran = run(mutex, site, i, 24 / i, 40, &r[i], out);
    for (int i = 0; ran && i <= 3; i++)
        lab_rows_add(rows, "%s\t%d\t%lld\t%lld\t%.0f", r[i].strategy->name, i ? i : 1,
                     (long long)r[i].sold, (long long)r[i].oversold, per_second(&r[i]));
    out->table = lab_rows_end(rows);
    if (!ran)
        return;
    out->oversold = r[3].oversold;
    lab_found(
        out, r[1].oversold ? LAB_BROKE : LAB_SHOWN,
        "of %lld sold, a mutex oversold %lld in one process, %lld in two, %lld in three; in one "
        "it makes %.2f of the purchases without any lock",
        (long long)r[1].sold, (long long)r[1].oversold, (long long)r[2].oversold,
        (long long)r[3].oversold, per_second(&r[1]) / per_second(&r[0]));
}

/* ---- Contention ------------------------------------------------------------------------------ */

static int64_t version_of(const lab_site *site, lab_server server)
{
    lab_buyer buyer = {.site = site};
    lab_sql *sql = lab_sql_open(&buyer, server);
    int64_t version = -1;

    if (sql)
        lab_sql_read(&buyer, sql, &version, 1,
                     "SELECT version FROM lab_stock WHERE goods = 'crowd'");
    lab_sql_close(sql);
    return version;
}

static void contention(const lab_site *site, lab_server server, lab_finding *out)
{
    static const int threads[] = {1, 4, 16, 50};
    lab_rows *rows = lab_rows_new("buyers\tsold\tversion at the end\ttries per sale\tper second");
    lab_result r[4];
    int64_t version[4];
    bool ran = true;

    for (int i = 0; ran && i < 4; i++) {
        ran = run(lab_twin("version", server), site, 1, threads[i], 400 / threads[i], &r[i], out);
        version[i] = version_of(site, server);
        if (ran)
            lab_rows_add(rows, "%d\t%lld\t%lld\t%.1f\t%.0f", threads[i], (long long)r[i].sold,
                         (long long)version[i], r[i].tries_per_sale, per_second(&r[i]));
    }
    out->table = lab_rows_end(rows);
    if (ran)
        lab_found(
            out, LAB_SHOWN,
            "tries per sale: %.1f with one buyer, %.1f with 4, %.1f with 16, %.1f with 50; the "
            "version ends at %lld of %lld sold",
            r[0].tries_per_sale, r[1].tries_per_sale, r[2].tries_per_sale, r[3].tries_per_sale,
            (long long)version[3], (long long)r[3].sold);
}

LAB_ON_BOTH(lab_crowd_processes, "D1", "mutex-processes", "a lock inside one, two, three processes",
            processes);
LAB_ON_BOTH(lab_crowd_versions, "D4", "version-crowds", "a version number and more and more buyers",
            contention);
