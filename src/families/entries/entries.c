/* Opening, closing, and entering the line.
 *
 * It goes well: the adapter makes our entry and lists the line in one exchange; the weights ahead fit
 * beside ours: granted, with the entry's own number as fence. Or they do not: the seat joins a view
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

dibs_status dibs__line_new(const dibs__open_request *request, dibs__line_side *side,
                           dibs__engine **out, dibs_error *err)
{
    dibs__line *line = calloc(1, sizeof *line);

    if (line)
        line->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!line || line->timer_fd < 0) {
        free(line);
        side->adapter->close(side);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory or descriptors");
    }
    line->base.env = request->env;
    line->base.sink = request->sink;
    line->side = side;
    line->armed = DIBS__NEVER;
    line->told_end = &line->told;
    pthread_mutex_init(&line->mutex, NULL);
    side->line = line;
    *out = &line->base;
    return DIBS_OK;
}

void dibs__line_opened(dibs__engine *e)
{
    dibs__line *line = dibs__line_of(e);

    e->lease = line->side->adapter->usable(line->side);
    e->session = line->side->adapter->session_span(line->side);
}

void dibs__line_close(dibs__engine *e)
{
    dibs__line *line = dibs__line_of(e);

    line->side->adapter->close(line->side);
    for (size_t i = 0; i < line->seats.size; i++)
        while (line->seats.slot[i])
            dibs__line_seat_drop(line,
                                 DIBS__FROM(dibs__line_seat, by_attempt, line->seats.slot[i]));
    dibs__table_fini(&line->seats);
    dibs__table_fini(&line->views);
    dibs__heap_fini(&line->ends);
    pthread_mutex_destroy(&line->mutex);
    close(line->timer_fd);
    free(line);
}

void dibs__line_abandon(dibs__engine *e)
{
    dibs__line *line = dibs__line_of(e);

    line->side->adapter->abandon(line->side);
    close(line->timer_fd);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static dibs_status no_proof(dibs__line *line, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNKNOWN, "%s: the session could not be confirmed in time",
                      line->side->adapter->name);
}

/* `asked`: when the core began to ask. A grant lasts as long as the session surely does; one that is
 * nearly over when it comes, after a reconnection, waits for the next proof. */
static dibs_status reply_granted(dibs__line *line, const dibs__line_seat *s, dibs__deadline asked,
                                 dibs__reply *out, dibs_error *err)
{
    int64_t left = line->side->adapter->alive_until(line->side) - asked;

    if (left < dibs__line_worth_it(line, s->lease) || s->dead)
        return no_proof(line, err);
    *out = (dibs__reply){.verdict = DIBS__GRANTED,
                         .fence = s->fence,
                         .floor = s->floor,
                         .remaining = left < s->lease ? left : s->lease};
    return DIBS_OK;
}

/* The core counts a whole window from `asked`. */
static dibs_status reply_queued(dibs__line *line, const dibs__line_seat *s, dibs__deadline asked,
                                int64_t window, dibs__reply *out, dibs_error *err)
{
    if (line->side->adapter->alive_until(line->side) < asked + window || s->dead)
        return no_proof(line, err);
    *out = (dibs__reply){.verdict = DIBS__QUEUED};
    return DIBS_OK;
}

/* ---- Making the entry ------------------------------------------------------------------------ */

/* One call of enter, and what belongs to it. */
typedef struct visit {
    dibs__line *line;
    dibs__line_seat *seat;
    dibs__line_call *call;
    int64_t window;
    bool verified; /* the entry was there when nothing was in its way */
    dibs__deadline asked, until;
    dibs__reply *out;
    dibs_error *err;
} visit;

static dibs_status no_memory(visit *v)
{
    return dibs__fail(v->err, DIBS_NO_MEMORY, "%s: out of memory", v->line->side->adapter->name);
}

