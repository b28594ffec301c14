/* Another process with an engine handle of its own, without the core: forked, and told what to do
 * by a letter in a pipe. Its lock, owner and kind are given once. */
#ifndef DIBS_TESTS_OTHER_H
#define DIBS_TESTS_OTHER_H

#include "fixture.h"

#include <sys/types.h>

typedef struct other {
    const char *url, *name, *owner;
    uint32_t capacity; /* 0: exclusive */
    bool owner_named;
    int64_t min_hold;
    pid_t pid;
    int to, from;
} other;

/* Fill in what it is about first. */
void other_start(other *o);

/* e enter, w enter and stay in the queue, r release: answers with the fence, 0 for none, 1 for released.
 * s fork a child that stands in, i fork one that just inherits: answers with its pid. q close and
 * end: no answer. */
uint64_t other_order(other *o, char what);

/* Signals it, if `signal`, and waits for its end. */
void other_end(other *o, int signal);

#endif
