/* One page of a listing of cells. The core says where to begin and how much to look at; the engine adds
 * what it finds. A value is shown up to its first `head` bytes, so that a list of large results costs
 * little. Failed allocations are remembered and reported at the end. */
#ifndef DIBS_CORE_PAGE_H
#define DIBS_CORE_PAGE_H

#include "dibs.h"
#include "state/cell.h"

/* What to look for. */
typedef struct dibs__cell_range {
    const char *prefix; /* not empty: what all keys of a kind begin with, at least */
    const char *after;  /* only keys that come after this one; "": all */
    size_t limit;       /* look at so many at the most; fewer, if it takes long */
    size_t head;        /* bytes of a value that are shown */
} dibs__cell_range;

/* Times as in dibs__cell_reply. */
typedef struct dibs__cell_found {
    const char *key;
    uint64_t version;
    int64_t age, left;
    const void *head; /* the first bytes of the value; NULL: what is there is no cell of ours */
    size_t head_size;
    size_t size; /* of the whole value */
} dibs__cell_found;

typedef struct dibs__cell_page {
    dibs__cell_found *found; /* in the order of the listing; the keys and heads are the page's */
    size_t count, room;
    bool more;                         /* there may be others */
    char reached[DIBS__CELL_KEY_SIZE]; /* `after` of the next page, if there are more */
    bool failed;                       /* out of memory */
} dibs__cell_page;

/* Copies key and head. */
void dibs__cell_page_add(dibs__cell_page *page, const dibs__cell_found *found);
/* The same for a cell as the C machine knows it. Nothing if it has ended, is empty or is a counter.
 * `dead`: whoever wrote it is. */
void dibs__cell_page_put(dibs__cell_page *page, const char *key, const dibs__cell *cell,
                         dibs__time now, bool dead, size_t head);
void dibs__cell_page_fini(dibs__cell_page *page);

/* The first key that comes after all that begin with `prefix`, in the order of bytes. */
void dibs__cell_range_end(const char *prefix, char out[DIBS__CELL_KEY_SIZE]);

/* From `a` to `b`, which may be anything that a stranger wrote; 0 if it is later. */
int64_t dibs__span(int64_t a, int64_t b);

#endif
