/* What there is, counted: in this process, and on the servers of a store. */
#ifndef DIBS_TESTS_CENSUS_H
#define DIBS_TESTS_CENSUS_H

#include "support/scratch_store.h"

#include <stdint.h>

typedef enum figure {
    FIGURE_RSS,         /* KiB of this process in memory */
    FIGURE_HEAP,        /* KiB that malloc has given out */
    FIGURE_DESCRIPTORS, /* open in this process */
    FIGURE_THREADS,
    FIGURE_KEYS, /* keys, rows or nodes in the store */
    FIGURE_CONNECTIONS,
    FIGURE_SESSIONS, /* sessions of ZooKeeper, leases of etcd */
    FIGURE_WATCHES,  /* watches, or channels that somebody listens on */
    FIGURES,
} figure;

#define FIGURE_NONE (-1) /* this engine has no such thing */

typedef struct census {
    int64_t value[FIGURES];
} census;

extern const char *const figure_names[FIGURES];

/* False, with a line on stdout: the server does not tell. */
bool census_take(scratch_store *p, census *out);

/* SQLite looks for what has ended once a minute: that minute is over now, for handles that are opened after
 * this. False: it cannot be said. True on every other engine. */
bool census_hasten(const scratch_store *p);

#endif
