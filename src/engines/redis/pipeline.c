/* See the header. One mutex guards all of it and is never held over a system call that can block.
 * Each caller sleeps on a word of its own, so that one who is done returns without the mutex.
 *
 *   out ----> spare ----> socket ----> reader ----> line[0].call, line[1].call, ...
 *   (queued)  (writer)                 (driver)     (in the order of the requests) */
#define _GNU_SOURCE
#include "engines/redis/pipeline.h"

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

enum { WAITING, DRIVE, DONE };

/* One call, on its caller's stack. Only `state` is looked at without the mutex. */
typedef struct call {
    redisReply **out;
    size_t count, got;
    dibs_status status;
    dibs_error *err;
    _Atomic int state;
} call;

/* A request in line for its replies. */
typedef struct entry {
    call *call;   /* NULL: nobody waits for it any more */
    size_t left;  /* replies to come */
    uint64_t end; /* the request is out when so many bytes are */
    bool last;    /* of its write */
} entry;

struct dibs__pipeline {
    const dibs__env *env;
    dibs__connect_fn connect;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* the connection came, went, or could not be made */
    dibs__conn *conn;
    bool connecting, broken, driving, writing;
    bool suspect;    /* a call went late, and nothing has come since */
    unsigned failed; /* attempts to connect */
    dibs_error why;  /* the last of them */
    dibs__deadline used;
    dibs__bytes out, spare;
    uint64_t queued, sent; /* bytes of this connection */
    entry *line;           /* a ring */
    size_t room, first, count;
    int flights;
};

/* ---- The line of requests -------------------------------------------------------------------- */

static entry *entry_at(dibs__pipeline *p, size_t i)
{
    return &p->line[(p->first + i) & (p->room - 1)];
}

static bool make_room(dibs__pipeline *p)
{
    size_t room = p->room ? 2 * p->room : 64;
    entry *line;

    if (p->count < p->room)
        return true;
    line = calloc(room, sizeof *line);
    if (!line)
        return false;
    for (size_t i = 0; i < p->count; i++)
        line[i] = *entry_at(p, i);
    free(p->line);
    p->line = line;
    p->room = room;
    p->first = 0;
    return true;
}

static dibs_status enqueue(dibs__pipeline *p, const dibs__bytes *bytes, call *c)
{
    size_t before = p->out.length;

    if (!bytes->failed && make_room(p))
        dibs__bytes_add(&p->out, bytes->data, bytes->length);
    if (bytes->failed || p->count == p->room || p->out.failed) {
        p->out.length = before;
        p->out.failed = false;
        return dibs__fail(c->err, DIBS_NO_MEMORY, "out of memory");
    }
    p->queued += bytes->length;
    *entry_at(p, p->count) = (entry){c, c->count, p->queued, false};
    p->count++;
    return DIBS_OK;
}

static void finish(call *c, dibs_status status)
{
    c->status = status;
    atomic_store(&c->state, DONE);
}

/* ---- The end of a connection ----------------------------------------------------------------- */

/* Closes it when the last user is out. */
static void tidy(dibs__pipeline *p)
{
    if (!p->broken || p->driving || p->writing)
        return;
    dibs__conn_close(p->conn);
    p->conn = NULL;
    p->broken = p->suspect = false;
    pthread_cond_broadcast(&p->turned);
}

