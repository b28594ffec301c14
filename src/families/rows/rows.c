/* Rows of the tables, in the order of columns that sql.h gives, as the machine's structures. */
#include "families/rows/inner.h"

#include <string.h>

void dibs__sql_read_text(const dibs__sql_value *cell, char *out, size_t size)
{
    size_t n = cell->kind == DIBS__SQL_BYTES ? cell->size : 0;

    if (n >= size)
        n = size - 1;
    if (n)
        memcpy(out, cell->bytes, n);
    out[n] = '\0';
}

static void read_who(const dibs__sql_value *cells, dibs__asker *out)
{
    dibs__sql_read_text(&cells[0], out->owner, sizeof out->owner);
    dibs__sql_read_text(&cells[1], out->attempt, sizeof out->attempt);
    dibs__sql_read_text(&cells[2], out->host, sizeof out->host);
    out->pid = cells[3].number;
    dibs__sql_read_text(&cells[4], out->wake, sizeof out->wake);
    out->weight = (uint32_t)cells[5].number;
    out->lease = cells[6].number;
    out->min_hold = cells[7].number;
}

void dibs__sql_read_record(const dibs__sql_value *cells, dibs__record *out, uint64_t *first_place)
{
    out->capacity = (uint32_t)cells[0].number;
    out->used = (uint32_t)cells[1].number;
    out->holders = (uint32_t)cells[2].number;
    out->waiters = (uint32_t)cells[3].number;
    out->fence = (uint64_t)cells[4].number;
    out->place = (uint64_t)cells[5].number;
    out->broken_fence = (uint64_t)cells[6].number;
    out->broken_at = cells[7].number;
    dibs__sql_read_text(&cells[8], out->broken_by, sizeof out->broken_by);
    *first_place = (uint64_t)cells[9].number;
}

void dibs__sql_read_holder(const dibs__sql_value *cells, dibs__holder *out)
{
    read_who(cells, &out->who);
    out->fence = (uint64_t)cells[8].number;
    out->since = cells[9].number;
    out->expires = cells[10].number;
    out->released = cells[11].number != 0;
}

void dibs__sql_read_waiter(const dibs__sql_value *cells, dibs__waiter *out)
{
    read_who(cells, &out->who);
    out->place = (uint64_t)cells[8].number;
    out->since = cells[9].number;
    out->window = cells[10].number;
    out->alive_until = cells[11].number;
}

void dibs__sql_add_who(dibs__sql_batch *b, const dibs__asker *who)
{
    dibs__sql_text(b, who->owner);
    dibs__sql_text(b, who->attempt);
    dibs__sql_text(b, who->host);
    dibs__sql_number(b, who->pid);
    dibs__sql_text(b, who->wake);
    dibs__sql_number(b, who->weight);
    dibs__sql_number(b, who->lease);
    dibs__sql_number(b, who->min_hold);
}

void dibs__sql_add_record(dibs__sql_batch *b, const dibs__record *r, uint64_t first_place)
{
    dibs__sql_number(b, r->capacity);
    dibs__sql_number(b, r->used);
    dibs__sql_number(b, r->holders);
    dibs__sql_number(b, r->waiters);
    dibs__sql_number(b, (int64_t)r->fence);
    dibs__sql_number(b, (int64_t)r->place);
    dibs__sql_number(b, (int64_t)r->broken_fence);
    dibs__sql_number(b, r->broken_at);
    dibs__sql_text(b, r->broken_by);
    dibs__sql_number(b, (int64_t)first_place);
}

void dibs__sql_add_holder(dibs__sql_batch *b, const dibs__holder *h)
{
    dibs__sql_add_who(b, &h->who);
    dibs__sql_number(b, (int64_t)h->fence);
    dibs__sql_number(b, h->since);
    dibs__sql_number(b, h->expires);
    dibs__sql_number(b, h->released);
}

void dibs__sql_add_waiter(dibs__sql_batch *b, const dibs__waiter *w)
{
    dibs__sql_add_who(b, &w->who);
    dibs__sql_number(b, (int64_t)w->place);
    dibs__sql_number(b, w->since);
    dibs__sql_number(b, w->window);
    dibs__sql_number(b, w->alive_until);
}

void dibs__sql_add_nobody(dibs__sql_batch *b)
{
    for (int i = 0; i < DIBS__SQL_ENTRY_COLUMNS; i++)
        dibs__sql_null(b);
}
