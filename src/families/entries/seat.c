/* Seats: attempts of this handle's, each with its entry, from `enter` until the entry is removed.
 *
 * A seat lasts as long as the core keeps it: one that is not kept in time (a lease that nobody renews
 * and that is shorter than the session, a caller that was too late for its grant) leaves by itself,
 * and its entry is removed. What is told to the sink is put into a list first, and told without the
 * mutex. */
#define _GNU_SOURCE
#include "families/entries/inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define AGAIN (200 * DIBS__MS) /* a removal that failed is tried again */
#define STRAY DIBS__SECOND     /* how often an entry that may still be made is looked for */

/* ---- Coming and going ------------------------------------------------------------------------ */

dibs__line_seat *dibs__line_seat_find(dibs__line *line, const char *attempt)
{
    dibs__node *n = dibs__table_first(&line->seats, dibs__hash(attempt));

    for (; n; n = dibs__table_next(n)) {
        dibs__line_seat *s = DIBS__FROM(dibs__line_seat, by_attempt, n);
        if (strcmp(s->attempt, attempt) == 0)
            return s;
    }
    return NULL;
}

static void fill(dibs__line_seat *s, const dibs__enter_request *r)
{
    size_t name_size = strlen(r->name) + 1;

    memcpy(s->text, r->name, name_size);
    memcpy(s->text + name_size, r->who.owner, strlen(r->who.owner) + 1);
    s->name = s->text;
    s->owner = s->text + name_size;
    memcpy(s->attempt, r->who.attempt, sizeof s->attempt);
    s->named = r->owner_named;
    s->weight = r->who.weight;
    s->capacity = r->capacity;
    s->lease = r->who.lease;
    s->min_hold = r->who.min_hold;
    dibs__line_value_write(s->value, &r->who, r->who.lease);
}

dibs__line_seat *dibs__line_seat_new(dibs__line *line, const dibs__enter_request *r)
{
    dibs__line_seat *s;

    if (!dibs__table_reserve(&line->seats) ||
        !dibs__heap_reserve(&line->ends, line->seats.count - line->ends.count))
        return NULL;
    s = calloc(1, sizeof *s + strlen(r->name) + strlen(r->who.owner) + 2);
    if (!s)
        return NULL;
    fill(s, r);
    dibs__table_add(&line->seats, &s->by_attempt, dibs__hash(s->attempt));
    atomic_fetch_add(&line->busy, 1);
    return s;
}

static void out_of_lists(dibs__line *line, dibs__line_seat *s)
{
    for (dibs__line_seat **at = &line->stirred; s->stirred && *at; at = &(*at)->next_stirred) {
        if (*at == s) {
            *at = s->next_stirred;
            break;
        }
    }
    for (dibs__line_seat **at = &line->told; s->untold && *at; at = &(*at)->next_told) {
        if (*at == s) {
            *at = s->next_told;
            if (!*at)
                line->told_end = at;
            break;
        }
    }
    s->stirred = s->untold = false;
}

void dibs__line_seat_drop(dibs__line *line, dibs__line_seat *s)
{
    if (s->gone)
        return;
    dibs__view_leave(line, s);
    out_of_lists(line, s);
    dibs__heap_remove(&line->ends, &s->ends);
    dibs__table_remove(&line->seats, &s->by_attempt);
    atomic_fetch_sub(&line->busy, 1);
    s->gone = true;
    if (s->users == 0)
        free(s);
}

void dibs__line_seat_use(dibs__line_seat *s)
{
    s->users++;
}

void dibs__line_seat_unuse(dibs__line *line, dibs__line_seat *s)
{
    (void)line;
    if (--s->users == 0 && s->gone)
        free(s);
}

size_t dibs__line_busy(dibs__line *line)
{
    return atomic_load(&line->busy);
}

/* ---- The timer ------------------------------------------------------------------------------- */

/* Only ever set to an earlier moment: seats come and go much faster than they end. */
static void arm(dibs__line *line, dibs__deadline when)
{
    struct itimerspec at = {
        .it_value = {.tv_sec = when / DIBS__SECOND, .tv_nsec = when % DIBS__SECOND * 1000}};

    if (when >= line->armed)
        return;
    timerfd_settime(line->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    line->armed = when;
}

void dibs__line_seat_lasts(dibs__line *line, dibs__line_seat *s, dibs__deadline until)
{
    if (s->gone)
        return;
    dibs__heap_put(&line->ends, &s->ends, until);
    arm(line, until > 1 ? until : 1);
}

int dibs__line_event_fd(dibs__engine *e)
{
    return dibs__line_of(e)->timer_fd;
}

void dibs__line_events(dibs__engine *e, dibs__deadline until)
{
    dibs__line *line = dibs__line_of(e);
    uint64_t ignored;
    dibs__due *top;

    (void)until; /* nothing waits for an answer */
    if (read(line->timer_fd, &ignored, sizeof ignored) < 0)
        return; /* it has not rung */
    pthread_mutex_lock(&line->mutex);
    line->armed = DIBS__NEVER;
    while ((top = dibs__heap_top(&line->ends)) && top->key <= dibs__now(e->env))
        dibs__line_seat_leave(line, DIBS__FROM(dibs__line_seat, ends, top));
    if (top)
        arm(line, top->key);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
}

/* ---- Leaving --------------------------------------------------------------------------------- */

static void on_removed(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    dibs__line_seat *s;

    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, call->attempt);
    if (s && s->state == DIBS__LINE_SEAT_LEAVING && call->status == DIBS_OK)
        dibs__line_seat_drop(line, s);
    pthread_mutex_unlock(&line->mutex);
}

