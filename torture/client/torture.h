/* `dibs torture`: many processes use one engine while faults happen; all that they see is recorded, and a
 * checker that knows only the record decides whether every promise was kept.
 *
 *   coordinator  the parent: starts workers, makes faults, serves the resource. It opens no handle
 *                before the last worker is gone, so that nothing of the library is shared by fork
 *   worker       a child with a handle of its own, and one thread that takes turns
 *   slot         a place for a worker: when one is killed, another takes its slot
 *   resource     what the locks protect: counters inside the coordinator, which is never stopped;
 *                the order in which it served requests is the truth
 *   history      a folder of JSON lines, one file per process; see history.c
 *   adapter      a program that speaks for another lock library; see adapter.c
 *
 * All times are CLOCK_BOOTTIME in nanoseconds: events of all processes compare. A user of dibs.h like any
 * other program. */
#ifndef DIBS_TORTURE_TORTURE_H
#define DIBS_TORTURE_TORTURE_H

#include "dibs.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define TORTURE_SECOND        INT64_C(1000000000)
#define TORTURE_MS            INT64_C(1000000)
#define TORTURE_LOCKS_MAX     64
#define TORTURE_PROCESSES_MAX 256
#define TORTURE_DECLARED_MAX  32
#define TORTURE_COUNTERS      2
#define TORTURE_REQUEST_MS    2000  /* of every handle: a call without a wait ends soon after */
#define TORTURE_ADAPTER_MS    30000 /* for an adapter to start, or to answer beyond the wait */
#define TORTURE_WAIT_MAX_MS   6000
#define TORTURE_KEEP_MS       3600000              /* what is left in the store goes by itself */
#define TORTURE_KEY_SLOT      (TORTURE_SECOND / 2) /* so long a key of once is the current one */

enum { TORTURE_LOCKS = 1, TORTURE_ONCE = 2, TORTURE_TOKENS = 4, TORTURE_COUNTS = 8 };
enum { TORTURE_STOP = 1, TORTURE_KILL = 2, TORTURE_CUT = 4, TORTURE_BREAK = 8 };

typedef struct torture_range {
    int64_t low, high; /* nanoseconds */
} torture_range;

typedef struct torture_declared {
    const char *name, *command;
} torture_declared;

/* What a run is asked to do. */
typedef struct torture_plan {
    const char *url; /* NULL: the default of dibs_open */
    int64_t seconds, processes, locks, lease_ms;
    int64_t seed;
    unsigned work, faults; /* bits of the above */
    torture_declared declared[TORTURE_DECLARED_MAX];
    size_t declared_count;
    torture_range lasting, gap;
    const char *adapter; /* NULL: dibs itself */
    bool json;
    /* Found out, see probe.c. */
    char engine[32];
    bool first_come, notices_death, lease_of_handle, shared;
    char prefix[48]; /* of every name in the store: no earlier run used it */
} torture_plan;

/* In memory that coordinator and workers share. */
typedef struct torture_shared {
    atomic_bool stopping; /* finish the turn and close */
    int64_t begin;
} torture_shared;

/* ---- Names of bits, in the order of the bits; NULL ends --------------------------------------- */

extern const char *const torture_work_names[];
extern const char *const torture_fault_names[];

/* ---- Time and chance -------------------------------------------------------------------------- */

int64_t torture_now(void);
void torture_sleep(int64_t nanoseconds);

uint64_t torture_random(uint64_t *state); /* splitmix64 */
int64_t torture_between(uint64_t *state, int64_t low, int64_t high);
bool torture_chance(uint64_t *state, int percent);

/* ---- History ---------------------------------------------------------------------------------- */

/* A file of the history, which is made if need be; -1 with errno. */
int torture_history_open(const char *folder, const char *name);

/* One event as one line by one write: {"t":…,"ev":…, then what `format` (of json_pack, an object) gives}. A
 * history that cannot be written is worth nothing: ends the process with CLI_EXIT_OUTPUT. */
void torture_note(int fd, int64_t t, const char *event, const char *format, ...);

/* A message as valid UTF-8 for torture_note; lives until the next call. */
const char *torture_text(const char *message);

/* ---- Workers ---------------------------------------------------------------------------------- */

/* What one worker process is. */
typedef struct torture_worker {
    const torture_plan *plan;
    torture_shared *shared;
    int number, slot, history, socket;
    uint64_t random, sequence;
    dibs *d; /* NULL: not open */
    struct torture_adapter *adapter;
    int64_t reopen; /* closes and opens again then */
} torture_worker;

/* The whole life of the child; its exit code. */
int torture_worker_main(torture_worker *w);

/* One turn of each kind of work. False: the engine did not answer; a pause is due. */
bool torture_turn_lock(torture_worker *w);
bool torture_turn_once(torture_worker *w);
bool torture_turn_token(torture_worker *w);
bool torture_turn_counter(torture_worker *w);

/* "torture-17-…:lock:0" */
void torture_lock_name(const torture_plan *plan, int64_t lock, char out[96]);
void torture_counter_name(const torture_plan *plan, int64_t counter, char out[96]);
void torture_key_name(const torture_plan *plan, bool rerun, int64_t key, char out[96]);

/* Sleeps until the next common moment, a few milliseconds away: so workers call at the same time. */
void torture_meet(void);

/* How long to hold or to work: mostly short; some so long that the lease has to be renewed. */
int64_t torture_choose_span(torture_worker *w);

/* A status after which the engine may be out of reach. */
bool torture_unreachable(dibs_status status);

/* ---- The run ---------------------------------------------------------------------------------- */

/* Runs the plan into the folder. -1: the history is whole, and the checker has the word; else an exit
 * code, after a message. */
int torture_run(torture_plan *plan, const char *folder);

/* Fills what the engine can; -1 or an exit code after a message. */
int torture_probe(torture_plan *plan);

/* Reads counters and keys after the last worker is gone. */
void torture_final(const torture_plan *plan, const torture_shared *shared, int history);

/* Runs the checker on the folder; its exit code: 0 pass, 1 violations, 2 no verdict. */
int torture_check(const char *folder, bool json);

#endif
