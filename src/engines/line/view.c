/* Who is ahead, and whom each waiter of ours watches.
 *
 * A view has every entry that may be alive ahead of a seat of ours. A listing that was made after an
 * entry of place p has all live entries below p, for places are given out in order: what is missing
 * there is gone for good. So listings may come late and in any order, and a view only ever errs
 * towards entries that are gone already; watching one of those tells.
 *
 * A waiter of weight w watches a least set of the nearest entries ahead whose weights exceed
 * capacity − w: while all of them live it cannot hold. Exclusive: the one right before it. Shared:
 * the nearest exclusive one. Slots: as many of the nearest as add up. When one of them goes, it looks
 * again: at what the view has, if that is little; else at a new listing of what is ahead, because in a
 * long line of other people's entries most of them have gone unseen. */
#define _GNU_SOURCE
#include "engines/line/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW 2 /* unseen entries ahead that are asked for one by one */
#define LONG \
    256 /* so many ahead that listing them again costs more than asking whether it must be */

struct dibs__spot {
    uint64_t place, fence;
    uint64_t as_of; /* of the listing in which it was seen last */
    uint32_t weight;
    bool watched; /* or about to be */
    dibs__link *watchers;
    char key[];
};

struct dibs__view {
    dibs__node by_name;
    dibs__spot **spot; /* by place, from `first` on */
    size_t first, end, size;
    uint64_t from, upto; /* between these places nothing lives that is not among the spots */
    size_t seats;
    uint64_t as_of; /* of the last listing, which was that of our entry `last`, at `upto` */
    char last[DIBS__LINE_KEY_SIZE];
    char name[];
};

/* ---- Spots ----------------------------------------------------------------------------------- */

