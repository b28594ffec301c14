/* Server-sent events: an answer that stays open. What is sent waits in a buffer until MHD asks for it; when
 * there is nothing, the connection is suspended. */
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
    bool ended;
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

static size_t read_share(http__stream *t, char *to, size_t most)
{
    http_shared *s = t->share[0];
    size_t n = s->size - t->share_from < most ? s->size - t->share_from : most;

    memcpy(to, s->text + t->share_from, n);
    t->share_from += n;
    if (t->share_from == s->size) {
        http_shared_drop(s);
        memmove(t->share, t->share + 1, --t->shares * sizeof *t->share);
        t->share_from = 0;
    }
    return n;
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
    http__resume(x);
    return true;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static ssize_t read_stream(void *data, uint64_t at, char *to, size_t most)
{
    http_exchange *x = data;
    http__stream *t = x->stream;
    size_t waits = http_buffer_size(&t->unsent), n = waits < most ? waits : most;

    (void)at;
    if (x->dead)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && t->shares > 0)
        return (ssize_t)read_share(t, to, most);
    if (n == 0 && t->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        x->suspended = true;
        http_buffer_free(&t->unsent);
        MHD_suspend_connection(x->connection->mhd);
        http__watch_now(x); /* its end is what somebody waits for */
        return 0;
    }
    memcpy(to, http_buffer_start(&t->unsent), n);
    http_buffer_drop(&t->unsent, n);
    return (ssize_t)n;
}

void http_stream_open(http_exchange *x)
{
    void (*gone)(void *) = x->gone;

    x->stream = calloc(1, sizeof *x->stream);
    http_set_header(x, "X-Accel-Buffering", "no");
    http__reply(x, 200, "text/event-stream",
                x->stream
                    ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 512, read_stream, x, NULL)
                    : NULL);
    x->gone = gone;
}

static bool append(http_exchange *x, const char *text, size_t size)
{
    http__stream *t = x->stream;

    if (!t || http_buffer_size(&t->unsent) + size > HTTP_UNSENT ||
        !http_buffer_reserve(&t->unsent, size))
        return false;
    http_buffer_add(&t->unsent, text, size);
    http__resume(x);
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
    http__resume(x);
}

void http_stream_patience(http_exchange *x, int64_t ms)
{
    unsigned timeout = ms > 0 ? (unsigned)ms : 0;

    setsockopt(x->connection->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
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
