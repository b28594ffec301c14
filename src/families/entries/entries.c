/* Opening, closing, and entering the queue.
 *
 * It goes well: the adapter makes our entry and lists the queue in one exchange; the weights ahead fit
 * beside ours: granted, with the entry's own number as fence. Or they do not: the own entry joins a view
 * and is granted by an event. It fails in these ways: no answer (the same attempt asks again, and the
 * adapter finds the entry that may have been made), another capacity, an attempt that comes later than a
 * newer one of its handle (the entry is removed again), or no proof that the session lives (asked again). */
#define _GNU_SOURCE
#include "families/entries/entries.h"

#include "core/error.h"
#include "families/entries/inner.h"
#include "state/attempt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- Opening and closing --------------------------------------------------------------------- */

dibs_status dibs__entries_new(const dibs__open_request *request, dibs__entries_backend *backend,
                              dibs__engine **out, dibs_error *err)
{
    dibs__entries *entries = calloc(1, sizeof *entries);

    if (entries)
        entries->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!entries || entries->timer_fd < 0) {
        free(entries);
        backend->adapter->close(backend);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory or descriptors");
    }
    entries->base.env = request->env;
    entries->base.sink = request->sink;
    entries->backend = backend;
    entries->armed = DIBS__NEVER;
    entries->to_notify_end = &entries->to_notify;
    pthread_mutex_init(&entries->mutex, NULL);
    backend->entries = entries;
    *out = &entries->base;
    return DIBS_OK;
}

void dibs__entries_opened(dibs__engine *e)
{
    dibs__entries *entries = dibs__entries_of(e);

    e->lease = entries->backend->adapter->usable(entries->backend);
    e->session = entries->backend->adapter->session_span(entries->backend);
}

void dibs__entries_close(dibs__engine *e)
{
    dibs__entries *entries = dibs__entries_of(e);

    entries->backend->adapter->close(entries->backend);
    for (size_t i = 0; i < entries->own_entries.size; i++)
        while (entries->own_entries.slot[i])
            dibs__own_entry_drop(
                entries, DIBS__FROM(dibs__own_entry, by_attempt, entries->own_entries.slot[i]));
    dibs__table_fini(&entries->own_entries);
    dibs__table_fini(&entries->views);
    dibs__heap_fini(&entries->ends);
    pthread_mutex_destroy(&entries->mutex);
    close(entries->timer_fd);
    free(entries);
}

void dibs__entries_abandon(dibs__engine *e)
{
    dibs__entries *entries = dibs__entries_of(e);

    entries->backend->adapter->abandon(entries->backend);
    close(entries->timer_fd);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static dibs_status no_proof(dibs__entries *entries, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNKNOWN, "%s: the session could not be confirmed in time",
                      entries->backend->adapter->name);
}

/* `asked`: when the core began to ask. A grant lasts as long as the session surely does; one that is
 * nearly over when it comes, after a reconnection, waits for the next proof. */
static dibs_status reply_granted(dibs__entries *entries, const dibs__own_entry *s,
                                 dibs__deadline asked, dibs__reply *out, dibs_error *err)
{
    int64_t left = entries->backend->adapter->alive_until(entries->backend) - asked;

    if (left < dibs__entries_worth_it(entries, s->lease) || s->dead)
        return no_proof(entries, err);
    *out = (dibs__reply){.verdict = DIBS__GRANTED,
                         .fence = s->fence,
                         .floor = s->floor,
                         .remaining = left < s->lease ? left : s->lease};
    return DIBS_OK;
}

/* The core counts a whole window from `asked`. */
static dibs_status reply_queued(dibs__entries *entries, const dibs__own_entry *s,
                                dibs__deadline asked, int64_t window, dibs__reply *out,
                                dibs_error *err)
{
    if (entries->backend->adapter->alive_until(entries->backend) < asked + window || s->dead)
        return no_proof(entries, err);
    *out = (dibs__reply){.verdict = DIBS__QUEUED};
    return DIBS_OK;
}

/* ---- Making the entry ------------------------------------------------------------------------ */

/* One call of enter, and what belongs to it. */
typedef struct visit {
    dibs__entries *entries;
    dibs__own_entry *own_entry;
    dibs__entries_call *call;
    const dibs__enter_request *request;
    int64_t window;
    bool verified; /* the entry was there when nothing was in its way */
    dibs__deadline asked, until;
    dibs__reply *out;
    dibs_error *err;
} visit;

