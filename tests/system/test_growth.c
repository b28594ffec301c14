/* Nothing grows: memory, descriptors and threads of a client, keys, rows, sessions, watches and connections of
 * its servers, after many cycles of work and many connections that were cut. Compared with what there was after a
 * first share of the same work.
 *
 *     test_growth ENGINE [CYCLES [RECONNECTS]]     2,000 and 50 without; ./dev soak: 100,000 and 1,000 */
#define _GNU_SOURCE
#include "growth/census.h"
#include "growth/work.h"
#include "support/calls.h"
#include "support/clock.h"
#include "support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_MS 4000
#define SETTLE_MS \
    15000 /* for what has ended to be removed; after 100,000 cycles longer than a minute, \
                            the time between two looks for it */
#define SAME_MS 2000

/* How much more may be there than after the warm-up. Memory: caches and arenas of client libraries, and the tables
 * of the engine in memory, which stay as large as they were; a leak of 32 bytes per cycle would be 3 MiB. Connections and their descriptors: the pool of two handles is as large as the
 * number of threads that happened to meet. Threads: each of the two has up to four workers, started when they are
 * needed. Keys: a part of a batch that was not worth a pass. */
static const int64_t bounds[FIGURES] = {
    [FIGURE_RSS] = 4096, [FIGURE_HEAP] = 1024, [FIGURE_DESCRIPTORS] = 16, [FIGURE_CONNECTIONS] = 8,
    [FIGURE_KEYS] = 150, [FIGURE_WATCHES] = 2, [FIGURE_THREADS] = 6,
};

static scratch_store here;
static long cycles = 2000, reconnects = 50;

typedef struct bench {
    proxy *proxies[REDLOCK_NODES];
    int proxy_count;
    char url[512]; /* through the proxies */
    work direct, proxied;
} bench;

/* ---- Figures ---------------------------------------------------------------------------------- */

static bool grew(const census *before, const census *after, figure f)
{
    return after->value[f] - before->value[f] > bounds[f];
}

static bool anything_grew(const census *before, const census *after)
{
    for (figure f = 0; f < FIGURES; f++)
        if (after->value[f] != FIGURE_NONE && grew(before, after, f))
            return true;
    return false;
}

/* What has ended is removed in the background, from the memory of this process where that is the store: the count
 * that stays is the one that counts. */
static int64_t settle(const work *w, const census *before, census *after)
{
    int64_t start = clock_ms(), span = cycles < 20000 ? SETTLE_MS : 6 * SETTLE_MS;

    sleep_ms(KEEP_MS);
    assert_true(census_hasten(&here));
    for (;;) {
        work_idle(w);
        assert_true(census_take(&here, after));
        if (!anything_grew(before, after) || clock_ms() - start > KEEP_MS + span)
            return clock_ms() - start;
        sleep_ms(100);
    }
}

/* The same without anything to compare with: until no more keys go. */
static void settle_first(const work *w, census *out)
{
    int64_t start = clock_ms(), since = start, least = INT64_MAX;

    while (clock_ms() - since < SAME_MS && clock_ms() - start < SETTLE_MS) {
        work_idle(w);
        assert_true(census_take(&here, out));
        if (out->value[FIGURE_KEYS] < least) {
            least = out->value[FIGURE_KEYS];
            since = clock_ms();
        }
        sleep_ms(100);
    }
}

static int print_table(const char *what, const census *before, const census *after)
{
    int wrong = 0;

    for (figure f = 0; f < FIGURES; f++) {
        if (after->value[f] == FIGURE_NONE)
            continue;
        print_message("# %-10s %-10s %-11s %10" PRId64 " %10" PRId64 " %+8" PRId64
                      "  at most +%" PRId64 "%s\n",
                      here.engine, what, figure_names[f], before->value[f], after->value[f],
                      after->value[f] - before->value[f], bounds[f],
                      grew(before, after, f) ? "  GREW" : "");
        wrong += grew(before, after, f);
    }
    return wrong;
}

/* ---- Work ------------------------------------------------------------------------------------- */

static void start(bench *b)
{
    int ports[REDLOCK_NODES];
    dibs_options options = {.request_ms = 10000};

    memset(b, 0, sizeof *b);
    b->proxy_count = scratch_store_ports(&here, ports);
    for (int i = 0; i < b->proxy_count; i++) {
        b->proxies[i] = proxy_start(ports[i]);
        assert_non_null(b->proxies[i]);
        ports[i] = proxy_port(b->proxies[i]);
    }
    scratch_store_url(&here, ports, b->url, sizeof b->url);
    b->direct =
        (work){.d = expect_open(here.url, &options), .url = here.url, .cells = here.can.cells};
    b->direct.in_passing = !here.can.across_processes;
    b->proxied = (work){.d = expect_open(b->url, &options), .url = b->url, .cells = here.can.cells};
}

static void stop(bench *b)
{
    dibs_close(b->direct.d);
    dibs_close(b->proxied.d);
    for (int i = 0; i < b->proxy_count; i++)
        proxy_stop(b->proxies[i]);
}

static void cycle_for(bench *b, long count)
{
    long failed;

    b->direct.cycles = count;
    failed = work_run(&b->direct);
    if (failed > count / 1000) /* fewer: the machine had no time for them */
        fail_msg("%s: %ld of %ld cycles failed", here.engine, failed, count);
}

/* An engine without a network has nothing to cut. */
static void cut_for(bench *b, long count)
{
    int64_t longest;

    if (b->proxy_count == 0)
        return;
    longest = work_reconnect(&b->proxied, b->proxies, b->proxy_count, count);
    if (longest < 0)
        fail_msg("%s: the handle did not work again within ten seconds", here.engine);
    print_message("# %s: %ld times cut off, at most %" PRId64 " ms until it worked again\n",
                  here.engine, count, longest);
}

static void warm_up(bench *b, census *out)
{
    cycle_for(b, cycles / 10 + 400);
    cut_for(b, reconnects / 10 + 5);
    sleep_ms(KEEP_MS);
    assert_true(census_hasten(&here));
    settle_first(&b->direct, out);
}

static void nothing_grows(void **state)
{
    census before, after;
    int64_t began, settled;
    int wrong;
    bench b;

    (void)state;
    start(&b);
    warm_up(&b, &before);
    began = clock_ms();
    cycle_for(&b, cycles);
    print_message("# %s: %ld cycles in %.1f s\n", here.engine, cycles,
                  (double)(clock_ms() - began) / 1e3);
    cut_for(&b, reconnects);
    settled = settle(&b.direct, &before, &after);
    wrong = print_table("after work", &before, &after);
    print_message("# %s: settled after %.1f s\n", here.engine, (double)settled / 1e3);
    stop(&b);
    if (wrong)
        fail_msg("%s: %d figures grew", here.engine, wrong);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_grows)};
    int code;

    cycles = argc > 2 ? atol(argv[2]) : cycles;
    reconnects = argc > 3 ? atol(argv[3]) : reconnects;
    if (argc < 2 || argc > 4 || cycles < 1 || reconnects < 1) {
        fprintf(stderr, "usage: test_growth ENGINE [CYCLES [RECONNECTS]]\n");
        return 64;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (scratch_store_for_main(&here, argv[1], SESSION_MS, &code))
        code = _cmocka_run_group_tests(here.engine, tests, 1, NULL, NULL) != 0;
    scratch_store_remove(&here);
    return code;
}