static void cut(dibs__pipeline *p, dibs__io io)
{
    /* What a writer is busy with may be out or not. */
    uint64_t maybe_sent = p->sent + (p->writing ? p->spare.length : 0);

    if (p->broken || !p->conn)
        return;
    p->broken = true;
    shutdown(p->conn->fd, SHUT_RDWR);
    for (size_t i = 0; i < p->count; i++) {
        entry *e = entry_at(p, i);
        bool out = e->end <= maybe_sent;
        if (!e->call)
            continue;
        dibs__fail(e->call->err, out ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, "%s%s", dibs__io_text(io),
                   out ? "" : ", and the request did not go out");
        finish(e->call, out ? DIBS_UNKNOWN : DIBS_UNAVAILABLE);
        dibs__word_wake(&e->call->state);
    }
    p->count = 0;
    p->flights = 0;
    p->out.length = 0;
    tidy(p);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void write_spare(dibs__pipeline *p, dibs__deadline until)
{
    size_t sent = 0;
    bool ok;

    p->writing = true;
    entry_at(p, p->count - 1)->last = true;
    p->flights++;
    pthread_mutex_unlock(&p->lock);
    ok = dibs__conn_send(p->conn, p->spare.data, p->spare.length, until, &sent);
    pthread_mutex_lock(&p->lock);
    p->writing = false;
    p->sent += sent;
    p->spare.length = 0;
    if (!ok)
        cut(p, DIBS__IO_CUT);
    tidy(p);
}

/* Writes what is queued, unless another does or enough is under way: then the driver will. */
static void flush(dibs__pipeline *p, dibs__deadline until)
{
    while (p->conn && !p->broken && !p->writing && p->out.length > 0 && p->flights < FLIGHTS) {
        dibs__bytes full = p->out;
        p->out = p->spare;
        p->spare = full;
        write_spare(p, until);
    }
}

/* ---- Driving --------------------------------------------------------------------------------- */

/* Gives one reply to whom it belongs; returns the call that is done by it, if it sleeps. */
static call *hand_out(dibs__pipeline *p, redisReply *reply, const call *self)
{
    entry *e = entry_at(p, 0);
    call *c = e->call;

    if (c)
        c->out[c->got++] = reply;
    else
        freeReplyObject(reply);
    if (--e->left > 0)
        return NULL;
    p->flights -= e->last;
    p->first = (p->first + 1) & (p->room - 1);
    p->count--;
    if (!c)
        return NULL;
    finish(c, DIBS_OK);
    return c == self ? NULL : c;
}

/* Gives out what was read; those who are done by it are woken at the end, without the mutex. */
static dibs__io hand_out_all(dibs__pipeline *p, redisReply **replies, size_t count,
                             const call *self)
{
    call *done[BATCH];
    size_t n = 0;

    p->suspect = false;
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
        dibs__word_wake(&done[i]->state);
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
    io = dibs__conn_receive(p->conn, until, -1);
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

/* Gives the role to the youngest call, which needs it longest. */
static void pass_on(dibs__pipeline *p)
{
    p->driving = false;
    tidy(p);
    for (size_t i = p->count; i > 0; i--) {
        call *c = entry_at(p, i - 1)->call;
        if (!c)
            continue;
        p->driving = true;
        atomic_store(&c->state, DRIVE);
        dibs__word_wake(&c->state);
        return;
    }
}

/* `p->driving` is ours. Returns when `c` is done or late. */
static void drive(dibs__pipeline *p, call *c, dibs__deadline until)
{
    flush(p, until);
    while (atomic_load(&c->state) != DONE && dibs__now(p->env) < until) {
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
        p->used = dibs__now(p->env);
    } else {
        p->failed++;
        p->why = why;
        dibs__fail(err, status, "%s", why.message);
    }
    pthread_cond_broadcast(&p->turned);
    return status;
}

/* A connection that nobody heard of for a while, or on which an answer is overdue, is not trusted.
 */
static void doubt(dibs__pipeline *p)
{
    bool idle;

    if (!p->conn || p->broken)
        return;
    if (p->suspect) {
        cut(p, DIBS__IO_LATE);
        return;
    }
    idle = p->count == 0 && !p->driving && !p->writing && dibs__now(p->env) - p->used > IDLE;
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
            return dibs__fail(err, p->why.status, "%s", p->why.message);
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
static void leave_late(dibs__pipeline *p, call *c)
{
    for (size_t i = p->count; i > 0; i--) {
        if (entry_at(p, i - 1)->call == c) {
            entry_at(p, i - 1)->call = NULL;
            break;
        }
    }
    p->suspect = true;
    c->status = dibs__fail(c->err, DIBS_UNKNOWN, "no answer in time");
}

/* With the mutex, which is gone when it returns. */
static void await_replies(dibs__pipeline *p, call *c, dibs__deadline until)
{
    bool mine = !p->driving;

    if (mine) {
        p->driving = true;
    } else {
        pthread_mutex_unlock(&p->lock);
        if (dibs__word_sleep(&c->state, WAITING, p->env, until) == DONE)
            return;
        pthread_mutex_lock(&p->lock);
        mine = atomic_load(&c->state) == DRIVE;
    }
    if (mine)
        drive(p, c, until);
    if (atomic_load(&c->state) != DONE)
        leave_late(p, c);
    if (mine)
        pass_on(p);
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

/* ---- Life ------------------------------------------------------------------------------------ */

dibs__pipeline *dibs__pipeline_new(const dibs__env *env, dibs__connect_fn connect, void *ctx)
{
    dibs__pipeline *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->env = env;
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
    dibs__conn_close(p->conn);
    dibs__bytes_fini(&p->out);
    dibs__bytes_fini(&p->spare);
    free(p->line);
    pthread_cond_destroy(&p->turned);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void dibs__pipeline_abandon(dibs__pipeline *p)
{
    if (p && p->conn)
        close(p->conn->fd);
}
