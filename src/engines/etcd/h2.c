/* nghttp2 keeps the protocol; this gives it bytes, and gRPC its frames: a flag, four bytes of
 * length, a message. The status of a call comes in the trailers. */
#define _GNU_SOURCE
#include "engines/etcd/h2.h"

#include "core/error.h"
#include "net/dial.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WINDOW (4 << 20) /* bytes in flight before the server waits for us */
#define PREFIX 5

size_t dibs__h2_message_max = 64u << 20;

struct dibs__h2 {
    nghttp2_session *session;
    const dibs__env *env;
    int fd;
    dibs__tls *tls;
    dibs__deadline heard;
    dibs__h2_stream *streams;
    bool greeted; /* a frame of HTTP/2 has come */
    bool goodbye;
    dibs__bytes out; /* made by nghttp2, not yet taken by the system */
    size_t out_at;
    char authority[300];
};

/* ---- What nghttp2 tells us ------------------------------------------------------------------- */

static dibs__h2_stream *stream_of(nghttp2_session *session, int32_t id)
{
    return nghttp2_session_get_stream_user_data(session, id);
}

static void link_stream(dibs__h2 *h, dibs__h2_stream *s)
{
    s->next = h->streams;
    s->link = &h->streams;
    if (s->next)
        s->next->link = &s->next;
    h->streams = s;
}

static void unlink_stream(dibs__h2_stream *s)
{
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    s->link = NULL;
}

static void set_text(dibs__h2_stream *s, const uint8_t *value, size_t length)
{
    snprintf(s->text, sizeof s->text, "%.*s", (int)length, (const char *)value);
}

/* Negative numbers are our own: no server's word is taken for one of them. */
static int status_of(const char *text)
{
    char *end;
    long status = strtol(text, &end, 10);

    return end == text || *end || status < 0 || status > 16 ? DIBS__RPC_JUNK : (int)status;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_length, const uint8_t *value, size_t length, uint8_t flags,
                     void *ctx)
{
    dibs__h2_stream *s = stream_of(session, frame->hd.stream_id);

    (void)flags;
    (void)ctx;
    if (!s)
        return 0;
    if (name_length == 11 && memcmp(name, "grpc-status", 11) == 0) {
        s->rpc = status_of((const char *)value);
    } else if (name_length == 12 && memcmp(name, "grpc-message", 12) == 0) {
        set_text(s, value, length);
    } else if (name_length == 7 && memcmp(name, ":status", 7) == 0 &&
               (length != 3 || memcmp(value, "200", 3) != 0)) {
        snprintf(s->text, sizeof s->text, "HTTP status %.*s", (int)length, (const char *)value);
    }
    return 0;
}

/* Hands out the messages that are whole. A call's only message stays where it is. */
static bool take_messages(dibs__h2_stream *s)
{
    size_t at = 0;

    while (s->message && s->in.length - at >= PREFIX) {
        const uint8_t *p = (const uint8_t *)s->in.data + at;
        size_t length = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (p[0] != 0 || length > dibs__h2_message_max)
            return false;
        if (s->in.length - at - PREFIX < length)
            break;
        at += PREFIX + length;
        s->message(s, p + PREFIX, length);
    }
    if (at > 0)
        dibs__bytes_drop(&s->in, at);
    return s->in.length <= dibs__h2_message_max;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t length, void *ctx)
{
    dibs__h2_stream *s = stream_of(session, id);

    (void)flags;
    (void)ctx;
    if (!s)
        return 0;
    if (!dibs__bytes_add(&s->in, data, length))
        s->rpc = DIBS__RPC_MEMORY;
    else if (!take_messages(s))
        s->rpc = s->in.data[0] == 0 ? DIBS__RPC_LONG : DIBS__RPC_JUNK;
    else
        return 0;
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_INTERNAL_ERROR);
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t code, void *ctx)
{
    dibs__h2_stream *s = stream_of(session, id);

    (void)ctx;
    if (!s)
        return 0;
    unlink_stream(s);
    if (code == NGHTTP2_REFUSED_STREAM || (s->rpc == DIBS__RPC_CUT && !s->out_whole))
        s->rpc = DIBS__RPC_UNSENT;
    else if (code == NGHTTP2_NO_ERROR && s->rpc == DIBS__RPC_CUT)
        s->rpc = DIBS__RPC_JUNK; /* it ended well, and without a status */
    s->closed(s);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    dibs__h2 *h = ctx;

    (void)session;
    h->greeted = true;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        h->goodbye = true;
    return 0;
}

