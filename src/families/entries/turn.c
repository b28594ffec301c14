/* Whom each waiter watches, and when its turn has come.
 *
 * A waiter of weight w watches a least set of the nearest entries ahead whose weights exceed
 * capacity − w: while all of them live it cannot hold. Exclusive: the one right before it. Shared:
 * the nearest exclusive one. Slots: as many of the nearest as add up. When one of them goes, it looks
 * again: at what the view has, if that is little; else at a new listing of what is ahead, because in a
 * long queue of other people's entries most of them have gone unseen.
 *
 * When nobody is in its way any more, it asks whether its own entry is there, in a read that sees
 * everything that was done before: entries ahead only vanish, so that one read says both, "you are
 * first" and "you are still in the queue". A session that the server has ended, and an entry that somebody
 * deleted, are granted nothing, whatever we believe. */
#define _GNU_SOURCE
#include "families/entries/view.h"

#include <stdlib.h>
#include <string.h>

/* ---- Whom to watch --------------------------------------------------------------------------- */

/* How many of the nearest, from index `i` down, it takes to exceed `limit`; 0: all together do not. */
static size_t reach(const dibs__view *v, size_t i, uint64_t limit)
{
    uint64_t sum = 0;

    for (size_t n = 1; i > v->first; n++) {
        sum += v->known[--i]->weight;
        if (sum > limit)
            return n;
    }
    return 0;
}

/* Leaves out, lightest first, what the rest does not need. Sets `limit` aside for the caller. */
static size_t thin_out(dibs__known_entry **set, size_t n, uint64_t limit)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += set[i]->weight;
    for (;;) {
        size_t lightest = 0;
        for (size_t i = 1; i < n; i++)
            if (set[i]->weight < set[lightest]->weight)
                lightest = i;
        if (n == 1 || sum - set[lightest]->weight <= limit)
            return n;
        sum -= set[lightest]->weight;
        set[lightest] = set[--n];
    }
}

static void on_watched(dibs__entries_call *call)
{
    dibs__entries *entries = dibs__ask_entries(call);
    dibs__view *v;
    dibs__known_entry *known;

    pthread_mutex_lock(&entries->mutex);
    v = dibs__view_find(entries, call->name);
    known = v ? dibs__view_entry(v, call->place) : NULL;
    if (known && call->status != DIBS_OK)
        known->watched = false; /* the next keep-alive of who watches it tries again */
    else if (known && !call->there)
        dibs__view_remove(entries, v, dibs__view_place(v, call->place));
    else if (known && call->own.fence)
        known->fence = call->own.fence;
    dibs__view_settle(entries);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
}

static void watch(dibs__entries *entries, dibs__view *v, dibs__known_entry *known)
{
    dibs__entries_call *call;

    if (known->watched || !(call = dibs__ask_new(entries, v->name, known->key)))
        return;
    call->place = known->place;
    call->watch.as_of = known->as_of;
    known->watched = dibs__ask_start(entries, entries->backend->adapter->watch, call, on_watched);
}

/* The nearest `n` before index `i` are enough; the least of them that are. */
static bool watch_nearest(dibs__entries *entries, dibs__own_entry *s, size_t i, size_t n)
{
    dibs__view *v = s->view;
    dibs__known_entry **set = n > 1 ? malloc(n * sizeof *set) : NULL, *single;

    if (n > 1 && !set)
        return false;
    if (n == 1)
        set = &single;
    for (size_t k = 0; k < n; k++)
        set[k] = v->known[i - 1 - k];
    n = thin_out(set, n, s->capacity - s->weight);
    s->links = malloc(n * sizeof *s->links);
    if (s->links) {
        s->link_count = n;
        for (size_t k = 0; k < n; k++) {
            dibs__view_link(&s->links[k], s, set[k]);
            watch(entries, v, set[k]);
        }
    }
    if (set != &single)
        free(set);
    return s->link_count > 0;
}

/* The last entry before index `i` of that owner by name. NULL: there is none. */
static dibs__known_entry *find_owner(const dibs__view *v, uint64_t owner, size_t i)
{
    while (owner && i > v->first)
        if (v->known[--i]->owner == owner)
            return v->known[i];
    return NULL;
}

/* Two entries of one owner by name, of two handles: the first must be gone before the second holds, also
 * when both would fit, and whoever is behind the second waits with it. `pair[1]` is NULL when that is the
 * own entry itself. */
static bool find_pair(const dibs__view *v, const dibs__own_entry *s, size_t i,
                      dibs__known_entry *pair[2])
{
    pair[1] = NULL;
    pair[0] = find_owner(v, s->named ? dibs__hash(s->owner) : 0, i);
    while (!pair[0] && i > v->first) {
        pair[1] = v->known[--i];
        pair[0] = find_owner(v, pair[1]->owner, i);
    }
    return pair[0] != NULL;
}

