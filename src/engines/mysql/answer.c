/* Sending a message, and its answers as rows: in the text protocol, where the type of a column says
 * whether a cell is a number or bytes. */
#include "engines/mysql/mysql.h"

#include <stdlib.h>
#include <string.h>

static void read_cell(dibs__sql_value *cell, const MYSQL_FIELD *field, const char *text,
                      unsigned long size)
{
    memset(cell, 0, sizeof *cell);
    if (!text) {
        cell->kind = DIBS__SQL_NULL;
    } else if (IS_NUM(field->type)) {
        cell->kind = DIBS__SQL_NUMBER;
        cell->number = strtoll(text, NULL, 10);
    } else {
        cell->kind = DIBS__SQL_BYTES;
        cell->bytes = text;
        cell->size = size;
    }
}

/* The columns of an exclusive holder, at the end of a lock's row. */
static void clear_nobody(dibs__sql_value *held)
{
    if (held[DIBS__SQL_WHO_COLUMNS].number == 0)
        memset(held, 0, DIBS__SQL_ENTRY_COLUMNS * sizeof *held);
}

static bool reserve_cells(dibs__my_conn *c, size_t count)
{
    dibs__sql_value *larger;

    if (count <= c->cell_room)
        return true;
    larger = realloc(c->cells, count * sizeof *larger);
    if (!larger)
        return false;
    c->cells = larger;
    c->cell_room = count;
    return true;
}

/* Behind the lock's row come the clock, which is the first row of the look that follows, and a variable. */
#define BEHIND 2

static int pass_locked(dibs__my_conn *c, const dibs__sql_batch *b, size_t command, unsigned count)
{
    dibs__sql_value clock[1 + DIBS__SQL_ENTRY_COLUMNS] = {
        {.kind = DIBS__SQL_NUMBER, .number = 'c'}};

    clear_nobody(c->cells + count - BEHIND - DIBS__SQL_ENTRY_COLUMNS);
    dibs__my_forecast_at(c, command, c->cells);
    clock[DIBS__SQL_ENTRY_COLUMNS] = c->cells[count - BEHIND];
    if (b->row(b->ctx, command, c->cells, count - BEHIND) < 0)
        return -1;
    if (command + 1 < b->count && b->command[command + 1].op == DIBS__SQL_LOOK)
        return b->row(b->ctx, command + 1, clock, 1 + DIBS__SQL_ENTRY_COLUMNS);
    return 0;
}

static int pass_row(dibs__my_conn *c, const dibs__sql_batch *b, const dibs__my_statement *s,
                    unsigned count)
{
    if (s->answer == DIBS__MY_WATCHERS) {
        dibs__my_watcher_add(c, c->cells);
        return 0;
    }
    if (s->answer == DIBS__MY_DECIDED && c->cells[DIBS__MY_DECISION].kind == DIBS__SQL_NULL)
        return 0;
    if (b->command[s->command].op == DIBS__SQL_HAND)
        dibs__my_handed(c, c->cells);
    if (s->answer == DIBS__MY_LOCKED)
        return pass_locked(c, b, s->command, count);
    if (s->answer == DIBS__MY_LISTED)
        clear_nobody(c->cells + count - DIBS__SQL_ENTRY_COLUMNS);
    return b->row(b->ctx, s->command, c->cells, count);
}

/* 0, or -1: out of memory. */
static int read_rows(dibs__my_conn *c, const dibs__sql_batch *b, const dibs__my_statement *s,
                     MYSQL_RES *result)
{
    unsigned count = mysql_num_fields(result);
    const MYSQL_FIELD *fields = mysql_fetch_fields(result);
    MYSQL_ROW row;

    if (s->answer == DIBS__MY_NOTHING || s->answer == DIBS__MY_WAKE || !b->row)
        return 0;
    if (!reserve_cells(c, count))
        return -1;
    while ((row = mysql_fetch_row(result)) != NULL) {
        const unsigned long *sizes = mysql_fetch_lengths(result);
        for (unsigned i = 0; i < count; i++)
            read_cell(&c->cells[i], &fields[i], row[i], sizes[i]);
        if (pass_row(c, b, s, count) < 0)
            return -1;
    }
    return 0;
}

static int read_fence(dibs__my_conn *c, const dibs__sql_batch *b, const dibs__my_statement *s)
{
    dibs__sql_value fence = {.kind = DIBS__SQL_NUMBER, .number = (int64_t)mysql_insert_id(c->m)};

    if (s->answer != DIBS__MY_FENCE || mysql_affected_rows(c->m) != 1 || !b->row)
        return 0;
    return b->row(b->ctx, s->command, &fence, 1);
}

/* The answer to statement number `at`. */
static dibs__my_outcome read_one(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                                 size_t at)
{
    MYSQL_RES *result = NULL;
    int got = 0;

    if (mysql_errno(c->m) != 0)
        return DIBS__MY_FAILED;
    if (mysql_field_count(c->m) > 0 &&
        dibs__my_store(c->m, &result, c->base.e->base.env, until) < 0)
        return DIBS__MY_LATE;
    if (mysql_errno(c->m) != 0) {
        mysql_free_result(result);
        return DIBS__MY_FAILED;
    }
    if (at < c->count)
        got = result ? read_rows(c, b, &c->statement[at], result)
                     : read_fence(c, b, &c->statement[at]);
    mysql_free_result(result);
    return got < 0 ? DIBS__MY_NO_MEMORY : DIBS__MY_READ_ALL;
}

dibs__my_outcome dibs__my_ask(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                              size_t *at)
{
    const dibs__env *env = c->base.e->base.env;
    bool more = true;

    *at = 0;
    if (dibs__my_query(c->m, c->text.data, c->text.length, env, until) < 0)
        return DIBS__MY_LATE;
    for (;; ++*at) {
        dibs__my_outcome what = read_one(c, b, until, *at);
        if (what != DIBS__MY_READ_ALL)
            return what;
        if (dibs__my_next(c->m, &more, env, until) < 0)
            return DIBS__MY_LATE;
        if (!more)
            return DIBS__MY_READ_ALL;
    }
}
