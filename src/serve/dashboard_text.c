/* JSON as text; see the header. A frame of 10,000 locks is written in a few milliseconds, which a tree of jansson's
 * objects is not: the loop that writes it serves locks as well. */
#define _GNU_SOURCE
#include "serve/dashboard_text.h"

#include "cli/text.h"

#include <inttypes.h>
#include <string.h>

void dash_comma(http_buffer *t)
{
    if (http_buffer_size(t) > 0 && !strchr("{[:", t->data[t->to - 1]))
        http_buffer_add(t, ",", 1);
}

static void put_quoted(http_buffer *t, const char *utf8)
{
    http_buffer_add(t, "\"", 1);
    for (const char *at = utf8; *at;) {
        size_t plain = 0;

        while ((unsigned char)at[plain] >= ' ' && at[plain] != '"' && at[plain] != '\\')
            plain++;
        http_buffer_add(t, at, plain);
        at += plain;
        if (*at)
            http_buffer_format(t, "\\u%04x", (unsigned char)*at++);
    }
    http_buffer_add(t, "\"", 1);
}

static bool is_utf8(const char *bytes)
{
    size_t n = 1;

    for (; *bytes && n > 0; bytes += n)
        n = cli_utf8_length(bytes);
    return n > 0;
}

void dash_member(http_buffer *t, const char *key, const char *bytes)
{
    char shown[CLI_SHOWN_SIZE];

    dash_comma(t);
    http_buffer_format(t, "\"%s\":", key);
    if (!bytes) {
        http_buffer_text(t, "null");
    } else if (is_utf8(bytes)) {
        put_quoted(t, bytes);
    } else {
        cli_escape(shown, sizeof shown, bytes);
        put_quoted(t, shown);
        http_buffer_format(t, ",\"%s_hex\":\"", key);
        for (const char *at = bytes; *at; at++)
            http_buffer_format(t, "%02x", (unsigned char)*at);
        http_buffer_add(t, "\"", 1);
    }
}

void dash_integer(http_buffer *t, const char *key, int64_t value)
{
    dash_comma(t);
    http_buffer_format(t, "\"%s\":%" PRId64, key, value);
}
