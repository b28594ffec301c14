/* Counting, and writing it down in Prometheus' text format (version 0.0.4).
 *
 * A histogram keeps the library's buckets, powers of two in microseconds. Prometheus gets those from 64 µs to 1,100 s, in
 * seconds; what is shorter is in the first of them, and what is longer only in +Inf. */
#define _GNU_SOURCE
#include "serve/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ROUTES = 96,   /* of the server's tables, and one for requests that fit none */
    CODES = 24,    /* different statuses of one route; further ones are counted together */
    OPS = 128,     /* above the largest dibs_op */
    STATUSES = 32, /* above the largest dibs_status */
    FIRST_BUCKET = 6,
    LAST_BUCKET = 30,
};

typedef struct per_route {
    const http_route *route; /* NULL: none fits */
    struct {
        int status;
        uint64_t count;
    } code[CODES];
    dibs_histogram time;
} per_route;

struct serve_metrics {
    per_route route[ROUTES];
    size_t routes;
    uint64_t exchanges;
    uint64_t calls[OPS][STATUSES];
    time_t started;
};

serve_metrics *serve_metrics_new(void)
{
    serve_metrics *m = calloc(1, sizeof *m);

    if (m)
        m->started = time(NULL);
    return m;
}

void serve_metrics_free(serve_metrics *m)
{
    free(m);
}

uint64_t serve_metrics_exchanges(const serve_metrics *m)
{
    return m->exchanges;
}

/* ---- Counting -------------------------------------------------------------------------------- */

static void histogram_add(dibs_histogram *h, int64_t us)
{
    uint64_t value = us > 0 ? (uint64_t)us : 0;
    int bucket = value ? 64 - __builtin_clzll(value) : 0;

    h->count++;
    h->sum_us += value;
    if (value > h->max_us)
        h->max_us = value;
    h->bucket[bucket < DIBS_BUCKETS ? bucket : DIBS_BUCKETS - 1]++;
}

/* The last place is for all routes that have none. */
static per_route *of_route(serve_metrics *m, const http_route *route)
{
    size_t i = 0;

    while (i < m->routes && m->route[i].route != route)
        i++;
    if (i == m->routes && m->routes < ROUTES)
        m->route[m->routes++].route = route;
    return &m->route[i < ROUTES ? i : ROUTES - 1];
}

void serve_metrics_exchange(serve_metrics *m, const http_route *route, const char *method,
                            int status, int64_t us)
{
    per_route *r = of_route(m, route);
    size_t i = 0;

    (void)method; /* a route has one; that of a stranger is any text */
    m->exchanges++;
    while (i < CODES - 1 && r->code[i].count && r->code[i].status != status)
        i++;
    r->code[i].status = r->code[i].count && r->code[i].status != status ? 0 : status;
    r->code[i].count++;
    if (!route || !route->stream)
        histogram_add(&r->time, us);
}

