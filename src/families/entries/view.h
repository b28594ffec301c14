/* Views, as view.c keeps them and turn.c walks them. All with the queue's mutex held. */
#ifndef DIBS_FAMILIES_ENTRIES_VIEW_H
#define DIBS_FAMILIES_ENTRIES_VIEW_H

#include "families/entries/inner.h"

struct dibs__known_entry {
    uint64_t place, fence;
    uint64_t as_of; /* of the listing in which it was seen last */
    uint64_t owner; /* by name; 0: none */
    uint32_t weight;
    bool watched; /* or about to be */
    dibs__link *watchers;
    char key[];
};

struct dibs__view {
    dibs__node by_name;
    dibs__known_entry **known; /* by place, from `first` on */
    size_t first, end, size;
    uint64_t from,
        upto; /* between these places nothing lives that is not among the known entries */
    size_t own_entries;
    uint64_t as_of; /* of the last listing, which was that of our entry `last`, at `upto` */
    char last[DIBS__ENTRIES_KEY_SIZE];
    char name[];
};

/* The index of the first known entry whose place is not below `place`. */
size_t dibs__view_place(const dibs__view *v, uint64_t place);
dibs__known_entry *dibs__view_entry(const dibs__view *v, uint64_t place); /* NULL: not there */
dibs__view *dibs__view_find(dibs__entries *entries, const char *name);    /* NULL: none */
/* It is gone: whoever watches it looks again. */
void dibs__view_remove(dibs__entries *entries, dibs__view *v, size_t i);
/* What is ahead of `below` is what the listing says. false: out of memory; then the view lacks
 * something, and knows it. */
bool dibs__view_merge(dibs__entries *entries, dibs__view *v, dibs__entries_listing *l,
                      uint64_t below);
void dibs__view_link(dibs__link *l, dibs__own_entry *s,
                     dibs__known_entry *known); /* it watches it */
void dibs__view_unlink(dibs__own_entry *s);     /* it watches nothing */

#endif