static dibs_status no_memory(visit *v)
{
    return dibs__fail(v->err, DIBS_NO_MEMORY, "%s: out of memory",
                      v->entries->backend->adapter->name);
}

static dibs_status prepare(visit *v)
{
    dibs__own_entry *s = v->own_entry;
    dibs__entries_call *call = v->call = dibs__ask_new(v->entries, s->name, NULL);
    dibs__entries_note note = {.capacity = s->capacity};
    char value[DIBS__ENTRIES_VALUE_SIZE], stored[DIBS__ENTRIES_VALUE_SIZE];

    if (!call)
        return no_memory(v);
    dibs__entries_note_write(value, &note);
    dibs__entries_value_write(stored, &v->request->who, v->request->who.lease);
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->enter.owner = s->named ? dibs__ask_copy(call, s->owner) : NULL;
    call->enter.value = dibs__ask_copy(call, stored);
    call->enter.lock_value = dibs__ask_copy(call, value);
    call->enter.weight = s->weight;
    call->enter.capacity = s->capacity;
    call->enough = s->capacity - s->weight;
    call->enter.may_linger = s->min_hold > 0;
    call->again = s->maybe_made;
    if (!call->attempt || (s->named && !call->enter.owner) || !call->enter.value ||
        !call->enter.lock_value)
        return no_memory(v);
    if (v->window > 0 && !s->named && !call->again) {
        bool to_notify;
        pthread_mutex_lock(&v->entries->mutex);
        to_notify = dibs__view_hint(v->entries, call);
        pthread_mutex_unlock(&v->entries->mutex);
        if (!to_notify)
            return no_memory(v);
    }
    return DIBS_OK;
}

/* Only an answer can tell that there is no entry. */
static dibs_status make_entry(visit *v)
{
    dibs__entries *entries = v->entries;
    dibs__own_entry *s = v->own_entry;
    dibs_status status = prepare(v);
    bool maybe = s->maybe_made, sent = status == DIBS_OK;

    if (sent) {
        s->maybe_made = true;
        s->stray = v->until + 2 * entries->base.session;
        status =
            dibs__ask_wait(entries, entries->backend->adapter->enter, v->call, v->until, v->err);
    }
    pthread_mutex_lock(&entries->mutex);
    if (status == DIBS_OK && v->call->there && v->call->session == entries->expired)
        status = dibs__fail(v->err, DIBS_UNAVAILABLE, "%s: the session has expired",
                            entries->backend->adapter->name);
    /* Without memory for the answer the entry may be there all the same. */
    if (sent && status != DIBS_OK && status != DIBS_UNKNOWN && status != DIBS_NO_MEMORY)
        s->maybe_made = maybe && status == DIBS_UNAVAILABLE;
    if (status == DIBS_OK && v->call->there) {
        dibs__own_entry_set_key(s, v->call->made);
        s->place = v->call->own.place;
        s->fence = s->floor = v->call->own.fence;
        s->session = v->call->session;
        s->checked = v->asked;
    }
    pthread_mutex_unlock(&entries->mutex);
    return status;
}

/* ---- What is in the way of entering ---------------------------------------------------------- */

/* Who is told to come again later must not meet its own entry then: the removal is waited for. */
static void refuse(visit *v, dibs__verdict verdict)
{
    dibs__entries *entries = v->entries;
    dibs__own_entry *s = v->own_entry;
    bool removed = s->key[0] &&
                   dibs__entries_remove(entries, s->name, s->key, v->until, NULL, NULL) == DIBS_OK;

    pthread_mutex_lock(&entries->mutex);
    if (removed)
        dibs__own_entry_drop(entries, s);
    else
        dibs__own_entry_leave(entries, s);
    pthread_mutex_unlock(&entries->mutex);
    *v->out = (dibs__reply){.verdict = verdict};
}

