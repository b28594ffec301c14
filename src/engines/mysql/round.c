/* What the sleeping connection of a handle asks, and what it is answered: one message of several
 * statements, a *round*.
 *
 *   SET_UP  the session, and the wake signal: the user lock by which others find it
 *   EVICT   the wake signal is held by a session that we have lost: end that one
 *   WATCH   the rows that were left for us, then the wait for the latch. Rows that were read come
 *           back with every round until they are deleted, which is done for many at a time
 *   CLEAN   delete them, before we rest
 *
 * wake.c sends a round and decides what comes after it. */
#include "engines/mysql/mysql.h"

#include <stdio.h>
#include <string.h>

#define SLEEP_S 15
#define MANY    16 /* so many rows are deleted along with a round */

/* ---- What is asked --------------------------------------------------------------------------- */

static void add(const dibs__my_round *r, dibs__bytes *out, const char *pattern)
{
    dibs__sql_value id = {.kind = DIBS__SQL_BYTES, .bytes = r->e->base.id};

    id.size = strlen(id.bytes);
    dibs__my_add_pattern(out, r->e->address.prefix, pattern, &id);
}

/* After an eviction the wake signal is free in a moment. */
static void add_set_up(dibs__my_round *r, dibs__bytes *out, bool after_eviction)
{
    r->has_wake_signal = false;
    add(r, out, dibs__my_session);
    add(r, out, "; SELECT GET_LOCK(CONCAT('" DIBS__MY_WAKE_SIGNAL "', $1), ");
    add(r, out, after_eviction ? "2)" : "0)");
}

static void add_deletion(dibs__my_round *r, dibs__bytes *out)
{
    add(r, out, "DELETE FROM {wake} WHERE wake = $1 AND text IN ");
    dibs__my_seen_list(&r->seen, out);
}

static void add_watch(dibs__my_round *r, dibs__bytes *out)
{
    char wait[16];

    r->asleep = 2;
    add(r, out, "SELECT text FROM {wake} WHERE wake = $1; ");
    if (r->seen.count >= MANY) {
        r->asleep = 3;
        add_deletion(r, out);
        add(r, out, "; ");
    }
    /* 1: we got it, and let it go. */
    snprintf(wait, sizeof wait, "%d", SLEEP_S);
    add(r, out, "SELECT IF(GET_LOCK(CONCAT('" DIBS__MY_LATCH "', $1), ");
    add(r, out, wait);
    add(r, out, "), RELEASE_LOCK(CONCAT('" DIBS__MY_LATCH "', $1)), 0)");
}

void dibs__my_round_begin(dibs__my_round *r, dibs__my_round_kind kind, dibs__bytes *out)
{
    bool after_eviction = r->kind == DIBS__MY_EVICT;

    r->kind = kind;
    r->results = r->asleep = 0;
    r->latch_free = false;
    r->seen.going = 0;
    out->length = 0;
    switch (kind) {
    case DIBS__MY_SET_UP:
        add_set_up(r, out, after_eviction);
        return;
    case DIBS__MY_EVICT:
        add(r, out, "KILL CONNECTION IS_USED_LOCK(CONCAT('" DIBS__MY_WAKE_SIGNAL "', $1))");
        return;
    case DIBS__MY_WATCH:
        add_watch(r, out);
        return;
    case DIBS__MY_CLEAN:
        add_deletion(r, out);
    }
}

int64_t dibs__my_round_span(const dibs__my_round *r)
{
    return DIBS__MY_PATIENCE + (r->kind == DIBS__MY_WATCH ? SLEEP_S * DIBS__SECOND : 0);
}

void dibs__my_round_add_goodbye(const dibs__my_round *r, bool awaited, dibs__bytes *out)
{
    add(r, out, "DELETE FROM {wake} WHERE wake = $1");
    if (awaited)
        add(r, out, "; DELETE FROM {wake} WHERE text = $1");
}

/* ---- What is answered ------------------------------------------------------------------------ */

static void deliver(dibs__my *e, const char *text)
{
    if (strncmp(text, DIBS__MY_CELL, strlen(DIBS__MY_CELL)) == 0)
        dibs__sql_cell_notice_arrived(&e->base, text + strlen(DIBS__MY_CELL));
    else
        dibs__sql_notice_arrived(&e->base, text);
}

static void read_row(dibs__my_round *r, const char *text)
{
    if (r->kind == DIBS__MY_SET_UP)
        r->has_wake_signal = text && strcmp(text, "1") == 0;
    else if (r->results == r->asleep)
        r->latch_free = text && strcmp(text, "1") == 0;
    else if (text && dibs__my_seen_add(&r->seen, text))
        deliver(r->e, text);
}

void dibs__my_round_read(dibs__my_round *r, MYSQL_RES *result)
{
    MYSQL_ROW row;

    r->results++;
    while (result && (row = mysql_fetch_row(result)) != NULL)
        read_row(r, row[0]);
    /* In a round with a deletion that is the second statement, or the only one. */
    if (r->results == (r->kind == DIBS__MY_CLEAN ? 1 : 2))
        dibs__my_seen_gone(&r->seen);
}