/* The first whose place is not below `place`. */
static size_t find_place(const dibs__view *v, uint64_t place)
{
    size_t low = v->first, high = v->end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->spot[middle]->place < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static dibs__spot *spot_at(const dibs__view *v, uint64_t place)
{
    size_t i = find_place(v, place);

    return i < v->end && v->spot[i]->place == place ? v->spot[i] : NULL;
}

static dibs__spot *new_spot(const dibs__line_entry *e)
{
    dibs__spot *spot = calloc(1, sizeof *spot + strlen(e->key) + 1);

    if (!spot)
        return NULL;
    spot->place = e->place;
    spot->fence = e->fence;
    spot->weight = e->weight;
    memcpy(spot->key, e->key, strlen(e->key) + 1);
    return spot;
}

static void unlink_one(dibs__link *l)
{
    if (!l->at)
        return;
    *l->at = l->next;
    if (l->next)
        l->next->at = l->at;
    l->at = NULL;
}

static void unlink_all(dibs__line_seat *s)
{
    for (size_t i = 0; i < s->link_count; i++)
        unlink_one(&s->links[i]);
    if (s->links != &s->one)
        free(s->links);
    s->links = NULL;
    s->link_count = 0;
}

static void link_to(dibs__link *l, dibs__line_seat *s, dibs__spot *spot)
{
    *l = (dibs__link){.seat = s, .spot = spot, .next = spot->watchers, .at = &spot->watchers};
    if (l->next)
        l->next->at = &l->next;
    spot->watchers = l;
}

/* It is gone: whoever watches it looks again. Not yet out of the array. */
static void discard(dibs__line *line, dibs__spot *spot)
{
    while (spot->watchers) {
        dibs__link *l = spot->watchers;
        unlink_one(l);
        dibs__view_stir(line, l->seat);
    }
    free(spot);
}

static void remove_at(dibs__line *line, dibs__view *v, size_t i)
{
    dibs__spot *spot = v->spot[i];

    if (i == v->first) {
        v->first++;
    } else {
        memmove(v->spot + i, v->spot + i + 1, (v->end - i - 1) * sizeof *v->spot);
        v->end--;
    }
    discard(line, spot);
}

/* ---- Views ----------------------------------------------------------------------------------- */

static dibs__view *find_view(dibs__line *line, const char *name)
{
    dibs__node *n = dibs__table_first(&line->views, dibs__hash(name));

    for (; n; n = dibs__table_next(n)) {
        dibs__view *v = DIBS__FROM(dibs__view, by_name, n);
        if (strcmp(v->name, name) == 0)
            return v;
    }
    return NULL;
}

static dibs__view *get_view(dibs__line *line, const char *name)
{
    dibs__view *v = find_view(line, name);

    if (v || !dibs__table_reserve(&line->views))
        return v;
    v = calloc(1, sizeof *v + strlen(name) + 1);
    if (!v)
        return NULL;
    memcpy(v->name, name, strlen(name) + 1);
    dibs__table_add(&line->views, &v->by_name, dibs__hash(name));
    return v;
}

static void free_view(dibs__line *line, dibs__view *v)
{
    dibs__table_remove(&line->views, &v->by_name);
    for (size_t i = v->first; i < v->end; i++)
        free(v->spot[i]);
    free(v->spot);
    free(v);
}

void dibs__view_free_all(dibs__line *line)
{
    for (size_t i = 0; i < line->views.size; i++)
        while (line->views.slot[i])
            free_view(line, DIBS__FROM(dibs__view, by_name, line->views.slot[i]));
}

/* How many of the view's spots a listing replaces: those from `from` up to `below`. */
typedef struct range {
    size_t begin, end;
} range;

static bool merge_into(dibs__line *line, dibs__view *v, range r, const dibs__line_entry *e,
                       size_t count, uint64_t as_of, dibs__spot **out)
{
    size_t n = 0, i = r.begin;
    bool complete = true;

    for (size_t k = 0; k < count; k++) {
        while (i < r.end && v->spot[i]->place < e[k].place)
            discard(line, v->spot[i++]);
        if (i < r.end && v->spot[i]->place == e[k].place) {
            out[n] = v->spot[i++];
        } else if (!(out[n] = new_spot(&e[k]))) {
            complete = false;
            continue;
        }
        if (!out[n]->fence)
            out[n]->fence = e[k].fence;
        out[n++]->as_of = as_of;
    }
    while (i < r.end)
        discard(line, v->spot[i++]);
    if (v->end > r.end)
        memcpy(out + n, v->spot + r.end, (v->end - r.end) * sizeof *out);
    v->end = r.begin + n + (v->end - r.end);
    return complete;
}

/* What the listing tells wholly, `from` up to `below`, joins what the view knew wholly before, if
 * there is no gap between the two: new entries only come behind the last. */
static void know(dibs__view *v, uint64_t from, uint64_t below)
{
    if (from > v->upto || v->from > below) {
        v->from = from;
        v->upto = below;
        return;
    }
    v->from = from < v->from ? from : v->from;
    v->upto = below > v->upto ? below : v->upto;
}

/* What is ahead of `below` is what the listing says. false: out of memory; then the view lacks
 * something and must not be used. */
static bool merge(dibs__line *line, dibs__view *v, dibs__line_listing *l, uint64_t below)
{
    range r = {find_place(v, l->from), find_place(v, below)};
    size_t first = 0, count, size;
    dibs__spot **spot;
    bool complete;

    dibs__line_listing_sort(l);
    while (first < l->count && l->entry[first].place < l->from)
        first++;
    for (count = first; count < l->count && l->entry[count].place < below;)
        count++;
    count -= first;
    size = v->end - v->first + count + 8;
    spot = malloc(size * sizeof *spot);
    if (!spot)
        return false;
    if (r.begin > v->first)
        memcpy(spot, v->spot + v->first, (r.begin - v->first) * sizeof *spot);
    complete =
        merge_into(line, v, r, l->entry + first, count, l->as_of, spot + (r.begin - v->first));
    free(v->spot);
    v->end -= v->first;
    v->first = 0;
    v->spot = spot;
    v->size = size;
    if (complete)
        know(v, l->from, below);
    else
        v->from = v->upto = UINT64_MAX;
    return complete;
}

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
    v = find_view(line, call->name);
    spot = v ? spot_at(v, call->place) : NULL;
    if (spot && call->status != DIBS_OK)
        spot->watched = false; /* the next sign of life of who watches it tries again */
    else if (spot && !call->there)
        remove_at(line, v, find_place(v, call->place));
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
            link_to(&s->links[k], s, set[k]);
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
            s->fresh = merge(line, s->view, &call->listing, s->place);
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
    dibs__spot *spot = first ? spot_at(s->view, call->place) : NULL;

    if (!call->check[0].there) { /* resumed elsewhere, or deleted by hand */
        dibs__line_seat_tell(line, s, false);
        return;
    }
    s->verified = true;
    if (spot && first->there)
        spot->fence = first->fence;
    else if (spot)
        remove_at(line, s->view, find_place(s->view, call->place));
    dibs__view_stir(line, s);
}