/* A lock that was broken while idle has no capacity: the next to come sets it. */
static dibs_status fix_capacity(visit *v, dibs__entries_listing *now)
{
    dibs__entries *entries = v->entries;
    dibs__entries_note note;
    char value[DIBS__ENTRIES_VALUE_SIZE];
    dibs_status status = DIBS_OK;

    for (;;) {
        dibs__entries_call *call = dibs__ask_new(entries, v->own_entry->name, NULL);
        bool done;
        dibs__entries_note_read(now->value, &note);
        if (note.capacity || !call) {
            if (call)
                dibs__ask_drop(call);
            return call ? DIBS_OK : no_memory(v);
        }
        note.capacity = v->own_entry->capacity;
        dibs__entries_note_write(value, &note);
        call->write.value = dibs__ask_copy(call, value);
        call->write.version = now->version;
        status = call->write.value ? dibs__ask_wait(entries, entries->backend->adapter->write, call,
                                                    v->until, v->err)
                                   : no_memory(v);
        done = status == DIBS_OK && call->there;
        dibs__ask_free(call);
        if (status != DIBS_OK || done)
            return status;
        status = dibs__entries_read(entries, v->own_entry->name, v->until, now, v->err);
        if (status != DIBS_OK)
            return status;
    }
}

/* DIBS_OK with a verdict other than GRANTED: refused. */
static dibs_status check_capacity(visit *v)
{
    dibs__entries_listing *l = &v->call->listing;
    uint32_t capacity = dibs__entries_capacity(l->value);
    dibs_status status = DIBS_OK;

    if (capacity == 0) {
        dibs__entries_listing now = {.value = l->value, .version = l->version};
        l->value = NULL;
        status = fix_capacity(v, &now);
        capacity = now.value ? dibs__entries_capacity(now.value) : 0;
        dibs__entries_listing_fini(&now);
        if (capacity == 0)
            capacity = v->own_entry->capacity; /* it was we who set it */
    }
    if (status == DIBS_OK && capacity != v->own_entry->capacity) {
        refuse(v, DIBS__MISMATCH);
        v->out->capacity = capacity;
    }
    return status;
}

/* ---- The same owner by name ------------------------------------------------------------------ */

/* What our attempt is to that of an entry of the same owner; DIBS__SAME: it is not one. */
static dibs__kin kin_to(const dibs__own_entry *s, const dibs__queue_entry *e)
{
    char attempt[DIBS__ATTEMPT_SIZE];
    dibs__entries_key key;

    if (!dibs__entries_key_read(e->key, &key) || key.lingering || key.owner != dibs__hash(s->owner))
        return DIBS__SAME;
    snprintf(attempt, sizeof attempt, "%.*s", (int)key.attempt_length, key.attempt);
    return dibs__attempt_kin(s->attempt, attempt);
}

/* The index of the first such entry; `count`: there is none. */
static size_t find_kin(const visit *v, dibs__kin kin)
{
    const dibs__entries_listing *l = &v->call->listing;
    size_t i = 0;

    while (i < l->count && kin_to(v->own_entry, &l->entry[i]) != kin)
        i++;
    return i;
}

/* Older attempts of this handle were given up by their callers: they go. If there is a newer one, it is
 * ours that comes too late. */
static dibs_status replace_own(visit *v)
{
    dibs__entries_listing *l = &v->call->listing;
    dibs_status status;
    size_t i;

    if (!v->own_entry->named)
        return DIBS_OK;
    if (find_kin(v, DIBS__OLDER) < l->count) {
        refuse(v, DIBS__RESUMED);
        return DIBS_OK;
    }
    while ((i = find_kin(v, DIBS__NEWER)) < l->count) {
        status = dibs__entries_remove(v->entries, v->own_entry->name, l->entry[i].key, v->until,
                                      NULL, v->err);
        if (status != DIBS_OK)
            return status;
        memmove(&l->entry[i], &l->entry[i + 1], (l->count - i - 1) * sizeof l->entry[i]);
        l->count--;
        v->verified = false; /* that was before */
    }
    return DIBS_OK;
}

/* Another handle of the same owner is ahead of us. */
static bool has_rival(const visit *v)
{
    size_t i = v->own_entry->named ? find_kin(v, DIBS__FOREIGN) : v->call->listing.count;

    return i < v->call->listing.count && v->call->listing.entry[i].place < v->own_entry->place;
}

static bool is_rival(void *own_entry, const dibs__queue_entry *e)
{
    return e->place < ((const dibs__own_entry *)own_entry)->place &&
           kin_to(own_entry, e) == DIBS__FOREIGN;
}

