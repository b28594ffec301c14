/* Bytes that grow: a message, a statement, a body that comes in pieces. A failed allocation is remembered in `failed`
 * and everything added later is ignored, so that a whole message is put together before anybody looks. */
#ifndef DIBS_CORE_BYTES_H
#define DIBS_CORE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Zeroed: empty. */
typedef struct dibs__bytes {
    char *data;
    size_t length, room;
    bool failed;
} dibs__bytes;

/* bytes.c: larger than `room`. False: out of memory, now or before. */
bool dibs__bytes_grow(dibs__bytes *b, size_t more);
void dibs__bytes_fini(dibs__bytes *b);

/* Room for so many bytes at the end: where they go, or NULL. `length` is left alone. */
static inline char *dibs__bytes_room(dibs__bytes *b, size_t more)
{
    if (b->failed || (b->room - b->length < more && !dibs__bytes_grow(b, more)))
        return NULL;
    return b->data + b->length;
}

static inline bool dibs__bytes_add(dibs__bytes *b, const void *data, size_t length)
{
    char *to;

    if (length == 0)
        return !b->failed;
    to = dibs__bytes_room(b, length);
    if (!to)
        return false;
    memcpy(to, data, length);
    b->length += length;
    return true;
}

/* Takes so many away from the front. */
static inline void dibs__bytes_drop(dibs__bytes *b, size_t length)
{
    b->length -= length;
    if (b->length > 0)
        memmove(b->data, b->data + length, b->length);
}

/* Empty again, and nothing has failed; the memory is kept. */
static inline void dibs__bytes_clear(dibs__bytes *b)
{
    b->length = 0;
    b->failed = false;
}

#endif
