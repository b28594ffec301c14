/* Actors: buyers that do as they are told, one step at a time, each in a process of its own, so that a
 * hazard can stop one, kill one, or let the moment strike at a named point. */
#ifndef DIBS_LAB_ACTOR_H
#define DIBS_LAB_ACTOR_H

#include "lab/finding.h"

#include <sys/types.h>

typedef enum lab_step {
    LAB_STEP_OPEN, /* sent by lab_actor_start */
    LAB_STEP_LOCK,
    LAB_STEP_SELL, /* read, check, pause (pace.work_us), write */
    LAB_STEP_UNLOCK,
    LAB_STEP_WORK, /* as long as pace.work_us says, in small sleeps: renewers run on */
    LAB_STEP_END,
} lab_step;

typedef struct lab_actor {
    pid_t pid;
    int in, out; /* steps go in, outcomes come out */
} lab_actor;

/* What an actor is told to be. */
typedef struct lab_role {
    const lab_strategy *strategy;
    const lab_site *site;
    const char *resource;
    lab_pace pace;
    const char *point; /* the named moment at which `strike` is raised. NULL: none */
    int strike;        /* SIGSTOP or SIGKILL */
} lab_role;

typedef struct lab_answer {
    bool yes;   /* seated; the lock is ours; given back; sold */
    int sale;   /* SELL: lab_sale */
    int struck; /* the point was reached so often */
    char note[256];
} lab_answer;

/* False: it could not be seated, `why` says so (or that it took too long). */
bool lab_actor_start(lab_actor *a, const lab_role *role, char why[256]);
void lab_actor_order(lab_actor *a, lab_step step,
                     int64_t wait_ms); /* wait_ms: of LOCK; 0: for ever */
/* 1: answered, 0: not within ms, -1: it is dead. */
int lab_actor_hear(lab_actor *a, int64_t ms, lab_answer *out);
/* Tells and hears; false: no answer in time, or a "no". */
bool lab_actor_do(lab_actor *a, lab_step step, int64_t wait_ms, int64_t ms, lab_answer *out);
void lab_actor_signal(lab_actor *a, int signal);
bool lab_actor_stopped(lab_actor *a, int64_t ms); /* waits until it is stopped by a signal */
void lab_actor_end(lab_actor *a);                 /* kills it; a dead one is buried */

/* A resource of its own for each hazard, with `stock` pieces. False: why. */
bool lab_scene(const lab_strategy *s, const lab_site *site, int64_t stock, char resource[64],
               char why[256]);
bool lab_scene_stock(const lab_strategy *s, const lab_site *site, const char *resource,
                     int64_t *left);

/* "lease 600 ms", or "no lease". */
const char *lab_lease_words(const lab_strategy *s, int64_t asked_ms, char out[32]);

/* Fills outcome and text. */
void lab_found(lab_finding *f, lab_outcome outcome, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