void serve_metrics_outcome(serve_metrics *m, const dibs_outcome *o)
{
    if ((unsigned)o->op < OPS && (unsigned)o->err.status < STATUSES)
        m->calls[o->op][o->err.status]++;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(FILE *f, const char *name, const char *type, const char *help, uint64_t value)
{
    family(f, name, type, help);
    fprintf(f, "%s %" PRIu64 "\n", name, value);
}

/* `labels`: "" or "route=\"/healthz\"". */
static void histogram(FILE *f, const char *name, const char *labels, const dibs_histogram *h)
{
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    uint64_t below = 0;

    for (int i = 0; i <= LAST_BUCKET; i++) {
        below += h->bucket[i];
        if (i >= FIRST_BUCKET)
            fprintf(f, "%s_bucket{%s%sle=\"%.6f\"} %" PRIu64 "\n", name, labels, comma,
                    (double)(UINT64_C(1) << i) / 1e6, below);
    }
    fprintf(f, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, h->count);
    fprintf(f, "%s_sum%s%s%s %.6f\n", name, open, labels, close, (double)h->sum_us / 1e6);
    fprintf(f, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, h->count);
}

static void write_locks(FILE *f, const dibs_stats *s)
{
    static const char *const causes[] = {NULL,   "expired",     "broken",
                                         "gone", "unreachable", "resumed"};
    const struct {
        const char *outcome;
        uint64_t count;
    } calls[] = {{"granted", s->grants},
                 {"reentered", s->reentries},
                 {"busy", s->busy},
                 {"cancelled", s->cancelled},
                 {"failed", s->failures}};

    family(f, "dibs_lock_calls_total", "counter", "Lock calls of this server, by outcome.");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        fprintf(f, "dibs_lock_calls_total{outcome=\"%s\"} %" PRIu64 "\n", calls[i].outcome,
                calls[i].count);
    one(f, "dibs_lock_releases_total", "counter", "Locks released by this server.", s->releases);
    family(f, "dibs_lock_losses_total", "counter", "Locks lost by this server, by cause.");
    for (int i = 1; i < 6; i++)
        fprintf(f, "dibs_lock_losses_total{cause=\"%s\"} %" PRIu64 "\n", causes[i], s->losses[i]);
    family(f, "dibs_lease_renewals_total", "counter", "Lease renewals of this server, by outcome.");
    fprintf(f,
            "dibs_lease_renewals_total{outcome=\"renewed\"} %" PRIu64
            "\ndibs_lease_renewals_total{outcome=\"failed\"} %" PRIu64 "\n",
            s->renewals, s->renewal_failures);
    one(f, "dibs_grants_held", "gauge", "Grants held by this server.", s->held);
    one(f, "dibs_waits_in_progress", "gauge", "Lock calls of this server that wait.", s->waiting);
}

static void write_times(FILE *f, const dibs_stats *s)
{
    const struct {
        const char *name, *help;
        const dibs_histogram *h;
    } times[] = {
        {"dibs_lock_acquire_seconds", "Call to grant, without waiting in the queue.", &s->acquire},
        {"dibs_lock_wait_seconds", "Call to grant, after waiting in the queue.", &s->wait},
        {"dibs_lock_hold_seconds", "Grant to release or loss.", &s->hold},
        {"dibs_renewal_late_seconds", "How late lease renewals were sent.", &s->late},
    };

    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        family(f, times[i].name, "histogram", times[i].help);
        histogram(f, times[i].name, "", times[i].h);
    }
}

static const char *name_of(dibs_op op)
{
    static const char *const names[OPS] = {
        [DIBS_OP_LOST] = "lost",
        [DIBS_OP_LOCK] = "lock",
        [DIBS_OP_UNLOCK] = "unlock",
        [DIBS_OP_RENEW] = "renew",
        [DIBS_OP_GRANT_ADOPT] = "grant_adopt",
        [DIBS_OP_LOCK_INSPECT] = "lock_inspect",
        [DIBS_OP_LOCK_LIST] = "lock_list",
        [DIBS_OP_LOCK_BREAK] = "lock_break",
        [DIBS_OP_ONCE_BEGIN] = "once_begin",
        [DIBS_OP_ONCE_WAIT] = "once_wait",
        [DIBS_OP_ONCE_RERUN] = "once_rerun",
        [DIBS_OP_ONCE_STEP] = "once_step",
        [DIBS_OP_ONCE_FINISH] = "once_finish",
        [DIBS_OP_ONCE_FAIL] = "once_fail",
        [DIBS_OP_ONCE_UNDO] = "once_undo",
        [DIBS_OP_ONCE_ABANDON] = "once_abandon",
        [DIBS_OP_ONCE_LIST] = "once_list",
        [DIBS_OP_ONCE_INSPECT] = "once_inspect",
        [DIBS_OP_ONCE_FORGET] = "once_forget",
        [DIBS_OP_ONCE_RESOLVE] = "once_resolve",
        [DIBS_OP_TOKEN_ISSUE] = "token_issue",
        [DIBS_OP_TOKEN_REDEEM] = "token_redeem",
        [DIBS_OP_TOKEN_REISSUE] = "token_reissue",
        [DIBS_OP_COUNTER_GET] = "counter_get",
        [DIBS_OP_COUNTER_SET] = "counter_set",
        [DIBS_OP_COUNTER_ADD] = "counter_add",
        [DIBS_OP_COUNTER_TAKE] = "counter_take",
        [DIBS_OP_CELL_READ] = "cell_read",
        [DIBS_OP_CELL_SWAP] = "cell_swap",
        [DIBS_OP_CELL_DELETE] = "cell_delete",
        [DIBS_OP_CELL_PASS] = "cell_pass",
        [DIBS_OP_DRAIN] = "drain",
    };

    return names[op] ? names[op] : "other";
}

