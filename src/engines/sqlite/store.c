/* The state machine's store over SQL, for one lock inside one transaction.
 *
 * An exclusive holder is the only one, and lives in the lock's own row: taking and giving back a
 * free lock reads one row and writes one row. Those who share, slots and waiters have tables of
 * their own. Entries of dead processes are shown to the machine as expired, so that it drops them
 * by itself. */
#include "engines/sqlite/sqlite.h"

#include <stdlib.h>
#include <string.h>

#define GONE       ((int64_t)-1) /* expired before the machine started */
#define USED_AGAIN 1000000 /* microseconds between two fences: the lock is in use all the time */

/* ---- Rows ------------------------------------------------------------------------------------ */

/* As a blob: asking for text could need memory for its terminator, and fail unseen. */
static void read_text(sqlite3_stmt *q, int at, char *out, size_t size)
{
    const void *text = sqlite3_column_blob(q, at);
    size_t n = (size_t)sqlite3_column_bytes(q, at);

    if (!text)
        n = 0;
    if (n >= size)
        n = size - 1;
    if (n)
        memcpy(out, text, n);
    out[n] = '\0';
}

static void read_asker(sqlite3_stmt *q, int at, dibs__asker *out)
{
    read_text(q, at, out->owner, sizeof out->owner);
    read_text(q, at + 1, out->attempt, sizeof out->attempt);
    read_text(q, at + 2, out->host, sizeof out->host);
    out->pid = sqlite3_column_int64(q, at + 3);
    read_text(q, at + 4, out->wake, sizeof out->wake);
    out->weight = (uint32_t)sqlite3_column_int64(q, at + 5);
    out->lease = sqlite3_column_int64(q, at + 6);
    out->min_hold = sqlite3_column_int64(q, at + 7);
}

void dibs__lite_read_record(sqlite3_stmt *q, dibs__record *out)
{
    out->capacity = (uint32_t)sqlite3_column_int64(q, 1);
    out->used = (uint32_t)sqlite3_column_int64(q, 2);
    out->holders = (uint32_t)sqlite3_column_int64(q, 3);
    out->waiters = (uint32_t)sqlite3_column_int64(q, 4);
    out->fence = (uint64_t)sqlite3_column_int64(q, 5);
    out->place = (uint64_t)sqlite3_column_int64(q, 6);
    out->broken_fence = (uint64_t)sqlite3_column_int64(q, 7);
    out->broken_at = sqlite3_column_int64(q, 8);
    read_text(q, 9, out->broken_by, sizeof out->broken_by);
}

void dibs__lite_read_holder(sqlite3_stmt *q, int at, dibs__holder *out)
{
    read_asker(q, at, &out->who);
    out->fence = (uint64_t)sqlite3_column_int64(q, at + 8);
    out->since = sqlite3_column_int64(q, at + 9);
    out->expires = sqlite3_column_int64(q, at + 10);
    out->released = sqlite3_column_int(q, at + 11) != 0;
}

void dibs__lite_read_waiter(sqlite3_stmt *q, int at, dibs__waiter *out)
{
    read_asker(q, at, &out->who);
    out->place = (uint64_t)sqlite3_column_int64(q, at + 8);
    out->since = sqlite3_column_int64(q, at + 9);
    out->window = sqlite3_column_int64(q, at + 10);
    out->alive_until = sqlite3_column_int64(q, at + 11);
}

int dibs__lite_bind_text(sqlite3_stmt *q, int at, const char *text)
{
    return sqlite3_bind_text(q, at, text, (int)strlen(text), SQLITE_STATIC);
}

static void bind_asker(sqlite3_stmt *q, int at, const dibs__asker *who)
{
    dibs__lite_bind_text(q, at, who->owner);
    dibs__lite_bind_text(q, at + 1, who->attempt);
    dibs__lite_bind_text(q, at + 2, who->host);
    sqlite3_bind_int64(q, at + 3, who->pid);
    dibs__lite_bind_text(q, at + 4, who->wake);
    sqlite3_bind_int64(q, at + 5, who->weight);
    sqlite3_bind_int64(q, at + 6, who->lease);
    sqlite3_bind_int64(q, at + 7, who->min_hold);
}

