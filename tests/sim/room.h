/* What the processes of a run do, and what they find out about each other, which in the real world nobody
 * could: the checks look into all processes at once. */
#ifndef DIBS_TESTS_SIM_ROOM_H
#define DIBS_TESTS_SIM_ROOM_H

#include "dibs.h"
#include "sim/sched.h"

#define MEMBERS  4
#define NAMES    4 /* the last one is a semaphore */
#define SLOTS    3
#define KEYS     6
#define COUNTERS 2
#define TOKENS   32
#define FENCED   2
#define LOSSES   1024
#define HOLDINGS 64
#define AFTERMATH \
    (75 * DIBS__SECOND) /* longer than any lease, and than the keeper tries to withdraw */

/* A process and its handle. */
typedef struct member {
    sim_process *process;
    dibs *d;
    int entered, inside; /* threads */
    bool open, shared_at_last, many_at_last;
} member;

/* Somebody was told that it has the lock, and has not begun to give it back. */
typedef struct holding {
    const dibs_grant *grant;
    member *by;
    int name;
    uint32_t weight; /* of so many slots: all of them, unless it is shared */
} holding;

/* What is known of the loss of a grant. It outlives the call that unlocks it. */
typedef struct loss {
    member *by;
    bool reported, over; /* over: the grant has been given back */
} loss;

/* What is known of a key of `once`. */
typedef struct key {
    bool may_run;   /* no run has begun, or the last one said that it may be repeated */
    bool left_open; /* somebody was told to go, did nothing, and could not say so */
    int began;      /* runs that were told to go */
    int ended_well; /* 0, or what its finish left, which was confirmed */
    int doubts;     /* ends that are on their way, or have an unknown outcome */
    dibs_once *run; /* the last one that was told to go */
    member *runner;
    uint64_t fence;
} key;

typedef struct counter {
    int64_t sure, maybe;
} counter;

/* A cell that is written under fences. */
typedef struct fenced {
    uint64_t sure; /* the highest fence of a write that was confirmed */
} fenced;

typedef struct token {
    char text[DIBS_TOKEN_SIZE];
    int redeemed;
} token;

typedef struct world {
    member member[MEMBERS];
    int members;
    int names;
    int about; /* all, locks, once */
    bool kills, stops, restarts, cuts;
    bool
        more; /* scenes that came later: the seeds that were kept before go on telling what they told */
    bool forgets; /* the server loses its data, and clocks run wild: it must only go on */
    int64_t calm_at;
    holding holding[HOLDINGS];
    uint64_t highest[NAMES];   /* fence */
    int64_t given_back[NAMES]; /* when it was calm */
    key key[KEYS];
    counter counter[COUNTERS];
    token token[TOKENS];
    fenced fenced[FENCED];
    uint64_t fences; /* that were given out, to write with */
    loss loss[LOSSES];
    int losses;
    int tokens;
    uint64_t requests;
} world;

extern world the_world;

/* What is promised unless the server forgets or clocks run wild, and was not kept. */
#define BROKEN(...) (the_world.forgets ? (void)0 : sim_fault(__VA_ARGS__))

void room_something(member *m); /* the calling thread does something, by chance */
void room_at_last(member *m);   /* when it is calm: everything must work */

/* shares.c */
void room_check_floor(const holding *mine);
void room_shares_at_last(member *m);
/* once.c */
void room_once(member *m);
void room_once_at_last(member *m);
void room_many_at_last(member *m);
/* small.c: counters, tokens and cells under fences */
void room_counter(member *m);
void room_token(member *m);
void room_fenced(member *m);
void room_counters_at_last(member *m);

#endif