/* Nobody is in its way, as far as the view knows, and the view knows all. */
static bool is_first(const dibs__own_entry *s)
{
    const dibs__view *v = s->view;
    size_t i = dibs__view_place(v, s->place);
    dibs__known_entry *pair[2];

    return v->from == 0 && v->upto >= s->place && reach(v, i, s->capacity - s->weight) == 0 &&
           !find_pair(v, s, i, pair);
}

/* A listing that has its own entry may say both: "you are first", and "you are still in the queue". */
static void on_listed(dibs__entries_call *call)
{
    dibs__entries *entries = dibs__ask_entries(call);
    dibs__own_entry *s;

    pthread_mutex_lock(&entries->mutex);
    s = dibs__own_entry_find(entries, call->attempt);
    if (s && s->view && s->asking && call->place == s->place) {
        s->asking = false;
        if (call->status == DIBS_OK) { /* else the next keep-alive tries again */
            s->fresh = dibs__view_merge(entries, s->view, &call->listing, s->place);
            s->view->last[0] = '\0';
            s->verified = s->fresh && call->there && is_first(s);
            dibs__view_stir(entries, s);
        }
    }
    dibs__view_settle(entries);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
}

/* Asks the server who is ahead. */
static void list_ahead(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__entries_call *call = dibs__ask_new(entries, s->name, s->key);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->place = s->place;
    call->again = true;
    call->enough = s->capacity - s->weight;
    if (s->view->upto >= s->place && dibs__view_place(s->view, s->place) == s->view->first)
        call->list.known_from = s->view->from;
    if (call->attempt)
        s->asking = dibs__ask_start(entries, entries->backend->adapter->list, call, on_listed);
    else
        dibs__ask_drop(call);
}

/* ---- Its turn -------------------------------------------------------------------------------- */

static void hold(dibs__entries *entries, dibs__own_entry *s, uint64_t floor)
{
    s->state = DIBS__OWN_ENTRY_HOLDING;
    s->since = dibs__now(entries->base.env);
    s->floor = floor && floor < s->fence ? floor : s->fence;
    dibs__view_leave(entries, s);
    dibs__own_entry_notify(entries, s, true);
}

/* What was asked before its turn: its own entry, and the first of those that hold beside it. */
static void take_answers(dibs__entries *entries, dibs__own_entry *s, const dibs__entries_call *call)
{
    const dibs__entries_check *first = call->check.count > 1 ? &call->check.entry[1] : NULL;
    dibs__known_entry *known = first ? dibs__view_entry(s->view, call->place) : NULL;

    if (!call->check.entry[0]
             .there) { /* resumed elsewhere, or deleted by hand: the next keep-alive says */
        s->checked = 0;
        dibs__own_entry_notify(entries, s, false);
        return;
    }
    s->verified = is_first(s);
    if (known && first->there)
        known->fence = first->fence;
    else if (known)
        dibs__view_remove(entries, s->view, dibs__view_place(s->view, call->place));
    dibs__view_stir(entries, s);
}

static void on_checked(dibs__entries_call *call)
{
    dibs__entries *entries = dibs__ask_entries(call);
    dibs__own_entry *s;

    pthread_mutex_lock(&entries->mutex);
    s = dibs__own_entry_find(entries, call->attempt);
    if (s && s->view && s->asking && strcmp(call->key, s->key) == 0) {
        s->asking = false;
        if (call->status == DIBS_OK)
            take_answers(entries, s, call);
        else if (!call->again) /* else the next keep-alive tries again */
            dibs__view_stir(entries, s);
    }
    dibs__view_settle(entries);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
}

/* `again`: the look has seen everything that was done before; else what this session has done. */
static void check_first(dibs__entries *entries, dibs__own_entry *s, const dibs__known_entry *first,
                        bool again)
{
    dibs__entries_call *call = dibs__ask_new(entries, s->name, s->key);

    if (!call)
        return;
    call->again = again;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->check.entry = calloc(2, sizeof *call->check.entry);
    if (!call->attempt || !call->check.entry) {
        dibs__ask_drop(call);
        return;
    }
    call->check.entry[call->check.count++] =
        (dibs__entries_check){.name = call->name, .key = call->key};
    if (first) {
        call->place = first->place;
        call->check.entry[call->check.count++] =
            (dibs__entries_check){.name = call->name, .key = dibs__ask_copy(call, first->key)};
    }
    if (first && !call->check.entry[1].key)
        dibs__ask_drop(call);
    else
        s->asking = dibs__ask_start(entries, entries->backend->adapter->check, call, on_checked);
}

