/* Who reads the engine's events for everybody, and nothing else: no I/O, no sleeping, no mutex of its own.
 *
 * Wake-ups arrive at one descriptor of the engine's. A thread that waits for a lock may poll it, so that its own
 * hand-over needs no hop through the keeper; it reads for all others, too. The role is that of core/driver.h: each
 * waiting thread has a call in the queue, and one of them, the leader, has the role. The keeper reads while there is
 * no leader.
 *
 *   1. At most one reads: the leader, or the keeper between dibs__keeper_begins and dibs__keeper_ends. A thread that
 *      comes while the keeper reads waits in the queue, and gets the role when the keeper is through.
 *   2. A leader gives the role on when it goes, for whatever reason, in dibs__reader_leave: to the one that has waited
 *      longest, or back to the keeper, which is to be woken unless its sleep has the descriptor. Locks are handed over
 *      in order of arrival, so that the longest waiter of a lock is the next one, and wakes by its own event.
 *   3. Who is woken is told by the sink, which takes the handle's mutex; who is settled leaves the queue at once
 *      (dibs__call_finish), so that the role is not given to somebody who is about to go.
 *
 * So an event that has arrived is always seen by somebody who sleeps on the descriptor, or by somebody who has been
 * woken and will. All functions are called with the handle's mutex. tests/unit/test_reader.c searches the protocol. */
#ifndef DIBS_CORE_READER_H
#define DIBS_CORE_READER_H

#include "core/driver.h"

/* Zeroed: nobody is here. */
typedef struct dibs__readers {
    dibs__calls threads;
    bool keeper_reads; /* it is inside the engine's `events` */
    bool keeper_minds; /* the descriptor is in its sleep, or will be in the next one */
} dibs__readers;

/* Takes the role if nobody has it and the keeper does not read; enters the queue first. True: this thread leads. */
bool dibs__reader_lead(dibs__readers *r, dibs__driver_call *c);

/* The thread goes, or has something else to do. The next leader, to be woken, or NULL; `keeper`: nobody is left,
 * and the keeper sleeps without the descriptor. */
dibs__driver_call *dibs__reader_leave(dibs__readers *r, dibs__driver_call *c, bool *keeper);

/* The keeper is about to sleep: with the descriptor? */
bool dibs__keeper_minds(dibs__readers *r);
/* There are events: may it read them? */
bool dibs__keeper_begins(dibs__readers *r);
/* It has. Who leads from now on, to be woken; NULL: nobody waits. */
dibs__driver_call *dibs__keeper_ends(dibs__readers *r);

#endif
