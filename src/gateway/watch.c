/* What an operator sees: the access log, metrics, and whether the gateway serves. No credential is in any of it: of a
 * key there is a hash, of a path the route's pattern. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include "cli/cli.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OPS = 100, STATUSES = 32, BUCKETS = 14 };

static const int64_t bounds_us[BUCKETS] = {500,     1000,    2500,     5000,    10000,
                                           25000,   50000,   100000,   250000,  500000,
                                           1000000, 2500000, 10000000, 60000000};

typedef struct per_route {
    char *path; /* NULL: no route matched */
    uint64_t results[GATE_RESULTS];
    uint64_t bucket[BUCKETS + 1], sum_us, count;
} per_route;

struct gate_metrics {
    per_route *route; /* by pattern: they outlive a configuration */
    size_t count;
    uint64_t engine[OPS][STATUSES];
};

/* ---- Counting -------------------------------------------------------------------------------- */

gate_metrics *gate_metrics_new(void)
{
    return calloc(1, sizeof(gate_metrics));
}

void gate_metrics_free(gate_metrics *m)
{
    for (size_t i = 0; m && i < m->count; i++)
        free(m->route[i].path);
    if (m)
        free(m->route);
    free(m);
}

void gate_metrics_outcome(gate_metrics *m, const dibs_outcome *o)
{
    if ((size_t)o->op < OPS && (size_t)o->err.status < STATUSES)
        m->engine[o->op][o->err.status]++;
}

static per_route *find_route(gate_metrics *m, const char *path)
{
    per_route *more;

    for (size_t i = 0; i < m->count; i++)
        if (path ? m->route[i].path && strcmp(m->route[i].path, path) == 0 : !m->route[i].path)
            return &m->route[i];
    more = realloc(m->route, (m->count + 1) * sizeof *more);
    if (!more)
        return NULL;
    m->route = more;
    more = &m->route[m->count];
    *more = (per_route){.path = path ? strdup(path) : NULL};
    if (path && !more->path)
        return NULL;
    m->count++;
    return more;
}

static void count(const gate_exchange *x, int64_t us)
{
    per_route *r = find_route(x->g->metrics, x->route ? x->route->path : NULL);
    size_t i = 0;

    if (!r)
        return;
    while (i < BUCKETS && us > bounds_us[i])
        i++;
    r->bucket[i]++;
    r->results[x->result]++;
    r->sum_us += (uint64_t)us;
    r->count++;
}

/* ---- The log --------------------------------------------------------------------------------- */

