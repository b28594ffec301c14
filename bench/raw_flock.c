/* Raw limit on one machine: flock(2) of a file that each worker has open. No token, no queue. */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    int *fd = malloc(sizeof *fd);
    char path[4096];

    (void)shared;
    snprintf(path, sizeof path, "%s/%s", plan->folder, key);
    if (fd && (*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) >= 0)
        return fd;
    perror("bench: flock");
    free(fd);
    return NULL;
}

static int acquire(void *arg, const char *key, uint64_t *fence)
{
    (void)key;
    (void)fence;
    return flock(*(int *)arg, LOCK_EX);
}

static int release(void *arg, const char *key)
{
    (void)key;
    return flock(*(int *)arg, LOCK_UN);
}

static void close_client(void *arg)
{
    close(*(int *)arg);
    free(arg);
}

const bench_peer bench_flock = {
    .id = "flock",
    .title = "raw flock",
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .close = close_client,
};