static dibs_status prepare(visit *v)
{
    dibs__line_seat *s = v->seat;
    dibs__line_call *call = v->call = dibs__ask_new(v->line, s->name, NULL);
    dibs__line_note note = {.capacity = s->capacity};
    char value[DIBS__LINE_VALUE_SIZE];

    if (!call)
        return no_memory(v);
    dibs__line_note_write(value, &note);
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->owner = s->named ? dibs__ask_copy(call, s->owner) : NULL;
    call->value = dibs__ask_copy(call, s->value);
    call->lock_value = dibs__ask_copy(call, value);
    call->weight = s->weight;
    call->capacity = s->capacity;
    call->enough = s->capacity - s->weight;
    call->may_linger = s->min_hold > 0;
    call->again = s->maybe_made;
    if (!call->attempt || (s->named && !call->owner) || !call->value || !call->lock_value)
        return no_memory(v);
    if (v->window > 0 && !s->named && !call->again) {
        bool told;
        pthread_mutex_lock(&v->line->mutex);
        told = dibs__view_hint(v->line, call);
        pthread_mutex_unlock(&v->line->mutex);
        if (!told)
            return no_memory(v);
    }
    return DIBS_OK;
}

/* Only an answer can tell that there is no entry. */
static dibs_status make_entry(visit *v)
{
    dibs__line *line = v->line;
    dibs__line_seat *s = v->seat;
    dibs_status status = prepare(v);
    bool maybe = s->maybe_made, sent = status == DIBS_OK;

    if (sent) {
        s->maybe_made = true;
        s->stray = v->until + 2 * line->base.session;
        status = dibs__ask_wait(line, line->side->adapter->enter, v->call, v->until, v->err);
    }
    pthread_mutex_lock(&line->mutex);
    if (status == DIBS_OK && v->call->there && v->call->session == line->expired)
        status = dibs__fail(v->err, DIBS_UNAVAILABLE, "%s: the session has expired",
                            line->side->adapter->name);
    /* Without memory for the answer the entry may be there all the same. */
    if (sent && status != DIBS_OK && status != DIBS_UNKNOWN && status != DIBS_NO_MEMORY)
        s->maybe_made = maybe && status == DIBS_UNAVAILABLE;
    if (status == DIBS_OK && v->call->there) {
        memcpy(s->key, v->call->made, sizeof s->key);
        s->place = v->call->own.place;
        s->fence = s->floor = v->call->own.fence;
        s->session = v->call->session;
        s->checked = v->asked;
    }
    pthread_mutex_unlock(&line->mutex);
    return status;
}

/* ---- What is in the way of entering ---------------------------------------------------------- */

/* Who is told to come again later must not meet its own entry then: the removal is waited for. */
static void refuse(visit *v, dibs__verdict verdict)
{
    dibs__line *line = v->line;
    dibs__line_seat *s = v->seat;
    bool removed =
        s->key[0] && dibs__line_remove(line, s->name, s->key, v->until, NULL, NULL) == DIBS_OK;

    pthread_mutex_lock(&line->mutex);
    if (removed)
        dibs__line_seat_drop(line, s);
    else
        dibs__line_seat_leave(line, s);
    pthread_mutex_unlock(&line->mutex);
    *v->out = (dibs__reply){.verdict = verdict};
}

/* A lock that was broken while idle has no capacity: the next to come sets it. */
static dibs_status fix_capacity(visit *v, dibs__line_listing *now)
{
    dibs__line *line = v->line;
    dibs__line_note note;
    char value[DIBS__LINE_VALUE_SIZE];
    dibs_status status = DIBS_OK;

    for (;;) {
        dibs__line_call *call = dibs__ask_new(line, v->seat->name, NULL);
        bool done;
        dibs__line_note_read(now->value, &note);
        if (note.capacity || !call) {
            if (call)
                dibs__ask_drop(call);
            return call ? DIBS_OK : no_memory(v);
        }
        note.capacity = v->seat->capacity;
        dibs__line_note_write(value, &note);
        call->value = dibs__ask_copy(call, value);
        call->version = now->version;
        status = call->value
                     ? dibs__ask_wait(line, line->side->adapter->write, call, v->until, v->err)
                     : no_memory(v);
        done = status == DIBS_OK && call->there;
        dibs__ask_free(call);
        if (status != DIBS_OK || done)
            return status;
        status = dibs__line_look(line, v->seat->name, v->until, now, v->err);
        if (status != DIBS_OK)
            return status;
    }
}

