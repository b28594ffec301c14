/* A buffer that grows. A failed growth is remembered, so that a whole message can be built before
 * anybody looks. */
#ifndef DIBS_ETCD_BYTES_H
#define DIBS_ETCD_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__buffer {
    uint8_t *data;
    size_t length, room;
    bool failed;
} dibs__buffer;

/* Room for `length` more bytes at the end: where they go, or NULL. */
static inline uint8_t *dibs__buffer_room(dibs__buffer *b, size_t length)
{
    size_t room = b->room ? b->room : 256;
    uint8_t *data;

    if (b->length + length <= b->room)
        return b->data + b->length;
    while (room < b->length + length)
        room *= 2;
    data = realloc(b->data, room);
    if (!data) {
        b->failed = true;
        return NULL;
    }
    b->data = data;
    b->room = room;
    return data + b->length;
}

static inline bool dibs__buffer_add(dibs__buffer *b, const void *data, size_t length)
{
    uint8_t *to = dibs__buffer_room(b, length);

    if (!to)
        return false;
    memcpy(to, data, length);
    b->length += length;
    return true;
}

/* Takes `length` bytes away from the front. */
static inline void dibs__buffer_drop(dibs__buffer *b, size_t length)
{
    b->length -= length;
    if (b->length > 0)
        memmove(b->data, b->data + length, b->length);
}

static inline void dibs__buffer_fini(dibs__buffer *b)
{
    free(b->data);
    *b = (dibs__buffer){0};
}

#endif
