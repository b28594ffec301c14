/* See the header. One mutex guards all of it and is never held over a system call that can block.
 * Each caller sleeps on a word of its own, so that one who is done returns without the mutex. Who drives is
 * decided in core/driver.h.
 *
 * The queue points to calls on their callers' stacks. A caller returns in two ways only: its word is DONE, which
 * is said after the queue has let go of the call, or through `leave`, after it has let go of the queue.
 *
 *   out ----> spare ----> socket ----> reader ----> queue[0].call, queue[1].call, ...
 *   (queued)  (writer)                 (driver)     (in the order of the requests) */
#define _GNU_SOURCE
#include "engines/redis/pipeline.h"

#include "core/driver.h"
#include "core/error.h"
#include "core/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLIGHTS 3                /* unanswered writes before requests are gathered */
#define BATCH   64               /* replies handed out at a time */
#define IDLE    (100 * DIBS__MS) /* after that a connection is looked at before it is trusted */

/* One call, on its caller's stack. Only its word is looked at without the mutex. */
typedef struct call {
    dibs__driver_call base;
    redisReply **out;
    size_t count, got;
    dibs_status status;
    dibs_error *err;
} call;

/* A request in the queue for its replies. */
typedef struct entry {
    call *call;           /* NULL: nobody waits for it any more, or nobody ever did */
    size_t left;          /* replies to come */
    size_t size;          /* bytes of it */
    uint64_t end;         /* the request is out when so many bytes are */
    dibs__deadline since; /* in the queue */
    uint64_t ends;  /* connections that were given up, see abandoned.h; 0: a caller's request */
    uint64_t after; /* and the last before them */
    bool refused;   /* to end one of them */
    bool last;      /* of its write */
} entry;

struct dibs__pipeline {
    const dibs__env *env;
    dibs__connect_fn connect;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* the connection came, went, or could not be made */
    dibs__conn *conn;
    dibs__calls calls;
    dibs__abandoned *abandoned;
    int64_t span; /* how long an exchange may take */
    bool connecting, broken, writing;
    unsigned failed; /* attempts to connect */
    dibs_error why;  /* the last of them */
    dibs__deadline used, heard;
    dibs__bytes out, spare;
    size_t spare_sent;
    uint64_t queued, sent; /* bytes of this connection */
    entry *in_flight;      /* a ring */
    size_t room, first, count;
    int flights;
};

/* ---- The queue of requests -------------------------------------------------------------------- */

static entry *entry_at(dibs__pipeline *p, size_t i)
{
    return &p->in_flight[(p->first + i) & (p->room - 1)];
}

static bool make_room(dibs__pipeline *p)
{
    size_t room = p->room ? 2 * p->room : 64;
    entry *in_flight;

    if (p->count < p->room)
        return true;
    in_flight = calloc(room, sizeof *in_flight);
    if (!in_flight)
        return false;
    for (size_t i = 0; i < p->count; i++)
        in_flight[i] = *entry_at(p, i);
    free(p->in_flight);
    p->in_flight = in_flight;
    p->room = room;
    p->first = 0;
    return true;
}

/* What was added to `out` since it had `before` bytes, as one request. */
static void add_entry(dibs__pipeline *p, size_t before, entry e)
{
    e.size = p->out.length - before;
    p->queued += e.size;
    e.end = p->queued;
    e.since = dibs__now(p->env);
    *entry_at(p, p->count++) = e;
}

static bool undo(dibs__pipeline *p, size_t before)
{
    p->out.length = before;
    p->out.failed = false;
    return false;
}

/* Connections of this handle that were given up are ended before anything newer is asked for. */
static bool enqueue_ends(dibs__pipeline *p)
{
    size_t before = p->out.length, n;
    uint64_t after = p->conn->ended;

    if (!make_room(p))
        return false;
    n = dibs__abandoned_write(p->abandoned, p->conn, &p->out);
    if (p->out.failed)
        return undo(p, before);
    if (n > 0)
        add_entry(p, before, (entry){.left = n, .ends = p->conn->ended, .after = after});
    return true;
}

static bool enqueue_call(dibs__pipeline *p, const dibs__bytes *bytes, call *c)
{
    size_t before = p->out.length;

    if (bytes->failed || !make_room(p))
        return false;
    dibs__bytes_add(&p->out, bytes->data, bytes->length);
    if (p->out.failed)
        return undo(p, before);
    add_entry(p, before, (entry){.call = c, .left = c->count});
    dibs__call_enter(&p->calls, &c->base);
    return true;
}

