/* Rules that must hold after every command on a cell. Used by the tests of the machine and by its fuzzer. */
#ifndef DIBS_TESTS_CELL_RULES_H
#define DIBS_TESTS_CELL_RULES_H

#include "support/cells.h"

/* Ways in which the store can lie, so that the rules can be seen to notice. */
typedef enum cell_lie {
    CELL_HONEST,
    CELL_FORGETS_FLOORS,
    CELL_REPEATS_VERSIONS,
    CELL_NEVER_ENDS,
    CELL_FORGETS_STAMPS,
    CELL_FORGETS_REQUESTS,
    CELL_COUNTS_TWICE,
    CELL_LIES,
} cell_lie;

/* A cell, who writes to it, and what the rules remember. Zero it, then set author, now and lies. */
typedef struct cell_watch {
    tiny_cell cell;
    cell_author author;
    dibs__time now;
    cell_lie lies;
    uint64_t highest; /* version */
    uint64_t floor;   /* presented */
    int64_t raised;   /* then */
    struct {
        bool answered;
        int64_t number, until;
        char stamp[DIBS__STAMP_SIZE]; /* of the call that counted it */
    } request[CELL_REQUESTS];
} cell_watch;

/* Runs the author's next command, which is put into `order`: the text of the first rule that it broke, or NULL. */
const char *cell_watch_step(cell_watch *w, cell_order *order);

#endif
