/* Own entries: attempts of this handle, each with its entry, from `enter` until the entry is removed.
 *
 * An own entry lasts as long as the core keeps it: one that is not kept in time (a lease that nobody renews
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

dibs__own_entry *dibs__own_entry_find(dibs__entries *entries, const char *attempt)
{
    dibs__node *n = dibs__table_first(&entries->own_entries, dibs__hash(attempt));

    for (; n; n = dibs__table_next(n)) {
        dibs__own_entry *s = DIBS__FROM(dibs__own_entry, by_attempt, n);
        if (strcmp(s->attempt, attempt) == 0)
            return s;
    }
    return NULL;
}

void dibs__own_entry_set_key(dibs__own_entry *s, const char *key)
{
    snprintf(s->key, s->key_room, "%s", key);
}

/* There may be a hundred thousand of them: each is as long as what it has to keep. */
dibs__own_entry *dibs__own_entry_new(dibs__entries *entries, const dibs__enter_request *r)
{
    char value[DIBS__ENTRIES_VALUE_SIZE] = "", *at;
    size_t name = strlen(r->name) + 1, owner = r->owner_named ? strlen(r->who.owner) + 1 : 0,
           room =
               dibs__entries_key_room(r->who.attempt, r->capacity == DIBS__PLAIN, r->owner_named),
           stored;
    dibs__own_entry *s;

    if (r->who.min_hold > 0)
        dibs__entries_value_write(value, &r->who, r->who.lease);
    stored = r->who.min_hold > 0 ? strlen(value) + 1 : 0;
    if (!dibs__table_reserve(&entries->own_entries) ||
        !dibs__heap_reserve(&entries->ends, entries->own_entries.count - entries->ends.count))
        return NULL;
    s = calloc(1, sizeof *s + name + owner + stored + room);
    if (!s)
        return NULL;
    s->name = memcpy(s->text, r->name, name);
    at = s->text + name;
    s->owner = owner ? memcpy(at, r->who.owner, owner) : NULL;
    s->value = stored ? memcpy(at + owner, value, stored) : NULL;
    s->key = at + owner + stored;
    s->key_room = (uint16_t)room;
    memcpy(s->attempt, r->who.attempt, sizeof s->attempt);
    s->named = r->owner_named;
    s->weight = r->who.weight;
    s->capacity = r->capacity;
    s->lease = r->who.lease;
    s->min_hold = r->who.min_hold;
    dibs__table_add(&entries->own_entries, &s->by_attempt, dibs__hash(s->attempt));
    atomic_fetch_add(&entries->busy, 1);
    return s;
}

static void out_of_lists(dibs__entries *entries, dibs__own_entry *s)
{
    for (dibs__own_entry **at = &entries->stirred; s->stirred && *at; at = &(*at)->next_stirred) {
        if (*at == s) {
            *at = s->next_stirred;
            break;
        }
    }
    for (dibs__own_entry **at = &entries->to_notify; s->to_be_notified && *at;
         at = &(*at)->next_to_notify) {
        if (*at == s) {
            *at = s->next_to_notify;
            if (!*at)
                entries->to_notify_end = at;
            break;
        }
    }
    s->stirred = s->to_be_notified = false;
}

void dibs__own_entry_drop(dibs__entries *entries, dibs__own_entry *s)
{
    if (s->gone)
        return;
    dibs__view_leave(entries, s);
    out_of_lists(entries, s);
    dibs__heap_remove(&entries->ends, &s->ends);
    dibs__table_remove(&entries->own_entries, &s->by_attempt);
    atomic_fetch_sub(&entries->busy, 1);
    s->gone = true;
    if (s->users == 0)
        free(s);
}

void dibs__own_entry_use(dibs__own_entry *s)
{
    s->users++;
}

void dibs__own_entry_unuse(dibs__entries *entries, dibs__own_entry *s)
{
    (void)entries;
    if (--s->users == 0 && s->gone)
        free(s);
}

size_t dibs__entries_busy(dibs__entries *entries)
{
    return atomic_load(&entries->busy);
}

/* ---- The timer ------------------------------------------------------------------------------- */

