/* Sequence numbers that are used up: a server whose log says that a lock has had almost 2^30, or 2^31,
 * entries. The log is changed while the server is down; it reads it when it starts. */
#define _GNU_SOURCE
#define THREADED
#include "cases.h"
#include "engines/entries/kit.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_MAX ((size_t)8 << 20)
#define WAITERS 10

/* ---- The server's log ------------------------------------------------------------------------ */

static uint32_t get32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put32(unsigned char *at, uint32_t n)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(n >> (24 - 8 * i));
}

static uint32_t adler32(const unsigned char *at, size_t size)
{
    uint32_t a = 1, b = 0;

    for (size_t i = 0; i < size; i++) {
        a = (a + at[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

/* Where a record that made a node below `parent` says how many its parent has had; NULL: it made none.
 * Header: client 8, cxid 4, zxid 8, time 8, type 4; then path, data, ACL, ephemeral 1, count 4. */
static unsigned char *count_in(unsigned char *at, size_t size, const char *parent)
{
    uint32_t type = get32(at + 28), length = get32(at + 32), entries;
    unsigned char *p = at + 36;

    if (size < 60 || (type != 1 && type != 15) || length <= strlen(parent) ||
        memcmp(p, parent, strlen(parent)) != 0)
        return NULL;
    p += length;
    length = get32(p);
    p += 4 + (length == UINT32_MAX ? 0 : length);
    entries = get32(p);
    p += 4;
    for (; entries > 0; entries--) {
        p += 4;
        p += 4 + get32(p);
        p += 4 + get32(p);
    }
    return p + 1;
}

/* How many records were changed. Each: checksum 8, size 4, record, 'B'. */
static int change_log(unsigned char *log, size_t size, const char *parent, uint32_t count)
{
    int changed = 0;

    for (size_t at = 16; at + 12 < size && get32(log + at + 8) > 0;) {
        unsigned char *record = log + at + 12, *field;
        uint32_t length = get32(log + at + 8);
        assert_true(at + 12 + length < size);
        field = count_in(record, length, parent);
        if (field) {
            put32(field, count);
            put32(log + at, 0);
            put32(log + at + 4, adler32(record, length));
            changed++;
        }
        at += 12 + length + 1;
    }
    return changed;
}

static int change_file(const char *path, const char *parent, uint32_t count)
{
    unsigned char *log = malloc(LOG_MAX);
    FILE *f = fopen(path, "r+");
    int changed;
    size_t size;

    assert_true(f && log);
    size = fread(log, 1, LOG_MAX, f);
    changed = change_log(log, size, parent, count);
    rewind(f);
    assert_int_equal(fwrite(log, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(log);
    return changed;
}

/* The lock in that folder has had so many entries. */
static void age(ensemble *e, const char *parent, uint32_t count)
{
    char folder[SCRATCH_MAX + 64], path[SCRATCH_MAX + 384];
    int changed = 0;
    DIR *dir;

    ensemble_end(e, 0, SIGKILL);
    snprintf(folder, sizeof folder, "%s/1/version-2", e->folder.path);
    dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));)
        if (strncmp(d->d_name, "log.", 4) == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
            changed += change_file(path, parent, count);
        }
    closedir(dir);
    assert_true(changed > 0);
    assert_int_equal(ensemble_restart(e, 0), 0);
}

/* ---- The queue ------------------------------------------------------------------------------- */

static int done_jobs(job *const j[])
{
    int n = 0;

    for (int i = 0; i < WAITERS; i++)
        n += atomic_load(&j[i]->done);
    return n;
}

/* The one that was granted last. */
static job *newest(job *const j[])
{
    job *best = NULL;

    for (int i = 0; i < WAITERS; i++)
        if (atomic_load(&j[i]->done) && (!best || j[i]->fence > best->fence))
            best = j[i];
    return best;
}

/* Half of them come one after the other, half together: only then does the server turn negative. */
static void pass_along(ensemble *e, const char *name)
{
    dibs *d[3] = {open_url(url_lasting(e->hosts)), open_url(url_lasting(e->hosts)),
                  open_url(url_lasting(e->hosts))};
    dibs_grant *g = take(d[0], name, NULL);
    uint64_t fence = dibs_grant_fence(g);
    job *j[WAITERS];

    for (int i = 0; i < WAITERS; i++) {
        j[i] = job_start(d[i % 3], name, NULL);
        if (i < WAITERS / 2)
            wait_for_queue(d[0], name, 1, (size_t)i + 1);
    }
    wait_for_queue(d[0], name, 1, WAITERS);
    for (int i = 0; i < WAITERS; i++) {
        job *next;
        assert_int_equal(done_jobs(j), i);
        assert_status(unlock(g), DIBS_OK);
        wait_for_queue(d[0], name, 1, (size_t)(WAITERS - 1 - i));
        while (done_jobs(j) <= i)
            sleep_ms(1);
        assert_int_equal(done_jobs(j), i + 1);
        next = newest(j);
        job_join_held(next);
        assert_true(next->fence > fence);
        if (i < WAITERS / 2)
            assert_ptr_equal(next, j[i]);
        fence = next->fence;
        g = next->g;
    }
    assert_status(unlock(g), DIBS_OK);
    close_all(NULL);
}

static void start_aged(ensemble *e, const char *name, const char *parent, uint32_t count)
{
    dibs *d;

    need_server();
    ensemble_need(e, ENSEMBLE_ZOOKEEPER, 1, NULL);
    d = open_url(url_lasting(e->hosts));
    assert_status(unlock(take(d, name, NULL)), DIBS_OK);
    close_all(NULL);
    age(e, parent, count);
}

void order_outlives_sequence_numbers(void **state)
{
    static const uint32_t counts[] = {(1u << 30) - 5, (1u << 31) - 4};
    ensemble e;

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        start_aged(&e, "aged", "/tests/aged/", counts[i]);
        pass_along(&e, "aged");
        pass_along(&e, "aged");
        ensemble_stop(&e);
    }
}

/* What was given back before its min_hold is over blocks those that came before that, too. */
void what_lingers_stays_in_its_place(void **state)
{
    ensemble e;
    dibs *a, *b;
    dibs_grant *g;
    int64_t start;
    job *j;

    (void)state;
    start_aged(&e, "aged", "/tests/aged/", (1u << 31) - 4);
    a = open_url(url_lasting(e.hosts));
    b = open_url(url_lasting(e.hosts));
    for (int i = 0; i < 5; i++)
        assert_status(unlock(take(a, "aged", NULL)), DIBS_OK);
    start = clock_ms();
    g = take(a, "aged", &(dibs_lock_options){.min_hold_ms = 1500});
    j = job_start(b, "aged", NULL);
    wait_for_queue(a, "aged", 1, 1);
    assert_status(unlock(g), DIBS_OK);
    job_join_held(j);
    assert_true(j->at - start >= 1495);
    assert_status(unlock(j->g), DIBS_OK);
    close_all(NULL);
    ensemble_stop(&e);
}