static void on_checked(dibs__line_call *call)
{
    dibs__line *line = dibs__ask_line(call);
    dibs__line_seat *s;

    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, call->attempt);
    if (s && s->view && s->asking) {
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

/* Nobody is in its way. An owner by name may have been resumed elsewhere, which removes its entry: that
 * is looked at first. So is the fence of the first that holds beside it, for the floor. */
static void take_turn(dibs__line *line, dibs__line_seat *s, size_t ahead)
{
    dibs__view *v = s->view;
    dibs__spot *first = ahead > v->first ? v->spot[v->first] : NULL;

    if ((s->named && !s->verified) || (first && !first->fence))
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

static void look_again(dibs__line *line, dibs__line_seat *s)
{
    dibs__view *v = s->view;
    size_t i, n;

    if (!v || s->asking || s->state != DIBS__LINE_SEAT_WAITING)
        return;
    unlink_all(s);
    i = find_place(v, s->place);
    n = reach(v, i, s->capacity - s->weight);
    if (n == 0 && v->from == 0 && v->upto >= s->place)
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

/* ---- In and out ------------------------------------------------------------------------------ */

bool dibs__view_join(dibs__line *line, dibs__line_seat *s, dibs__line_listing *listing)
{
    dibs__view *v = get_view(line, s->name);

    if (!v)
        return false;
    v->seats++;
    s->view = v;
    if (!merge(line, v, listing, s->place)) {
        dibs__view_leave(line, s);
        return false;
    }
    v->as_of = listing->as_of;
    snprintf(v->last, sizeof v->last, "%s", v->upto == s->place ? s->key : "");
    s->fresh = true;
    dibs__view_stir(line, s);
    return true;
}

bool dibs__view_hint(dibs__line *line, dibs__line_call *call)
{
    dibs__view *v = find_view(line, call->name);

    if (!v || v->end - v->first < LONG || v->from > 0 || !v->last[0])
        return true;
    call->known_as_of = v->as_of;
    call->known_upto = v->upto;
    call->known_last = dibs__ask_copy(call, v->last);
    return call->known_last != NULL;
}

void dibs__view_leave(dibs__line *line, dibs__line_seat *s)
{
    dibs__view *v = s->view;

    unlink_all(s);
    s->asking = false;
    s->view = NULL;
    if (v && --v->seats == 0)
        free_view(line, v);
}

void dibs__view_check(dibs__line *line, dibs__line_seat *s)
{
    bool watched = s->link_count > 0;

    for (size_t i = 0; i < s->link_count; i++)
        watched = watched && s->links[i].spot->watched;
    if (!watched)
        dibs__view_stir(line, s);
}

/* ---- Events ---------------------------------------------------------------------------------- */

void dibs__line_gone(dibs__line *line, const char *name, uint64_t place)
{
    dibs__view *v;

    pthread_mutex_lock(&line->mutex);
    v = find_view(line, name);
    if (v && spot_at(v, place))
        remove_at(line, v, find_place(v, place));
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
}