/* Only ever set to an earlier moment: own entries come and go much faster than they end. */
static void arm(dibs__entries *entries, dibs__deadline when)
{
    struct itimerspec at = {
        .it_value = {.tv_sec = when / DIBS__SECOND, .tv_nsec = when % DIBS__SECOND * 1000}};

    if (when >= entries->armed)
        return;
    timerfd_settime(entries->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    entries->armed = when;
}

void dibs__own_entry_lasts(dibs__entries *entries, dibs__own_entry *s, dibs__deadline until)
{
    if (s->gone)
        return;
    dibs__heap_put(&entries->ends, &s->ends, until);
    arm(entries, until > 1 ? until : 1);
}

int dibs__entries_event_fd(dibs__engine *e)
{
    return dibs__entries_of(e)->timer_fd;
}

void dibs__entries_events(dibs__engine *e, dibs__deadline until)
{
    dibs__entries *entries = dibs__entries_of(e);
    uint64_t ignored;
    dibs__due *top;

    (void)until; /* nothing waits for an answer */
    if (read(entries->timer_fd, &ignored, sizeof ignored) < 0)
        return; /* it has not rung */
    pthread_mutex_lock(&entries->mutex);
    entries->armed = DIBS__NEVER;
    while ((top = dibs__heap_top(&entries->ends)) && top->key <= dibs__now(e->env))
        dibs__own_entry_leave(entries, DIBS__FROM(dibs__own_entry, ends, top));
    if (top)
        arm(entries, top->key);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
}

/* ---- Leaving --------------------------------------------------------------------------------- */

static void on_removed(dibs__entries_call *call)
{
    dibs__entries *entries = dibs__ask_entries(call);
    dibs__own_entry *s;

    pthread_mutex_lock(&entries->mutex);
    s = dibs__own_entry_find(entries, call->attempt);
    if (s && s->state == DIBS__OWN_ENTRY_LEAVING && call->status == DIBS_OK)
        dibs__own_entry_drop(entries, s);
    pthread_mutex_unlock(&entries->mutex);
}

static void start_removal(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__entries_call *call = dibs__ask_new(entries, s->name, s->key);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    if (call->attempt)
        dibs__ask_start(entries, entries->backend->adapter->remove, call, on_removed);
    else
        dibs__ask_drop(call);
}

/* An `enter` got no answer: is there an entry? One that is not there yet may come: what was sent on a
 * connection that is gone can arrive after whatever was asked on the next. */
static void on_found(dibs__entries_call *call)
{
    dibs__entries *entries = dibs__ask_entries(call);
    const char *key = NULL;
    dibs__own_entry *s;

    for (size_t i = 0; i < call->listing.count; i++)
        if (dibs__entries_is_ours(call->listing.entry[i].key, call->attempt, call->session))
            key = call->listing.entry[i].key;
    pthread_mutex_lock(&entries->mutex);
    s = dibs__own_entry_find(entries, call->attempt);
    if (s && s->state == DIBS__OWN_ENTRY_LEAVING && call->status == DIBS_OK) {
        if (key)
            dibs__own_entry_set_key(s, key);
        if (key)
            start_removal(entries, s);
        else if (dibs__now(entries->base.env) > s->stray)
            dibs__own_entry_drop(entries, s);
        else
            dibs__own_entry_lasts(entries, s, dibs__after(entries->base.env, STRAY));
    }
    pthread_mutex_unlock(&entries->mutex);
}

static void start_search(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__entries_call *call = dibs__ask_new(entries, s->name, NULL);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->again = true;
    if (call->attempt)
        dibs__ask_start(entries, entries->backend->adapter->list, call, on_found);
    else
        dibs__ask_drop(call);
}

void dibs__own_entry_leave(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__view_leave(entries, s);
    s->state = DIBS__OWN_ENTRY_LEAVING;
    if (s->dead || (!s->key[0] && !s->maybe_made)) {
        dibs__own_entry_drop(entries, s);
        return;
    }
    dibs__own_entry_lasts(entries, s, dibs__now(entries->base.env) + AGAIN);
    if (s->key[0])
        start_removal(entries, s);
    else
        start_search(entries, s);
}

/* ---- Telling --------------------------------------------------------------------------------- */

void dibs__own_entry_notify(dibs__entries *entries, dibs__own_entry *s, bool granted)
{
    s->granted = granted;
    if (s->to_be_notified)
        return;
    s->to_be_notified = true;
    s->next_to_notify = NULL;
    *entries->to_notify_end = s;
    entries->to_notify_end = &s->next_to_notify;
}

void dibs__entries_notify_all(dibs__entries *entries)
{
    dibs__sink *sink = entries->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];

    pthread_mutex_lock(&entries->mutex);
    while (entries->to_notify) {
        dibs__own_entry *s = entries->to_notify;
        bool granted = s->granted;
        uint64_t fence = s->fence, floor = s->floor;
        memcpy(attempt, s->attempt, sizeof attempt);
        entries->to_notify = s->next_to_notify;
        if (!entries->to_notify)
            entries->to_notify_end = &entries->to_notify;
        s->to_be_notified = false;
        pthread_mutex_unlock(&entries->mutex);
        if (granted)
            sink->granted(sink, attempt, fence, floor);
        else
            sink->check(sink, attempt);
        pthread_mutex_lock(&entries->mutex);
    }
    pthread_mutex_unlock(&entries->mutex);
}

void dibs__entries_log(dibs__entries *entries, dibs_log_level level, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    entries->base.sink->log(entries->base.sink, level, "%s: %s", entries->backend->adapter->name,
                            text);
}

/* Waiters enter again, at the end of the queue, when the core has looked; holders have let go by
 * their own clock, or do now. */
void dibs__entries_expired(dibs__entries *entries, uint64_t session)
{
    size_t ended = 0;

    pthread_mutex_lock(&entries->mutex);
    entries->expired = session;
    for (size_t i = 0; i < entries->own_entries.size; i++) {
        for (dibs__node *n = entries->own_entries.slot[i]; n; n = n->next) {
            dibs__own_entry *s = DIBS__FROM(dibs__own_entry, by_attempt, n);
            if (s->session != session || s->dead)
                continue;
            dibs__view_leave(entries, s);
            s->dead = true;
            s->granted = false; /* if that was still to be told */
            ended++;
        }
    }
    pthread_mutex_unlock(&entries->mutex);
    if (ended)
        dibs__entries_log(
            entries, DIBS_LOG_WARNING,
            "the session has ended: %zu entr%s lost; waiters go to the end of the queue", ended,
            ended == 1 ? "y is" : "ies are");
    dibs__entries_notify_all(entries);
    entries->base.sink->check_all(
        entries->base.sink, ended ? DIBS__WAITERS | DIBS__HOLDERS | DIBS__CELLS : DIBS__CELLS);
}