static void write_log(const gate_exchange *x, int64_t us)
{
    char line[768];
    struct timespec t;
    int size;

    if (x->g->log < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    size = snprintf(
        line, sizeof line,
        "{\"at_ms\":%lld,\"method\":\"%s\",\"route\":\"%s\",\"status\":%d,\"outcome\":\"%s\","
        "\"key\":\"%s\",\"ms\":%.3f,\"upstream_ms\":%.3f}\n",
        (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000, x->method, x->route ? x->route->path : "",
        x->status, gate_result_names[x->result], gate_guard_key_hash(x),
        (double)(us - x->upstream_us) / 1000, (double)x->upstream_us / 1000);
    if (size > 0 && (size_t)size < sizeof line && write(x->g->log, line, (size_t)size) < 0)
        return; /* a full disk is no reason to stop serving */
}

void gate_watch_end(const gate_exchange *x)
{
    int64_t us = gate_now_us() - x->began_us;

    count(x, us);
    write_log(x, us);
}

void gate_say(gate *g, const char *format, ...)
{
    char text[1400];
    va_list args;

    (void)g;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_say("%s", text);
}

/* ---- Metrics --------------------------------------------------------------------------------- */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(FILE *f, const char *name, const char *help, size_t value)
{
    family(f, name, "gauge", help);
    fprintf(f, "%s %zu\n", name, value);
}

static void write_requests(FILE *f, const gate_metrics *m)
{
    family(f, "dibs_gateway_requests_total", "counter", "Requests, by route and outcome.");
    for (size_t i = 0; i < m->count; i++)
        for (int k = 0; k < GATE_RESULTS; k++)
            if (m->route[i].results[k])
                fprintf(f, "dibs_gateway_requests_total{route=\"%s\",outcome=\"%s\"} %" PRIu64 "\n",
                        m->route[i].path ? m->route[i].path : "", gate_result_names[k],
                        m->route[i].results[k]);
}

static void write_times(FILE *f, const gate_metrics *m)
{
    static const char name[] = "dibs_gateway_request_seconds";

    family(f, name, "histogram", "Head of the request to the end of its answer.");
    for (size_t i = 0; i < m->count; i++) {
        const per_route *r = &m->route[i];
        const char *path = r->path ? r->path : "";
        uint64_t sum = 0;
        for (size_t k = 0; k < BUCKETS; k++)
            fprintf(f, "%s_bucket{route=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, path,
                    (double)bounds_us[k] / 1e6, sum += r->bucket[k]);
        fprintf(f,
                "%s_bucket{route=\"%s\",le=\"+Inf\"} %" PRIu64 "\n%s_sum{route=\"%s\"} %g\n"
                "%s_count{route=\"%s\"} %" PRIu64 "\n",
                name, path, r->count, name, path, (double)r->sum_us / 1e6, name, path, r->count);
    }
}

static bool is_error(int status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_DENIED ||
           status == DIBS_ENGINE_FAILED;
}

static void write_engine(FILE *f, const gate_metrics *m)
{
    family(f, "dibs_gateway_engine_errors_total", "counter",
           "Requests to the engine without a valid answer, by status.");
    for (int status = 0; status < STATUSES; status++) {
        uint64_t sum = 0;
        for (int op = 0; op < OPS; op++)
            sum += m->engine[op][status];
        if (is_error(status))
            fprintf(f, "dibs_gateway_engine_errors_total{status=\"%s\"} %" PRIu64 "\n",
                    dibs_status_name((dibs_status)status), sum);
    }
}

static void metrics(http_exchange *x)
{
    gate *g = http_context(x);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (f) {
        write_requests(f, g->metrics);
        write_times(f, g->metrics);
        write_engine(f, g->metrics);
        gauge(f, "dibs_gateway_claims", "Claims in progress.", g->claims);
        gauge(f, "dibs_gateway_waits", "Requests that wait for a key.", g->waits);
        gauge(f, "dibs_gateway_connections", "Connections of clients.", g->client_count);
        gauge(f, "dibs_gateway_upstream_connections", "Connections to the application.",
              g->upstreams);
        gauge(f, "dibs_gateway_upstream_queue", "Requests that wait for one of them.", g->waiting);
        fclose(f);
    }
    if (text)
        http_reply_bytes(x, 200, "text/plain; version=0.0.4", text, size);
    else
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "out of memory");
    free(text);
}

/* ---- Health ---------------------------------------------------------------------------------- */

typedef struct asked {
    http_exchange *x;
} asked;

static void healthz(http_exchange *x)
{
    http_reply_json(x, 200, json_pack("{s:b}", "ok", true));
}

static void on_gone(void *data)
{
    ((asked *)data)->x = NULL;
}

/* Any answer of the engine's will do. */
static void on_outcome(void *data, dibs_outcome *o)
{
    asked *a = data;

    if (a->x && !is_error((int)o->err.status))
        http_reply_json(a->x, 200, json_pack("{s:b}", "ok", true));
    else if (a->x)
        http_reply_error_with(a->x, 503, &o->err, NULL);
    dibs_once_report_free(o->once_report);
    free(a);
}

static void readyz(http_exchange *x)
{
    asked *a = calloc(1, sizeof *a);
    dibs_request r = {.op = DIBS_OP_ONCE_INSPECT, .name = "dibs-gateway"};
    dibs_error err = {.status = DIBS_NO_MEMORY};

    if (a) {
        a->x = x;
        http_on_gone(x, on_gone, a);
        if (gate_ask(http_context(x), &r, on_outcome, a, NULL, &err) == DIBS_OK)
            return;
    }
    free(a);
    http_reply_error(x, &err);
}

const http_route gate_admin_routes[] = {
    {.method = "GET", .path = "/healthz", .summary = "The process serves", .handle = healthz},
    {.method = "GET", .path = "/readyz", .summary = "The engine answers", .handle = readyz},
    {.method = "GET",
     .path = "/metrics",
     .verb = HTTP_READ,
     .summary = "For Prometheus",
     .handle = metrics},
    {0},
};
