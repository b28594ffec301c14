/* A crowd: so many threads of one process that each want one lock once.
 * usage: crowd URL NAME THREADS. Prints "FENCE OWNER" for each as it is served. */
#define _GNU_SOURCE
#include "dibs.h"
#include "support/calls.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static dibs *handle;
static const char *name;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "crowd: %s: %s\n", what, why);
    exit(1);
}

static void *want_once(void *unused)
{
    dibs_error err = {0};
    dibs_grant *g;

    if (dibs_lock(handle, name, NULL, &g, &err) != DIBS_OK)
        fail("lock", err.message);
    printf("%" PRIu64 " %s\n", dibs_grant_fence(g), dibs_grant_owner(g));
    if (unlock(g) != DIBS_OK)
        fail("unlock", "it was not ours any more");
    return unused;
}

int main(int argc, char **argv)
{
    int count = argc == 4 ? atoi(argv[3]) : 0;
    pthread_t *thread = calloc(count > 0 ? (size_t)count : 1, sizeof *thread);
    dibs_error err = {0};

    if (count < 1 || !thread)
        fail("usage", "crowd URL NAME THREADS");
    name = argv[2];
    if (dibs_open(argv[1], NULL, &handle, &err) != DIBS_OK)
        fail("open", err.message);
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread[i], NULL, want_once, NULL) != 0)
            fail("thread", "none to be had");
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    dibs_close(handle);
    free(thread);
    return 0;
}