static dibs_status enqueue(dibs__pipeline *p, const dibs__bytes *bytes, call *c)
{
    return enqueue_ends(p) && enqueue_call(p, bytes, c)
               ? DIBS_OK
               : dibs__fail(c->err, DIBS_NO_MEMORY, "out of memory");
}

static void finish(dibs__pipeline *p, call *c, dibs_status status)
{
    c->status = status;
    dibs__call_finish(&p->calls, &c->base);
}

/* A request that has not begun to go out never will. */
static bool take_back(dibs__pipeline *p, size_t i)
{
    entry e = *entry_at(p, i);
    uint64_t unsent = p->queued - p->out.length, start = e.end - e.size;

    if (start < unsent)
        return false;
    memmove(p->out.data + (start - unsent), p->out.data + (e.end - unsent), p->queued - e.end);
    p->out.length -= e.size;
    p->queued -= e.size;
    for (size_t k = i + 1; k < p->count; k++) {
        *entry_at(p, k - 1) = *entry_at(p, k);
        entry_at(p, k - 1)->end -= e.size;
    }
    p->count--;
    return true;
}

/* ---- The end of a connection ----------------------------------------------------------------- */

/* Closes it when the last user is out. */
static void tidy(dibs__pipeline *p)
{
    if (!p->broken || p->calls.driver || p->writing)
        return;
    dibs__conn_close(p->conn);
    p->conn = NULL;
    p->broken = false;
    pthread_cond_broadcast(&p->turned);
}

static void cut(dibs__pipeline *p, dibs__io io)
{
    /* What a writer is busy with may be out or not. */
    uint64_t maybe_sent = p->sent + (p->writing ? p->spare.length - p->spare_sent : 0);

    if (p->broken || !p->conn)
        return;
    p->broken = true;
    if (p->count > 0) /* before anybody learns of it and asks for something else */
        dibs__abandoned_add(p->abandoned, p->conn);
    shutdown(p->conn->fd, SHUT_RDWR);
    for (size_t i = 0; i < p->count; i++) {
        entry *e = entry_at(p, i);
        bool out = e->end <= maybe_sent;
        if (!e->call)
            continue;
        dibs__fail(e->call->err, out ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, "%s%s", dibs__io_text(io),
                   out ? "" : ", and the request was not sent");
        finish(p, e->call, out ? DIBS_UNKNOWN : DIBS_UNAVAILABLE);
        dibs__word_wake(&e->call->base.word);
    }
    p->count = 0;
    p->flights = 0;
    p->out.length = 0;
    if (!p->writing)
        p->spare.length = p->spare_sent = 0;
    tidy(p);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Sends on what is in `spare`. What is left when `until` comes is for the next one who writes. */
static void write_spare(dibs__pipeline *p, dibs__deadline until)
{
    size_t sent = 0;
    dibs__io io;

    p->writing = true;
    pthread_mutex_unlock(&p->lock);
    io = dibs__conn_send(p->conn, p->spare.data + p->spare_sent, p->spare.length - p->spare_sent,
                         until, &sent);
    pthread_mutex_lock(&p->lock);
    p->writing = false;
    p->sent += sent;
    p->spare_sent += sent;
    if (p->broken || p->spare_sent == p->spare.length)
        p->spare.length = p->spare_sent = 0;
    if (io != DIBS__IO_GOT && io != DIBS__IO_LATE)
        cut(p, io);
    tidy(p);
}

/* All that is queued becomes one write, unless enough is under way: then the driver will see to it. */
static bool fill_spare(dibs__pipeline *p)
{
    dibs__bytes full = p->out;

    if (p->spare.length > 0)
        return true;
    if (p->out.length == 0 || p->flights >= FLIGHTS)
        return false;
    p->out = p->spare;
    p->spare = full;
    entry_at(p, p->count - 1)->last = true;
    p->flights++;
    return true;
}

static void flush(dibs__pipeline *p, dibs__deadline until)
{
    while (p->conn && !p->broken && !p->writing && fill_spare(p)) {
        write_spare(p, until);
        if (p->spare.length > 0)
            return; /* late, or broken */
    }
}

/* ---- Driving --------------------------------------------------------------------------------- */

/* All replies to these have come. */
static void end_of_ends(dibs__pipeline *p, const entry *e)
{
    if (!e->refused)
        dibs__abandoned_ended(p->abandoned, p->conn, e->ends);
    else if (p->conn->ended > e->after)
        p->conn->ended = e->after; /* the next request asks for them again */
}

/* Gives one reply to whom it belongs; returns the call that is done by it, if it sleeps. */
static call *hand_out(dibs__pipeline *p, redisReply *reply, const call *self)
{
    entry *e = entry_at(p, 0);
    call *c = e->call;

    if (e->ends && !dibs__abandoned_reply(p->abandoned, reply))
        e->refused = true;
    if (c)
        c->out[c->got++] = reply;
    else
        freeReplyObject(reply);
    if (--e->left > 0)
        return NULL;
    if (e->ends)
        end_of_ends(p, e);
    p->flights -= e->last;
    p->first = (p->first + 1) & (p->room - 1);
    p->count--;
    if (!c)
        return NULL;
    finish(p, c, DIBS_OK);
    return c == self ? NULL : c;
}

/* Gives out what was read; those who are done by it are woken at the end, without the mutex. */
static dibs__io hand_out_all(dibs__pipeline *p, redisReply **replies, size_t count,
                             const call *self)
{
    call *done[BATCH];
    size_t n = 0;

    if (count > 0)
        p->heard = dibs__now(p->env);
    for (size_t i = 0; i < count; i++) {
        if (p->count == 0 || p->broken) { /* nobody asked, or everybody was told that it is cut */
            freeReplyObject(replies[i]);
            cut(p, DIBS__IO_JUNK);
            continue;
        }
        call *c = hand_out(p, replies[i], self);
        if (c)
            done[n++] = c;
    }
    if (n == 0)
        return DIBS__IO_GOT;
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < n; i++)
        dibs__word_wake(&done[i]->base.word);
    pthread_mutex_lock(&p->lock);
    return DIBS__IO_GOT;
}

