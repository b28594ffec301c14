#define _GNU_SOURCE
#include "inherited.h"

#include <dirent.h>
#include <linux/close_range.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define FIRST 3 /* after the standard ones */

static struct {
    int *fd; /* sorted */
    size_t count;
    bool known;
} inherited;

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static bool add(int fd)
{
    int *larger = realloc(inherited.fd, (inherited.count + 1) * sizeof *larger);

    if (!larger)
        return false;
    inherited.fd = larger;
    inherited.fd[inherited.count++] = fd;
    return true;
}

void cli_inherited_note(void)
{
    DIR *dir = opendir("/proc/self/fd");

    inherited.known = dir != NULL;
    for (struct dirent *e; inherited.known && (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (fd >= FIRST && fd != dirfd(dir))
            inherited.known = add(fd);
    }
    if (dir)
        closedir(dir);
    if (inherited.count > 1)
        qsort(inherited.fd, inherited.count, sizeof inherited.fd[0], by_number);
}

/* Kernels before 5.11 do not know the flag: there each descriptor's own must do. */
void cli_inherited_only(void)
{
    unsigned from = FIRST;

    for (size_t i = 0; inherited.known && i < inherited.count; i++) {
        unsigned fd = (unsigned)inherited.fd[i];
        if (fd > from)
            close_range(from, fd - 1, CLOSE_RANGE_CLOEXEC);
        from = fd + 1;
    }
    if (inherited.known)
        close_range(from, ~0U, CLOSE_RANGE_CLOEXEC);
}
