/* Who reads for everybody on a shared connection, and nothing else: no I/O, no sleeping, no mutex of its own.
 *
 * Each thread has a call in the queue. One of them, the driver, reads the answers and finishes calls, its own
 * and those of others. When it leaves, it gives the role to another call. The rules that keep the role from
 * getting lost:
 *
 *   1. The role belongs to a call. It is given only to a call that is in the queue.
 *   2. A call that has the role gives it on in dibs__call_leave, and there is no other way to lose it. Finishing
 *      a call takes it out of the queue and adds DONE to its word; DRIVES stays.
 *   3. A thread whose word is DONE alone has nothing more to do with the queue and may return at once, without
 *      the mutex. Any other thread calls dibs__call_leave, however its call ended.
 *
 * So whoever finds a driver knows that its thread runs, or was woken by a word that it cannot misread.
 * All functions are called with the mutex of the connection held. tests/unit/test_driver.c searches the protocol. */
#ifndef DIBS_CORE_DRIVER_H
#define DIBS_CORE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

/* Bits of the word that a thread sleeps on, see core/thread.h. 0: the call waits. */
enum { DIBS__CALL_DRIVES = 1, DIBS__CALL_DONE = 2 };

/* Usually on its thread's stack. Zeroed before dibs__call_enter. */
typedef struct dibs__driver_call {
    _Atomic int word;
    struct dibs__driver_call *older, *younger; /* in the queue */
    bool queued;
} dibs__driver_call;

/* Zeroed: nobody is here. */
typedef struct dibs__calls {
    dibs__driver_call *driver; /* NULL: nobody drives */
    dibs__driver_call *youngest, *oldest;
    bool to_oldest; /* whom the role is given to: see dibs__call_leave */
} dibs__calls;

/* The call is in the queue from now on, until it is finished. */
void dibs__call_enter(dibs__calls *q, dibs__driver_call *c);

/* Takes the role if nobody has it. True: this call drives now. */
bool dibs__call_drive(dibs__calls *q, dibs__driver_call *c);

/* It is over, by an answer or by a failure. Its thread may return before this does, so that the caller touches
 * nothing of it afterwards; waking its word is allowed. */
void dibs__call_finish(dibs__calls *q, dibs__driver_call *c);

/* Its thread goes: the call is finished if it was not, and the role, if it had it, goes to another in the queue: to the
 * youngest, who needs it longest, or with `to_oldest` to the one that is likely to be finished next and so reads that by
 * itself. Returns that one, to be woken, or NULL. */
dibs__driver_call *dibs__call_leave(dibs__calls *q, dibs__driver_call *c);

static inline bool dibs__call_is_done(const dibs__driver_call *c)
{
    return c->word & DIBS__CALL_DONE;
}

static inline bool dibs__call_drives(const dibs__calls *q, const dibs__driver_call *c)
{
    return q->driver == c;
}

#endif
