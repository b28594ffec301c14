/* Handles in a world in which time stands still until a test lets it pass. The engine is the one in memory; what becomes
 * of a command on a cell, on its way there or back, is decided beforehand. No thread of a keeper runs: its turn comes when
 * the test says so. So each moment, each command and each status can be compared exactly. A program that links this in with
 * `still_link_args` ends when the mutex of a handle is locked twice or unlocked by somebody who has it not. */
#ifndef DIBS_TESTS_STILL_H
#define DIBS_TESTS_STILL_H

#include "core/handle.h"

#define STILL_ANSWER DIBS__MS /* how long a command takes */

/* What becomes of one command. */
typedef struct twist {
    bool stopped;         /* the engine never gets it */
    dibs_status status;   /* what is told in the place of the engine's answer; DIBS_OK: that one */
    int64_t takes;        /* longer than usual, after the engine had it */
    void (*before)(void); /* what happens on its way there */
    void (*then)(void);   /* and on its way back */
    const dibs__cell_reply *answer; /* in the place of the engine's; its data is copied */
    bool always;                    /* of this command and all that follow, until still_heal */
} twist;

/* One command as the engine was given it. */
typedef struct still_sent {
    int64_t at;
    dibs__deadline until;
    bool notify;
    dibs__cell_command command; /* with texts and data of its own */
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE], request[DIBS__REQUEST_SIZE];
    char data[4096];
} still_sent;

/* A new world, with an empty store. For a test's set-up and tear-down: the latter closes what is open, and fails if
 * anything is left in memory. */
int still_begin(void **state);
int still_end(void **state);

dibs *still_open(const dibs_options *options);
void still_close(dibs *d);

int64_t still_now(void);
int64_t still_wall(void);
void still_pass(int64_t span);
/* Once, when time has come so far; a sleep stops there. */
void still_at(int64_t when, void (*then)(void));
int64_t still_slept(void); /* in all */
/* Just before a mutex is locked for the n-th time from now on; 0: not any more. */
void still_before_lock(int n, void (*deed)(void));
/* The next wait for a condition: what another thread does meanwhile. One that is not expected would last for ever, and
 * ends the program. */
void still_meanwhile(void (*deed)(void));

/* For the next command of the handle that has no twist yet. */
void still_twist(dibs *d, twist t);
void still_heal(dibs *d);       /* no more twists */
int still_count(const dibs *d); /* of commands so far */
const still_sent *still_last(const dibs *d,
                             int before); /* 0: the last, 1: the one before, up to 31 */

/* The keeper does the first thing that is due, if any; and everything that is due by then, in its order. */
bool still_serve(dibs *d);
void still_serve_until(dibs *d, int64_t when);
dibs__deadline still_next(const dibs *d); /* when something is due; DIBS__NEVER: nothing */

#endif