/* A request that was waiting inside nghttp2 when the server said goodbye: it closes no stream, because
 * it never opened one. Where memory ran out it had opened one, which is closed after this. */
static int on_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int code, void *ctx)
{
    dibs__h2 *h = ctx;
    dibs__h2_stream *s = h->streams;

    (void)code;
    while (s && s->id != frame->hd.stream_id)
        s = s->next;
    if (!s || frame->hd.type != NGHTTP2_HEADERS)
        return 0;
    unlink_stream(s);
    nghttp2_session_set_stream_user_data(session, s->id, NULL);
    s->rpc = DIBS__RPC_UNSENT;
    s->closed(s);
    return 0;
}

/* The body of a request, piece by piece. */
static ssize_t on_body(nghttp2_session *session, int32_t id, uint8_t *to, size_t length,
                       uint32_t *flags, nghttp2_data_source *source, void *ctx)
{
    dibs__h2_stream *s = source->ptr;
    size_t left = s->out.length - s->out_at;
    size_t n = left < length ? left : length;

    (void)session;
    (void)id;
    (void)ctx;
    if (n == 0 && s->lasting)
        return NGHTTP2_ERR_DEFERRED;
    if (n > 0)
        memcpy(to, s->out.data + s->out_at, n);
    s->out_at += n;
    if (s->out_at == s->out.length) {
        s->out_whole = true;
        if (!s->lasting)
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        else
            s->out.length = s->out_at = 0;
    }
    return (ssize_t)n;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static bool make_session(dibs__h2 *h)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
    };
    bool ok;

    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        return false;
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_not_sent);
    ok = nghttp2_session_client_new(&h->session, callbacks, h) == 0;
    nghttp2_session_callbacks_del(callbacks);
    return ok &&
           nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings,
                                   sizeof settings / sizeof settings[0]) == 0 &&
           nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, WINDOW) == 0;
}

static void name_authority(dibs__h2 *h, const dibs__h2_address *address)
{
    bool v6 = strchr(address->host, ':') != NULL;

    snprintf(h->authority, sizeof h->authority, "%s%.250s%s:%d", v6 ? "[" : "", address->host,
             v6 ? "]" : "", address->port);
}

dibs_status dibs__h2_open(const dibs__h2_address *address, dibs__deadline until, dibs__h2 **out,
                          dibs_error *err)
{
    dibs__h2 *h = calloc(1, sizeof *h);
    dibs_status status;

    if (!h)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    h->env = address->env;
    h->fd = -1;
    name_authority(h, address);
    status = dibs__dial(address->env, address->host, address->port, address->stop_fd, until, &h->fd,
                        err);
    if (status == DIBS_OK && address->tls)
        status = dibs__tls_open(address->tls, h->fd, address->host, h->env, until, &h->tls, err);
    if (status == DIBS_OK && !make_session(h))
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (status != DIBS_OK)
        dibs__h2_close(h);
    else
        *out = h;
    return status;
}

/* nghttp2_session_del closes streams without a word, so that each is told here. What the system has not
 * sent yet is thrown away: nobody waits for it any more. */
void dibs__h2_close(dibs__h2 *h)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    if (!h)
        return;
    nghttp2_session_del(h->session);
    while (h->streams) {
        dibs__h2_stream *s = h->streams;
        unlink_stream(s);
        s->rpc = s->out_whole ? DIBS__RPC_CUT : DIBS__RPC_UNSENT;
        s->closed(s);
    }
    dibs__tls_close(h->tls);
    if (h->fd >= 0) {
        setsockopt(h->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(h->fd);
    }
    dibs__bytes_fini(&h->out);
    free(h);
}

int dibs__h2_fd(const dibs__h2 *h)
{
    return h->fd;
}

dibs__deadline dibs__h2_heard(const dibs__h2 *h)
{
    return h->heard;
}

