/* Building what is sent in one go. Memory that cannot be had is noted, and told by the exchange:
 * the builders need not be checked one by one. */
#include "families/rows/inner.h"

#include <stdlib.h>
#include <string.h>

void dibs__sql_batch_reset(dibs__sql_batch *b, dibs__sql_mode mode)
{
    b->mode = mode;
    b->durable = true;
    b->count = b->value_count = 0;
    b->failed = false;
    b->row = NULL;
    b->ctx = NULL;
}

void dibs__sql_batch_fini(dibs__sql_batch *b)
{
    free(b->command);
    free(b->value);
    memset(b, 0, sizeof *b);
}

void *dibs__sql_grown(void *array, size_t count, size_t *room, size_t each)
{
    size_t want = *room ? *room * 2 : 16;
    void *larger;

    if (count < *room)
        return array;
    larger = realloc(array, want * each);
    if (larger)
        *room = want;
    return larger;
}

void dibs__sql_add(dibs__sql_batch *b, dibs__sql_op op)
{
    dibs__sql_command *larger;

    if (b->failed)
        return;
    larger = dibs__sql_grown(b->command, b->count, &b->room, sizeof *b->command);
    if (!larger) {
        b->failed = true;
        return;
    }
    b->command = larger;
    b->command[b->count++] = (dibs__sql_command){.op = op, .first = b->value_count};
}

static void add_value(dibs__sql_batch *b, dibs__sql_value value)
{
    dibs__sql_value *larger;

    if (b->failed)
        return;
    larger = dibs__sql_grown(b->value, b->value_count, &b->value_room, sizeof *b->value);
    if (!larger) {
        b->failed = true;
        return;
    }
    b->value = larger;
    b->value[b->value_count++] = value;
    b->command[b->count - 1].count++;
}

void dibs__sql_null(dibs__sql_batch *b)
{
    add_value(b, (dibs__sql_value){.kind = DIBS__SQL_NULL});
}

void dibs__sql_number(dibs__sql_batch *b, int64_t number)
{
    add_value(b, (dibs__sql_value){.kind = DIBS__SQL_NUMBER, .number = number});
}

void dibs__sql_text(dibs__sql_batch *b, const char *text)
{
    add_value(b, (dibs__sql_value){.kind = DIBS__SQL_BYTES, .bytes = text, .size = strlen(text)});
}

void dibs__sql_bytes(dibs__sql_batch *b, const void *data, size_t size)
{
    add_value(b,
              (dibs__sql_value){.kind = DIBS__SQL_BYTES, .bytes = size ? data : "", .size = size});
}

void dibs__sql_items(dibs__sql_batch *b, const dibs__sql_value *items, size_t count)
{
    add_value(b, (dibs__sql_value){.kind = DIBS__SQL_LIST, .items = items, .size = count});
}
