/* Calls, and the client's beginning and end. The thread is in io.c. */
#define _GNU_SOURCE
#include "core/answer.h"
#include "core/error.h"
#include "core/thread.h"
#include "engines/etcd/error.h"
#include "engines/etcd/inner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_TRIES 3
#define NOT_FOUND 5 /* gRPC's */

/* ---- Waking and waiting ---------------------------------------------------------------------- */

void dibs__etcd_kick(dibs__etcd_client *c)
{
    uint64_t one = 1;

    while (write(c->kick, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

void dibs__etcd_leave(dibs__etcd_client *c)
{
    c->cut = true;
    dibs__etcd_kick(c);
}

void dibs__etcd_flush(dibs__etcd_client *c)
{
    dibs__h2_state state;

    if (!c->h2 || c->cut)
        return;
    state = dibs__h2_flush(c->h2);
    if (state == DIBS__H2_DEAD)
        dibs__etcd_leave(c);
    else if (state == DIBS__H2_FULL && !c->full)
        dibs__etcd_kick(c);
    c->full = state == DIBS__H2_FULL;
}

/* `why`: how the last attempt to connect ended, if there was one. */
static dibs_status late(const dibs__etcd_client *c, const dibs_error *why, dibs_error *err)
{
    if (why->status)
        return dibs__fail_as(err, why->status, why);
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "etcd at %.200s:%d: not connected in time; is it etcd's client port?",
                      c->address.host[0].name, c->address.host[0].port);
}

/* With the mutex. Those who wait while every server is tried in vain share the reason. */
static dibs_status need_connection(dibs__etcd_client *c, dibs__deadline until, dibs_error *err)
{
    unsigned failed = c->failed;

    while (!c->h2 || c->cut) {
        if (c->failed != failed)
            return dibs__fail_as(err, c->why.status, &c->why);
        if (dibs__now(c->env) >= until)
            return late(c, &c->why, err);
        dibs__cond_sleep(&c->turned, &c->lock, c->env, until);
    }
    return DIBS_OK;
}

void dibs__etcd_alarm(dibs__etcd_client *c, dibs__deadline when)
{
    pthread_mutex_lock(&c->lock);
    if (when < c->alarm) {
        c->alarm = when;
        dibs__etcd_kick(c);
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- Lists of calls -------------------------------------------------------------------------- */

static void put_into(dibs__etcd_call **list, dibs__etcd_call *call)
{
    call->next = *list;
    call->link = list;
    if (call->next)
        call->next->link = &call->next;
    *list = call;
}

static void take_out(dibs__etcd_call *call)
{
    *call->link = call->next;
    if (call->next)
        call->next->link = call->link;
    call->link = NULL;
}

/* The thread tells it when it has let go of the mutex. */
static void end(dibs__etcd_call *call, int rpc)
{
    dibs__etcd_client *c = call->client;

    dibs__etcd_guard_ended(c, call, rpc);
    call->stream.rpc = rpc;
    call->next = NULL;
    *c->over_end = call;
    c->over_end = &call->next;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

bool dibs__etcd_takes_requests(const dibs__etcd_client *c)
{
    return c->h2 && !c->cut && !c->goodbye;
}

/* What surely was not done, and what only looks, is sent once more, to a server that can. */
static bool comes_again(dibs__etcd_call *call)
{
    dibs__etcd_client *c = call->client;
    dibs__h2_stream *s = &call->stream;
    bool not_done = false;
    bool token_over = dibs__etcd_token_is_over(s->rpc, s->text);
    bool lost = dibs__etcd_member_is_lost(s->rpc, s->text, &not_done);
    bool looks = call->kind == DIBS__ETCD_READ || call->kind == DIBS__ETCD_LOOK;
    bool again = s->rpc == DIBS__RPC_UNSENT || (s->rpc == DIBS__RPC_CUT && looks);

    if (token_over || (lost && c->address.count > 1))
        dibs__etcd_leave(c);
    else if (!again)
        return false;
    return (!lost || not_done) && call->tries < MAX_TRIES && !c->stopping;
}

/* The guard was not what it bears, and nothing was done. */
static void comes_back(dibs__etcd_call *call, dibs__etcd_held held)
{
    dibs__h2_stream *s = &call->stream;

    if (held == DIBS__ETCD_GONE_WITH_SESSION && call->kind == DIBS__ETCD_BOUND) {
        snprintf(s->text, sizeof s->text, "lease not found");
        end(call, NOT_FOUND);
    } else if (call->tries < 2 * MAX_TRIES) {
        put_into(&call->client->queued, call);
        dibs__etcd_kick(call->client);
    } else {
        end(call, DIBS__RPC_UNSENT);
    }
}

static void on_closed(dibs__h2_stream *s)
{
    dibs__etcd_call *call = (dibs__etcd_call *)s;
    dibs__etcd_held held = DIBS__ETCD_HELD;

    take_out(call);
    if (s->rpc == DIBS__RPC_OK && s->in.length > 5)
        dibs__etcd_seen(call->client, (const uint8_t *)s->in.data + 5, s->in.length - 5);
    if (s->rpc == DIBS__RPC_OK && call->kind >= DIBS__ETCD_GUARDED)
        held = dibs__etcd_guard_held(call->client, call);
    if (held != DIBS__ETCD_HELD)
        comes_back(call, held);
    else if (comes_again(call))
        put_into(&call->client->queued, call);
    else
        end(call, s->rpc);
}

static void send_call(dibs__etcd_client *c, dibs__etcd_call *call)
{
    call->tries++;
    if (call->kind >= DIBS__ETCD_GUARDED && !dibs__etcd_guard_put_on(c, call)) {
        end(call, DIBS__RPC_MEMORY_BEFORE);
        return;
    }
    if (dibs__h2_start(c->h2, &call->stream, call->method, c->token, false)) {
        put_into(&c->flying, call);
        return;
    }
    /* The server says goodbye, or all numbers of streams are used up: on another connection. */
    dibs__etcd_leave(c);
    if (call->tries < MAX_TRIES)
        put_into(&c->queued, call);
    else
        end(call, DIBS__RPC_UNSENT);
}

static bool may_go(const dibs__etcd_client *c, const dibs__etcd_call *call)
{
    return dibs__etcd_takes_requests(c) && dibs__etcd_guard_lets(c, call->kind);
}

bool dibs__etcd_post_locked(dibs__etcd_client *c, dibs__etcd_call *call, dibs__etcd_kind kind,
                            const char *method, const ProtobufCMessage *request,
                            dibs__deadline until, dibs__etcd_done_fn *done)
{
    int64_t now = dibs__now(c->env);

    memset(call, 0, sizeof *call);
    call->client = c;
    call->kind = kind;
    call->method = method;
    call->done = done;
    call->until = until;
    call->stream.closed = on_closed;
    if (!dibs__h2_pack(&call->stream, request))
        return false;
    call->whole = call->stream.out.length;
    c->posted = now;
    c->soonest = dibs__sooner(c->soonest, until);
    if (may_go(c, call)) {
        send_call(c, call);
        dibs__etcd_flush(c);
    } else {
        put_into(&c->queued, call);
    }
    /* A thread that went to sleep for long, or past this call's time, looks again. */
    if (c->asleep_until > now + DIBS__ETCD_NAP || c->asleep_until > until || c->over)
        dibs__etcd_kick(c);
    return true;
}

bool dibs__etcd_post(dibs__etcd_client *c, dibs__etcd_call *call, dibs__etcd_kind kind,
                     const char *method, const ProtobufCMessage *request, dibs__deadline until,
                     dibs__etcd_done_fn *done)
{
    bool ok;

    pthread_mutex_lock(&c->lock);
    ok = dibs__etcd_post_locked(c, call, kind, method, request, until, done);
    pthread_mutex_unlock(&c->lock);
    return ok;
}

void dibs__etcd_calls_send(dibs__etcd_client *c)
{
    for (dibs__etcd_call *call = c->queued, *next; call; call = next) {
        next = call->next; /* what comes back is put before it */
        if (!may_go(c, call))
            continue;
        take_out(call);
        send_call(c, call);
    }
}

void dibs__etcd_calls_fail(dibs__etcd_client *c)
{
    while (c->queued) {
        dibs__etcd_call *call = c->queued;
        take_out(call);
        end(call, DIBS__RPC_UNREACHED);
    }
}

bool dibs__etcd_call_drop(dibs__etcd_call *call)
{
    dibs__etcd_client *c = call->client;

    if (!call->link)
        return false;
    take_out(call);
    if (c->h2)
        dibs__h2_forget(c->h2, &call->stream);
    dibs__etcd_call_fini(call);
    return true;
}

static dibs__deadline end_late(dibs__etcd_client *c, dibs__etcd_call *list, int64_t now, int rpc)
{
    dibs__deadline soonest = DIBS__NEVER;

    for (dibs__etcd_call *call = list, *next; call; call = next) {
        next = call->next;
        if (call->until > now) {
            soonest = dibs__sooner(soonest, call->until);
            continue;
        }
        take_out(call);
        if (c->h2)
            dibs__h2_forget(c->h2, &call->stream);
        end(call, rpc);
    }
    return soonest;
}

dibs__deadline dibs__etcd_calls_late(dibs__etcd_client *c, int64_t now)
{
    if (now >= c->soonest)
        c->soonest = dibs__sooner(end_late(c, c->flying, now, DIBS__RPC_LATE),
                                  end_late(c, c->queued, now, DIBS__RPC_UNREACHED));
    return c->soonest;
}

/* etcd puts one into every answer that has a place for it; it is not looked for again by those who read them. */
static bool has_header(const ProtobufCMessage *m)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "header");

    return !f || *(void *const *)((const char *)m + f->offset);
}

dibs_status dibs__etcd_answer(dibs__etcd_call *call, const ProtobufCMessageDescriptor *type,
                              ProtobufCMessage **out, dibs_error *err)
{
    const dibs__bytes *in = &call->stream.in;
    const dibs_error *why = &call->client->why; /* the thread's own, and this is the thread */
    int rpc = call->stream.rpc;

    *out = NULL;
    if (rpc == DIBS__RPC_UNREACHED)
        return late(call->client, why, err);
    if (rpc != DIBS__RPC_OK)
        return dibs__etcd_refusal(rpc, call->stream.text, err);
    if (in->length < 5 || in->data[0] != 0)
        return dibs__etcd_refusal(DIBS__RPC_JUNK, "", err);
    *out = protobuf_c_message_unpack(type, NULL, in->length - 5, (const uint8_t *)in->data + 5);
    if (!*out)
        return dibs__fail(err, DIBS_UNKNOWN, "an answer could not be read: out of memory?");
    if (has_header(*out))
        return DIBS_OK;
    protobuf_c_message_free_unpacked(*out, NULL);
    *out = NULL;
    return dibs__fail(err, DIBS_UNKNOWN, "an answer has no header; is it etcd's client port?");
}

void dibs__etcd_call_fini(dibs__etcd_call *call)
{
    dibs__h2_stream_fini(&call->stream);
}

/* ---- Asking and waiting ---------------------------------------------------------------------- */

/* Shared by the one who waits and the thread; the last one frees it. */
typedef struct question {
    dibs__etcd_call call;
    dibs__answer answer;
    const ProtobufCMessageDescriptor *type;
    ProtobufCMessage *reply;
    dibs_status status;
    dibs_error err;
} question;

static void question_free(question *q)
{
    if (q->reply)
        protobuf_c_message_free_unpacked(q->reply, NULL);
    dibs__etcd_call_fini(&q->call);
    free(q);
}

static void question_done(dibs__etcd_call *call)
{
    question *q = DIBS__FROM(question, call, call);

    q->status = dibs__etcd_answer(call, q->type, &q->reply, &q->err);
    if (dibs__answer_give(&q->answer))
        question_free(q);
}

dibs_status dibs__etcd_ask(dibs__etcd_client *c, dibs__etcd_kind kind, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                           ProtobufCMessage **out, dibs__deadline until, dibs_error *err)
{
    question *q = calloc(1, sizeof *q);
    dibs_status status;

    *out = NULL;
    if (!q)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    q->type = type;
    dibs__answer_expect(&q->answer);
    if (!dibs__etcd_post(c, &q->call, kind, method, request, until, question_done)) {
        question_free(q);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    if (!dibs__answer_wait(&q->answer, c->env, until) && !dibs__answer_leave(&q->answer))
        return dibs__fail(err, DIBS_UNKNOWN, "no answer in time");
    status = q->status;
    *out = q->reply;
    q->reply = NULL;
    if (status != DIBS_OK)
        dibs__fail_as(err, status, &q->err);
    question_free(q);
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void forget(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

void dibs__etcd_address_fini(dibs__etcd_address *address)
{
    for (size_t i = 0; i < address->count; i++)
        free(address->host[i].name);
    free(address->user);
    free(address->probe);
    forget(address->password);
    dibs__tls_context_free(address->tls);
    memset(address, 0, sizeof *address);
}

dibs__etcd_client *dibs__etcd_client_new(const dibs__env *env, dibs__sink *sink,
                                         dibs__etcd_address *address,
                                         const dibs__etcd_events *events)
{
    dibs__etcd_client *c = calloc(1, sizeof *c);

    if (!c) {
        dibs__etcd_address_fini(address);
        return NULL;
    }
    c->env = env;
    c->sink = sink;
    c->address = *address;
    c->events = *events;
    c->at = c->address.count - 1; /* the first is next */
    c->over_end = &c->over;
    c->watches.to_notify_end = &c->watches.to_notify;
    pthread_mutex_init(&c->lock, NULL);
    dibs__cond_init(&c->turned);
    c->soonest = c->alarm = DIBS__NEVER;
    c->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->kick < 0 || c->stop < 0) {
        dibs__etcd_client_free(c);
        return NULL;
    }
    return c;
}

dibs_status dibs__etcd_client_open(dibs__etcd_client *c, dibs__deadline until, dibs_error *err)
{
    dibs_status status;

    c->running = dibs__thread_start(&c->thread, dibs__etcd_thread, c);
    if (!c->running)
        return dibs__fail(err, DIBS_NO_MEMORY, "no thread for the connection");
    pthread_mutex_lock(&c->lock);
    status = need_connection(c, until, err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

void dibs__etcd_client_free(dibs__etcd_client *c)
{
    uint64_t one = 1;

    if (!c)
        return;
    if (c->running) {
        pthread_mutex_lock(&c->lock);
        c->stopping = true;
        pthread_mutex_unlock(&c->lock);
        while (write(c->stop, &one, sizeof one) < 0 && errno == EINTR)
            continue;
        dibs__etcd_kick(c);
        pthread_join(c->thread, NULL);
    }
    dibs__etcd_watches_fini(c);
    dibs__etcd_guard_fini(c);
    dibs__h2_stream_fini(&c->lease.stream);
    dibs__etcd_address_fini(&c->address);
    forget(c->token);
    if (c->kick >= 0)
        close(c->kick);
    if (c->stop >= 0)
        close(c->stop);
    pthread_cond_destroy(&c->turned);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void dibs__etcd_client_abandon(dibs__etcd_client *c)
{
    if (c->h2)
        close(dibs__h2_fd(c->h2));
    close(c->kick);
    close(c->stop);
}
