/* Loses answers between the core and any engine: the engine's table is replaced by a copy whose cell
 * slot does as it is told. The engine behind it is the real one. One handle at a time. */
#ifndef DIBS_TESTS_LOSSY_H
#define DIBS_TESTS_LOSSY_H

#include "core/handle.h"

typedef enum lossy_way {
    LOSSY_ANSWER,  /* it is done, and nobody is told: DIBS_UNKNOWN */
    LOSSY_REQUEST, /* it is not done, and nobody knows: DIBS_UNKNOWN */
    LOSSY_REFUSED, /* it is not done: DIBS_UNAVAILABLE */
    LOSSY_DENIED,  /* it is not done: DIBS_DENIED */
    LOSSY_LATE,    /* it is done, and the answer comes when `then` has run */
    LOSSY_HELD,    /* DIBS_UNKNOWN, and the network delivers it with lossy_deliver */
} lossy_way;

/* Before the handle is used; it stays in until the handle is closed. */
void lossy_put_in(dibs *d);

/* The next `times` cell commands get lost; `then` (may be NULL) runs after the first. -1: all. */
void lossy_lose(lossy_way way, int times, void (*then)(void *data), void *data);
void lossy_stop(void);

/* What was held back reaches the engine now, in the order in which it was sent, over the connections of
 * `by`: as if those of the sender had brought it late. How many there were. */
int lossy_deliver(dibs *by);

/* How many cell commands were answered since lossy_put_in. */
int lossy_answers(void);

/* How many cell commands went to the engine since lossy_put_in. */
int lossy_commands(void);

#endif