/* DIBS_OK with a verdict other than GRANTED: refused. */
static dibs_status check_capacity(visit *v)
{
    dibs__line_listing *l = &v->call->listing;
    uint32_t capacity = dibs__line_capacity(l->value);
    dibs_status status = DIBS_OK;

    if (capacity == 0) {
        dibs__line_listing now = {.value = l->value, .version = l->version};
        l->value = NULL;
        status = fix_capacity(v, &now);
        capacity = now.value ? dibs__line_capacity(now.value) : 0;
        dibs__line_listing_fini(&now);
        if (capacity == 0)
            capacity = v->seat->capacity; /* it was we who set it */
    }
    if (status == DIBS_OK && capacity != v->seat->capacity) {
        refuse(v, DIBS__MISMATCH);
        v->out->capacity = capacity;
    }
    return status;
}

/* ---- The same owner by name ------------------------------------------------------------------ */

/* What our attempt is to that of an entry of the same owner; DIBS__SAME: it is not one. */
static dibs__kin kin_to(const dibs__line_seat *s, const dibs__line_entry *e)
{
    char attempt[DIBS__ATTEMPT_SIZE];
    dibs__line_key key;

    if (!dibs__line_key_read(e->key, &key) || key.kept || key.owner != dibs__hash(s->owner))
        return DIBS__SAME;
    snprintf(attempt, sizeof attempt, "%.*s", (int)key.attempt_length, key.attempt);
    return dibs__attempt_kin(s->attempt, attempt);
}

/* The index of the first such entry; `count`: there is none. */
static size_t find_kin(const visit *v, dibs__kin kin)
{
    const dibs__line_listing *l = &v->call->listing;
    size_t i = 0;

    while (i < l->count && kin_to(v->seat, &l->entry[i]) != kin)
        i++;
    return i;
}

/* Older attempts of this handle were given up by their callers: they go. If there is a newer one, it is
 * ours that comes too late. */