/* ---- Held, or in the queue ------------------------------------------------------------------------ */

static bool fits(const visit *v)
{
    const dibs__entries_listing *l = &v->call->listing;
    uint64_t sum = v->own_entry->weight;

    for (size_t i = 0; i < l->count && l->entry[i].place < v->own_entry->place; i++) {
        sum += l->entry[i].weight;
        if (sum > v->own_entry->capacity || dibs__entries_blocked(l, i))
            return false;
    }
    return sum <= v->own_entry->capacity && l->from == 0 && !has_rival(v);
}

static bool has_own(const visit *v)
{
    const dibs__entries_listing *l = &v->call->listing;

    for (size_t i = 0; i < l->count; i++)
        if (l->entry[i].place == v->own_entry->place)
            return true;
    return false;
}

/* A call that checks one entry. NULL: out of memory. */
static dibs__entries_call *check_one(visit *v, const char *key)
{
    dibs__entries_call *call = dibs__ask_new(v->entries, v->own_entry->name, key);

    if (call && !(call->check.entry = calloc(1, sizeof *call->check.entry))) {
        dibs__ask_drop(call);
        return NULL;
    }
    if (call) {
        call->check.entry[0] = (dibs__entries_check){.name = call->name, .key = call->key};
        call->check.count = 1;
    }
    return call;
}

/* Nothing is in its way, but is it there? If not, it enters again when it is asked for again. */
static dibs_status verify(visit *v)
{
    dibs__entries *entries = v->entries;
    dibs__own_entry *s = v->own_entry;
    dibs__entries_call *call = check_one(v, s->key);
    dibs_status status;
    bool there;

    if (!call)
        return no_memory(v);
    call->again = true;
    status = dibs__ask_wait(entries, entries->backend->adapter->check, call, v->until, v->err);
    there = status == DIBS_OK && call->check.entry[0].there;
    dibs__ask_free(call);
    if (status != DIBS_OK)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    if (there)
        return DIBS_OK;
    pthread_mutex_lock(&entries->mutex);
    s->key[0] = '\0';
    s->maybe_made = false;
    pthread_mutex_unlock(&entries->mutex);
    return dibs__fail(v->err, DIBS_UNAVAILABLE, "%s: the entry was removed again",
                      entries->backend->adapter->name);
}

/* The fence of the first entry that holds beside ours; 0: there is none. */
static dibs_status find_floor(visit *v, uint64_t *out)
{
    dibs__entries *entries = v->entries;
    dibs__entries_listing *l = &v->call->listing;
    dibs_status status = DIBS_OK;

    *out = 0;
    for (size_t i = 0; i < l->count && l->entry[i].place < v->own_entry->place && *out == 0; i++) {
        dibs__entries_call *call;
        *out = l->entry[i].fence;
        if (*out)
            break;
        call = check_one(v, l->entry[i].key);
        if (!call)
            return no_memory(v);
        status = dibs__ask_wait(entries, entries->backend->adapter->check, call, v->until, v->err);
        if (status == DIBS_OK && call->check.entry[0].there)
            *out = call->check.entry[0].fence;
        dibs__ask_free(call);
        if (status != DIBS_OK)
            break;
    }
    return status;
}

static dibs_status take(visit *v)
{
    dibs__entries *entries = v->entries;
    dibs__own_entry *s = v->own_entry;
    uint64_t floor;
    dibs_status status = v->verified ? DIBS_OK : verify(v);

    if (status != DIBS_OK)
        return status;
    status = find_floor(v, &floor);
    if (status != DIBS_OK)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    pthread_mutex_lock(&entries->mutex);
    s->state = DIBS__OWN_ENTRY_HOLDING;
    s->since = dibs__now(entries->base.env);
    s->floor = floor && floor < s->fence ? floor : s->fence;
    dibs__own_entry_lasts(entries, s, dibs__after(entries->base.env, s->lease));
    status = reply_granted(entries, s, v->asked, v->out, v->err);
    pthread_mutex_unlock(&entries->mutex);
    return status;
}