/* The waiter of ours that has only `known` ahead of it, and watches it; NULL: there is none. */
static dibs__own_entry *find_next(const dibs__view *v, const dibs__known_entry *known)
{
    for (const dibs__link *l = known->watchers; l; l = l->next)
        if (!l->own_entry->asking && v->upto >= l->own_entry->place &&
            dibs__view_place(v, l->own_entry->place) == v->first + 1)
            return l->own_entry;
    return NULL;
}

/* While it asks it watches nothing: whatever the answer, it looks again then. */
void dibs__view_follow(dibs__entries *entries, const char *name, uint64_t place)
{
    const dibs__known_entry *known;
    dibs__own_entry *s = NULL;
    const dibs__view *v;

    pthread_mutex_lock(&entries->mutex);
    v = dibs__view_find(entries, name);
    known = v && v->from == 0 ? dibs__view_entry(v, place) : NULL;
    if (known && known == v->known[v->first])
        s = find_next(v, known);
    if (s) {
        dibs__view_unlink(s);
        check_first(entries, s, NULL, false);
        if (!s->asking)
            dibs__view_stir(entries, s);
        dibs__view_settle(entries);
    }
    pthread_mutex_unlock(&entries->mutex);
}

/* Nobody is in its way. Its own entry is looked at, and with it the fence of the first that holds beside
 * it, for the floor. */
static void take_turn(dibs__entries *entries, dibs__own_entry *s, size_t ahead)
{
    dibs__view *v = s->view;
    dibs__known_entry *first = ahead > v->first ? v->known[v->first] : NULL;

    if (!s->verified || (first && !first->fence))
        check_first(entries, s, first && !first->fence ? first : NULL, true);
    else
        hold(entries, s, first ? first->fence : 0);
}

static bool all_watched(const dibs__view *v, size_t i, size_t n)
{
    while (n-- > 0)
        if (!v->known[--i]->watched)
            return false;
    return true;
}

/* When either goes, it looks again. Out of memory: its next keep-alive tries again. */
static void watch_pair(dibs__entries *entries, dibs__own_entry *s, dibs__known_entry *pair[2])
{
    size_t count = pair[1] ? 2 : 1;

    s->links = malloc(count * sizeof *s->links);
    s->link_count = s->links ? count : 0;
    for (size_t i = 0; i < s->link_count; i++) {
        dibs__view_link(&s->links[i], s, pair[i]);
        watch(entries, s->view, pair[i]);
    }
}

static void read_again(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__view *v = s->view;
    dibs__known_entry *pair[2];
    size_t i, n;

    if (!v || s->asking || s->state != DIBS__OWN_ENTRY_WAITING)
        return;
    dibs__view_unlink(s);
    i = dibs__view_place(v, s->place);
    n = reach(v, i, s->capacity - s->weight);
    if (n == 0 && find_pair(v, s, i, pair))
        watch_pair(entries, s, pair);
    else if (n == 0 && v->from == 0 && v->upto >= s->place)
        take_turn(entries, s, i);
    else if (n == 0 || (!s->fresh && !all_watched(v, i, n)))
        list_ahead(entries, s);
    else
        watch_nearest(entries, s, i, n);
    s->fresh = false;
}

void dibs__view_stir(dibs__entries *entries, dibs__own_entry *s)
{
    if (s->stirred)
        return;
    s->stirred = true;
    s->next_stirred = entries->stirred;
    entries->stirred = s;
}

void dibs__view_settle(dibs__entries *entries)
{
    while (entries->stirred) {
        dibs__own_entry *s = entries->stirred;
        entries->stirred = s->next_stirred;
        s->stirred = false;
        read_again(entries, s);
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

void dibs__entries_gone(dibs__entries *entries, const char *name, uint64_t place)
{
    dibs__view *v;

    pthread_mutex_lock(&entries->mutex);
    v = dibs__view_find(entries, name);
    if (v && dibs__view_entry(v, place))
        dibs__view_remove(entries, v, dibs__view_place(v, place));
    dibs__view_settle(entries);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
}

static void doubt_view(dibs__view *v)
{
    for (size_t i = v->first; i < v->end; i++)
        v->known[i]->watched = false;
}

void dibs__entries_recheck(dibs__entries *entries)
{
    pthread_mutex_lock(&entries->mutex);
    for (size_t i = 0; i < entries->views.size; i++)
        for (dibs__node *n = entries->views.slot[i]; n; n = n->next)
            doubt_view(DIBS__FROM(dibs__view, by_name, n));
    for (size_t i = 0; i < entries->own_entries.size; i++)
        for (dibs__node *n = entries->own_entries.slot[i]; n; n = n->next)
            dibs__view_stir(entries, DIBS__FROM(dibs__own_entry, by_attempt, n));
    dibs__view_settle(entries);
    pthread_mutex_unlock(&entries->mutex);
    dibs__entries_notify_all(entries);
    entries->base.sink->check_all(entries->base.sink, DIBS__CELLS);
}
