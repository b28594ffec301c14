/* Views, as view.c keeps them and turn.c walks them. All with the line's mutex held. */
#ifndef DIBS_FAMILIES_ENTRIES_VIEW_H
#define DIBS_FAMILIES_ENTRIES_VIEW_H

#include "families/entries/inner.h"

struct dibs__spot {
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
    dibs__spot **spot; /* by place, from `first` on */
    size_t first, end, size;
    uint64_t from, upto; /* between these places nothing lives that is not among the spots */
    size_t seats;
    uint64_t as_of; /* of the last listing, which was that of our entry `last`, at `upto` */
    char last[DIBS__LINE_KEY_SIZE];
    char name[];
};

/* The index of the first spot whose place is not below `place`. */
size_t dibs__view_place(const dibs__view *v, uint64_t place);
dibs__spot *dibs__view_spot(const dibs__view *v, uint64_t place); /* NULL: not there */
dibs__view *dibs__view_find(dibs__line *line, const char *name);  /* NULL: none */
/* It is gone: whoever watches it looks again. */
void dibs__view_remove(dibs__line *line, dibs__view *v, size_t i);
/* What is ahead of `below` is what the listing says. false: out of memory; then the view lacks
 * something, and knows it. */
bool dibs__view_merge(dibs__line *line, dibs__view *v, dibs__line_listing *l, uint64_t below);
void dibs__view_link(dibs__link *l, dibs__line_seat *s, dibs__spot *spot); /* it watches it */
void dibs__view_unlink(dibs__line_seat *s);                                /* it watches nothing */

#endif
