/* Seats: connections on which a thread waits for its own wake-up. There are as many as threads have
 * waited at once; idle ones are kept. A seat belongs to an attempt while its BLPOP is under way:
 * the attempt's thread may come and go, and finds it again. */
#ifndef DIBS_REDIS_SEAT_H
#define DIBS_REDIS_SEAT_H

#include "engines/redis/abandoned.h"
#include "engines/redis/connection.h"
#include "state/lock.h"

#include <pthread.h>

typedef struct dibs__seat {
    dibs__conn *conn;
    int poke_fd;
    bool busy;    /* a thread is using it now */
    bool blocked; /* a BLPOP is under way */
    bool over;    /* its attempt is: give it back when the thread is out */
    bool poked;
    dibs__deadline used;
    char attempt[DIBS__ATTEMPT_SIZE]; /* "": nobody's */
    struct dibs__seat *next;          /* idle, or taken */
} dibs__seat;

typedef struct dibs__seats {
    pthread_mutex_t lock;
    const dibs__env *env;
    dibs__abandoned *abandoned;
    dibs__seat *idle;
    size_t idle_count;
    dibs__seat *taken;
} dibs__seats;

void dibs__seats_init(dibs__seats *s, const dibs__env *env, dibs__abandoned *abandoned);
void dibs__seats_fini(dibs__seats *s);    /* no seat is in use */
void dibs__seats_abandon(dibs__seats *s); /* closes descriptors and nothing else */

/* An idle seat whose connection still stands, or NULL. It is the caller's until it is left. Connections that were
 * given up are ended on it first, which takes an exchange when there are any: where that fails there is time left for
 * a new connection, and the other seats are left alone. */
dibs__seat *dibs__seat_idle(dibs__seats *s, dibs__deadline until);
/* A new one around `conn`, which is taken in any case. NULL: out of memory or descriptors. */
dibs__seat *dibs__seat_new(dibs__seats *s, dibs__conn *conn);
/* The one that belongs to `attempt`, for its thread; NULL: none, or in use. */
dibs__seat *dibs__seat_of(dibs__seats *s, const char *attempt);

/* It waits for `attempt` from now on. */
void dibs__seat_assign(dibs__seats *s, dibs__seat *seat, const char *attempt);

typedef enum dibs__seat_state {
    DIBS__SEAT_SOUND,
    DIBS__SEAT_USELESS,    /* nothing on it is unanswered */
    DIBS__SEAT_UNANSWERED, /* it is put on the list of those that were given up */
} dibs__seat_state;

/* Out of use. A sound one stays the attempt's while `blocked`, and else is idle; the others are closed. */
void dibs__seat_leave(dibs__seats *s, dibs__seat *seat, dibs__seat_state state);

/* The attempt is over: its seat, if it has one and nobody is in it, is given back. `answered`: the
 * server has just ended its BLPOP, so that the connection can be used again. */
void dibs__seat_give_up(dibs__seats *s, const char *attempt, bool answered, dibs__deadline until);

#endif