static void write_calls(FILE *f, const serve_metrics *m)
{
    family(f, "dibs_engine_calls_total", "counter",
           "Requests to the engine, by operation and status.");
    for (int op = 0; op < OPS; op++)
        for (int status = 0; status < STATUSES; status++)
            if (m->calls[op][status])
                fprintf(f, "dibs_engine_calls_total{op=\"%s\",status=\"%s\"} %" PRIu64 "\n",
                        name_of((dibs_op)op), dibs_status_name((dibs_status)status),
                        m->calls[op][status]);
}

/* Paths of the table hold no character that would have to be escaped. */
static void label_route(const per_route *r, char *out, size_t size)
{
    snprintf(out, size, "method=\"%s\",route=\"%s\"", r->route ? r->route->method : "other",
             r->route ? r->route->path : "none");
}

static void write_http(FILE *f, const serve_metrics *m)
{
    char labels[256];

    family(f, "dibs_http_requests_total", "counter",
           "HTTP requests, by route and status; code 0: the client left before the answer.");
    for (size_t i = 0; i < m->routes; i++)
        for (size_t k = 0; k < CODES && m->route[i].code[k].count; k++) {
            label_route(&m->route[i], labels, sizeof labels);
            fprintf(f, "dibs_http_requests_total{%s,code=\"%d\"} %" PRIu64 "\n", labels,
                    m->route[i].code[k].status, m->route[i].code[k].count);
        }
    family(f, "dibs_http_request_seconds", "histogram",
           "Request to the end of its answer, without streams.");
    for (size_t i = 0; i < m->routes; i++)
        if (m->route[i].time.count) {
            label_route(&m->route[i], labels, sizeof labels);
            histogram(f, "dibs_http_request_seconds", labels, &m->route[i].time);
        }
}

static void write_census(FILE *f, const serve_census *c)
{
    one(f, "dibs_engine_up", "gauge", "1 if the last listing of the engine succeeded.", c->known);
    if (c->known) {
        one(f, "dibs_locks_held", "gauge", "Locks that are held, by any client.", c->held);
        one(f, "dibs_locks_contended", "gauge", "Locks that clients wait for.", c->contended);
        one(f, "dibs_lock_waiters", "gauge", "Clients that wait for locks.", c->waiters);
    }
    if (!c->once_known)
        return;
    family(f, "dibs_once_keys", "gauge", "Keys of once that are not finished, by state.");
    fprintf(f,
            "dibs_once_keys{state=\"running\"} %zu\ndibs_once_keys{state=\"crashed\"} %zu\n"
            "dibs_once_keys{state=\"damaged\"} %zu\n",
            c->running, c->crashed, c->damaged);
}

char *serve_metrics_text(const serve_metrics *m, dibs *d, const serve_census *census,
                         size_t connections, size_t viewers, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    dibs_stats s;
    bool failed;

    if (!f)
        return NULL;
    dibs_stats_read(d, &s, sizeof s);
    family(f, "dibs_build_info", "gauge", "Version of dibs, and the engine.");
    fprintf(f, "dibs_build_info{version=\"%s\",engine=\"%s\"} 1\n", dibs_version(),
            dibs_engine_name(d));
    one(f, "process_start_time_seconds", "gauge", "Unix time when the server was started.",
        (uint64_t)m->started);
    write_census(f, census);
    write_locks(f, &s);
    write_times(f, &s);
    write_calls(f, m);
    write_http(f, m);
    one(f, "dibs_http_connections", "gauge", "Open HTTP connections.", connections);
    one(f, "dibs_dashboard_viewers", "gauge", "Open dashboards.", viewers);
    failed = ferror(f);
    if (fclose(f) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
