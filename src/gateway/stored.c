/* Kept answers; see the header. */
#define _GNU_SOURCE
#include "gateway/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "dibs-gateway/1 ";

static bool is_private(wire_text name, bool set_cookie)
{
    return wire_is(name, "WWW-Authenticate") || wire_is(name, "Authentication-Info") ||
           (!set_cookie && (wire_is(name, "Set-Cookie") || wire_is(name, "Set-Cookie2")));
}

static void add(http_buffer *out, wire_text t)
{
    http_buffer_add(out, t.at, t.size);
}

void gate_stored_head(http_buffer *out, const wire_head *h, bool set_cookie)
{
    http_buffer_format(out, "HTTP/1.1 %d ", h->status);
    add(out, h->reason);
    http_buffer_text(out, "\r\n");
    for (size_t i = 0; i < h->count; i++) {
        const wire_field *f = &h->field[i];
        if (f->hop || is_private(f->name, set_cookie))
            continue;
        if (wire_is(f->name, "Date"))
            http_buffer_text(out, "Dibs-First-Date");
        else
            add(out, f->name);
        http_buffer_text(out, ": ");
        add(out, f->value);
        http_buffer_text(out, "\r\n");
    }
    http_buffer_text(out, "\r\n");
}

void gate_stored_encode(http_buffer *out, const http_buffer *head, const http_buffer *body,
                        const http_buffer *trailers)
{
    size_t behind = body ? http_buffer_size(trailers) : 0;

    http_buffer_text(out, magic);
    if (body)
        http_buffer_format(out, "%zu %zu\n", http_buffer_size(body), behind);
    else
        http_buffer_text(out, "-\n");
    http_buffer_add(out, head->data + head->from, http_buffer_size(head));
    if (body)
        http_buffer_add(out, body->data + body->from, http_buffer_size(body));
    if (behind)
        http_buffer_add(out, trailers->data + trailers->from, behind);
}

bool gate_stored_decode(const char *data, size_t size, gate_stored *out)
{
    const char *line =
                   data && size > sizeof magic ? memchr(data, '\n', size < 64 ? size : 64) : NULL,
               *why;
    size_t body = 0, behind = 0, seen = 0;
    ssize_t head;
    int end = 0;
    char text[64] = "";

    memset(out, 0, sizeof *out);
    if (!line || memcmp(data, magic, sizeof magic - 1) != 0)
        return false;
    memcpy(text, data + sizeof magic - 1, (size_t)(line - data) - (sizeof magic - 1));
    out->kept = strcmp(text, "-") != 0;
    if (out->kept && (sscanf(text, "%9zu %9zu%n", &body, &behind, &end) != 2 || text[end]))
        return false;
    line++;
    size -= (size_t)(line - data);
    head = wire_answer(line, size, &seen, size, false, &out->head, &why);
    if (head <= 0 || (size_t)head > size || size - (size_t)head != body + behind)
        return false;
    out->body = (wire_text){line + head, body};
    out->trailers.trailer = (char *)(uintptr_t)line + head + body;
    out->trailers.trailer_size = behind;
    return true;
}
