/* dibs_examine: the engine collects facts, this adds those of our own machine, judge.c says what they
 * mean. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "doctor/facts.h"
#include "doctor/judge.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/timex.h>

static void ignore_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    (void)sink;
    (void)attempt;
    (void)fence;
    (void)floor;
}

static void ignore_look(dibs__sink *sink, const char *attempt)
{
    (void)sink;
    (void)attempt;
}

static void ignore_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void ignore_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
{
    (void)sink;
    (void)level;
    (void)format;
}

/* The kernel's own word: NTP daemons tell it when they have set the clock. */
static void add_local_clock(dibs__facts *f)
{
    struct timex t = {0};
    int state = adjtimex(&t);

    if (state < 0)
        dibs__fact_unseen(f, "clock_synchronised", "adjtimex: %s", strerror(errno));
    else
        dibs__fact_flag(f, "clock_synchronised", state != TIME_ERROR && !(t.status & STA_UNSYNC));
}

/* How much of the lease one slow round trip takes. */
static void add_latency(dibs__facts *f, int64_t lease)
{
    dibs_latency *l = &f->latency;

    l->lease_ms = lease / DIBS__MS;
    if (l->exchanges == 0) {
        dibs__fact_unseen(f, "latency", "no round trip was completed");
        return;
    }
    dibs__fact_add(f, "p50", "%.2f ms", (double)l->p50_us / 1000);
    dibs__fact_add(f, "p99", "%.2f ms", (double)l->p99_us / 1000);
    dibs__fact_add(f, "lease", "%lld ms", (long long)l->lease_ms);
    dibs__fact_number(f, "exchanges", (int64_t)l->exchanges);
    dibs__fact_number(f, "latency", l->p99_us * 100 / lease);
}

static dibs_status examine(const dibs__open_request *request, const dibs__engine_class *class,
                           int64_t lease, dibs_findings **out, dibs_error *err)
{
    dibs__facts facts = {.checks = class->scheme};
    dibs_status status;

    dibs__fact_number(&facts, "lease_ms", lease / DIBS__MS);
    status = class->examine(request, &facts, err);
    if (status == DIBS_OK) {
        add_local_clock(&facts);
        add_latency(&facts, dibs__fact_value(&facts, "lease_ms", 0) * DIBS__MS);
        *out = dibs__judge(&facts, class->scheme);
        if (!*out)
            status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    dibs__facts_fini(&facts);
    return status;
}

static void ignore_changed(dibs__sink *sink, uint64_t cell)
{
    (void)sink, (void)cell;
}

static void ignore_again(dibs__sink *sink, unsigned at)
{
    (void)sink, (void)at;
}

static bool nobody_waits(dibs__sink *sink)
{
    (void)sink;
    return false;
}

static dibs_status check_options(const dibs_options *o, dibs_error *err)
{
    dibs_status status = DIBS__CHECK_RESERVED(o, err);

    if (status == DIBS_OK)
        status = dibs__check_ms("connect_ms", o->connect_ms, 1, DIBS__MAX_MS, 0, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("request_ms", o->request_ms, 1, DIBS__MAX_MS, 0, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("lease_ms", o->lease_ms, 1, DIBS__MAX_MS, 0, err);
    return status;
}

static void fill_times(dibs__open_request *r, const dibs_options *o)
{
    int64_t span = (o->connect_ms ? o->connect_ms : 5000) * DIBS__MS;

    r->request_span = (o->request_ms ? o->request_ms : 5000) * DIBS__MS;
    r->lease = o->lease_ms * DIBS__MS;
    r->until = dibs__after(r->env, span);
}

dibs_status dibs__do_examine(const char *text, const dibs_options *options, dibs_findings **out,
                             dibs_error *err)
{
    static const dibs_options defaults;
    const dibs_options *o = options ? options : &defaults;
    dibs__sink sink = {ignore_granted, ignore_look,  ignore_changed,
                       ignore_again,   nobody_waits, ignore_log};
    const dibs__engine_class *class = NULL;
    dibs__url url = {0};
    dibs__open_request request = {
        .url = &url, .env = &dibs__env_system, .sink = &sink, .handle_id = "d0c7000000000000"};
    dibs_status status = check_options(o, err);

    *out = NULL;
    if (status == DIBS_OK)
        status = dibs__url_begin(&url, text, &class, err);
    if (status == DIBS_OK && !class->examine)
        status =
            dibs__fail(err, DIBS_UNSUPPORTED, "%s: there is no server to check", class->scheme);
    if (status == DIBS_OK) {
        dibs__url_take(&url, "fence_above"); /* no danger depends on it */
        fill_times(&request, o);
        status =
            examine(&request, class, request.lease ? request.lease : DIBS__DEFAULT_LEASE, out, err);
    }
    dibs__url_fini(&url);
    return status;
}
