/* Whom each waiter watches, and when its turn has come.
 *
 * A waiter of weight w watches a least set of the nearest entries ahead whose weights exceed
 * capacity − w: while all of them live it cannot hold. Exclusive: the one right before it. Shared:
 * the nearest exclusive one. Slots: as many of the nearest as add up. When one of them goes, it looks
 * again: at what the view has, if that is little; else at a new listing of what is ahead, because in a
 * long line of other people's entries most of them have gone unseen.
 *
 * When nobody is in its way any more, it asks whether its own entry is there, in a read that sees
 * everything that was done before: entries ahead only vanish, so that one read says both, "you are
 * first" and "you are still in line". A session that the server has ended, and an entry that somebody
 * deleted, are granted nothing, whatever we believe. */
#define _GNU_SOURCE
#include "families/entries/view.h"

#include <stdlib.h>
#include <string.h>

#define FEW 2 /* unseen entries ahead that are asked for one by one */

/* ---- Whom to watch --------------------------------------------------------------------------- */

/* How many of the nearest, from index `i` down, it takes to exceed `limit`; 0: all together do not. */
static size_t reach(const dibs__view *v, size_t i, uint64_t limit)
{
    uint64_t sum = 0;

    for (size_t n = 1; i > v->first; n++) {
        sum += v->spot[--i]->weight;
        if (sum > limit)
            return n;
    }
    return 0;
}

/* Leaves out, lightest first, what the rest does not need. Sets `limit` aside for the caller. */
static size_t thin_out(dibs__spot **set, size_t n, uint64_t limit)
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

static void on_watched(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    dibs__view *v;
    dibs__spot *spot;

    pthread_mutex_lock(&line->mutex);
    v = dibs__view_find(line, call->name);
    spot = v ? dibs__view_spot(v, call->place) : NULL;
    if (spot && call->status != DIBS_OK)
        spot->watched = false; /* the next sign of life of who watches it tries again */
    else if (spot && !call->there)
        dibs__view_remove(line, v, dibs__view_place(v, call->place));
    else if (spot && call->own.fence)
        spot->fence = call->own.fence;
    dibs__view_settle(line);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
}

static void watch(dibs__line *line, dibs__view *v, dibs__spot *spot)
{
    dibs__line_call *call;

    if (spot->watched || !(call = dibs__ask_new(line, v->name, spot->key)))
        return;
    call->place = spot->place;
    call->version = spot->as_of;
    spot->watched = dibs__ask_start(line, line->side->adapter->watch, call, on_watched);
}

/* The nearest `n` before index `i` are enough; the least of them that are. */
static bool watch_nearest(dibs__line *line, dibs__line_seat *s, size_t i, size_t n)
{
    dibs__view *v = s->view;
    dibs__spot **set = n > 1 ? malloc(n * sizeof *set) : NULL, *single;

    if (n > 1 && !set)
        return false;
    if (n == 1)
        set = &single;
    for (size_t k = 0; k < n; k++)
        set[k] = v->spot[i - 1 - k];
    n = thin_out(set, n, s->capacity - s->weight);
    s->links = n == 1 ? &s->one : malloc(n * sizeof *s->links);
    if (s->links) {
        s->link_count = n;
        for (size_t k = 0; k < n; k++) {
            dibs__view_link(&s->links[k], s, set[k]);
            watch(line, v, set[k]);
        }
    }
    if (set != &single)
        free(set);
    return s->link_count > 0;
}

static void on_listed(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    dibs__line_seat *s;

    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, call->attempt);
    if (s && s->view && s->asking && call->place == s->place) {
        s->asking = false;
        if (call->status == DIBS_OK) { /* else the next sign of life tries again */
            s->fresh = dibs__view_merge(line, s->view, &call->listing, s->place);
            s->view->last[0] = '\0';
            dibs__view_stir(line, s);
        }
    }
    dibs__view_settle(line);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
}

/* Asks the server who is ahead. */
static void list_ahead(dibs__line *line, dibs__line_seat *s)
{
    dibs__line_call *call = dibs__ask_new(line, s->name, NULL);

    if (!call)
        return;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->place = s->place;
    call->enough = s->capacity - s->weight;
    if (call->attempt)
        s->asking = dibs__ask_start(line, line->side->adapter->list, call, on_listed);
    else
        dibs__ask_drop(call);
}

/* ---- Its turn -------------------------------------------------------------------------------- */

static void hold(dibs__line *line, dibs__line_seat *s, uint64_t floor)
{
    s->state = DIBS__LINE_SEAT_HOLDING;
    s->since = dibs__now(line->base.env);
    s->floor = floor && floor < s->fence ? floor : s->fence;
    dibs__view_leave(line, s);
    dibs__line_seat_tell(line, s, true);
}

/* What was asked before its turn: its own entry, and the first of those that hold beside it. */
static void take_answers(dibs__line *line, dibs__line_seat *s, const dibs__line_call *call)
{
    const dibs__line_check *first = call->count > 1 ? &call->check[1] : NULL;
    dibs__spot *spot = first ? dibs__view_spot(s->view, call->place) : NULL;

    if (!call->check[0]
             .there) { /* resumed elsewhere, or deleted by hand: the next sign of life says */
        s->checked = 0;
        dibs__line_seat_tell(line, s, false);
        return;
    }
    s->verified = true;
    if (spot && first->there)
        spot->fence = first->fence;
    else if (spot)
        dibs__view_remove(line, s->view, dibs__view_place(s->view, call->place));
    dibs__view_stir(line, s);
}

