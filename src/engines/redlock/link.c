/* One node's connection: requests go out in order, and each reply belongs to the oldest request that
 * still wants one. Nothing here waits. A cut connection fails its questions (their outcome is
 * unknown), keeps its owed releases for the next one, and is closed when nobody polls it any more. */
#define _GNU_SOURCE
#include "engines/redlock/voters.h"

#include "core/error.h"
#include "engines/redis/error.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLIGHTS  3 /* unanswered writes before requests are gathered, if anybody reads */
#define IDLE     (100 * DIBS__MS) /* after that a connection is looked at before it is trusted */
#define SILENT   (20)             /* limits without an answer: it hangs */
#define OWED_MAX 4096

bool dibs__link_up(const dibs__voter *n)
{
    return n->conn && !n->broken;
}

/* ---- The queue -------------------------------------------------------------------------------- */

static dibs__in_flight *at(const dibs__voter *n, size_t i)
{
    return &n->in_flight[(n->first + i) & (n->room - 1)];
}

static bool make_room(dibs__voter *n)
{
    size_t room = n->room ? 2 * n->room : 64;
    dibs__in_flight *in_flight;

    if (n->count < n->room)
        return true;
    in_flight = calloc(room, sizeof *in_flight);
    if (!in_flight)
        return false;
    for (size_t i = 0; i < n->count; i++)
        in_flight[i] = *at(n, i);
    free(n->in_flight);
    n->in_flight = in_flight;
    n->room = room;
    n->first = 0;
    return true;
}

bool dibs__link_add(dibs__voter *n, const dibs__bytes *bytes, size_t count, dibs__in_flight what)
{
    size_t before = n->out.length;

    if (bytes->failed || !make_room(n))
        return false;
    dibs__bytes_add(&n->out, bytes->data, bytes->length);
    if (n->out.failed) {
        n->out.failed = false;
        n->out.length = before;
        return false;
    }
    what.left = count;
    what.sent = dibs__now(n->all->env);
    what.last = what.unknown = false;
    *at(n, n->count++) = what;
    n->used = what.sent;
    return true;
}

/* ---- Owed releases --------------------------------------------------------------------------- */

static void keep_owed(dibs__voter *n, dibs__owed_release *owed)
{
    if (n->owed_count >= OWED_MAX || owed->until <= dibs__now(n->all->env)) {
        free(owed); /* that vote ends with its lease */
        return;
    }
    owed->next = n->owed_releases;
    n->owed_releases = owed;
    n->owed_count++;
}

static bool send_owed(dibs__voter *n, dibs__owed_release *owed, bool again)
{
    dibs__query q = {.script = DIBS__RED_RELEASE,
                     .key = owed->word + owed->length,
                     .word = {{owed->word, owed->length}},
                     .words = 1};
    dibs__bytes bytes = {0};
    bool added;

    dibs__ask_write(n->all, &q, n->flags, &bytes);
    added = dibs__link_add(n, &bytes, 1, (dibs__in_flight){.owed = owed, .again = again});
    dibs__bytes_fini(&bytes);
    return added;
}

void dibs__link_owe(dibs__voter *n, dibs__owed_release *owed)
{
    if (!dibs__link_up(n) || !send_owed(n, owed, false))
        keep_owed(n, owed);
    else
        dibs__link_flush(n);
    dibs__voters_tend_later(n->all);
}

void dibs__link_send_owed(dibs__voter *n)
{
    dibs__owed_release *list = n->owed_releases;

    n->owed_releases = NULL;
    n->owed_count = 0;
    for (dibs__owed_release *next; list; list = next) {
        next = list->next;
        if (list->until <= dibs__now(n->all->env) || !send_owed(n, list, false))
            free(list);
    }
    dibs__link_flush(n);
}

/* ---- The end of a connection ----------------------------------------------------------------- */

void dibs__link_tidy(dibs__voter *n)
{
    if (!n->broken || n->all->polling)
        return;
    dibs__conn_close(n->conn);
    n->conn = NULL;
    n->broken = false;
}

void dibs__link_cut(dibs__voter *n, dibs__io why)
{
    if (!dibs__link_up(n))
        return;
    n->broken = true;
    if (n->count > 0)
        dibs__conn_drop_unsent(n->conn);
    shutdown(n->conn->fd, SHUT_RDWR);
    dibs__fail(&n->why, DIBS_UNAVAILABLE, "%s", dibs__io_text(why));
    for (size_t i = 0; i < n->count; i++) {
        dibs__in_flight *e = at(n, i);
        if (e->owed)
            keep_owed(n, e->owed);
        if (e->ask)
            dibs__ask_note(e->ask, n->index, false);
    }
    n->count = 0;
    n->flights = 0;
    n->wait_for = 0;
    dibs__bytes_clear(&n->out);
    n->out_sent = 0;
    dibs__link_tidy(n);
}

