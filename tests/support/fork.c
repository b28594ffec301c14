#define _GNU_SOURCE
#include "support/fork.h"

#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define AT_REST 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define AT_REST 1
#endif
#endif

#ifndef AT_REST

pid_t fork_at_rest(void)
{
    return fork();
}

#else

#include "support/clock.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REST_MS 5000

/* A thread that holds such a lock does not sleep. */
static bool sleeps(const char *thread)
{
    char path[64], line[256] = "";
    const char *name_end;
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
    f = fopen(path, "r");
    if (!f)
        return true; /* it has ended */
    if (!fgets(line, sizeof line, f))
        line[0] = '\0';
    fclose(f);
    name_end = strrchr(line, ')');
    return name_end && strncmp(name_end, ") S", 3) == 0;
}

static bool others_sleep(void *unused)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *e;
    bool all = threads != NULL;

    (void)unused;
    while (all && (e = readdir(threads)))
        all = e->d_name[0] == '.' || atoi(e->d_name) == gettid() || sleeps(e->d_name);
    if (threads)
        closedir(threads);
    return all;
}

pid_t fork_at_rest(void)
{
    wait_until(others_sleep, NULL, REST_MS);
    return fork();
}

#endif
