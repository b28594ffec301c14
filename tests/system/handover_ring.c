/* A queue that never ends: so many requests, on several handles, want one lock; whoever is served goes to the end of the
 * queue and lets go.
 *
 * usage: handover_ring URL NAME HANDLES WAITERS ROUNDS
 *
 * Says "ready" when all are in the queue behind a holder. A line on stdin starts it; after ROUNDS hand-offs the last one
 * keeps the lock, and "MICROSECONDS-A-HAND-OFF" is said. It ends with its stdin. A fence that does not grow, a request
 * that fails or half a minute in which nobody is served end it with 1. */
#define _GNU_SOURCE
#include "dibs.h"
#include "support/calls.h"
#include "support/clock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define HANDLES_MAX 64

static dibs *handles[HANDLES_MAX];
static int handle_count;
static const char *name;
static long served, rounds;
static uint64_t last_fence;
static dibs_grant *kept; /* by the last one */

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "handover_ring: %s: %s\n", what, why);
    exit(1);
}

static void on_served(void *data, dibs_status status, dibs_grant *g, const dibs_error *err);

static void enter(dibs *d)
{
    dibs_error err = {0};

    if (start_lock(d, name, NULL, on_served, d, NULL, &err) != DIBS_OK)
        fail("enter", err.message);
}

static void on_served(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    if (status != DIBS_OK)
        fail("request", err->message);
    if (dibs_grant_fence(g) <= last_fence)
        fail("fence", "it did not grow");
    last_fence = dibs_grant_fence(g);
    if (++served >= rounds) {
        kept = g;
        return;
    }
    enter(data);
    if (unlock(g) != DIBS_OK)
        fail("unlock", "it was not ours any more");
}

static void serve_once(void)
{
    struct pollfd fds[HANDLES_MAX];

    for (int i = 0; i < handle_count; i++)
        fds[i] = (struct pollfd){.fd = dibs_fd(handles[i]), .events = POLLIN};
    if (poll(fds, (nfds_t)handle_count, 30000) <= 0)
        fail("wait", "nobody was served for 30 s");
    for (int i = 0; i < handle_count; i++)
        if (fds[i].revents)
            take_all(handles[i]);
}

/* Starting a request does not enter yet. */
static void await_all(uint64_t waiters)
{
    uint64_t waiting = 0;

    for (int64_t end = clock_ms() + 30000; waiting < waiters; sleep_ms(1)) {
        waiting = 0;
        for (int i = 0; i < handle_count; i++) {
            dibs_stats s;
            dibs_stats_read(handles[i], &s, sizeof s);
            waiting += s.waiting;
        }
        if (clock_ms() > end)
            fail("enter", "not all are in the queue after 30 s");
    }
}

static void join_queue(const char *url, long waiters)
{
    dibs_error err = {0};
    dibs_grant *first = NULL;
    char line[16];
    int64_t start;

    for (int i = 0; i < handle_count; i++)
        if (dibs_open(url, NULL, &handles[i], &err) != DIBS_OK)
            fail("open", err.message);
    if (dibs_lock(handles[0], name, NULL, &first, &err) != DIBS_OK)
        fail("lock", err.message);
    last_fence = dibs_grant_fence(first);
    for (long i = 0; i < waiters; i++)
        enter(handles[i % handle_count]);
    await_all((uint64_t)waiters);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
    start = clock_ms();
    if (unlock(first) != DIBS_OK)
        fail("unlock", "it was not ours any more");
    while (!kept)
        serve_once();
    printf("%.1f\n", (double)(clock_ms() - start) * 1000 / (double)rounds);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin))
        fail("stdin", "it is not over");
}

int main(int argc, char **argv)
{
    handle_count = argc == 6 ? atoi(argv[3]) : 0;
    if (handle_count < 1 || handle_count > HANDLES_MAX)
        fail("usage", "handover_ring URL NAME HANDLES WAITERS ROUNDS");
    name = argv[2];
    rounds = atol(argv[5]);
    join_queue(argv[1], atol(argv[4]));
    for (int i = 0; i < handle_count; i++)
        dibs_close(handles[i]);
    return 0;
}
