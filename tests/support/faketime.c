#define _GNU_SOURCE
#include "support/faketime.h"

#include "support/server.h"
#include "support/test.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static char library[256];

static void find_library(void)
{
    static const char *const places[] = {"/usr/lib/*/faketime/libfaketimeMT.so.1",
                                         "/usr/lib/faketime/libfaketimeMT.so.1",
                                         "/usr/local/lib/faketime/libfaketimeMT.so.1"};

    for (size_t i = 0; i < 3 && !library[0]; i++) {
        glob_t g;
        if (glob(places[i], 0, NULL, &g) == 0)
            snprintf(library, sizeof library, "%s", g.gl_pathv[0]);
        globfree(&g);
    }
}

void faketime_need(void)
{
    find_library();
    if (library[0])
        return;
    if (server_required())
        fail_msg("libfaketime is not installed, and is required here");
    skip();
}

static const char *file_of(const database *d)
{
    static char path[SCRATCH_MAX + 32];

    return scratch_file(&d->folder, "faketime", path, sizeof path);
}

/* In one step: the server may look at any time. */
void faketime_set(const database *d, int64_t ahead)
{
    char next[SCRATCH_MAX + 32];
    FILE *f = fopen(scratch_file(&d->folder, "faketime.new", next, sizeof next), "w");

    assert_non_null(f);
    fprintf(f, "%+lld\n", (long long)ahead);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(next, file_of(d)), 0);
}

void faketime_begin(database *d, int64_t ahead, const char *zone)
{
    faketime_set(d, ahead);
    database_end(d, SIGTERM);
    setenv("FAKETIME_TIMESTAMP_FILE", file_of(d), 1);
    setenv("FAKETIME_NO_CACHE", "1", 1);
    setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
    if (zone)
        setenv("TZ", zone, 1);
    setenv("LD_PRELOAD", library, 1);
    assert_int_equal(database_restart(d), 0);
    unsetenv("LD_PRELOAD");
    unsetenv("TZ");
    unsetenv("FAKETIME_TIMESTAMP_FILE");
    unsetenv("FAKETIME_NO_CACHE");
    unsetenv("FAKETIME_DONT_FAKE_MONOTONIC");
}

void faketime_end(database *d)
{
    database_end(d, SIGTERM);
    assert_int_equal(database_restart(d), 0);
}

int64_t faketime_until(int64_t when)
{
    return when - (int64_t)time(NULL);
}
