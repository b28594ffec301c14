/* Cells over SQL: the machine's store for one cell inside one transaction, and what the reaper does.
 *
 * A row has the whole of a cell. What a caller is told about a cell is on the disk before: a done
 * record or a spent token that a power cut took would be done or spent again. Only keep-alives may
 * be lost, because nobody who sent one is alive afterwards.
 *
 * Times are on a clock of their own, the boot's plus `meta.clock`: it goes on over a restart of the
 * machine, and does not jump with the wall clock in between. A row that stands for a process has its
 * client in it; when that is dead, the row says so, however young it is. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <stdlib.h>
#include <string.h>

#define DAY  ((int64_t)24 * 3600 * DIBS__SECOND)
#define DEAD "!" /* instead of a client */

/* The `ctx` of the store. */
typedef struct session {
    dibs__lite *e;
    const char *key;
    const dibs__cell_command *command;
    dibs__cell loaded; /* its data lives until CELL_LOAD is reset */
    char client[DIBS__WAKE_SIZE];
} session;

/* ---- Rows ------------------------------------------------------------------------------------ */

static void read_text(sqlite3_stmt *q, int at, char *out, size_t size)
{
    const void *text = sqlite3_column_blob(q, at);
    size_t n = text ? (size_t)sqlite3_column_bytes(q, at) : 0;

    if (n >= size)
        n = size - 1;
    if (n)
        memcpy(out, text, n);
    out[n] = '\0';
}

static void read_cell(sqlite3_stmt *q, dibs__cell *out, char client[DIBS__WAKE_SIZE])
{
    memset(out, 0, sizeof *out);
    out->version = (uint64_t)sqlite3_column_int64(q, 0);
    out->floor = (uint64_t)sqlite3_column_int64(q, 1);
    out->written = sqlite3_column_int64(q, 2);
    out->expires = sqlite3_column_int64(q, 3);
    out->number = sqlite3_column_int64(q, 4);
    out->counter = sqlite3_column_int(q, 5) != 0;
    out->empty = sqlite3_column_int(q, 6) != 0;
    read_text(q, 7, out->stamp, sizeof out->stamp);
    read_text(q, 8, client, DIBS__WAKE_SIZE);
}

/* When the reaper shall look at it; 0: never. */
static int64_t reap_time(const dibs__cell *c)
{
    if (c->empty)
        return c->written + DAY;
    if (c->expires == INT64_MAX)
        return 0;
    return c->floor && c->expires < INT64_MAX - DAY ? c->expires + DAY : c->expires;
}

static void bind_reap(sqlite3_stmt *q, int at, const dibs__cell *c)
{
    int64_t when = reap_time(c);

    if (when)
        sqlite3_bind_int64(q, at, when);
    else
        sqlite3_bind_null(q, at);
}

/* ---- The store ------------------------------------------------------------------------------- */

static int load(void *ctx, dibs__cell *out)
{
    session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_CELL_LOAD);
    int found;

    dibs__lite_bind_text(q, 1, s->key);
    found = dibs__lite_step(q);
    if (found <= 0)
        return found;
    read_cell(q, &s->loaded, s->client);
    s->loaded.data = sqlite3_column_blob(q, 9);
    s->loaded.size = s->loaded.data ? (size_t)sqlite3_column_bytes(q, 9) : 0;
    *out = s->loaded;
    return 1;
}

/* Only the floor has been raised: the value stays where it is. */
static int put_floor(session *s, const dibs__cell *c)
{
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_CELL_FLOOR);

    sqlite3_bind_int64(q, 1, (int64_t)c->floor);
    bind_reap(q, 2, c);
    dibs__lite_bind_text(q, 3, s->key);
    sqlite3_bind_int64(q, 4, c->written);
    return dibs__lite_step(q);
}

static int put(void *ctx, const dibs__cell *c)
{
    session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_CELL_PUT);
    int done;

    if (s->command->op == DIBS__CELL_PASS && !c->empty)
        return put_floor(s, c);
    if (c->version > s->e->highest)
        s->e->highest = c->version;
    sqlite3_bind_int64(q, 1, (int64_t)c->version);
    sqlite3_bind_int64(q, 2, (int64_t)c->floor);
    sqlite3_bind_int64(q, 3, c->written);
    sqlite3_bind_int64(q, 4, c->expires);
    sqlite3_bind_int64(q, 5, c->number);
    sqlite3_bind_int(q, 6, c->counter);
    sqlite3_bind_int(q, 7, c->empty);
    dibs__lite_bind_text(q, 8, c->stamp);
    dibs__lite_bind_text(q, 9, s->command->alive && !c->empty ? s->e->client : "");
    bind_reap(q, 10, c);
    dibs__lite_bind_text(q, 11, s->key);
    if (c->data)
        sqlite3_bind_blob64(q, 12, c->data, c->size, SQLITE_STATIC);
    else
        sqlite3_bind_null(q, 12);
    done = dibs__lite_step(q);
    sqlite3_clear_bindings(q); /* they point into what the caller is about to free */
    return done;
}

static int drop(void *ctx)
{
    session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_CELL_DROP);

    dibs__lite_bind_text(q, 1, s->key);
    return dibs__lite_step(q);
}