static void bind_holder(sqlite3_stmt *q, int at, const dibs__holder *h)
{
    bind_asker(q, at, &h->who);
    sqlite3_bind_int64(q, at + 8, (int64_t)h->fence);
    sqlite3_bind_int64(q, at + 9, h->since);
    sqlite3_bind_int64(q, at + 10, h->expires);
    sqlite3_bind_int64(q, at + 11, h->released);
}

static void bind_nobody(sqlite3_stmt *q, int at)
{
    for (int i = 0; i < 12; i++)
        sqlite3_bind_null(q, at + i);
}

static void bind_record(sqlite3_stmt *q, const dibs__record *r)
{
    sqlite3_bind_int64(q, 1, r->capacity);
    sqlite3_bind_int64(q, 2, r->used);
    sqlite3_bind_int64(q, 3, r->holders);
    sqlite3_bind_int64(q, 4, r->waiters);
    sqlite3_bind_int64(q, 5, (int64_t)r->fence);
    sqlite3_bind_int64(q, 6, (int64_t)r->place);
    sqlite3_bind_int64(q, 7, (int64_t)r->broken_fence);
    sqlite3_bind_int64(q, 8, r->broken_at);
    if (r->broken_by[0])
        dibs__lite_bind_text(q, 9, r->broken_by);
    else
        sqlite3_bind_null(q, 9);
}

int dibs__lite_step(sqlite3_stmt *q)
{
    if (!q)
        return -1;
    if (sqlite3_step(q) == SQLITE_ROW)
        return 1;
    return sqlite3_reset(q) == SQLITE_OK ? 0 : -1;
}

static sqlite3_stmt *statement(const dibs__lite_session *s, int which)
{
    sqlite3_stmt *q = dibs__lite_sql(s->e, which);

    sqlite3_bind_int64(q, 1, s->id);
    return q;
}

/* ---- The lock's row -------------------------------------------------------------------------- */

/* A lock that is not there is as good as one whose last fence is the floor: what is lost with the
 * power must not come back as a lower token. */
static int load(void *ctx, dibs__record *out)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q = dibs__lite_sql(s->e, DIBS__LITE_SQL_LOAD);
    int found;

    dibs__lite_bind_text(q, 1, s->name);
    found = dibs__lite_step(q);
    if (found < 0)
        return -1;
    memset(out, 0, sizeof *out);
    s->id = 0;
    s->held = s->busy = false;
    s->listed = 0;
    if (found > 0) {
        s->id = sqlite3_column_int64(q, 0);
        dibs__lite_read_record(q, out);
        s->busy = out->holders + out->waiters > 0;
        s->fence = out->fence;
        s->listed = sqlite3_column_int(q, DIBS__LITE_RECORD_COLUMNS + 12);
        s->held = sqlite3_column_type(q, DIBS__LITE_RECORD_COLUMNS + 8) != SQLITE_NULL;
        if (s->held)
            dibs__lite_read_holder(q, DIBS__LITE_RECORD_COLUMNS, &s->holder);
        sqlite3_reset(q);
    }
    if (out->fence < s->e->floor)
        out->fence = s->e->floor;
    s->loaded = *out;
    return 1;
}

/* See schema.c: 1 or 2 for a lock that becomes busy. */
static int listing(const dibs__lite_session *s, const dibs__record *record)
{
    if (record->holders + record->waiters == 0)
        return s->listed & 2;
    if (s->busy)
        return s->listed ? s->listed : 1;
    return s->id && record->fence - s->fence < USED_AGAIN ? 2 : 1;
}

/* An index entry is written anew, and its page with it, whenever its column is set, be it to what it was. */
static sqlite3_stmt *statement_to_save(const dibs__lite_session *s, int listed)
{
    if (!s->id)
        return dibs__lite_sql(s->e, DIBS__LITE_SQL_INSERT);
    return dibs__lite_sql(s->e, listed == s->listed ? DIBS__LITE_SQL_UPDATE
                                                    : DIBS__LITE_SQL_UPDATE_LISTED);
}

