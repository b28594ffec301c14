/* Questions to all nodes, and who reads the answers.
 *
 * It goes well: the question is written to every connected node, the caller polls them all (or
 * sleeps while another thread does, who hands it its answers), and leaves when it has enough. It
 * goes badly: a connection is cut (that node has failed), nothing comes (the deadline passes). */
#define _GNU_SOURCE
#include "engines/redlock/voters.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/redlock/pack.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define DIAL_WAIT 4 /* limits that a question waits for nodes which are being dialled */

#define TEND (50 * DIBS__MS) /* owed releases are looked after so often */

/* ---- Writing --------------------------------------------------------------------------------- */

void dibs__ask_write(const dibs__voters *v, const dibs__query *q, bool flags, dibs__bytes *out)
{
    if (q->script == DIBS__RED_SCRIPTS)
        dibs__resp_begin(out, q->words);
    else
        dibs__script_begin(&v->scripts, (dibs__script_call){q->script, flags, false, q->words, 0},
                           q->key, out);
    for (size_t i = 0; i < q->words; i++)
        dibs__resp_word(out, q->word[i].data, q->word[i].length);
}

/* With the lock, as it goes out. No connection that is in place was dialled after that, so that no node takes the
 * question for one of a connection before: see lua/vote.lua. */
static const dibs__bytes *bytes_for(dibs__ask *a, bool flags)
{
    dibs__bytes *b = &a->bytes[flags];

    if (b->length > 0)
        return b;
    for (size_t i = 0; i < a->count; i++) {
        if (a->query[i].dials)
            dibs__pack_write(a->query[i].dials, (double)a->v->dials);
        dibs__ask_write(a->v, &a->query[i], flags, b);
    }
    return b;
}

redisReply *dibs__ask_reply(const dibs__ask *a, size_t node, size_t i)
{
    return a->reply ? a->reply[node * a->count + i] : NULL;
}

/* ---- Sleeping and waking --------------------------------------------------------------------- */

void dibs__ask_note(dibs__ask *a, size_t node, bool answered)
{
    dibs__node_set bit = (dibs__node_set)1 << node, over;

    if (answered)
        a->answered |= bit;
    else
        a->failed |= bit;
    over = a->answered | a->failed;
    if (dibs__call_is_done(&a->call) || !(over == a->asked || (a->enough && a->enough(a))))
        return;
    dibs__call_finish(&a->v->calls, &a->call);
    if (a->asleep)
        dibs__word_wake(&a->call.word);
}

/* ---- Driving --------------------------------------------------------------------------------- */

/* With the lock, which is given away while nothing comes. */
static void poll_once(dibs__voters *v, dibs__deadline until)
{
    struct pollfd fds[DIBS__VOTERS_MAX + 1] = {{.fd = v->wake_fd, .events = POLLIN}};
    dibs__voter *of[DIBS__VOTERS_MAX + 1];
    nfds_t n = 1;
    uint64_t ignored;

    for (size_t i = 0; i < v->count; i++) {
        dibs__voter *node = &v->voter[i];
        if (!dibs__link_up(node))
            continue;
        of[n] = node;
        fds[n++] =
            (struct pollfd){.fd = node->conn->fd, .events = (short)(POLLIN | node->wait_for)};
    }
    v->polling = true;
    pthread_mutex_unlock(&v->lock);
    if (poll(fds, n, dibs__poll_ms(v->env, until)) < 0)
        n = 0;
    pthread_mutex_lock(&v->lock);
    if (n > 0 && fds[0].revents && read(v->wake_fd, &ignored, sizeof ignored) < 0)
        ignored = 0;
    for (nfds_t i = 1; i < n; i++) {
        if (!fds[i].revents || !dibs__link_up(of[i]))
            continue;
        if (fds[i].revents & POLLOUT)
            dibs__link_flush(of[i]);
        if (dibs__link_up(of[i]))
            dibs__link_read(of[i]);
    }
    v->polling = false;
    for (size_t i = 0; i < v->count; i++)
        dibs__link_tidy(&v->voter[i]);
}

static void drive(dibs__ask *a, dibs__deadline until)
{
    while (!dibs__call_is_done(&a->call) && dibs__now(a->v->env) < until)
        poll_once(a->v, until);
}

/* Whoever has the role gives it to somebody who still waits. */
static void leave(dibs__voters *v, dibs__driver_call *call)
{
    bool drove = dibs__call_drives(&v->calls, call);
    dibs__driver_call *next = dibs__call_leave(&v->calls, call);

    for (size_t i = 0; drove && i < v->count; i++) {
        if (v->voter[i].owed_releases) /* whoever is owed something is called at once */
            dibs__voter_dial(&v->voter[i], false);
        if (!next)
            dibs__link_flush(&v->voter[i]); /* nobody gathers any more */
    }
    if (next)
        dibs__word_wake(&next->word);
}

static bool owes(const dibs__voters *v)
{
    for (size_t i = 0; i < v->count; i++) {
        const dibs__voter *n = &v->voter[i];
        for (size_t k = 0; k < n->count; k++)
            if (n->in_flight[(n->first + k) & (n->room - 1)].owed)
                return true;
        if (n->owed_releases)
            return true;
    }
    return false;
}

void dibs__voters_tend_later(dibs__voters *v)
{
    struct itimerspec soon = {.it_value.tv_nsec = TEND * 1000};

    if (!v->tending)
        timerfd_settime(v->tend_fd, 0, &soon, NULL);
    v->tending = true;
}

