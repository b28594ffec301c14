/* Random commands on a cell, and a cell that is a plain structure: what an engine's cells are compared
 * with. */
#ifndef DIBS_TESTS_CELLS_H
#define DIBS_TESTS_CELLS_H

#include "state/cell.h"

#define CELL_DATA     64
#define CELL_REQUESTS 6

/* One cell, run by the C machine. */
typedef struct tiny_cell {
    bool exists;
    dibs__cell cell;
    char data[CELL_DATA];
    struct {
        bool exists;
        int64_t number, expires;
    } request[CELL_REQUESTS];
} tiny_cell;

/* Its answer stays valid until the next call. */
void tiny_cell_run(tiny_cell *t, dibs__time now, const dibs__cell_command *command,
                   dibs__cell_answer *out);

/* A command with its own text. */
typedef struct cell_order {
    dibs__cell_command command;
    char data[CELL_DATA], stamp[DIBS__STAMP_SIZE], request[8];
} cell_order;

/* What makes a sequence: zero it, then set seed or bytes, and the two that follow. */
typedef struct cell_author {
    uint64_t seed;
    const uint8_t *drawn; /* a fuzzer's: decides in place of the seed, as long as any are left */
    size_t left;
    bool counts;    /* mostly a counter's commands */
    int64_t moment; /* a time to live that ends soon */
    uint64_t made;
    uint64_t older; /* a version that the cell had */
    cell_order last;
} cell_author;

/* The next one: about this cell as it is now, and now and then the last one once more, as after a lost
 * reply (`*again`). `out` must not move in memory. */
void cell_author_next(cell_author *a, const tiny_cell *t, cell_order *out, bool *again);

/* For people. */
void cell_describe(const dibs__cell_command *c, char *out, size_t size);

#endif