static int request_find(void *ctx, const char *request, int64_t now, int64_t *number)
{
    session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_REQUEST_FIND);
    int found;

    dibs__lite_bind_text(q, 1, s->key);
    dibs__lite_bind_text(q, 2, request);
    sqlite3_bind_int64(q, 3, now);
    found = dibs__lite_step(q);
    if (found > 0) {
        *number = sqlite3_column_int64(q, 0);
        sqlite3_reset(q);
    }
    return found;
}

static int request_put(void *ctx, const char *request, int64_t number, int64_t expires)
{
    session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_REQUEST_PUT);

    dibs__lite_bind_text(q, 1, s->key);
    dibs__lite_bind_text(q, 2, request);
    sqlite3_bind_int64(q, 3, number);
    sqlite3_bind_int64(q, 4, expires);
    return dibs__lite_step(q);
}

static const dibs__cell_store store = {load, put, drop, request_find, request_put};

/* ---- Commands -------------------------------------------------------------------------------- */

/* No version at or below what was perhaps given out before the machine started. */
dibs__time dibs__lite_cell_time(const dibs__lite *e, dibs__time now)
{
    return (dibs__time){
        .lease = now.lease + e->clock,
        .wall = now.wall > (int64_t)e->floor ? now.wall : (int64_t)e->floor + 1,
    };
}

bool dibs__lite_cell_lasts(const dibs__lite_job *job)
{
    return job->kind == DIBS__LITE_CELL && job->command->op != DIBS__CELL_READ &&
           !job->command->fleeting;
}

static bool is_dead(session *s)
{
    return s->client[0] && (strcmp(s->client, DEAD) == 0 || dibs__lite_dead(s->e, s->client));
}

static bool reports_death(const dibs__cell_command *c, dibs__cell_verdict verdict)
{
    return verdict == DIBS__CELL_CONFLICT ||
           (c->op == DIBS__CELL_READ && c->alive && verdict == DIBS__CELL_DONE);
}

/* A row of the listing, which shows only the beginning of the value. True: whoever wrote it is dead. */
bool dibs__lite_read_listed(dibs__lite *e, sqlite3_stmt *q, dibs__cell *out,
                            char key[DIBS__CELL_KEY_SIZE])
{
    session s = {.e = e};

    read_cell(q, out, s.client);
    out->data = sqlite3_column_blob(q, 9);
    out->size = out->data ? (size_t)sqlite3_column_int64(q, 10) : 0;
    read_text(q, 11, key, DIBS__CELL_KEY_SIZE);
    return is_dead(&s);
}

static int peek(session *s, dibs__time now, dibs__lite_job *job)
{
    dibs__cell c;
    int found = load(s, &c);
    bool there = found > 0 && !c.empty && c.expires > now.lease;

    job->cell = (dibs__cell_reply){.version = there ? c.version : 0};
    if (there && is_dead(s))
        job->cell.age = INT64_MAX;
    return found < 0 ? -1 : 0;
}

int dibs__lite_cell(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    static const dibs__cell_command look = {.op = DIBS__CELL_READ};
    session s = {.e = e, .key = job->name, .command = job->command ? job->command : &look};
    dibs__cell_answer answer;
    int failed;

    free(job->cell.data); /* of an earlier try in the same batch */
    job->cell.data = NULL;
    if (job->kind == DIBS__LITE_PEEK) {
        failed = peek(&s, now, job);
    } else {
        failed = dibs__cell_apply(&store, &s, now, job->command, &answer);
        if (failed == 0) {
            job->no_memory = !dibs__cell_reply_of(job->command, &answer, now, &job->cell);
            if (reports_death(job->command, answer.verdict) && is_dead(&s))
                job->cell.age = INT64_MAX;
        }
    }
    sqlite3_reset(dibs__lite_sql(e, DIBS__LITE_SQL_CELL_LOAD));
    return failed;
}

/* ---- Reaping --------------------------------------------------------------------------------- */

/* 1: looked at one; 0: none is due; -1. */
static int reap_next(dibs__lite *e, dibs__time now, int *dropped)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_CELL_OLD);
    char key[DIBS__CELL_KEY_SIZE], client[DIBS__WAKE_SIZE];
    dibs__cell c;
    bool gone;
    int found;

    sqlite3_bind_int64(q, 1, now.lease);
    found = dibs__lite_step(q);
    if (found <= 0)
        return found;
    read_cell(q, &c, client);
    read_text(q, 9, key, sizeof key);
    sqlite3_reset(q);
    gone = dibs__cell_may_drop(&c, now);
    q = dibs__lite_sql(e, gone ? DIBS__LITE_SQL_CELL_DROP : DIBS__LITE_SQL_CELL_LATER);
    if (!gone)
        sqlite3_bind_int64(q, 1, now.lease + DAY);
    dibs__lite_bind_text(q, gone ? 1 : 2, key);
    *dropped += gone;
    found = dibs__lite_step(q);
    sqlite3_clear_bindings(q);
    return found < 0 ? -1 : 1;
}

int dibs__lite_cell_reap(dibs__lite *e, dibs__time now, int limit, int *dropped)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_REQUEST_REAP);
    int found = 1;

    for (int i = 0; found > 0 && i < limit; i++)
        found = reap_next(e, now, dropped);
    if (found < 0)
        return -1;
    sqlite3_bind_int64(q, 1, now.lease);
    sqlite3_bind_int(q, 2, limit);
    if (dibs__lite_step(q) < 0)
        return -1;
    *dropped += sqlite3_changes(e->db);
    return 0;
}
