/* The coordinator's parts: it is one thread, and everything that it does it does between two polls. */
#ifndef DIBS_TORTURE_COORDINATOR_H
#define DIBS_TORTURE_COORDINATOR_H

#include "message.h"

#define TORTURE_TICK_MS 10
#define TORTURE_POOL    16 /* tokens that wait to be redeemed */

/* A place for a worker, and who has it. */
typedef struct torture_slot {
    pid_t pid; /* 0: nobody */
    int number, socket;
    bool taken;   /* by a fault that lasts: no other fault for this one */
    bool killed;  /* by us: its death is no surprise */
    bool writing; /* has raised its fence and not yet stored: most likely holds a lock */
} torture_slot;

typedef struct torture_counters {
    uint64_t top; /* the highest fence seen */
    int64_t fenced, plain, writes_fenced, writes_plain;
} torture_counters;

typedef struct torture_resource {
    torture_counters lock[TORTURE_LOCKS_MAX];
    struct {
        char token[96];
        int left; /* how many more get it */
    } pool[TORTURE_POOL];
    size_t given;
} torture_resource;

typedef enum torture_phase {
    TORTURE_IDLE,
    TORTURE_BEGINNING, /* its command runs */
    TORTURE_LASTING,
    TORTURE_ENDING,
} torture_phase;

/* A fault that has begun and not yet ended. */
typedef struct torture_fault {
    torture_phase phase;
    unsigned kind; /* a bit; 0: a declared one */
    const torture_declared *declared;
    int id, slot, worker; /* slot -1: no worker's */
    int64_t until;        /* LASTING: when it ends; else when its command has to be done */
    pid_t pid;            /* of the command */
    bool failed;
} torture_fault;

#define TORTURE_FAULTS_AT_ONCE 2

typedef struct torture_coordinator {
    torture_plan *plan;
    const char *folder;
    torture_shared *shared;
    uint64_t random;
    int resource_fd, faults_fd;
    torture_slot *slots; /* plan->processes of them */
    int workers, opened, deaths;
    torture_resource resource;
    torture_fault fault[TORTURE_FAULTS_AT_ONCE];
    int faults;   /* so many have begun */
    bool single;  /* no second one may begin while this one lasts */
    int64_t next; /* when the next one begins */
    int64_t calm; /* when the last calm part begins */
    int64_t end;
    bool failed; /* a declared fault's command did */
} torture_coordinator;

/* A worker for the slot. False: no process, after a message. */
bool torture_spawn(torture_coordinator *c, int slot);

/* Answers one message of the worker in the slot. */
void torture_serve(torture_coordinator *c, int slot);
void torture_resource_end(torture_coordinator *c);

/* Begins and ends the faults that are due. */
void torture_faults_step(torture_coordinator *c);
/* A child is gone that was no worker. */
void torture_faults_reap(torture_coordinator *c, pid_t pid, int status);
/* Ends what lasts, at once. */
void torture_faults_end(torture_coordinator *c);
void torture_faults_delay_calm(torture_coordinator *c);
bool torture_faults_last(const torture_coordinator *c);

/* Shuts down all TCP sockets of the worker's process group; how many, or -1 with errno. */
int torture_cut(pid_t group);

#endif