static int save(void *ctx, const dibs__record *record)
{
    dibs__lite_session *s = ctx;
    int listed = listing(s, record);
    sqlite3_stmt *q = statement_to_save(s, listed);

    if (record->fence > s->e->highest)
        s->e->highest = record->fence;
    bind_record(q, record);
    if (s->held)
        bind_holder(q, 10, &s->holder);
    else
        bind_nobody(q, 10);
    if (s->id)
        sqlite3_bind_int64(q, 22, s->id);
    else
        dibs__lite_bind_text(q, 22, s->name);
    if (q != dibs__lite_sql(s->e, DIBS__LITE_SQL_UPDATE))
        sqlite3_bind_int(q, 23, listed);
    if (dibs__lite_step(q) < 0)
        return -1;
    s->busy = record->holders + record->waiters > 0;
    s->listed = listed;
    s->fence = record->fence;
    if (!s->id)
        s->id = sqlite3_last_insert_rowid(s->e->db);
    return 0;
}

/* Entries need the lock's number before the lock itself is saved. */
static int have_row(dibs__lite_session *s)
{
    return s->id ? 0 : save(s, &s->loaded);
}

/* One command asks for the same entry several times: whom it has found alive, it believes. */
static bool is_dead(dibs__lite_session *s, const char *wake)
{
    if (strcmp(s->alive, wake) == 0)
        return false;
    if (dibs__lite_dead(s->e, wake))
        return true;
    strcpy(s->alive, wake);
    return false;
}

/* ---- Holders --------------------------------------------------------------------------------- */

static int find_holder(sqlite3_stmt *q, dibs__holder *out)
{
    int found = dibs__lite_step(q);

    if (found > 0) {
        dibs__lite_read_holder(q, 0, out);
        sqlite3_reset(q);
    }
    return found;
}

static int find_dead_client(dibs__lite_session *s, char client[DIBS__WAKE_SIZE])
{
    sqlite3_stmt *q = statement(s, DIBS__LITE_SQL_HOLDER_CLIENTS);
    int found;

    while ((found = dibs__lite_step(q)) > 0) {
        read_text(q, 0, client, DIBS__WAKE_SIZE);
        if (is_dead(s, client)) {
            sqlite3_reset(q);
            return 1;
        }
    }
    return found;
}

/* Only when somebody cannot have the lock: those who share look at nobody. */
static int expire_dead(dibs__lite_session *s)
{
    char client[DIBS__WAKE_SIZE];
    int found = 0;

    if (s->probed || s->wants == 0)
        return 0;
    if (s->loaded.waiters == 0 && (uint64_t)s->loaded.used + s->wants <= s->loaded.capacity)
        return 0;
    s->probed = true;
    while ((found = find_dead_client(s, client)) > 0) {
        sqlite3_stmt *q = statement(s, DIBS__LITE_SQL_HOLDER_DEAD);
        dibs__lite_bind_text(q, 2, client);
        if (dibs__lite_step(q) < 0)
            return -1;
    }
    return found;
}

static int holder_of(void *ctx, const char *owner, dibs__holder *out)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q;

    if (s->held) {
        *out = s->holder;
        return !out->released && strcmp(out->who.owner, owner) == 0;
    }
    q = statement(s, DIBS__LITE_SQL_HOLDER_OF);
    dibs__lite_bind_text(q, 2, owner);
    return find_holder(q, out);
}

static int holder_expiring(void *ctx, dibs__holder *out)
{
    dibs__lite_session *s = ctx;

    if (s->held) {
        *out = s->holder;
        if (!out->released && is_dead(s, out->who.wake))
            out->expires = GONE;
        return 1;
    }
    return expire_dead(s) < 0 ? -1 : find_holder(statement(s, DIBS__LITE_SQL_HOLDER_EXPIRING), out);
}

static int holder_next(void *ctx, uint64_t fence, dibs__holder *out)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q;

    if (s->held) {
        *out = s->holder;
        return out->fence > fence;
    }
    q = statement(s, DIBS__LITE_SQL_HOLDER_NEXT);
    sqlite3_bind_int64(q, 2, (int64_t)fence);
    return find_holder(q, out);
}

