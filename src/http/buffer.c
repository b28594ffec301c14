/* Bytes that grow; see the header. */
#include "http/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 512 };

/* What was taken from the front makes room first. */
bool http_buffer_grow(http_buffer *b, size_t size)
{
    size_t room = b->room ? b->room : FIRST;
    char *data;

    if (b->from > 0) {
        b->to -= b->from;
        memmove(b->data, b->data + b->from, b->to);
        b->from = 0;
    }
    while (room - b->to <= size)
        room *= 2;
    data = room > b->room ? realloc(b->data, room) : b->data;
    b->failed = !data;
    if (data) {
        b->data = data;
        b->room = room;
    }
    return data != NULL;
}

void http_buffer_text(http_buffer *b, const char *text)
{
    http_buffer_add(b, text, strlen(text));
}

void http_buffer_number(http_buffer *b, size_t number)
{
    char digits[24], *at = digits + sizeof digits;

    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    http_buffer_add(b, at, (size_t)(digits + sizeof digits - at));
}

void http_buffer_format(http_buffer *b, const char *format, ...)
{
    char *to = http_buffer_reserve(b, 128);
    size_t room = to ? b->room - b->to : 0;
    va_list args;
    int size = -1;

    if (!to)
        return;
    va_start(args, format);
    size = vsnprintf(to, room, format, args);
    va_end(args);
    if (size >= 0 && (size_t)size >= room && (to = http_buffer_reserve(b, (size_t)size)) != NULL) {
        va_start(args, format);
        size = vsnprintf(to, (size_t)size + 1, format, args);
        va_end(args);
    }
    if (size < 0)
        b->failed = true;
    else if (to)
        b->to += (size_t)size;
}

void http_buffer_drop(http_buffer *b, size_t size)
{
    b->from += size;
    if (b->from == b->to)
        b->from = b->to = 0;
}

void http_buffer_clear(http_buffer *b)
{
    b->from = b->to = 0;
    b->failed = false;
}

void http_buffer_free(http_buffer *b)
{
    free(b->data);
    *b = (http_buffer){0};
}

char *http_buffer_copy(const http_buffer *b)
{
    size_t size = http_buffer_size(b);
    char *copy = b->failed || !b->data ? NULL : malloc(size + 1);

    if (copy) {
        memcpy(copy, http_buffer_start(b), size);
        copy[size] = '\0';
    }
    return copy;
}