static void start_removal(dibs__line *line, dibs__line_seat *s)
{
    dibs__line_call *call = dibs__ask_new(line, s->name, s->key);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    if (call->attempt)
        dibs__ask_start(line, line->side->adapter->remove, call, on_removed);
    else
        dibs__ask_drop(call);
}

/* An `enter` got no answer: is there an entry? One that is not there yet may come: what was sent on a
 * connection that is gone can arrive after whatever was asked on the next. */
static void on_found(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    const char *key = NULL;
    dibs__line_seat *s;

    for (size_t i = 0; i < call->listing.count; i++)
        if (dibs__line_is_ours(call->listing.entry[i].key, call->attempt, call->session))
            key = call->listing.entry[i].key;
    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, call->attempt);
    if (s && s->state == DIBS__LINE_SEAT_LEAVING && call->status == DIBS_OK) {
        if (key)
            snprintf(s->key, sizeof s->key, "%s", key);
        if (key)
            start_removal(line, s);
        else if (dibs__now(line->base.env) > s->stray)
            dibs__line_seat_drop(line, s);
        else
            dibs__line_seat_lasts(line, s, dibs__after(line->base.env, STRAY));
    }
    pthread_mutex_unlock(&line->mutex);
}

static void start_search(dibs__line *line, dibs__line_seat *s)
{
    dibs__line_call *call = dibs__ask_new(line, s->name, NULL);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->again = true;
    if (call->attempt)
        dibs__ask_start(line, line->side->adapter->list, call, on_found);
    else
        dibs__ask_drop(call);
}

void dibs__line_seat_leave(dibs__line *line, dibs__line_seat *s)
{
    dibs__view_leave(line, s);
    s->state = DIBS__LINE_SEAT_LEAVING;
    if (s->dead || (!s->key[0] && !s->maybe_made)) {
        dibs__line_seat_drop(line, s);
        return;
    }
    dibs__line_seat_lasts(line, s, dibs__now(line->base.env) + AGAIN);
    if (s->key[0])
        start_removal(line, s);
    else
        start_search(line, s);
}

/* ---- Telling --------------------------------------------------------------------------------- */

void dibs__line_seat_tell(dibs__line *line, dibs__line_seat *s, bool granted)
{
    s->granted = granted;
    if (s->untold)
        return;
    s->untold = true;
    s->next_told = NULL;
    *line->told_end = s;
    line->told_end = &s->next_told;
}

void dibs__line_tell_all(dibs__line *line)
{
    dibs__sink *sink = line->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];

    pthread_mutex_lock(&line->mutex);
    while (line->told) {
        dibs__line_seat *s = line->told;
        bool granted = s->granted;
        uint64_t fence = s->fence, floor = s->floor;
        memcpy(attempt, s->attempt, sizeof attempt);
        line->told = s->next_told;
        if (!line->told)
            line->told_end = &line->told;
        s->untold = false;
        pthread_mutex_unlock(&line->mutex);
        if (granted)
            sink->granted(sink, attempt, fence, floor);
        else
            sink->look(sink, attempt);
        pthread_mutex_lock(&line->mutex);
    }
    pthread_mutex_unlock(&line->mutex);
}

void dibs__line_log(dibs__line *line, dibs_log_level level, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    line->base.sink->log(line->base.sink, level, "%s: %s", line->side->adapter->name, text);
}

/* Waiters enter again, at the end of the line, when the core has looked; holders have let go by
 * their own clock, or do now. */
void dibs__line_expired(dibs__line *line, uint64_t session)
{
    size_t ended = 0;

    pthread_mutex_lock(&line->mutex);
    line->expired = session;
    for (size_t i = 0; i < line->seats.size; i++) {
        for (dibs__node *n = line->seats.slot[i]; n; n = n->next) {
            dibs__line_seat *s = DIBS__FROM(dibs__line_seat, by_attempt, n);
            if (s->session != session || s->dead)
                continue;
            dibs__view_leave(line, s);
            s->dead = true;
            s->granted = false; /* if that was still to be told */
            ended++;
        }
    }
    pthread_mutex_unlock(&line->mutex);
    if (ended)
        dibs__line_log(line, DIBS_LOG_WARNING,
                       "the session has ended: %zu entr%s lost; waiters go to the end of the queue",
                       ended, ended == 1 ? "y is" : "ies are");
    dibs__line_tell_all(line);
    line->base.sink->look_again(line->base.sink,
                                ended ? DIBS__WAITERS | DIBS__HOLDERS | DIBS__CELLS : DIBS__CELLS);
}
