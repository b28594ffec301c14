/* Work that leaves nothing behind for longer than KEEP_MS, in cycles, and connections cut again and again. */
#ifndef DIBS_TESTS_WORK_H
#define DIBS_TESTS_WORK_H

#include "dibs.h"
#include "support/proxy.h"

#define KEEP_MS 4000
#define NAMES   16 /* locks and counters are used again and again; everything else has a new name */

typedef struct work {
    dibs *d;
    const char *url;
    bool cells;
    bool in_passing; /* the engine tidies up a slot of its tables with each command */
    long cycles;     /* on all threads together */
} work;

/* Each cycle is one of: a lock, several locks, a lock by request, a run of once, a token, a counter with a
 * request, a cell that ends; every hundredth opens a handle of its own and closes it. The number of cycles that
 * failed, with a line on stdout for the first. */
long work_run(const work *w);

/* A little of everything that an engine tidies up along with: some do it only then. */
void work_idle(const work *w);

/* `count` times: resets every connection of the proxies, then uses `d` until it works again. The longest such
 * time in milliseconds, or -1: not within ten seconds. */
int64_t work_reconnect(const work *w, proxy *const proxies[], int proxy_count, long count);

#endif
