/* Text that grows; see the header. A frame of 10,000 locks is written in a few milliseconds, which a tree of jansson's
 * objects is not: the loop that writes it serves locks as well. */
#define _GNU_SOURCE
#include "serve/dashboard_text.h"

#include "cli/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(dash_text *t, size_t more)
{
    size_t room = t->room ? t->room : 256;
    char *data;

    if (t->failed)
        return false;
    while (room < t->size + more + 1)
        room *= 2;
    if (room == t->room)
        return true;
    data = realloc(t->data, room);
    t->failed = !data;
    if (data) {
        t->data = data;
        t->room = room;
    }
    return data != NULL;
}

void dash_put(dash_text *t, const char *bytes, size_t size)
{
    if (!reserve(t, size))
        return;
    memcpy(t->data + t->size, bytes, size);
    t->size += size;
    t->data[t->size] = '\0';
}

void dash_puts(dash_text *t, const char *text)
{
    dash_put(t, text, strlen(text));
}

void dash_printf(dash_text *t, const char *format, ...)
{
    va_list args;
    int size;

    if (!reserve(t, 128))
        return;
    va_start(args, format);
    size = vsnprintf(t->data + t->size, t->room - t->size, format, args);
    va_end(args);
    if (size < 0 || (size_t)size < t->room - t->size) {
        t->failed = t->failed || size < 0;
        t->size += size < 0 ? 0 : (size_t)size;
    } else if (reserve(t, (size_t)size)) {
        va_start(args, format);
        vsnprintf(t->data + t->size, t->room - t->size, format, args);
        va_end(args);
        t->size += (size_t)size;
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void dash_comma(dash_text *t)
{
    if (t->size > 0 && !strchr("{[:", t->data[t->size - 1]))
        dash_put(t, ",", 1);
}

static void put_quoted(dash_text *t, const char *utf8)
{
    dash_put(t, "\"", 1);
    for (const char *at = utf8; *at;) {
        size_t plain = 0;

        while ((unsigned char)at[plain] >= ' ' && at[plain] != '"' && at[plain] != '\\')
            plain++;
        dash_put(t, at, plain);
        at += plain;
        if (*at)
            dash_printf(t, "\\u%04x", (unsigned char)*at++);
    }
    dash_put(t, "\"", 1);
}

static bool is_utf8(const char *bytes)
{
    size_t n = 1;

    for (; *bytes && n > 0; bytes += n)
        n = cli_utf8_length(bytes);
    return n > 0;
}

void dash_member(dash_text *t, const char *key, const char *bytes)
{
    char shown[CLI_SHOWN_SIZE];

    dash_comma(t);
    dash_printf(t, "\"%s\":", key);
    if (!bytes) {
        dash_puts(t, "null");
    } else if (is_utf8(bytes)) {
        put_quoted(t, bytes);
    } else {
        cli_escape(shown, sizeof shown, bytes);
        put_quoted(t, shown);
        dash_printf(t, ",\"%s_hex\":\"", key);
        for (const char *at = bytes; *at; at++)
            dash_printf(t, "%02x", (unsigned char)*at);
        dash_put(t, "\"", 1);
    }
}

void dash_integer(dash_text *t, const char *key, int64_t value)
{
    dash_comma(t);
    dash_printf(t, "\"%s\":%" PRId64, key, value);
}

void dash_text_clear(dash_text *t)
{
    t->size = 0;
    t->failed = false;
}

void dash_text_free(dash_text *t)
{
    free(t->data);
    *t = (dash_text){0};
}

char *dash_text_copy(const dash_text *t)
{
    char *copy = t->failed || !t->data ? NULL : malloc(t->size + 1);

    if (copy)
        memcpy(copy, t->data, t->size + 1);
    return copy;
}
