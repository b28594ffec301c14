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

static void add(gate_buffer *out, wire_text t)
{
    gate_buffer_add(out, t.at, t.size);
}

void gate_stored_head(gate_buffer *out, const wire_head *h, bool set_cookie)
{
    gate_buffer_format(out, "HTTP/1.1 %d ", h->status);
    add(out, h->reason);
    gate_buffer_text(out, "\r\n");
    for (size_t i = 0; i < h->count; i++) {
        const wire_field *f = &h->field[i];
        if (f->hop || is_private(f->name, set_cookie))
            continue;
        if (wire_is(f->name, "Date"))
            gate_buffer_text(out, "Dibs-First-Date");
        else
            add(out, f->name);
        gate_buffer_text(out, ": ");
        add(out, f->value);
        gate_buffer_text(out, "\r\n");
    }
    gate_buffer_text(out, "\r\n");
}

void gate_stored_encode(gate_buffer *out, const gate_buffer *head, const gate_buffer *body,
                        const gate_buffer *trailers)
{
    size_t behind = body ? gate_buffer_size(trailers) : 0;

    gate_buffer_text(out, magic);
    if (body)
        gate_buffer_format(out, "%zu %zu\n", gate_buffer_size(body), behind);
    else
        gate_buffer_text(out, "-\n");
    gate_buffer_add(out, head->data + head->from, gate_buffer_size(head));
    if (body)
        gate_buffer_add(out, body->data + body->from, gate_buffer_size(body));
    if (behind)
        gate_buffer_add(out, trailers->data + trailers->from, behind);
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
