#define _GNU_SOURCE
#include "support/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int scratch_make(scratch *s)
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(s->path, sizeof s->path, "%s/dibs-test-XXXXXX", base && *base ? base : "/tmp");

    if (n < 0 || (size_t)n >= sizeof s->path || !mkdtemp(s->path)) {
        s->path[0] = '\0';
        return -1;
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* A server that is still ending may add a file while we walk: a second look gets it. */
void scratch_remove(scratch *s)
{
    for (int i = 0; i < 3 && s->path[0]; i++)
        if (nftw(s->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0)
            break;
    s->path[0] = '\0';
}

char *scratch_file(const scratch *s, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", s->path, name);
    return out;
}
