/* What this handle knows of a lock's queue: every entry that may be alive ahead of an own entry of ours.
 *
 * A listing that was made after an entry of place p has all live entries below p, for places are given
 * out in order: what is missing there is gone for good. So listings may come late and in any order, and
 * a view only ever errs towards entries that are gone already; watching one of those tells. */
#define _GNU_SOURCE
#include "families/entries/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG \
    256 /* so many ahead that listing them again costs more than asking whether it must be */

/* ---- Places ---------------------------------------------------------------------------------- */

/* The first whose place is not below `place`. */
size_t dibs__view_place(const dibs__view *v, uint64_t place)
{
    size_t low = v->first, high = v->end;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->known[middle]->place < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

dibs__known_entry *dibs__view_entry(const dibs__view *v, uint64_t place)
{
    size_t i = dibs__view_place(v, place);

    return i < v->end && v->known[i]->place == place ? v->known[i] : NULL;
}

static dibs__known_entry *new_known(const dibs__queue_entry *e)
{
    dibs__known_entry *known = calloc(1, sizeof *known + strlen(e->key) + 1);

    if (!known)
        return NULL;
    known->place = e->place;
    known->fence = e->fence;
    known->weight = e->weight;
    known->owner = e->owner;
    memcpy(known->key, e->key, strlen(e->key) + 1);
    return known;
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

void dibs__view_unlink(dibs__own_entry *s)
{
    for (size_t i = 0; i < s->link_count; i++)
        unlink_one(&s->links[i]);
    free(s->links);
    s->links = NULL;
    s->link_count = 0;
}

void dibs__view_link(dibs__link *l, dibs__own_entry *s, dibs__known_entry *known)
{
    *l = (dibs__link){
        .own_entry = s, .known = known, .next = known->watchers, .at = &known->watchers};
    if (l->next)
        l->next->at = &l->next;
    known->watchers = l;
}

/* It is gone: whoever watches it looks again. Not yet out of the array. */
static void discard(dibs__entries *entries, dibs__known_entry *known)
{
    while (known->watchers) {
        dibs__link *l = known->watchers;
        unlink_one(l);
        dibs__view_stir(entries, l->own_entry);
    }
    free(known);
}

void dibs__view_remove(dibs__entries *entries, dibs__view *v, size_t i)
{
    dibs__known_entry *known = v->known[i];

    if (i == v->first) {
        v->first++;
    } else {
        memmove(v->known + i, v->known + i + 1, (v->end - i - 1) * sizeof *v->known);
        v->end--;
    }
    discard(entries, known);
}

/* ---- Views ----------------------------------------------------------------------------------- */

dibs__view *dibs__view_find(dibs__entries *entries, const char *name)
{
    dibs__node *n = dibs__table_first(&entries->views, dibs__hash(name));

    for (; n; n = dibs__table_next(n)) {
        dibs__view *v = DIBS__FROM(dibs__view, by_name, n);
        if (strcmp(v->name, name) == 0)
            return v;
    }
    return NULL;
}

static dibs__view *get_view(dibs__entries *entries, const char *name)
{
    dibs__view *v = dibs__view_find(entries, name);

    if (v || !dibs__table_reserve(&entries->views))
        return v;
    v = calloc(1, sizeof *v + strlen(name) + 1);
    if (!v)
        return NULL;
    memcpy(v->name, name, strlen(name) + 1);
    dibs__table_add(&entries->views, &v->by_name, dibs__hash(name));
    return v;
}

static void free_view(dibs__entries *entries, dibs__view *v)
{
    dibs__table_remove(&entries->views, &v->by_name);
    for (size_t i = v->first; i < v->end; i++)
        free(v->known[i]);
    free(v->known);
    free(v);
}

/* How many of the view's known entries a listing replaces: those from `from` up to `below`. */
typedef struct range {
    size_t begin, end;
} range;

static bool merge_into(dibs__entries *entries, dibs__view *v, range r, const dibs__queue_entry *e,
                       size_t count, uint64_t as_of, dibs__known_entry **out)
{
    size_t n = 0, i = r.begin;
    bool complete = true;

    for (size_t k = 0; k < count; k++) {
        while (i < r.end && v->known[i]->place < e[k].place)
            discard(entries, v->known[i++]);
        if (i < r.end && v->known[i]->place == e[k].place) {
            out[n] = v->known[i++];
        } else if (!(out[n] = new_known(&e[k]))) {
            complete = false;
            continue;
        }
        if (!out[n]->fence)
            out[n]->fence = e[k].fence;
        out[n]->owner = e[k].owner; /* none since it lingers */
        out[n++]->as_of = as_of;
    }
    while (i < r.end)
        discard(entries, v->known[i++]);
    if (v->end > r.end)
        memcpy(out + n, v->known + r.end, (v->end - r.end) * sizeof *out);
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
bool dibs__view_merge(dibs__entries *entries, dibs__view *v, dibs__entries_listing *l,
                      uint64_t below)
{
    range r = {dibs__view_place(v, l->from), dibs__view_place(v, below)};
    size_t first = 0, count, size;
    dibs__known_entry **known;
    bool complete;

    dibs__entries_listing_sort(l);
    while (first < l->count && l->entry[first].place < l->from)
        first++;
    for (count = first; count < l->count && l->entry[count].place < below;)
        count++;
    count -= first;
    size = v->end - v->first + count + 8;
    known = malloc(size * sizeof *known);
    if (!known)
        return false;
    if (r.begin > v->first)
        memcpy(known, v->known + v->first, (r.begin - v->first) * sizeof *known);
    complete =
        merge_into(entries, v, r, l->entry + first, count, l->as_of, known + (r.begin - v->first));
    free(v->known);
    v->end -= v->first;
    v->first = 0;
    v->known = known;
    v->size = size;
    if (complete)
        know(v, l->from, below);
    else
        v->from = v->upto = UINT64_MAX;
    return complete;
}

/* ---- In and out ------------------------------------------------------------------------------ */

/* The whole queue is known, up to the own entry's own entry, only if nobody came after it before it was
 * listed. */
static bool is_last(const dibs__entries_listing *l, const dibs__own_entry *s)
{
    return l->count == 0 || l->entry[l->count - 1].place <= s->place;
}

bool dibs__view_join(dibs__entries *entries, dibs__own_entry *s, dibs__entries_listing *listing)
{
    dibs__view *v = get_view(entries, s->name);

    if (!v)
        return false;
    v->own_entries++;
    s->view = v;
    if (!dibs__view_merge(entries, v, listing, s->place)) {
        dibs__view_leave(entries, s);
        return false;
    }
    v->as_of = listing->as_of;
    snprintf(v->last, sizeof v->last, "%s",
             is_last(listing, s) && v->upto == s->place ? s->key : "");
    s->fresh = true;
    dibs__view_stir(entries, s);
    return true;
}

bool dibs__view_hint(dibs__entries *entries, dibs__entries_call *call)
{
    dibs__view *v = dibs__view_find(entries, call->name);

    if (!v || v->end - v->first < LONG || v->from > 0 || !v->last[0])
        return true;
    call->enter.known_as_of = v->as_of;
    call->enter.known_upto = v->upto;
    call->enter.known_last = dibs__ask_copy(call, v->last);
    return call->enter.known_last != NULL;
}

void dibs__view_leave(dibs__entries *entries, dibs__own_entry *s)
{
    dibs__view *v = s->view;

    dibs__view_unlink(s);
    s->asking = false;
    s->view = NULL;
    if (v && --v->own_entries == 0)
        free_view(entries, v);
}

void dibs__view_check(dibs__entries *entries, dibs__own_entry *s)
{
    bool watched = s->link_count > 0;

    for (size_t i = 0; i < s->link_count; i++)
        watched = watched && s->links[i].known->watched;
    if (!watched)
        dibs__view_stir(entries, s);
}