static int holder_put(void *ctx, const dibs__holder *holder)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q;

    if (holder->who.weight == DIBS__PLAIN) {
        s->held = true;
        s->holder = *holder;
        return 0;
    }
    if (have_row(s) < 0)
        return -1;
    q = statement(s, DIBS__LITE_SQL_HOLDER_PUT);
    bind_holder(q, 2, holder);
    return dibs__lite_step(q);
}

static int holder_drop(void *ctx, const dibs__holder *holder)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q;

    if (s->held) {
        s->held = false;
        return 0;
    }
    q = statement(s, DIBS__LITE_SQL_HOLDER_DROP);
    sqlite3_bind_int64(q, 2, (int64_t)holder->fence);
    return dibs__lite_step(q);
}

/* ---- Waiters --------------------------------------------------------------------------------- */

static int find_waiter(sqlite3_stmt *q, dibs__waiter *out)
{
    int found = dibs__lite_step(q);

    if (found > 0) {
        dibs__lite_read_waiter(q, 0, out);
        sqlite3_reset(q);
    }
    return found;
}

static int waiter_of(void *ctx, const char *owner, dibs__waiter *out)
{
    sqlite3_stmt *q = statement(ctx, DIBS__LITE_SQL_WAITER_OF);

    dibs__lite_bind_text(q, 2, owner);
    return find_waiter(q, out);
}

static int waiter_head(void *ctx, dibs__waiter *out)
{
    dibs__lite_session *s = ctx;
    int found = find_waiter(statement(s, DIBS__LITE_SQL_WAITER_HEAD), out);

    if (found > 0 && is_dead(s, out->who.wake))
        out->alive_until = GONE;
    return found;
}

static int waiter_put(void *ctx, const dibs__waiter *waiter)
{
    dibs__lite_session *s = ctx;
    sqlite3_stmt *q;

    if (have_row(s) < 0)
        return -1;
    q = statement(s, DIBS__LITE_SQL_WAITER_PUT);
    bind_asker(q, 2, &waiter->who);
    sqlite3_bind_int64(q, 10, (int64_t)waiter->place);
    sqlite3_bind_int64(q, 11, waiter->since);
    sqlite3_bind_int64(q, 12, waiter->window);
    sqlite3_bind_int64(q, 13, waiter->alive_until);
    return dibs__lite_step(q);
}

static int waiter_drop(void *ctx, const dibs__waiter *waiter)
{
    sqlite3_stmt *q = statement(ctx, DIBS__LITE_SQL_WAITER_DROP);

    sqlite3_bind_int64(q, 2, (int64_t)waiter->place);
    return dibs__lite_step(q);
}

/* ---- Whom to tell, once it is on record ------------------------------------------------------ */

static void note(dibs__lite *e, const dibs__holder *holder, uint64_t fence, uint64_t floor)
{
    dibs__lite_notice *n;

    if (e->notice_count == e->notice_room) {
        size_t room = e->notice_room ? e->notice_room * 2 : 16;
        n = realloc(e->notices, room * sizeof *n);
        if (!n)
            return; /* it finds out at its next keep-alive */
        e->notices = n;
        e->notice_room = room;
    }
    n = &e->notices[e->notice_count++];
    strcpy(n->client, dibs__lite_client_of(holder->who.wake));
    strcpy(n->attempt, holder->who.attempt);
    n->fence = fence;
    n->floor = floor;
}

static void granted(void *ctx, const dibs__holder *holder, uint64_t floor)
{
    note(((dibs__lite_session *)ctx)->e, holder, holder->fence, floor);
}

static void breaking(void *ctx, const dibs__holder *holder)
{
    note(((dibs__lite_session *)ctx)->e, holder, 0, 0);
}

const dibs__store dibs__lite_store = {
    .load = load,
    .save = save,
    .holder_of = holder_of,
    .holder_expiring = holder_expiring,
    .holder_next = holder_next,
    .holder_put = holder_put,
    .holder_drop = holder_drop,
    .waiter_of = waiter_of,
    .waiter_head = waiter_head,
    .waiter_put = waiter_put,
    .waiter_drop = waiter_drop,
    .granted = granted,
    .breaking = breaking,
};