/* Reads once, without the mutex, and hands out all that is whole. */
static dibs__io read_replies(dibs__pipeline *p, dibs__deadline until, const call *self)
{
    redisReply *replies[BATCH];
    size_t n = 0;
    dibs__io io;

    pthread_mutex_unlock(&p->lock);
    io = dibs__conn_receive(p->conn, until);
    while (io == DIBS__IO_GOT && n < BATCH &&
           (io = dibs__conn_next(p->conn, &replies[n])) == DIBS__IO_GOT) {
        if (++n < BATCH)
            continue;
        pthread_mutex_lock(&p->lock);
        hand_out_all(p, replies, n, self);
        pthread_mutex_unlock(&p->lock);
        n = 0;
    }
    pthread_mutex_lock(&p->lock);
    hand_out_all(p, replies, n, self);
    return io == DIBS__IO_LATE ? DIBS__IO_GOT : io; /* late here: the next reply is not whole yet */
}

/* The role is ours. Returns when `c` is done or late. */
static void drive(dibs__pipeline *p, call *c, dibs__deadline until)
{
    flush(p, until);
    while (!dibs__call_is_done(&c->base) && dibs__now(p->env) < until) {
        dibs__io io = read_replies(p, until, c);
        if (io != DIBS__IO_GOT && io != DIBS__IO_LATE)
            cut(p, io);
        flush(p, until);
    }
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static dibs_status connect_now(dibs__pipeline *p, dibs__deadline until, dibs_error *err)
{
    dibs__conn *conn = NULL;
    dibs_error why = {0};
    dibs_status status;

    p->connecting = true;
    pthread_mutex_unlock(&p->lock);
    status = p->connect(p->ctx, until, &conn, &why);
    pthread_mutex_lock(&p->lock);
    p->connecting = false;
    if (status == DIBS_OK) {
        p->conn = conn;
        p->queued = p->sent = 0;
        p->used = p->heard = dibs__now(p->env);
        dibs__abandoned_reached(p->abandoned, conn);
    } else {
        dibs__fail_as(err, status, &why);
        if (dibs__now(p->env) < until) { /* else its time was short, which says nothing to others */
            p->failed++;
            p->why = why;
        }
    }
    pthread_cond_broadcast(&p->turned);
    return status;
}

/* Something is unanswered, and nothing has come for as long as an exchange may take, whatever the patience of
 * those who asked. */
static bool hangs(dibs__pipeline *p)
{
    int64_t since = p->count > 0 ? entry_at(p, 0)->since : DIBS__NEVER;

    since = since > p->heard ? since : p->heard;
    return p->count > 0 && dibs__now(p->env) - since >= p->span;
}

/* A connection that hangs, or that nobody heard of for a while, is not trusted. */
static void doubt(dibs__pipeline *p)
{
    bool idle;

    if (!p->conn || p->broken)
        return;
    if (hangs(p)) {
        cut(p, DIBS__IO_LATE);
        return;
    }
    idle = p->count == 0 && !p->calls.driver && !p->writing && dibs__now(p->env) - p->used > IDLE;
    if (idle && !dibs__conn_is_quiet(p->conn))
        cut(p, DIBS__IO_CUT);
}

/* Several callers wait for one of them to connect, and share its failure. */
static dibs_status need_connection(dibs__pipeline *p, dibs__deadline until, dibs_error *err)
{
    unsigned failed = p->failed;

    doubt(p);
    while (!p->conn || p->broken) {
        if (p->failed != failed)
            return dibs__fail_as(err, p->why.status, &p->why);
        if (dibs__now(p->env) >= until)
            return dibs__fail(err, DIBS_UNAVAILABLE, "not connected in time");
        if (p->connecting || p->conn) {
            dibs__cond_sleep(&p->turned, &p->lock, p->env, until);
        } else {
            dibs_status status = connect_now(p, until, err);
            if (status != DIBS_OK)
                return status;
        }
    }
    return DIBS_OK;
}

dibs_status dibs__pipeline_open(dibs__pipeline *p, dibs__deadline until, dibs_error *err)
{
    dibs_status status;

    pthread_mutex_lock(&p->lock);
    status = need_connection(p, until, err);
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* The call ends without all of its replies. With the mutex. */
static void give_up(dibs__pipeline *p, call *c)
{
    size_t i = p->count;
    bool unsent;

    while (i > 0 && entry_at(p, i - 1)->call != c)
        i--;
    unsent = take_back(p, i - 1);
    if (!unsent)
        entry_at(p, i - 1)->call = NULL;
    c->status = unsent
                    ? dibs__fail(c->err, DIBS_UNAVAILABLE, "no answer in time to earlier requests")
                    : dibs__fail(c->err, DIBS_UNKNOWN, "no answer in time");
}

/* With the mutex. */
static void leave(dibs__pipeline *p, call *c)
{
    dibs__driver_call *next = dibs__call_leave(&p->calls, &c->base);

    tidy(p);
    if (next)
        dibs__word_wake(&next->word);
}

/* With the mutex, which is gone when it returns. */
static void await_replies(dibs__pipeline *p, call *c, dibs__deadline until)
{
    if (!dibs__call_drive(&p->calls, &c->base)) {
        pthread_mutex_unlock(&p->lock);
        if (dibs__word_sleep(&c->base.word, 0, p->env, until) == DIBS__CALL_DONE)
            return;
        pthread_mutex_lock(&p->lock);
    }
    if (dibs__call_drives(&p->calls, &c->base))
        drive(p, c, until);
    if (!dibs__call_is_done(&c->base))
        give_up(p, c);
    leave(p, c);
    pthread_mutex_unlock(&p->lock);
}

dibs_status dibs__pipeline_call(dibs__pipeline *p, const dibs__bytes *bytes, redisReply **out,
                                size_t count, dibs__deadline until, dibs_error *err)
{
    call c = {.out = out, .count = count, .err = err};
    dibs_status status;

    memset(out, 0, count * sizeof *out);
    pthread_mutex_lock(&p->lock);
    status = need_connection(p, until, err);
    if (status == DIBS_OK)
        status = enqueue(p, bytes, &c);
    if (status != DIBS_OK) {
        pthread_mutex_unlock(&p->lock);
        return status;
    }
    p->used = dibs__now(p->env);
    flush(p, until);
    await_replies(p, &c, until);
    return c.status;
}

void dibs__pipeline_renew(dibs__pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    cut(p, DIBS__IO_CUT);
    pthread_mutex_unlock(&p->lock);
}

/* ---- Life ------------------------------------------------------------------------------------ */

dibs__pipeline *dibs__pipeline_new(const dibs__env *env, int64_t span, dibs__abandoned *abandoned,
                                   dibs__connect_fn connect, void *ctx)
{
    dibs__pipeline *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->env = env;
    p->span = span;
    p->abandoned = abandoned;
    p->connect = connect;
    p->ctx = ctx;
    pthread_mutex_init(&p->lock, NULL);
    dibs__cond_init(&p->turned);
    return p;
}

void dibs__pipeline_free(dibs__pipeline *p)
{
    if (!p)
        return;
    if (p->conn && p->count > 0)
        dibs__conn_drop_unsent(p->conn);
    dibs__conn_close(p->conn);
    dibs__bytes_fini(&p->out);
    dibs__bytes_fini(&p->spare);
    free(p->in_flight);
    pthread_cond_destroy(&p->turned);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void dibs__pipeline_abandon(dibs__pipeline *p)
{
    if (p && p->conn)
        close(p->conn->fd);
}