bool dibs__h2_said_goodbye(const dibs__h2 *h)
{
    return h->goodbye;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static nghttp2_nv header(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
}

bool dibs__h2_pack(dibs__h2_stream *s, const ProtobufCMessage *message)
{
    dibs__bytes *b = &s->out;
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *p = (uint8_t *)dibs__bytes_room(b, PREFIX + length);

    if (!p)
        return false;
    *p++ = 0;
    for (int shift = 24; shift >= 0; shift -= 8)
        *p++ = (uint8_t)(length >> shift);
    protobuf_c_message_pack(message, p);
    b->length += PREFIX + length;
    return true;
}

bool dibs__h2_start(dibs__h2 *h, dibs__h2_stream *s, const char *path, const char *token,
                    bool lasting)
{
    /* "hasleader": a member that is cut off from the others says so at once instead of waiting. */
    nghttp2_nv headers[] = {
        header(":method", "POST"),   header(":scheme", h->tls ? "https" : "http"),
        header(":path", path),       header(":authority", h->authority),
        header("te", "trailers"),    header("content-type", "application/grpc"),
        header("hasleader", "true"), header("token", token ? token : ""),
    };
    nghttp2_data_provider body = {{.ptr = s}, on_body};

    s->lasting = lasting;
    s->out_at = 0;
    s->out_whole = false;
    dibs__bytes_clear(&s->in);
    s->text[0] = '\0';
    s->rpc = DIBS__RPC_CUT; /* until the trailers say otherwise */
    if (h->goodbye)
        return false;
    s->id = nghttp2_submit_request(h->session, NULL, headers,
                                   sizeof headers / sizeof headers[0] - (token ? 0 : 1), &body, s);
    if (s->id < 0)
        return false;
    link_stream(h, s);
    return true;
}

bool dibs__h2_push(dibs__h2 *h, dibs__h2_stream *s, const ProtobufCMessage *message)
{
    if (!dibs__h2_pack(s, message))
        return false;
    nghttp2_session_resume_data(h->session, s->id); /* fails when it is not asleep: harmless */
    return true;
}

void dibs__h2_forget(dibs__h2 *h, dibs__h2_stream *s)
{
    if (!s->link)
        return;
    unlink_stream(s);
    nghttp2_session_set_stream_user_data(h->session, s->id, NULL);
    nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_CANCEL);
    dibs__h2_flush(h); /* the body of what is not sent yet goes with `s` */
}

void dibs__h2_stream_fini(dibs__h2_stream *s)
{
    dibs__bytes_fini(&s->out);
    dibs__bytes_fini(&s->in);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static ssize_t write_some(dibs__h2 *h, const char *data, size_t length)
{
    short wait_for;

    return h->tls ? dibs__tls_write(h->tls, data, length, &wait_for)
                  : send(h->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* All that nghttp2 has to say goes into `out`: a body that is not packed yet belongs to a stream
 * that may be gone tomorrow. */
static bool gather(dibs__h2 *h)
{
    const uint8_t *data;
    ssize_t n;

    while ((n = nghttp2_session_mem_send(h->session, &data)) > 0)
        if (!dibs__bytes_add(&h->out, data, (size_t)n))
            return false;
    return n == 0;
}

dibs__h2_state dibs__h2_flush(dibs__h2 *h)
{
    if (!gather(h))
        return DIBS__H2_DEAD;
    while (h->out_at < h->out.length) {
        ssize_t n = write_some(h, h->out.data + h->out_at, h->out.length - h->out_at);
        if (n > 0)
            h->out_at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            return DIBS__H2_FULL;
        else if (n == 0 || errno != EINTR)
            return DIBS__H2_DEAD;
    }
    dibs__bytes_clear(&h->out);
    h->out_at = 0;
    return DIBS__H2_GOOD;
}

dibs__h2_state dibs__h2_read(dibs__h2 *h)
{
    uint8_t data[32768];
    short wait_for;

    for (;;) {
        ssize_t n = h->tls ? dibs__tls_read(h->tls, data, sizeof data, &wait_for)
                           : recv(h->fd, data, sizeof data, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return nghttp2_session_want_read(h->session) ? DIBS__H2_GOOD : DIBS__H2_DEAD;
        if (n <= 0)
            return DIBS__H2_DEAD;
        if (nghttp2_session_mem_recv(h->session, data, (size_t)n) < 0)
            return DIBS__H2_DEAD;
        if (h->greeted) /* another kind of server talks, too */
            h->heard = dibs__now(h->env);
        if (!h->tls && (size_t)n < sizeof data)
            return nghttp2_session_want_read(h->session) ? DIBS__H2_GOOD : DIBS__H2_DEAD;
    }
}
