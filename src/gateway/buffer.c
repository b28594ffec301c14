/* Bytes that wait; see the header. */
#include "gateway/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 2048 };

size_t gate_buffer_size(const gate_buffer *b)
{
    return b->to - b->from;
}

char *gate_buffer_start(gate_buffer *b)
{
    return b->data + b->from;
}

char *gate_buffer_reserve(gate_buffer *b, size_t size)
{
    size_t room = b->room ? b->room : FIRST, used = b->to - b->from;
    char *data;

    if (b->room - b->to >= size && b->data)
        return b->data + b->to;
    if (b->from > 0) {
        memmove(b->data, b->data + b->from, used);
        b->from = 0;
        b->to = used;
    }
    while (room - used < size)
        room *= 2;
    if (room == b->room)
        return b->data + b->to;
    data = realloc(b->data, room);
    if (!data) {
        b->failed = true;
        return NULL;
    }
    b->data = data;
    b->room = room;
    return b->data + b->to;
}

void gate_buffer_add(gate_buffer *b, const void *data, size_t size)
{
    char *to = size > 0 ? gate_buffer_reserve(b, size) : NULL;

    if (!to)
        return;
    memcpy(to, data, size);
    b->to += size;
}

void gate_buffer_text(gate_buffer *b, const char *text)
{
    gate_buffer_add(b, text, strlen(text));
}

void gate_buffer_format(gate_buffer *b, const char *format, ...)
{
    char text[1024];
    va_list args;
    int size;

    va_start(args, format);
    size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (size < 0 || (size_t)size >= sizeof text)
        b->failed = true;
    else
        gate_buffer_add(b, text, (size_t)size);
}

void gate_buffer_drop(gate_buffer *b, size_t size)
{
    b->from += size;
    if (b->from == b->to)
        b->from = b->to = 0;
}

void gate_buffer_free(gate_buffer *b)
{
    free(b->data);
    *b = (gate_buffer){0};
}
