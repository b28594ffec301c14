/* What nobody asked for, inside somebody's transaction and never much at a time: handing on what
 * the dead held, and dropping locks that have been idle for a day and cells that have ended. */
#include "engines/sqlite/sqlite.h"

#include <string.h>

#define BURY_AT_ONCE   128
#define REAP_AT_ONCE   64
#define UNLIST_AT_ONCE 1024
#define REAP_EVERY     (60 * DIBS__SECOND)
#define REAP_SOON      (20 * DIBS__MS) /* as fast as cells can end: each pass is short */
#define IDLE_FOR       ((uint64_t)24 * 3600 * DIBS__SECOND)

int dibs__lite_settle(dibs__lite *e, dibs__time now, const char *name, dibs__reply *out)
{
    dibs__lite_session s = {.e = e, .name = name, .wants = UINT32_MAX};

    return dibs__state_settle(&dibs__lite_store, &s, now, out);
}

/* One row with a name in column `at`: 1, 0 or -1. */
static int read_name(sqlite3_stmt *q, int at, char out[DIBS_NAME_MAX + 1])
{
    int found = dibs__lite_step(q);
    const void *name = found > 0 ? sqlite3_column_blob(q, at) : NULL;
    int size = found > 0 ? sqlite3_column_bytes(q, at) : 0;

    if (size > DIBS_NAME_MAX)
        size = DIBS_NAME_MAX;
    if (size > 0)
        memcpy(out, name, (size_t)size);
    out[size] = '\0';
    return found;
}

int dibs__lite_rescue(dibs__lite *e, dibs__time now)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_WAITED_FOR);
    char mine[DIBS__WAKE_SIZE], named[DIBS__WAKE_SIZE], name[DIBS_NAME_MAX + 1];
    dibs__reply reply;
    int64_t last = 0;
    int found;

    dibs__lite_mark(e, false, mine);
    dibs__lite_mark(e, true, named);
    for (;;) {
        sqlite3_bind_int64(q, 1, last);
        dibs__lite_bind_text(q, 2, mine);
        dibs__lite_bind_text(q, 3, named);
        found = read_name(q, 1, name);
        if (found <= 0)
            return found;
        last = sqlite3_column_int64(q, 0);
        sqlite3_reset(q);
        if (dibs__lite_settle(e, now, name, &reply) < 0)
            return -1;
    }
}

/* Wherever they stand in the queue, and whatever they run: once their files are gone, nobody could tell that they are dead. */
static int end_waits(dibs__lite *e, const dibs__lite_roll *dead)
{
    sqlite3_stmt *both[] = {dibs__lite_sql(e, DIBS__LITE_SQL_WAITER_DEAD),
                            dibs__lite_sql(e, DIBS__LITE_SQL_CELL_DEAD)};

    for (size_t i = 0; i < dead->count; i++) {
        for (int k = 0; k < 2; k++) {
            dibs__lite_bind_text(both[k], 1, dead->client[i]);
            if (dibs__lite_step(both[k]) < 0)
                return -1;
        }
    }
    return 0;
}

int dibs__lite_bury(dibs__lite *e, dibs__time now, const dibs__lite_job *job)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_BUSY);
    char name[DIBS_NAME_MAX + 1];
    dibs__reply reply;
    int found = 1;

    if (!job->after[0] && end_waits(e, job->dead) < 0)
        return -1;
    strcpy(job->last, job->after);
    for (int i = 0; found > 0 && i < BURY_AT_ONCE; i++) {
        dibs__lite_bind_text(q, 1, job->last);
        found = read_name(q, 0, name);
        if (found > 0)
            sqlite3_reset(q);
        strcpy(job->last, name);
        if (found > 0 && dibs__lite_settle(e, now, name, &reply) < 0)
            return -1;
    }
    return found < 0 ? -1 : 0;
}

/* ---- Reaping --------------------------------------------------------------------------------- */

static int drop(dibs__lite *e, const char *name)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_DROP);

    dibs__lite_bind_text(q, 1, name);
    return dibs__lite_step(q);
}

/* Looks at the lock after `name` and moves on to it. A fence that is a day old is below any that
 * the clock will make; one that is held or waited for may only seem so, and is settled for the next
 * time. */
static int reap_next(dibs__lite *e, dibs__time now, char name[DIBS_NAME_MAX + 1], int *dropped)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_OLD);
    char next[DIBS_NAME_MAX + 1];
    dibs__reply reply;
    uint64_t fence;
    bool busy;
    int found;

    dibs__lite_bind_text(q, 1, name);
    found = read_name(q, 0, next);
    if (found > 0) {
        fence = (uint64_t)sqlite3_column_int64(q, 1);
        busy = sqlite3_column_int64(q, 2) > 0;
        sqlite3_reset(q);
    }
    strcpy(name, next);
    if (found <= 0)
        return found;
    if (fence < e->floor)
        fence = e->floor;
    if ((uint64_t)now.wall <= fence + IDLE_FOR)
        return 1;
    if (busy)
        return dibs__lite_settle(e, now, name, &reply) < 0 ? -1 : 1;
    *dropped += 1;
    return drop(e, name) < 0 ? -1 : 1;
}

/* Takes out of the index what was used often and is idle now. */
static int unlist(dibs__lite *e, dibs__time now)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_UNLIST);

    sqlite3_bind_int64(q, 1, now.wall - DIBS__SECOND);
    sqlite3_bind_int64(q, 2, UNLIST_AT_ONCE);
    return dibs__lite_step(q);
}

/* The time of the next pass is the database's, so that all clients together make one a minute. */
int dibs__lite_reap(dibs__lite *e, dibs__time now)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_META);
    char name[DIBS_NAME_MAX + 1];
    int dropped = 0, found = 1;

    if (read_name(q, 4, name) <= 0)
        return -1;
    e->reap_at = sqlite3_column_int64(q, 3);
    sqlite3_reset(q);
    if (e->reap_at > now.wall && e->reap_at <= now.wall + REAP_EVERY)
        return 0;
    for (int i = 0; found > 0 && i < REAP_AT_ONCE; i++)
        found = reap_next(e, now, name, &dropped);
    if (found < 0 || unlist(e, now) < 0 ||
        dibs__lite_cell_reap(e, dibs__lite_cell_time(e, now), REAP_AT_ONCE, &dropped) < 0)
        return -1;
    e->reap_at = now.wall + (dropped > REAP_AT_ONCE / 2 ? REAP_SOON : REAP_EVERY);
    q = dibs__lite_sql(e, DIBS__LITE_SQL_REAPED);
    sqlite3_bind_int64(q, 1, e->reap_at);
    dibs__lite_bind_text(q, 2, name);
    return dibs__lite_step(q);
}
