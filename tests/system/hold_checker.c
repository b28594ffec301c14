/* Threads that take locks and write down how long they believed to hold each, whatever the server does meanwhile.
 *
 * usage: hold_checker URL LOCKS THREADS ROUNDS HOLD_MS LEASE_MS
 *
 * Thread i takes the lock "crash:(i % LOCKS)" ROUNDS times and keeps it for HOLD_MS, or until it is told that the
 * lock is lost. Each time is a line "LOCK FENCE START END OUTCOME": microseconds of CLOCK_BOOTTIME, END being
 * the last moment in which dibs_grant_held said yes; OUTCOME is kept or lost. A server that is down is asked again. */
#define _GNU_SOURCE
#include "dibs.h"
#include "support/calls.h"
#include "support/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GIVE_UP_MS 90000

static dibs *handle;
static int locks, rounds;
static int64_t hold_ms, lease_ms;

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static dibs_grant *insist(const char *name)
{
    int64_t end = clock_ms() + GIVE_UP_MS;
    dibs_lock_options options = {.lease_ms = lease_ms};
    dibs_error err = {0};
    dibs_grant *g = NULL;

    for (;;) {
        dibs_status status = dibs_lock(handle, name, &options, &g, &err);
        if (status == DIBS_OK)
            return g;
        if ((status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN) || clock_ms() > end) {
            fprintf(stderr, "hold_checker: %s: %s\n", name, err.message);
            exit(1);
        }
        sleep_ms(20);
    }
}

static void believe(const char *name)
{
    dibs_grant *g = insist(name);
    int64_t start = now_us(), last = start, asked = start;
    bool held = true;

    while (held && asked < start + hold_ms * 1000) {
        sleep_ms(1);
        asked = now_us();
        held = dibs_grant_held(g);
        last = held ? asked : last;
    }
    printf("%s %" PRIu64 " %" PRId64 " %" PRId64 " %s\n", name, dibs_grant_fence(g), start, last,
           held ? "kept" : "lost");
    fflush(stdout);
    unlock(g); /* whatever became of it: the log has been written */
}

static void *run(void *arg)
{
    char name[32];

    snprintf(name, sizeof name, "crash:%d", (int)(intptr_t)arg % locks);
    for (int i = 0; i < rounds; i++)
        believe(name);
    return NULL;
}

static int usage(void)
{
    fprintf(stderr, "usage: hold_checker URL LOCKS THREADS ROUNDS HOLD_MS LEASE_MS\n");
    return 64;
}

int main(int argc, char **argv)
{
    int count = argc == 7 ? atoi(argv[3]) : 0;
    pthread_t *threads = count > 0 ? calloc((size_t)count, sizeof *threads) : NULL;
    dibs_error err = {0};

    if (!threads)
        return usage();
    locks = atoi(argv[2]);
    rounds = atoi(argv[4]);
    hold_ms = atoi(argv[5]);
    lease_ms = atoi(argv[6]);
    if (locks < 1 || dibs_open(argv[1], NULL, &handle, &err) != DIBS_OK) {
        fprintf(stderr, "hold_checker: %s\n", err.message);
        return 1;
    }
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i) != 0)
            return 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    dibs_close(handle);
    free(threads);
    return 0;
}
