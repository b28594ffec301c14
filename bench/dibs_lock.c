/* dibs as the benchmark uses it: one handle for all workers, each worker its own owner by its
 * thread. */
#include "bench.h"

#include <dibs.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct client {
    dibs *handle;
    dibs_grant *grant;
} client;

static void *open_handle(const bench_plan *plan)
{
    dibs *d = NULL;
    dibs_error err = {0};

    if (dibs_open(plan->url, NULL, &d, &err) == DIBS_OK)
        return d;
    fprintf(stderr, "bench: %s\n", err.message);
    return NULL;
}

static void close_handle(void *shared)
{
    dibs_close(shared);
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);

    (void)plan;
    (void)key;
    if (c)
        c->handle = shared;
    return c;
}

static int acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    dibs_error err = {0};

    if (dibs_lock(c->handle, key, NULL, &c->grant, &err) != DIBS_OK) {
        fprintf(stderr, "bench: %s\n", err.message);
        return -1;
    }
    *fence = dibs_grant_fence(c->grant);
    return 0;
}

static int release(void *arg, const char *key)
{
    client *c = arg;

    (void)key;
    return dibs_unlock(&c->grant, NULL) == DIBS_OK ? 0 : -1;
}

static void close_client(void *arg)
{
    free(arg);
}

const bench_peer bench_dibs = {
    .id = "dibs",
    .title = "dibs",
    .setup = open_handle,
    .teardown = close_handle,
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .close = close_client,
};