static dibs_status replace_own(visit *v)
{
    dibs__line_listing *l = &v->call->listing;
    dibs_status status;
    size_t i;

    if (!v->seat->named)
        return DIBS_OK;
    if (find_kin(v, DIBS__OLDER) < l->count) {
        refuse(v, DIBS__RESUMED);
        return DIBS_OK;
    }
    while ((i = find_kin(v, DIBS__NEWER)) < l->count) {
        status = dibs__line_remove(v->line, v->seat->name, l->entry[i].key, v->until, NULL, v->err);
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
    size_t i = v->seat->named ? find_kin(v, DIBS__FOREIGN) : v->call->listing.count;

    return i < v->call->listing.count && v->call->listing.entry[i].place < v->seat->place;
}

static bool is_rival(void *seat, const dibs__line_entry *e)
{
    return e->place < ((const dibs__line_seat *)seat)->place && kin_to(seat, e) == DIBS__FOREIGN;
}

/* ---- Held, or in line ------------------------------------------------------------------------ */

static bool fits(const visit *v)
{
    const dibs__line_listing *l = &v->call->listing;
    uint64_t sum = v->seat->weight;

    for (size_t i = 0; i < l->count && l->entry[i].place < v->seat->place; i++) {
        sum += l->entry[i].weight;
        if (sum > v->seat->capacity || dibs__line_blocked(l, i))
            return false;
    }
    return sum <= v->seat->capacity && l->from == 0 && !has_rival(v);
}

static bool has_own(const visit *v)
{
    const dibs__line_listing *l = &v->call->listing;

    for (size_t i = 0; i < l->count; i++)
        if (l->entry[i].place == v->seat->place)
            return true;
    return false;
}

/* A call that checks one entry. NULL: out of memory. */
static dibs__line_call *check_one(visit *v, const char *key)
{
    dibs__line_call *call = dibs__ask_new(v->line, v->seat->name, key);

    if (call && !(call->check = calloc(1, sizeof *call->check))) {
        dibs__ask_drop(call);
        return NULL;
    }
    if (call) {
        call->check[0] = (dibs__line_check){.name = call->name, .key = call->key};
        call->count = 1;
    }
    return call;
}

/* Nothing is in its way, but is it there? If not, it enters again when it is asked for again. */
static dibs_status verify(visit *v)
{
    dibs__line *line = v->line;
    dibs__line_seat *s = v->seat;
    dibs__line_call *call = check_one(v, s->key);
    dibs_status status;
    bool there;

    if (!call)
        return no_memory(v);
    call->again = true;
    status = dibs__ask_wait(line, line->side->adapter->check, call, v->until, v->err);
    there = status == DIBS_OK && call->check[0].there;
    dibs__ask_free(call);
    if (status != DIBS_OK)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    if (there)
        return DIBS_OK;
    pthread_mutex_lock(&line->mutex);
    s->key[0] = '\0';
    s->maybe_made = false;
    pthread_mutex_unlock(&line->mutex);
    return dibs__fail(v->err, DIBS_UNAVAILABLE, "%s: the entry was removed again",
                      line->side->adapter->name);
}

/* The fence of the first entry that holds beside ours; 0: there is none. */
static dibs_status find_floor(visit *v, uint64_t *out)
{
    dibs__line *line = v->line;
    dibs__line_listing *l = &v->call->listing;
    dibs_status status = DIBS_OK;

    *out = 0;
    for (size_t i = 0; i < l->count && l->entry[i].place < v->seat->place && *out == 0; i++) {
        dibs__line_call *call;
        *out = l->entry[i].fence;
        if (*out)
            break;
        call = check_one(v, l->entry[i].key);
        if (!call)
            return no_memory(v);
        status = dibs__ask_wait(line, line->side->adapter->check, call, v->until, v->err);
        if (status == DIBS_OK && call->check[0].there)
            *out = call->check[0].fence;
        dibs__ask_free(call);
        if (status != DIBS_OK)
            break;
    }
    return status;
}

static dibs_status take(visit *v)
{
    dibs__line *line = v->line;
    dibs__line_seat *s = v->seat;
    uint64_t floor;
    dibs_status status = v->verified ? DIBS_OK : verify(v);

    if (status != DIBS_OK)
        return status;
    status = find_floor(v, &floor);
    if (status != DIBS_OK)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    pthread_mutex_lock(&line->mutex);
    s->state = DIBS__LINE_SEAT_HOLDING;
    s->since = dibs__now(line->base.env);
    s->floor = floor && floor < s->fence ? floor : s->fence;
    dibs__line_seat_lasts(line, s, dibs__after(line->base.env, s->lease));
    status = reply_granted(line, s, v->asked, v->out, v->err);
    pthread_mutex_unlock(&line->mutex);
    return status;
}

static dibs_status stand_in_line(visit *v)
{
    dibs__line *line = v->line;
    dibs__line_seat *s = v->seat;
    dibs_status status;

    pthread_mutex_lock(&line->mutex);
    s->state = DIBS__LINE_SEAT_WAITING;
    if (dibs__view_join(line, s, &v->call->listing)) {
        dibs__view_settle(line);
        status = reply_queued(line, s, v->asked, v->window, v->out, v->err);
    } else {
        dibs__line_seat_leave(line, s);
        status = no_memory(v);
    }
    pthread_mutex_unlock(&line->mutex);
    return status;
}

static dibs_status enter_anew(visit *v)
{
    dibs_status status = make_entry(v);

    if (status != DIBS_OK)
        return status;
    if (!v->call->there) {
        v->seat->maybe_made = false;
        refuse(v, DIBS__MISMATCH);
        v->out->capacity = dibs__line_capacity(v->call->listing.value);
        return DIBS_OK;
    }
    dibs__line_listing_sort(&v->call->listing);
    v->verified = v->call->verified || has_own(v);
    v->out->verdict = DIBS__GRANTED;
    status = check_capacity(v);
    if (status == DIBS_OK && v->out->verdict == DIBS__GRANTED)
        status = replace_own(v);
    if (status == DIBS_OK && v->out->verdict == DIBS__GRANTED && v->window > 0 && has_rival(v))
        status = dibs__line_ask_back(v->line, v->seat->name, is_rival, v->seat, v->until, v->err);
    if (status != DIBS_OK || v->out->verdict != DIBS__GRANTED)
        return status == DIBS_UNAVAILABLE ? DIBS_UNKNOWN : status;
    if (fits(v))
        return take(v);
    if (v->window > 0)
        return stand_in_line(v);
    refuse(v, DIBS__BUSY);
    return DIBS_OK;
}

/* Asked again: what is known of it already. With the mutex. true: answered. */
static bool known(visit *v, dibs_status *status)
{
    dibs__line_seat *s = v->seat;

    if (s->dead) {                    /* what the old session made is gone */
        dibs__view_leave(v->line, s); /* which it may have joined after the session had ended */
        s->dead = s->maybe_made = s->verified = false;
        s->key[0] = '\0';
        s->state = DIBS__LINE_SEAT_NEW;
    }
    dibs__line_seat_lasts(v->line, s, v->until + 4 * v->line->base.lease);
    if (s->state == DIBS__LINE_SEAT_HOLDING)
        *status = reply_granted(v->line, s, v->asked, v->out, v->err);
    else if (s->state == DIBS__LINE_SEAT_WAITING)
        *status = reply_queued(v->line, s, v->asked, v->window, v->out, v->err);
    else if (s->state == DIBS__LINE_SEAT_LEAVING)
        *status = dibs__fail(v->err, DIBS_UNAVAILABLE, "its last entry is being removed");
    return s->state != DIBS__LINE_SEAT_NEW;
}

dibs_status dibs__line_enter(dibs__engine *e, const dibs__enter_request *request,
                             dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    visit v = {.line = dibs__line_of(e),
               .window = request->window,
               .asked = dibs__now(e->env),
               .until = until,
               .out = out,
               .err = err};
    dibs_status status = DIBS_OK;
    bool answered;

    pthread_mutex_lock(&v.line->mutex);
    v.seat = dibs__line_seat_find(v.line, request->who.attempt);
    if (!v.seat && !(v.seat = dibs__line_seat_new(v.line, request))) {
        pthread_mutex_unlock(&v.line->mutex);
        return no_memory(&v);
    }
    dibs__line_seat_use(v.seat);
    answered = known(&v, &status);
    pthread_mutex_unlock(&v.line->mutex);
    if (!answered)
        status = enter_anew(&v);
    pthread_mutex_lock(&v.line->mutex);
    if (v.seat->state == DIBS__LINE_SEAT_NEW && !v.seat->maybe_made)
        dibs__line_seat_drop(v.line, v.seat);
    else if (v.seat->state == DIBS__LINE_SEAT_NEW && status == DIBS_NO_MEMORY)
        dibs__line_seat_leave(v.line,
                              v.seat); /* for the core that is a refusal: nobody asks again */
    dibs__line_seat_unuse(v.line, v.seat);
    pthread_mutex_unlock(&v.line->mutex);
    if (v.call)
        dibs__ask_free(v.call);
    dibs__line_tell_all(v.line);
    return status;
}
