/* dibs-bench: one peer, one scenario, one line of JSON. `run.py` beside it drives the whole
 * comparison. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_peer *const peers[] = {
    &bench_dibs,        &bench_dibs_once,     &bench_dibs_counter,   &bench_dibs_token,
    &bench_flock,       &bench_redis_set,     &bench_redis_blpop,    &bench_redis_blpop_lua,
    &bench_redlock_set, &bench_sqlite_row,    &bench_pg_row,         &bench_pg_advisory,
    &bench_mysql_row,   &bench_mysql_getlock, &bench_zookeeper_node, &bench_zookeeper_queue,
    &bench_etcd_put,    &bench_etcd_lock,
};

static int usage(void)
{
    fputs("usage: dibs-bench SCENARIO PEER [key=value]...\n"
          "scenarios: a b c d f wait hold idle\n"
          "peers:    ",
          stderr);
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++)
        fprintf(stderr, " %s", peers[i]->id);
    fputs("\nkeys:      url shape folder port ports sql_port node_port stock_port workers rounds "
          "count "
          "seconds steps\n",
          stderr);
    return 64;
}

/* A number that is at least `least`, or -1. */
static long whole(const char *text, long least)
{
    char *end;
    long value = strtol(text, &end, 10);

    return *text && !*end && value >= least && value <= 10000000 ? value : -1;
}

static bool set_number(bench_plan *plan, const char *key, const char *value)
{
    const struct {
        const char *key;
        int *to;
    } numbers[] = {
        {"port", &plan->port},           {"sql_port", &plan->sql_port},
        {"node_port", &plan->node_port}, {"stock_port", &plan->stock_port},
        {"workers", &plan->workers},     {"rounds", &plan->rounds},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(key, numbers[i].key) == 0) {
            *numbers[i].to = (int)whole(value, 1);
            return *numbers[i].to > 0;
        }
    if (strcmp(key, "count") == 0) {
        plan->count = whole(value, 1);
        return plan->count > 0;
    }
    if (strcmp(key, "seconds") == 0) {
        plan->seconds = strtod(value, NULL);
        return plan->seconds > 0;
    }
    return false;
}

static bool set(bench_plan *plan, char *pair)
{
    char *value = strchr(pair, '=');

    if (!value)
        return false;
    *value++ = '\0';
    if (strcmp(pair, "url") == 0)
        plan->url = value;
    else if (strcmp(pair, "ports") == 0)
        plan->ports = value;
    else if (strcmp(pair, "folder") == 0)
        plan->folder = value;
    else if (strcmp(pair, "shape") == 0)
        return (plan->each = strcmp(value, "each") == 0) || strcmp(value, "shared") == 0;
    else if (strcmp(pair, "steps") == 0)
        bench_steps = strcmp(value, "1") == 0;
    else
        return set_number(plan, pair, value);
    return true;
}

static int run(const bench_plan *plan)
{
    if (strcmp(plan->scenario, "wait") == 0)
        return bench_wait(plan);
    if (strcmp(plan->scenario, "hold") == 0)
        return bench_hold(plan);
    if (strcmp(plan->scenario, "idle") == 0)
        return bench_idle(plan);
    if (strlen(plan->scenario) != 1 || !strchr("abcdf", plan->scenario[0]))
        return usage();
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++)
        if (strcmp(peers[i]->id, plan->peer) == 0)
            return bench_workers(peers[i], plan);
    return usage();
}

int main(int argc, char **argv)
{
    bench_plan plan = {
        .url = "memory:", .folder = ".", .workers = 1, .rounds = 100, .count = 1, .seconds = 2};

    if (argc < 3)
        return usage();
    plan.scenario = argv[1];
    plan.peer = argv[2];
    for (int i = 3; i < argc; i++)
        if (!set(&plan, argv[i])) {
            fprintf(stderr, "dibs-bench: not understood: %s\n", argv[i]);
            return usage();
        }
    return run(&plan);
}