void dibs__link_doubt(dibs__voter *n)
{
    int64_t now = dibs__now(n->all->env);

    if (!dibs__link_up(n))
        return;
    if (n->count > 0 && now - at(n, 0)->sent > SILENT * n->all->limit)
        dibs__link_cut(n, DIBS__IO_LATE);
    else if (n->count == 0 && now - n->used > IDLE && !dibs__conn_is_quiet(n->conn))
        dibs__link_cut(n, DIBS__IO_CUT);
}

void dibs__link_forget(dibs__voter *n, dibs__ask *ask)
{
    for (size_t i = n->count; i > 0; i--) {
        dibs__in_flight *e = at(n, i - 1);
        if (e->ask != ask)
            continue;
        e->ask = NULL;
        if (ask->owed) {
            e->owed = dibs__owed_release_new(ask->owed->word + ask->owed->length, ask->owed->word,
                                             ask->owed->length, ask->owed->until);
            dibs__voters_tend_later(n->all);
        }
        return;
    }
}

void dibs__link_fini(dibs__voter *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(at(n, i)->owed);
    for (dibs__owed_release *d = n->owed_releases, *next; d; d = next) {
        next = d->next;
        free(d);
    }
    dibs__conn_close(n->conn);
    dibs__conn_close(n->subscription);
    dibs__bytes_fini(&n->out);
    free(n->in_flight);
}

/* ---- Writing --------------------------------------------------------------------------------- */

void dibs__link_flush(dibs__voter *n)
{
    size_t sent = 0;
    short wait_for = 0;
    dibs__io io;

    if (!dibs__link_up(n) || n->out.length == 0 || (n->all->calls.driver && n->flights >= FLIGHTS))
        return;
    io = dibs__conn_push(n->conn, n->out.data + n->out_sent, n->out.length - n->out_sent, &sent,
                         &wait_for);
    n->out_sent += sent;
    n->wait_for = io == DIBS__IO_LATE ? wait_for : 0;
    if (n->wait_for && n->all->polling)
        eventfd_write(n->all->wake_fd, 1);
    if (io == DIBS__IO_CUT) {
        dibs__link_cut(n, io);
    } else if (n->out_sent == n->out.length) {
        dibs__bytes_clear(&n->out);
        n->out_sent = 0;
        if (n->count > 0) {
            at(n, n->count - 1)->last = true;
            n->flights++;
        }
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The server has forgotten its scripts: they go out again, and the request behind them. */
static void send_again(dibs__voter *n, dibs__in_flight e)
{
    dibs__bytes load = {0};
    bool ok;

    dibs__scripts_load(&n->all->scripts, n->flags, &load);
    ok = dibs__link_add(n, &load, n->all->scripts.count, (dibs__in_flight){0});
    dibs__bytes_fini(&load);
    if (e.ask) {
        for (size_t i = 0; i < e.ask->count; i++) {
            freeReplyObject(e.ask->reply[n->index * e.ask->count + i]);
            e.ask->reply[n->index * e.ask->count + i] = NULL;
        }
        e.ask->got[n->index] = 0;
        ok = ok && dibs__link_add(n, &e.ask->bytes[n->flags], e.ask->count,
                                  (dibs__in_flight){.ask = e.ask, .again = true});
        if (!ok)
            dibs__ask_note(e.ask, n->index, false);
    } else if (!ok || !send_owed(n, e.owed, true)) {
        free(e.owed);
    }
    dibs__link_flush(n);
}

static void finish(dibs__voter *n, dibs__in_flight e)
{
    if (e.unknown && !e.again && (e.ask || e.owed)) {
        send_again(n, e);
        return;
    }
    free(e.owed);
    if (e.ask)
        dibs__ask_note(e.ask, n->index, true);
}

static void hand_out(dibs__voter *n, redisReply *reply)
{
    dibs__in_flight *e = at(n, 0), done;

    e->unknown |= dibs__redis_no_script(reply);
    if (e->ask)
        e->ask->reply[n->index * e->ask->count + e->ask->got[n->index]++] = reply;
    else
        freeReplyObject(reply);
    if (--e->left > 0)
        return;
    done = *e;
    n->flights -= done.last;
    n->first = (n->first + 1) & (n->room - 1);
    n->count--;
    finish(n, done);
}

void dibs__link_read(dibs__voter *n)
{
    redisReply *reply = NULL;
    short wait_for;
    dibs__io io = dibs__conn_pull(n->conn, &wait_for);

    if (io != DIBS__IO_GOT && io != DIBS__IO_LATE) {
        dibs__link_cut(n, io);
        return;
    }
    while (dibs__link_up(n) && (io = dibs__conn_next(n->conn, &reply)) == DIBS__IO_GOT) {
        if (n->count > 0) {
            hand_out(n, reply);
        } else { /* nobody asked */
            freeReplyObject(reply);
            io = DIBS__IO_JUNK;
            break;
        }
    }
    if (io != DIBS__IO_GOT && io != DIBS__IO_LATE)
        dibs__link_cut(n, io);
    n->used = dibs__now(n->all->env);
    dibs__link_flush(n);
}
