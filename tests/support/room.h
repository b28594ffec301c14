/* A handle without threads: a clock that only the test moves, and an engine that answers what it is told.
 *
 * Each moment, status and number can be compared exactly. Where the library would sleep (room.c replaces that at the
 * link, see meson.build), time jumps to what comes next: a step of the test's, the keeper's timer, or the end of the
 * sleep. The keeper and the workers run when they are called, in the thread of the test. */
#ifndef DIBS_TESTS_ROOM_H
#define DIBS_TESTS_ROOM_H

#include "core/handle.h"
#include "support/calls.h"
#include "support/env.h"
#include "support/test.h"

#define LEASE   (12 * DIBS__SECOND)
#define MARGIN  (125 * DIBS__MS) /* of that lease: a hundredth and 5 ms */
#define REMAINS (LEASE + MARGIN) /* an answer that makes the deadline a round number */
#define ANSWER  (3 * DIBS__MS)   /* how long an engine that is not far away takes */

typedef struct answer {
    dibs_status status;
    dibs__reply reply;
    int64_t takes;
} answer;

typedef struct room {
    dibs *d;
    sim_env sim;
    const dibs__engine_class *real; /* the memory engine's */
    dibs__engine_class class;

    /* The engine. Answers to enter, keep, release and cancel alike, in this order; an exchange beyond them fails the
     * case, unless `generous`: then whoever asks for a lock gets REMAINS of it, and whoever waits goes on waiting. */
    answer next[32];
    int count, calls;
    bool generous;
    dibs__deadline until; /* of the last exchange */
    dibs__enter_request entered;
    dibs__claim claim; /* the last one of the last exchange, and its attempt */
    char attempt[DIBS__ATTEMPT_SIZE];
    void (*inside)(void); /* runs once, inside the next exchange */
    int event_fd;         /* the engine's, for room_event */
    void (*event)(void);  /* what the engine tells when its events are read */

    /* The log: "MS what names" for each exchange, from room_begin on; with `untils`, "<MS" for its end. */
    char log[4096];
    int64_t began;
    bool untils;

    /* What happens meanwhile, in order of time. */
    struct {
        int64_t at;
        void (*run)(void);
    } step[8];
    int steps, steps_done;

    bool locked; /* the handle's mutex */

    /* Sleeping. */
    void *(*keeper)(void *); /* NULL: not started */
    void *(*worker)(void *);
    bool no_threads; /* none can be started */
    int joins;       /* how many are still to be joined */
    bool in_keeper;
    int64_t keeper_until;
    const void *signalled; /* the condition or word whose sleeper was woken last */
    bool signalled_locked; /* by somebody who had the mutex */
    int64_t timer;         /* DIBS__NEVER: not set */
    bool rung;             /* poll has said so, and nobody has read it yet */
    int timers, polls;     /* how often it was set; how often anybody polled */
    int poll_errno;        /* the next poll fails with it */
    int64_t slept;         /* by dibs__sleep, in all */

    int done; /* waiters that were settled */

    int logged; /* lines of the handle's log */
    char line[1024];
    dibs_log_level level;
    void (*heard)(void); /* runs once, after the next line */
} room_state;

extern room_state room;

/* For cmocka_unit_test_setup_teardown. A handle on the memory engine whose locks are the room's. */
int room_set_up(void **state);
int room_tear_down(void **state);

#define ROOM_CASE(name) cmocka_unit_test_setup_teardown(name, room_set_up, room_tear_down)

static inline int64_t now(void)
{
    return room.sim.boottime;
}

static inline void pass(int64_t us)
{
    sim_env_pass(&room.sim, us);
}

/* ---- The engine ------------------------------------------------------------------------------ */

void will_answer(dibs_status status, dibs__reply reply, int64_t takes);
/* The answers so far are forgotten, and the calls with them. */
void room_forget_answers(void);
/* There is something to read at the engine's descriptor: `event` runs when it is read. */
void room_event(void (*event)(void));

/* The log begins anew, with the time of now as 0; so do steps, and answers if all have been given. */
void room_begin(void);
/* "MS what": something else that happened. */
void room_note(const char *what);
#define assert_log(text) assert_string_equal(room.log, text)

/* ---- Time ------------------------------------------------------------------------------------ */

/* `run` happens so long after now, when the test sleeps or the keeper runs. Steps are added in order of time. */
void room_after(int64_t us, void (*run)(void));
/* The keeper runs for so long. */
void room_keep(int64_t us);
/* A worker does what is listed. False: there was none. */
bool room_work(void);
/* Has somebody woken the keeper since the last time? */
bool room_woken(void);

/* ---- Grants ---------------------------------------------------------------------------------- */

extern const dibs__reply granted; /* fence 7, floor 6, REMAINS of it */
extern const dibs__reply in_queue, released;

dibs_grant *take_named(const char *name, dibs_lock_options o); /* with LEASE, if it names none */
dibs_grant *take_one(void);                                    /* "a" */
/* Unlocks it; the engine answers at once. */
void drop(dibs_grant *g);

/* A request for a lock. Its outcome is noted in the log when it is taken, with take_all; what was granted is unlocked. */
void room_request(const char *name, int64_t wait_ms);

/* ---- Waiters --------------------------------------------------------------------------------- */

/* A request's, ready to enter; `room.done` says whether it was settled. Answers are forgotten. */
dibs_grant *room_waiter(dibs__ticket *t);
void room_enter(dibs__ticket *t, dibs_status status, dibs__reply reply, int64_t takes);
void room_forget_waiter(dibs__ticket *t, dibs_grant *g);

#endif