void dibs__voters_tend(dibs__voters *v)
{
    dibs__driver_call guest = {0};

    pthread_mutex_lock(&v->lock);
    v->tending = false;
    for (size_t i = 0; i < v->count; i++)
        dibs__link_doubt(&v->voter[i]);
    if (owes(v) && dibs__call_drive(&v->calls, &guest)) {
        poll_once(v, 0);
        leave(v, &guest);
    }
    if (owes(v))
        dibs__voters_tend_later(v);
    pthread_mutex_unlock(&v->lock);
}

static bool under_way(const dibs__voters *v)
{
    for (size_t i = 0; i < v->count; i++)
        if (dibs__link_up(&v->voter[i]) && v->voter[i].count > 0)
            return true;
    return false;
}

void dibs__voters_drain(dibs__voters *v, dibs__deadline until)
{
    dibs__driver_call guest = {0};

    pthread_mutex_lock(&v->lock);
    if (dibs__call_drive(&v->calls, &guest)) {
        while (under_way(v) && dibs__now(v->env) < until)
            poll_once(v, until);
        leave(v, &guest);
    }
    pthread_mutex_unlock(&v->lock);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* Enough nodes are connected, or time is up. A dial ends soon or is given up. */
static void await_nodes(dibs__voters *v, dibs__deadline until)
{
    until = dibs__sooner(until, dibs__after(v->env, DIAL_WAIT * v->limit));
    while (dibs__voters_connected(v) < v->majority && dibs__now(v->env) < until) {
        bool hope = false;
        for (size_t i = 0; i < v->count; i++)
            hope |= v->voter[i].dialling[0];
        if (!hope)
            return;
        dibs__cond_sleep(&v->turned, &v->lock, v->env, until);
    }
}

static void make_ready(dibs__voters *v, dibs__deadline until)
{
    for (size_t i = 0; i < v->count; i++)
        dibs__link_doubt(&v->voter[i]);
    dibs__voters_dial_all(v);
    if (dibs__voters_connected(v) < v->majority)
        await_nodes(v, until);
}

void dibs__voters_ready(dibs__voters *v, dibs__deadline until)
{
    pthread_mutex_lock(&v->lock);
    make_ready(v, until);
    pthread_mutex_unlock(&v->lock);
}

static void send_all(dibs__ask *a)
{
    dibs__voters *v = a->v;
    dibs__node_set sent = 0;

    for (size_t i = 0; i < v->count; i++) {
        dibs__voter *n = &v->voter[i];
        dibs__node_set bit = (dibs__node_set)1 << i;
        if ((a->to & bit) && dibs__link_up(n) &&
            dibs__link_add(n, bytes_for(a, n->flags), a->count, (dibs__in_flight){.ask = a}))
            sent |= bit;
    }
    a->asked = sent;
    for (size_t i = 0; i < v->count; i++)
        if (sent >> i & 1)
            dibs__link_flush(&v->voter[i]);
}

static void await_answers(dibs__ask *a, dibs__deadline until)
{
    dibs__voters *v = a->v;

    if (!dibs__call_drive(&v->calls, &a->call)) {
        a->asleep = true;
        pthread_mutex_unlock(&v->lock);
        dibs__word_sleep(&a->call.word, 0, a->v->env, until);
        pthread_mutex_lock(&v->lock);
    }
    if (dibs__call_drives(&v->calls, &a->call))
        drive(a, until);
}

/* No connection points to it any more. */
static void forget(dibs__ask *a)
{
    for (size_t i = 0; i < a->v->count; i++)
        if ((a->asked & ~(a->answered | a->failed)) >> i & 1)
            dibs__link_forget(&a->v->voter[i], a);
}

static bool make_replies(dibs__ask *a)
{
    size_t n = a->v->count * a->count;

    if (n <= DIBS__FEW)
        a->reply = a->few;
    else
        a->reply = calloc(n, sizeof *a->reply);
    return a->reply != NULL;
}

dibs_status dibs__ask_run(dibs__ask *a, dibs__deadline until, dibs_error *err)
{
    dibs__voters *v = a->v;

    if (!make_replies(a))
        return dibs__fail(err, DIBS_NO_MEMORY, "redlock: out of memory");
    pthread_mutex_lock(&v->lock);
    make_ready(v, until);
    dibs__call_enter(&v->calls, &a->call);
    send_all(a);
    if (a->asked && !dibs__call_is_done(&a->call)) /* sending may have ended it: all were cut */
        await_answers(a, until);
    forget(a);
    leave(v, &a->call);
    pthread_mutex_unlock(&v->lock);
    return DIBS_OK;
}

void dibs__ask_fini(dibs__ask *a)
{
    for (size_t i = 0; a->reply && i < a->v->count * a->count; i++)
        if (a->reply[i])
            freeReplyObject(a->reply[i]);
    if (a->reply != a->few)
        free(a->reply);
    dibs__bytes_fini(&a->bytes[0]);
    dibs__bytes_fini(&a->bytes[1]);
}

/* ---- Owed releases --------------------------------------------------------------------------- */

dibs__owed_release *dibs__owed_release_new(const char *key, const char *word, size_t length,
                                           dibs__deadline until)
{
    size_t size = strlen(key) + 1;
    dibs__owed_release *d = calloc(1, sizeof *d + length + size);

    if (!d)
        return NULL;
    d->until = until;
    d->length = length;
    memcpy(d->word, word, length);
    memcpy(d->word + length, key, size);
    return d;
}

void dibs__voters_owe(dibs__voters *v, dibs__node_set to, const char *key, const char *word,
                      size_t length, dibs__deadline until)
{
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->count; i++) {
        dibs__owed_release *owed =
            to >> i & 1 ? dibs__owed_release_new(key, word, length, until) : NULL;
        if (owed)
            dibs__link_owe(&v->voter[i], owed);
    }
    pthread_mutex_unlock(&v->lock);
}
