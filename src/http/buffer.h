/* Bytes that grow: a body that comes in pieces, an answer that is put together, what waits to be sent. Added at the end, taken
 * from the front. A failed allocation is remembered in `failed` and everything added later is ignored, so that only the end
 * is checked. Zero it first. */
#ifndef DIBS_HTTP_BUFFER_H
#define DIBS_HTTP_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct http_buffer {
    char *data; /* a NUL follows what was added */
    size_t from, to, room;
    bool failed; /* out of memory: what was added since is missing */
} http_buffer;

static inline size_t http_buffer_size(const http_buffer *b)
{
    return b->to - b->from;
}

static inline char *http_buffer_start(const http_buffer *b)
{
    return b->data ? b->data + b->from : NULL;
}

bool http_buffer_grow(http_buffer *b, size_t size); /* for http_buffer_reserve */

/* Room for `size` more, and a NUL, at data + to; NULL: out of memory, now or before. */
static inline char *http_buffer_reserve(http_buffer *b, size_t size)
{
    if (b->failed || (b->room - b->to <= size && !http_buffer_grow(b, size)))
        return NULL;
    return b->data + b->to;
}

static inline void http_buffer_add(http_buffer *b, const void *data, size_t size)
{
    char *to = size > 0 ? http_buffer_reserve(b, size) : NULL;

    if (!to)
        return;
    memcpy(to, data, size);
    to[size] = '\0';
    b->to += size;
}

void http_buffer_text(http_buffer *b, const char *text);
void http_buffer_number(http_buffer *b, size_t number);
void http_buffer_format(http_buffer *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void http_buffer_drop(http_buffer *b, size_t size); /* from the front */
void http_buffer_clear(http_buffer *b);             /* keeps its memory */
void http_buffer_free(http_buffer *b);
/* The bytes and a NUL as the caller's own; NULL: empty, or out of memory, now or before. */
char *http_buffer_copy(const http_buffer *b);

#endif
