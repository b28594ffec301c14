/* Server-sent events: an answer that stays open. What is sent waits here until the connection has room for it. */
#define _GNU_SOURCE
#include "http/json.h"
#include "inner.h"

#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARES = 4 };

struct http_shared {
    size_t users, size;
    char text[];
};

struct http__stream {
    http_buffer unsent;
    http_shared *share[SHARES]; /* sent after `unsent` */
    size_t shares, share_from;
    bool ended;    /* nothing is added any more */
    bool finished; /* all of it is in the connection's buffer */
};

/* ---- Shared texts ---------------------------------------------------------------------------- */

http_shared *http_shared_new(const char *text, size_t size)
{
    http_shared *s = malloc(sizeof *s + size);

    if (!s)
        return NULL;
    s->users = 1;
    s->size = size;
    memcpy(s->text, text, size);
    return s;
}

void http_shared_drop(http_shared *text)
{
    if (text && --text->users == 0)
        free(text);
}

bool http_stream_has_room(const http_exchange *x)
{
    return x->stream && x->stream->shares < SHARES;
}

bool http_stream_share(http_exchange *x, http_shared *text)
{
    http__stream *t = x->stream;

    if (!http_stream_has_room(x))
        return false;
    text->users++;
    t->share[t->shares++] = text;
    http_connection_wake(&x->connection->c);
    return true;
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* HTTP/1.0 has no chunks: the end of the connection is the end of the stream. */
static void write_chunk(http_exchange *x, const char *data, size_t size)
{
    http_buffer *out = &x->connection->c.out;

    if (x->minor > 0)
        http_buffer_format(out, "%zx\r\n", size);
    http_buffer_add(out, data, size);
    if (x->minor > 0)
        http_buffer_add(out, "\r\n", 2);
}

static void write_unsent(http_exchange *x, http__stream *t)
{
    write_chunk(x, http_buffer_start(&t->unsent), http_buffer_size(&t->unsent));
    http_buffer_free(&t->unsent);
}

/* A piece of the first text that is shared: many slow clients have no copies of it. */
static void write_share(http_exchange *x, http__stream *t)
{
    http_shared *s = t->share[0];
    size_t left = s->size - t->share_from, n = left < HTTP_PIECE ? left : (size_t)HTTP_PIECE;

    write_chunk(x, s->text + t->share_from, n);
    t->share_from += n;
    if (n < left)
        return;
    http_shared_drop(s);
    memmove(t->share, t->share + 1, --t->shares * sizeof *t->share);
    t->share_from = 0;
}

static void finish(http_exchange *x, http__stream *t)
{
    t->finished = true;
    if (x->minor > 0)
        http_buffer_text(&x->connection->c.out, "0\r\n\r\n");
}

/* Text of its own goes between the texts that it shares, not into one. */
bool http__stream_pump(http_exchange *x)
{
    http__stream *t = x->stream;
    http_buffer *out = &x->connection->c.out;

    while (http_buffer_size(out) == 0 && !t->finished) {
        if (t->share_from == 0 && http_buffer_size(&t->unsent) > 0)
            write_unsent(x, t);
        else if (t->shares > 0)
            write_share(x, t);
        else if (!t->ended)
            return false;
        else
            finish(x, t);
    }
    return t->finished;
}

/* HEAD gets the head, and no stream. */
void http_stream_open(http_exchange *x)
{
    x->stream = calloc(1, sizeof *x->stream);
    if (!x->stream) {
        http__give_up(x);
        return;
    }
    http_set_header(x, "X-Accel-Buffering", "no");
    http__reply(x, 200, "text/event-stream", NULL, 0);
    if (strcmp(x->method, "HEAD") == 0)
        x->stream->finished = true;
}

static bool append(http_exchange *x, const char *text, size_t size)
{
    http__stream *t = x->stream;

    if (!t || http_buffer_size(&t->unsent) + size > HTTP_UNSENT ||
        !http_buffer_reserve(&t->unsent, size))
        return false;
    http_buffer_add(&t->unsent, text, size);
    http_connection_wake(&x->connection->c);
    return true;
}

bool http_stream_send(http_exchange *x, const char *event, json_t *data)
{
    size_t length;
    char *text = http_json_text(data, &length), *all = NULL;
    int size = text ? asprintf(&all, "event: %s\ndata: %s\n\n", event, text) : -1;
    bool good = size > 0 && append(x, all, (size_t)size);

    if (size > 0)
        free(all);
    free(text);
    json_decref(data);
    return good;
}

void http_stream_beat(http_exchange *x)
{
    append(x, ":\n\n", 3);
}

void http_stream_end(http_exchange *x)
{
    x->gone = NULL;
    if (x->stream)
        x->stream->ended = true;
    http_connection_wake(&x->connection->c);
}

void http_stream_patience(http_exchange *x, int64_t ms)
{
    unsigned timeout = ms > 0 ? (unsigned)ms : 0;

    setsockopt(x->connection->c.link.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

void http__stream_free(http__stream *t)
{
    if (!t)
        return;
    while (t->shares > 0)
        http_shared_drop(t->share[--t->shares]);
    http_buffer_free(&t->unsent);
    free(t);
}