static void on_checked(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    dibs__line_seat *s;

    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, call->attempt);
    if (s && s->view && s->asking && strcmp(call->key, s->key) == 0) {
        s->asking = false;
        if (call->status == DIBS_OK)
            take_answers(line, s, call);
    }
    dibs__view_settle(line);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
}

static void check_first(dibs__line *line, dibs__line_seat *s, const dibs__spot *first)
{
    dibs__line_call *call = dibs__ask_new(line, s->name, s->key);

    if (!call)
        return;
    call->again = true;
    call->attempt = dibs__ask_copy(call, s->attempt);
    call->check = calloc(2, sizeof *call->check);
    if (!call->attempt || !call->check) {
        dibs__ask_drop(call);
        return;
    }
    call->check[call->count++] = (dibs__line_check){.name = call->name, .key = call->key};
    if (first) {
        call->place = first->place;
        call->check[call->count++] =
            (dibs__line_check){.name = call->name, .key = dibs__ask_copy(call, first->key)};
    }
    if (first && !call->check[1].key)
        dibs__ask_drop(call);
    else
        s->asking = dibs__ask_start(line, line->side->adapter->check, call, on_checked);
}

/* Nobody is in its way. Its own entry is looked at, and with it the fence of the first that holds beside
 * it, for the floor. */
static void take_turn(dibs__line *line, dibs__line_seat *s, size_t ahead)
{
    dibs__view *v = s->view;
    dibs__spot *first = ahead > v->first ? v->spot[v->first] : NULL;

    if (!s->verified || (first && !first->fence))
        check_first(line, s, first && !first->fence ? first : NULL);
    else
        hold(line, s, first ? first->fence : 0);
}

static bool all_watched(const dibs__view *v, size_t i, size_t n)
{
    while (n-- > 0)
        if (!v->spot[--i]->watched)
            return false;
    return true;
}

/* The last entry before index `i` of that owner by name. NULL: there is none. */
static dibs__spot *find_owner(const dibs__view *v, uint64_t owner, size_t i)
{
    while (owner && i > v->first)
        if (v->spot[--i]->owner == owner)
            return v->spot[i];
    return NULL;
}

/* Two entries of one owner by name, of two handles: the first must be gone before the second holds, also
 * when both would fit, and whoever is behind the second waits with it. `pair[1]` is NULL when that is the
 * seat itself. */
static bool find_pair(const dibs__view *v, const dibs__line_seat *s, size_t i, dibs__spot *pair[2])
{
    pair[1] = NULL;
    pair[0] = find_owner(v, s->named ? dibs__hash(s->owner) : 0, i);
    while (!pair[0] && i > v->first) {
        pair[1] = v->spot[--i];
        pair[0] = find_owner(v, pair[1]->owner, i);
    }
    return pair[0] != NULL;
}

/* When either goes, it looks again. Out of memory: its next sign of life tries again. */
static void watch_pair(dibs__line *line, dibs__line_seat *s, dibs__spot *pair[2])
{
    size_t count = pair[1] ? 2 : 1;

    s->links = count == 1 ? &s->one : malloc(count * sizeof *s->links);
    s->link_count = s->links ? count : 0;
    for (size_t i = 0; i < s->link_count; i++) {
        dibs__view_link(&s->links[i], s, pair[i]);
        watch(line, s->view, pair[i]);
    }
}

static void look_again(dibs__line *line, dibs__line_seat *s)
{
    dibs__view *v = s->view;
    dibs__spot *pair[2];
    size_t i, n;

    if (!v || s->asking || s->state != DIBS__LINE_SEAT_WAITING)
        return;
    dibs__view_unlink(s);
    i = dibs__view_place(v, s->place);
    n = reach(v, i, s->capacity - s->weight);
    if (n == 0 && find_pair(v, s, i, pair))
        watch_pair(line, s, pair);
    else if (n == 0 && v->from == 0 && v->upto >= s->place)
        take_turn(line, s, i);
    else if (n == 0 || (!s->fresh && i - v->first > FEW && !all_watched(v, i, n)))
        list_ahead(line, s);
    else
        watch_nearest(line, s, i, n);
    s->fresh = false;
}

void dibs__view_stir(dibs__line *line, dibs__line_seat *s)
{
    if (s->stirred)
        return;
    s->stirred = true;
    s->next_stirred = line->stirred;
    line->stirred = s;
}

void dibs__view_settle(dibs__line *line)
{
    while (line->stirred) {
        dibs__line_seat *s = line->stirred;
        line->stirred = s->next_stirred;
        s->stirred = false;
        look_again(line, s);
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

void dibs__line_gone(dibs__line *line, const char *name, uint64_t place)
{
    dibs__view *v;

    pthread_mutex_lock(&line->mutex);
    v = dibs__view_find(line, name);
    if (v && dibs__view_spot(v, place))
        dibs__view_remove(line, v, dibs__view_place(v, place));
    dibs__view_settle(line);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
}

static void doubt_view(dibs__view *v)
{
    for (size_t i = v->first; i < v->end; i++)
        v->spot[i]->watched = false;
}

void dibs__line_doubt(dibs__line *line)
{
    pthread_mutex_lock(&line->mutex);
    for (size_t i = 0; i < line->views.size; i++)
        for (dibs__node *n = line->views.slot[i]; n; n = n->next)
            doubt_view(DIBS__FROM(dibs__view, by_name, n));
    for (size_t i = 0; i < line->seats.size; i++)
        for (dibs__node *n = line->seats.slot[i]; n; n = n->next)
            dibs__view_stir(line, DIBS__FROM(dibs__line_seat, by_attempt, n));
    dibs__view_settle(line);
    pthread_mutex_unlock(&line->mutex);
    dibs__line_tell_all(line);
    line->base.sink->look_again(line->base.sink, DIBS__CELLS);
}