static dibs_status join_queue(visit *v)
{
    dibs__entries *entries = v->entries;
    dibs__own_entry *s = v->own_entry;
    dibs_status status;

    pthread_mutex_lock(&entries->mutex);
    s->state = DIBS__OWN_ENTRY_WAITING;
    if (dibs__view_join(entries, s, &v->call->listing)) {
        dibs__view_settle(entries);
        status = reply_queued(entries, s, v->asked, v->window, v->out, v->err);
    } else {
        dibs__own_entry_leave(entries, s);
        status = no_memory(v);
    }
    pthread_mutex_unlock(&entries->mutex);
    return status;
}

static dibs_status enter_anew(visit *v)
{
    dibs_status status = make_entry(v);

    if (status != DIBS_OK)
        return status;
    if (!v->call->there) {
        v->own_entry->maybe_made = false;
        refuse(v, DIBS__MISMATCH);
        v->out->capacity = dibs__entries_capacity(v->call->listing.value);
        return DIBS_OK;
    }
    dibs__entries_listing_sort(&v->call->listing);
    v->verified = v->call->verified || has_own(v);
    v->out->verdict = DIBS__GRANTED;
    status = check_capacity(v);
    if (status == DIBS_OK && v->out->verdict == DIBS__GRANTED)
        status = replace_own(v);
    if (status == DIBS_OK && v->out->verdict == DIBS__GRANTED && v->window > 0 && has_rival(v))
        status = dibs__entries_ask_back(v->entries, v->own_entry->name, is_rival, v->own_entry,
                                        v->until, v->err);
    if (status != DIBS_OK || v->out->verdict != DIBS__GRANTED)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    if (fits(v))
        return take(v);
    if (v->window > 0)
        return join_queue(v);
    refuse(v, DIBS__BUSY);
    return DIBS_OK;
}

/* Asked again: what is known of it already. With the mutex. true: answered. */
static bool known(visit *v, dibs_status *status)
{
    dibs__own_entry *s = v->own_entry;

    if (s->dead) {                       /* what the old session made is gone */
        dibs__view_leave(v->entries, s); /* which it may have joined after the session had ended */
        s->dead = s->maybe_made = s->verified = false;
        s->key[0] = '\0';
        s->state = DIBS__OWN_ENTRY_NEW;
    }
    dibs__own_entry_lasts(v->entries, s, v->until + 4 * v->entries->base.lease);
    if (s->state == DIBS__OWN_ENTRY_HOLDING)
        *status = reply_granted(v->entries, s, v->asked, v->out, v->err);
    else if (s->state == DIBS__OWN_ENTRY_WAITING)
        *status = reply_queued(v->entries, s, v->asked, v->window, v->out, v->err);
    else if (s->state == DIBS__OWN_ENTRY_LEAVING)
        *status = dibs__fail(v->err, DIBS_UNAVAILABLE, "its last entry is being removed");
    return s->state != DIBS__OWN_ENTRY_NEW;
}

dibs_status dibs__entries_enter(dibs__engine *e, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    visit v = {.entries = dibs__entries_of(e),
               .request = request,
               .window = request->window,
               .asked = dibs__now(e->env),
               .until = until,
               .out = out,
               .err = err};
    dibs_status status = DIBS_OK;
    bool answered;

    pthread_mutex_lock(&v.entries->mutex);
    v.own_entry = dibs__own_entry_find(v.entries, request->who.attempt);
    if (!v.own_entry && !(v.own_entry = dibs__own_entry_new(v.entries, request))) {
        pthread_mutex_unlock(&v.entries->mutex);
        return no_memory(&v);
    }
    dibs__own_entry_use(v.own_entry);
    answered = known(&v, &status);
    pthread_mutex_unlock(&v.entries->mutex);
    if (!answered)
        status = enter_anew(&v);
    pthread_mutex_lock(&v.entries->mutex);
    if (v.own_entry->state == DIBS__OWN_ENTRY_NEW && !v.own_entry->maybe_made)
        dibs__own_entry_drop(v.entries, v.own_entry);
    else if (v.own_entry->state == DIBS__OWN_ENTRY_NEW && status == DIBS_NO_MEMORY)
        dibs__own_entry_leave(v.entries,
                              v.own_entry); /* for the core that is a refusal: nobody asks again */
    dibs__own_entry_unuse(v.entries, v.own_entry);
    pthread_mutex_unlock(&v.entries->mutex);
    if (v.call)
        dibs__ask_free(v.call);
    dibs__entries_notify_all(v.entries);
    return status;
}
