/* Cells in memory: the store of the memory engine, which the differential tests use too.
 *
 * A command cannot be rolled back here, so that `begin` sets aside all the memory that one can need.
 * Not safe for several threads: the engine has a mutex. What has ended is dropped by and by, a few
 * at every command. */
#ifndef DIBS_ENGINES_MEMORY_CELLS_H
#define DIBS_ENGINES_MEMORY_CELLS_H

#include "core/page.h"
#include "state/cell.h"

typedef struct dibs__cells dibs__cells;

dibs__cells *dibs__cells_new(void); /* NULL: out of memory */
void dibs__cells_free(dibs__cells *cells);

/* Runs one command. 0, or -1: out of memory, and nothing was done. `out->cell.data` is valid until
 * the next one. */
int dibs__cells_run(dibs__cells *cells, const char *key, dibs__time now,
                    const dibs__cell_command *command, dibs__cell_answer *out);

/* 0: there is none. */
uint64_t dibs__cells_version(const dibs__cells *cells, const char *key, dibs__time now);

/* A page of a listing; the whole table is walked for it. */
void dibs__cells_list(const dibs__cells *cells, const dibs__cell_range *range, dibs__time now,
                      dibs__cell_page *out);

/* How many cells and requests there are, ended ones too. */
size_t dibs__cells_count(const dibs__cells *cells);

#endif
