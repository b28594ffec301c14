/* Facts about the nodes of Redlock: each is a Redis server, looked at as one; together they must be
 * different servers, on different hosts, with clocks that agree. The checks are in src/doctor/redlock.c. */
#define _GNU_SOURCE
#include "engines/redis/examine.h"
#include "core/error.h"
#include "doctor/facts.h"
#include "engines/redlock/redlock.h"

#include <string.h>

/* The first two nodes of which the fact is the same. */
static void add_same(dibs__facts *out, dibs__facts *const node[], size_t count, const char *fact,
                     const char *name)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++) {
            const char *a = dibs__fact_text(node[i], fact, NULL);
            const char *b = dibs__fact_text(node[k], fact, NULL);
            if (a && b && *a && strcmp(a, b) == 0) {
                dibs__fact_add(out, name, "%s and %s", node[i]->label, node[k]->label);
                return;
            }
        }
}

/* `f`: a part of `all`, or `all` itself where there was no memory for a part. */
static void look_at_node(const dibs__voter *n, const dibs__voters *v, dibs__deadline until,
                         const dibs__facts *all, dibs__facts *f)
{
    dibs_error why = {0};

    dibs__fact_number(f, "lease_ms", dibs__fact_value(all, "lease_ms", 0));
    dibs__fact_flag(f, "guarded", !v->vouched);
    dibs__fact_flag(f, "guarded_server", false); /* its replicas are no part of the scheme */
    dibs__fact_flag(f, "by_sentinel", false);
    dibs__fact_flag(f, "by_cluster", false);
    if (dibs__redis_examine_server(&n->address, v->prefix, until, f, &why) != DIBS_OK)
        dibs__fact_add(f, "down", "%s", why.message);
}

/* Those that answer; the slowest of them is what a lock waits for. */
static size_t count_answers(dibs__facts *out, dibs__facts *const node[], size_t count)
{
    size_t up = 0;

    for (size_t i = 0; i < count; i++) {
        if (dibs__fact_find(node[i], "down"))
            continue;
        up++;
        if (node[i]->latency.p99_us >= out->latency.p99_us)
            out->latency = node[i]->latency;
    }
    return up;
}

dibs_status dibs__redlock_examine_nodes(const dibs__voters *v, dibs__deadline until,
                                        dibs__facts *out, dibs_error *err)
{
    dibs__facts *node[DIBS__VOTERS_MAX];
    int64_t share = (until - dibs__now(v->env)) / (int64_t)v->count;
    size_t up;

    for (size_t i = 0; i < v->count; i++) {
        node[i] = dibs__facts_part(out, "redlock node", "%s", v->voter[i].address.text);
        look_at_node(&v->voter[i], v, dibs__after(v->env, share), out, node[i]);
    }
    up = count_answers(out, node, v->count);
    if (up == 0)
        return dibs__fail(err, DIBS_UNAVAILABLE, "redlock: none of %zu nodes answers: %s", v->count,
                          dibs__fact_text(node[0], "down", "?"));
    dibs__fact_number(out, "nodes", (int64_t)v->count);
    dibs__fact_flag(out, "even", v->count % 2 == 0);
    dibs__fact_number(out, "majority", (int64_t)v->majority);
    dibs__fact_number(out, "up", (int64_t)up);
    dibs__fact_flag(out, "enough", up >= v->majority);
    dibs__fact_flag(out, "guarded", !v->vouched);
    dibs__fact_add(out, "node_limit", "%.2f ms", (double)v->limit / 1000);
    dibs__fact_flag(out, "slow_nodes", out->latency.p99_us > v->limit);
    add_same(out, node, v->count, "run", "same_server");
    add_same(out, node, v->count, "peer", "same_host");
    return DIBS_OK;
}
