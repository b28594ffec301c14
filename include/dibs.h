/* dibs: call dibs on a thing. Distributed locks with a fencing token, on the engine you already
 * run.
 *
 *     dibs *d = NULL;
 *     dibs_grant *g = NULL;
 *     dibs_error err = {0};
 *
 *     if (dibs_open("redis://127.0.0.1", NULL, &d, &err) != DIBS_OK)
 *         die(err.message);
 *     if (dibs_lock(d, "stock:1", &(dibs_lock_options){.wait_ms = 5000}, &g, &err) == DIBS_OK) {
 *         take_one(dibs_fence(g));      // the store refuses an older fence
 *         dibs_unlock(g);
 *     }
 *     dibs_close(d);
 *
 * A handle (`dibs`) owns the connections and one background thread, the keeper, which renews what
 * is held. A grant is the proof of holding one lock. All functions may be called from any thread.
 * Strings that go in are borrowed for the call; strings that come out live as long as the thing
 * they came from. Every failure is a status; where a `dibs_error *` is given (it may be NULL), it
 * also says what happened, to what, and what to do next. After every call its status is the one that
 * the call returned; after DIBS_OK its message is empty. Durations are in milliseconds, 100 years at
 * most: anything else is refused with DIBS_INVALID. In a forked child every call is refused with
 * DIBS_FORKED.
 *
 * How long a call takes, also when the engine hangs: a call with a wait (`wait_ms`) returns at most
 * 250 ms after that wait is over. A call without one, or with DIBS_NO_WAIT, returns within request_ms
 * plus 250 ms. Only a wait of 0 has no bound. dibs_open takes connect_ms, dibs_close request_ms plus
 * 2 seconds. A call that waits for a callback of yours takes as long as the callback. What the engine may
 * have done for a call that gave up is undone in the background.
 */
#ifndef DIBS_H
#define DIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DIBS_API __attribute__((visibility("default")))
#else
#define DIBS_API
#endif

#define DIBS_NAME_MAX  512 /* bytes of a lock's name: anything but NUL */
#define DIBS_OWNER_MAX 128 /* bytes of an owner given by name */
#define DIBS_NO_WAIT   (-1)

/* ---- Statuses -------------------------------------------------------------------------------- */

/* name, text, HTTP status, exit code of the command */
#define DIBS_STATUSES(X)                                                                \
    X(OK, "done", 200, 0)                                                               \
    X(QUEUED, "waiting in line", 202, 75)                                               \
    X(BUSY, "held by another; not obtained in time", 409, 75)                           \
    X(CANCELLED, "the wait was cancelled", 409, 75)                                     \
    X(LOST, "the lock was lost", 410, 76)                                               \
    X(INVALID, "not a valid request", 400, 64)                                          \
    X(CONFLICT, "does not fit what is there", 422, 64)                                  \
    X(NOT_FOUND, "there is no such thing", 404, 1)                                      \
    X(UNAVAILABLE, "the engine cannot be reached", 503, 69)                             \
    X(UNKNOWN, "no answer: it may or may not have happened", 504, 69)                   \
    X(DENIED, "the engine refused the credentials or the right", 502, 69)               \
    X(BROKEN_ENGINE, "the engine failed or holds something that is not ours", 500, 69)  \
    X(UNSUPPORTED, "this engine or build cannot do that", 501, 64)                      \
    X(FORKED, "this handle belongs to the parent process", 500, 70)                     \
    X(NO_MEMORY, "out of memory", 500, 71)                                              \
    X(ALREADY, "it was done before", 200, 0)                                            \
    X(STALE, "the transaction reads an older state: roll back, start again", 409, 75)   \
    X(DEADLOCK, "the transaction met a deadlock: roll back, start again", 409, 75)      \
    X(RUNNING, "another is at it", 409, 75)                                             \
    X(MISMATCH, "the key was used for something else", 422, 65)                         \
    X(CRASHED, "an earlier run ended without a word: nobody knows its effect", 409, 79) \
    X(EXPIRED, "the key was used, and its result is no longer kept", 410, 77)           \
    X(REFUSED, "the token is spent, expired or was never issued", 403, 77)              \
    X(TOO_FEW, "fewer are left than asked for", 409, 1)

typedef enum dibs_status {
#define X(name, text, http, code) DIBS_##name,
    DIBS_STATUSES(X)
#undef X
} dibs_status;

typedef struct dibs_error {
    dibs_status status;
    char message[1024]; /* one line, always terminated */
} dibs_error;

DIBS_API const char *dibs_status_name(dibs_status status); /* "BUSY" */
DIBS_API const char *dibs_status_text(dibs_status status);
DIBS_API int dibs_status_http(dibs_status status);
DIBS_API int dibs_status_exit_code(dibs_status status);
DIBS_API const char *dibs_version(void);

/* ---- Handles --------------------------------------------------------------------------------- */

typedef struct dibs dibs;
typedef struct dibs_grant dibs_grant;
typedef struct dibs_ticket dibs_ticket;

typedef enum dibs_log_level {
    DIBS_LOG_ERROR,
    DIBS_LOG_WARNING,
    DIBS_LOG_INFO,
    DIBS_LOG_DEBUG
} dibs_log_level;

/* May be called from any thread of the caller's and from the keeper; must not call back into dibs.
 */
typedef void (*dibs_log_fn)(void *data, dibs_log_level level, const char *message);

/* Zero means default. */
typedef struct dibs_options {
    const char
        *owner; /* copied; every lock of the handle belongs to it. Default: the calling thread */
    int64_t connect_ms; /* how long dibs_open may take: 5,000 */
    int64_t request_ms; /* how long one exchange with the engine may take: 5,000 */
    int64_t lease_ms;   /* lease of its locks: 30,000. Where it is the handle's, its session */
    bool dispatch_only; /* callbacks run only inside dibs_dispatch, never on the keeper */
    dibs_log_fn log;    /* default: silent */
    void *log_data;
} dibs_options;

/* Opens the engine that `url` names; NULL means $DIBS_URL, or the first line of the file that
 * $DIBS_URL_FILE names, else the embedded store: root's is the machine's (sqlite:machine), that of any
 * other user is in the user's state folder and excludes nobody else. A server that does not answer is
 * DIBS_UNAVAILABLE within connect_ms. On every engine ?fence_above=N asks for fences above N (see
 * dibs_fence_top); DIBS_CONFLICT: this store cannot. */
DIBS_API dibs_status dibs_open(const char *url, const dibs_options *options, dibs **out,
                               dibs_error *err);

/* Reads a URL from a file with one line, so that its password is in no argument and no variable. `out` is
 * freed with free(). DIBS_INVALID: it cannot be read, or holds something else. */
DIBS_API dibs_status dibs_url_read(const char *path, char **out, dibs_error *err);

/* Cancels what waits, releases what is held, abandons runs that have not ended, ends the keeper, frees
 * everything: grants, tickets and onces of the handle are gone with it. Takes at most request_ms plus
 * 2 seconds: what the engine did not confirm by then ends with its lease. Must not be called from a
 * callback of the handle. In a forked child it only forgets. NULL is allowed. */
DIBS_API void dibs_close(dibs *d);

DIBS_API const char *dibs_engine_name(const dibs *d); /* "sqlite" */

/* The SQL that makes the tables which the engine of `url` (NULL as in dibs_open) needs, for an
 * administrator to run where the account itself may not. Connects to nothing; `out` is freed with
 * free(). DIBS_UNSUPPORTED: that engine needs none. */
DIBS_API dibs_status dibs_schema(const char *url, char **out, dibs_error *err);

/* What an engine can do, as data. */
typedef struct dibs_engine_info {
    const char *scheme;    /* "redis" */
    const char *missing;   /* package to install when this build lacks it, else NULL */
    bool across_processes; /* false: memory, alive only inside one process */
    bool first_come;       /* waiters are served in order of arrival */
    bool notices_death;    /* a killed holder's lock passes on at once, not after its lease */
    bool cells;            /* has cells, counters, once and tokens */
    size_t value_max;      /* bytes of a cell's value */
    bool shared;           /* locks can be shared; else DIBS_UNSUPPORTED says why not */
    bool slots;            /* semaphores; else the same */
    bool
        lease_of_handle; /* one lease for all locks of a handle; those of locks can only be shorter,
                              and a dead process's locks pass on with the handle's */
    bool fence_of_place; /* a waiter's fence is fixed when it enters the line */
    bool forgets_idle;   /* an unused lock is forgotten soon: slots, who broke it, its fence */
    int64_t lease_ms;    /* dibs_engine_of: the handle's lease; 0 where each lock has its own */
} dibs_engine_info;

/* The i-th engine that this version knows; false past the last. */
DIBS_API bool dibs_engine_at(size_t i, dibs_engine_info *out);
DIBS_API void dibs_engine_of(const dibs *d, dibs_engine_info *out);

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Why a lock was lost. */
typedef enum dibs_loss {
    DIBS_LOSS_NONE,
    DIBS_LOSS_EXPIRED,     /* the lease ran out before it was renewed, or max_hold was reached */
    DIBS_LOSS_BROKEN,      /* an operator broke the lock */
    DIBS_LOSS_GONE,        /* the engine no longer has it: flushed, evicted, deleted, restored */
    DIBS_LOSS_UNREACHABLE, /* the engine did not answer until the lease was over */
    DIBS_LOSS_RESUMED,     /* the same named owner asks for the lock elsewhere: stop, then unlock */
} dibs_loss;

/* Runs on the keeper (or in dibs_dispatch, see dispatch_only), once for a lost grant, with no lock
 * of ours held. `g` stays valid until dibs_unlock, which may be called from here. When dibs_unlock
 * returns, the callback does not run any more and will not begin: dibs_unlock waits for one that is
 * running on another thread. It does not wait for one that itself waits for the caller: of two
 * callbacks that unlock each other's grants at the same moment, one does not wait. It must not wait
 * for a lock: the keeper that would keep it alive is here. */
typedef void (*dibs_lost_fn)(void *data, dibs_grant *g, dibs_loss why);

/* Zero means default. */
typedef struct dibs_lock_options {
    int64_t wait_ms;     /* 0: wait for ever. DIBS_NO_WAIT: try once. Else at most this long */
    int64_t lease_ms;    /* how long the engine keeps the lock for a silent holder: the handle's */
    int64_t max_hold_ms; /* held at most this long: the last lease ends then. No bound */
    int64_t min_hold_ms; /* a lock released earlier stays taken until then: none */
    bool no_renew;       /* the keeper leaves the lease alone; see dibs_renew */
    bool shared;         /* with others that share; excludes those that do not */
    uint32_t slots;      /* semaphore: so many slots in all. 0 or 1: a plain lock */
    uint32_t weight;     /* semaphore: how many slots this takes: 1 */
    const char *owner; /* whose lock it is. Default: the handle's owner, else the calling thread */
    dibs_lost_fn on_lost;
    void *data; /* for on_lost */
} dibs_lock_options;

/* Takes the lock. The same owner asking again on this handle gets the same grant, one level deeper,
 * without I/O: call dibs_unlock as often. (Slots are counted, not owned: without an owner by name
 * each call takes its own.) An owner by name that holds the lock through another process or handle
 * has to wait for it like anyone else, and asks that holder to stop: its grant is lost
 * (DIBS_LOSS_RESUMED), and the lock passes on after its dibs_unlock, or when its lease ends. Two
 * never hold at the same time. A call with DIBS_NO_WAIT is DIBS_BUSY and asks nobody to stop. Such an
 * owner waits for a lock in one thread of a handle at a time: a second call is DIBS_INVALID.
 * DIBS_BUSY: not obtained in time. DIBS_CONFLICT: the lock has other slots, or shared would have to
 * become exclusive. DIBS_UNAVAILABLE: no engine until the wait was over. */
DIBS_API dibs_status dibs_lock(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs_grant **out, dibs_error *err);

/* Takes all `count` locks or none, in sorted order, so that callers cannot deadlock. `out[i]` is
 * the grant of `names[i]`; a name given twice is one grant, one level deeper. When it returns
 * DIBS_OK, all are held; max_hold_ms and no_renew apply from then on. One that is lost while the
 * others are waited for is not reported: all are given back and taken again within wait_ms. If the
 * call fails, no min_hold_ms keeps a name taken. */
DIBS_API dibs_status dibs_lock_many(dibs *d, const char *const names[], size_t count,
                                    const dibs_lock_options *options, dibs_grant *out[],
                                    dibs_error *err);

/* One level up; at the outermost, gives the lock back and frees `g`, whatever is returned.
 * DIBS_LOST: it was not ours any more. DIBS_UNAVAILABLE, DIBS_UNKNOWN: it passes on when its lease
 * ends. */
DIBS_API dibs_status dibs_unlock(dibs_grant *g);

/* Asks the engine for a whole lease from now. For holders with no_renew. */
DIBS_API dibs_status dibs_renew(dibs_grant *g, dibs_error *err);

/* Still ours by our own clock? No I/O. */
DIBS_API bool dibs_held(const dibs_grant *g);
DIBS_API int64_t dibs_remaining_ms(const dibs_grant *g); /* 0 when lost */
DIBS_API dibs_loss dibs_loss_of(const dibs_grant *g);
DIBS_API const char *dibs_loss_text(dibs_loss why);

/* The fencing token: grows with every grant of this name. A resource that remembers the highest
 * floor and refuses a lower fence is safe from holders that overran their lease. With one holder at
 * a time floor == fence; with several, floor is the lowest fence among them. */
DIBS_API uint64_t dibs_fence(const dibs_grant *g);
DIBS_API uint64_t dibs_floor(const dibs_grant *g);
/* A number that no fence which this store has given out so far exceeds. A store on another engine that is
 * opened with ?fence_above=N in its URL gives out fences above N, or is not opened (DIBS_CONFLICT): so a
 * lock can move without being refused. See docs/moving.md. */
DIBS_API dibs_status dibs_fence_top(dibs *d, uint64_t *out, dibs_error *err);
DIBS_API const char *dibs_name(const dibs_grant *g);
DIBS_API const char *dibs_owner(const dibs_grant *g);

/* Ends every wait of this handle for `name` (NULL: for any name, and for any run of once) with
 * DIBS_CANCELLED. */
DIBS_API void dibs_cancel(dibs *d, const char *name);

/* Somebody who holds, waits or works. */
typedef struct dibs_party {
    const char *owner;
    const char *host;
    int64_t pid;
    int64_t since_ms; /* Unix time: held, or in line, since */
    int64_t left_ms;  /* holder: lease left; waiter: until it counts as dead */
    uint64_t fence;   /* holder, runner */
    uint32_t weight;
    bool shared;
    bool released; /* given back, kept until its min_hold is over */
    bool breaking; /* an operator has asked for it back */
} dibs_party;

/* ---- Waiting without a thread each ----------------------------------------------------------- */

/* Runs in dibs_dispatch. DIBS_OK: `g` is yours, and was held a moment ago. DIBS_LOST: it was granted,
 * and lost before dibs_dispatch was called. `err` is never NULL. The ticket is freed when this returns. */
typedef void (*dibs_ticket_fn)(void *data, dibs_status status, dibs_grant *g,
                               const dibs_error *err);

/* Enters the line and returns; `done` tells the outcome, also of a lock that was free. A ticket is
 * its own owner unless one is given by name. `out` may be NULL. */
DIBS_API dibs_status dibs_lock_start(dibs *d, const char *name, const dibs_lock_options *options,
                                     dibs_ticket_fn done, void *data, dibs_ticket **out,
                                     dibs_error *err);

/* Ends the wait: `done` will be told DIBS_CANCELLED, or DIBS_OK if the lock came first. Not after
 * `done` has run. */
DIBS_API void dibs_ticket_cancel(dibs_ticket *t);

/* A descriptor that is readable when dibs_dispatch has something to do: a ticket is settled or a
 * grant was lost. It belongs to the handle. */
DIBS_API int dibs_fd(dibs *d);

/* Runs what is due, never blocks. Returns how many callbacks ran and losses were noted. */
DIBS_API int dibs_dispatch(dibs *d);

/* ---- Cells: values that change only if they are still what was read -------------------------- */

#define DIBS_VALUE_MAX   (1024 * 1024) /* bytes of a value; an engine may take less: value_max */
#define DIBS_ANY_VERSION UINT64_MAX
#define DIBS_FOREVER     (-1)

/* What a cell holds. Give it back with dibs_value_free. */
typedef struct dibs_value {
    void *data; /* a NUL follows the bytes */
    size_t size;
    uint64_t version; /* grows with every change of this name, also over a deletion */
    int64_t left_ms;  /* until it ends; DIBS_FOREVER */
} dibs_value;

/* Zero means default. A write with a fence is refused (DIBS_LOST) when a newer one has been here. When it
 * is done it raises the cell's floor to its fence: an older fence never overwrites a newer one. With
 * several holders (shared, slots) `floor` is raised instead, and the others can still write. */
typedef struct dibs_cell_options {
    int64_t keep_ms; /* how long it lives from now: for ever */
    uint64_t fence;  /* a grant's. 0: not guarded */
    uint64_t floor;  /* with a fence, the grant's dibs_floor: the fence itself */
} dibs_cell_options;

/* DIBS_NOT_FOUND: there is none (any more). */
DIBS_API dibs_status dibs_cell_read(dibs *d, const char *name, dibs_value *out, dibs_error *err);

/* Writes if the cell still has that version (0: there must be none; DIBS_ANY_VERSION: there must be
 * one). `now` (may be NULL) gets the cell as it is afterwards: without data when it was written.
 * DIBS_CONFLICT: it has another version, and `now` says which, with its value. DIBS_NOT_FOUND: there
 * is none (any more). DIBS_UNKNOWN: no answer, and it cannot be told any more; read and decide
 * again. */
DIBS_API dibs_status dibs_cell_swap(dibs *d, const char *name, uint64_t version, const void *data,
                                    size_t size, const dibs_cell_options *options, dibs_value *now,
                                    dibs_error *err);
DIBS_API dibs_status dibs_cell_delete(dibs *d, const char *name, uint64_t version,
                                      const dibs_cell_options *options, dibs_error *err);
DIBS_API void dibs_value_free(dibs_value *value);

/* The check at the resource, for a resource that is a cell: presents a grant's fence before the first
 * read. Raises the cell's floor (0: the fence itself), then reads into `out` (may be NULL; version 0
 * when there is no value yet). DIBS_LOST: a newer holder has been here. Writes that carry a fence keep
 * their order without this. A value that is computed from the one that was read needs all three:
 * raise, read, write. Otherwise an older holder may write between the read and the write. */
DIBS_API dibs_status dibs_fence_pass(dibs *d, const char *cell, uint64_t fence, uint64_t floor,
                                     dibs_value *out, dibs_error *err);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Zero means default. */
typedef struct dibs_counter_options {
    const char *request; /* an id of the caller's: the same one counts once. None */
    int64_t keep_ms;     /* how long it is remembered: 24 hours. DIBS_FOREVER */
} dibs_counter_options;

/* A counter is never below zero. DIBS_OK, or DIBS_ALREADY: this request was counted before; `value`
 * (may be NULL) gets what is left after it, or what it was told then. Of all calls with the same request
 * at most one returns DIBS_OK. It may be none: if the answer was lost and the counter has changed since,
 * the call that counted it also returns DIBS_ALREADY. DIBS_NOT_FOUND: there is no such counter.
 * DIBS_UNKNOWN: no answer, and without a request it cannot be asked again. */
DIBS_API dibs_status dibs_counter_get(dibs *d, const char *name, int64_t *value, dibs_error *err);
DIBS_API dibs_status dibs_counter_set(dibs *d, const char *name, int64_t value,
                                      const dibs_counter_options *options, dibs_error *err);
/* `n` may be negative. A missing counter is 0. DIBS_TOO_FEW: it would fall below zero. */
DIBS_API dibs_status dibs_counter_add(dibs *d, const char *name, int64_t n,
                                      const dibs_counter_options *options, int64_t *value,
                                      dibs_error *err);
/* Takes `n` (1 or more) if so many are left, else nothing: DIBS_TOO_FEW, `value` says how many. */
DIBS_API dibs_status dibs_counter_take(dibs *d, const char *name, int64_t n,
                                       const dibs_counter_options *options, int64_t *value,
                                       dibs_error *err);

/* ---- Once ------------------------------------------------------------------------------------ */

/* A piece of work that is done once, under a key:
 *
 *     switch (dibs_once_begin(d, "order:17", &(dibs_once_options){.scope = "pay"}, &o, &err)) {
 *     case DIBS_OK:      pay(o); dibs_once_finish(o, receipt, size, 0, &err); break;
 *     case DIBS_ALREADY: replay(dibs_once_result(o, &size)); break;
 *     default:           complain(&err);                     // RUNNING, MISMATCH, CRASHED …
 *     }
 *     dibs_once_free(o);
 *
 * If the runner dies, nobody knows how far it came: the caller chooses. Refusing is at most once,
 * running again is at least once. Exactly once is to be had only where key and effect are in one
 * transaction: dibs_sql_once in dibs_sql.h. */
typedef struct dibs_once dibs_once;

typedef enum dibs_on_crash {
    DIBS_CRASH_REFUSE, /* DIBS_CRASHED, for as long as the key is kept: at most once */
    DIBS_CRASH_RERUN, /* run again, with a higher fence and the steps that were kept: at least once */
    DIBS_CRASH_ASK,   /* `ask` decides */
} dibs_on_crash;

/* The runner of `o` died (dibs_once_runner says who it was, dibs_once_step what it had done).
 * true: run again. */
typedef bool (*dibs_crash_fn)(void *data, const dibs_once *o);
typedef void (*dibs_once_lost_fn)(void *data, dibs_once *o);

/* Zero means default. */
typedef struct dibs_once_options {
    const char *scope;       /* whose keys: a tenant, an endpoint, a queue: "" */
    const void *fingerprint; /* what was asked for, usually a hash: the same key with another one is
                                refused (DIBS_MISMATCH) */
    size_t fingerprint_size; /* to 255 bytes. 0: not compared with anything but another 0 */
    int64_t lease_ms; /* a silent runner counts as dead after this; the keeper renews: 30,000 */
    int64_t keep_ms;  /* how long the result is kept: 24 hours. DIBS_FOREVER. A key that was given
                         back leaves a mark for a day whatever this says: late requests find it */
    int64_t
        tombstone_ms; /* so long after that the answer is DIBS_EXPIRED: not at all. DIBS_FOREVER */
    int64_t wait_ms;  /* for another's run, as in dibs_lock_options: 0 waits for ever,
                                DIBS_NO_WAIT answers DIBS_RUNNING at once */
    dibs_on_crash on_crash;
    dibs_crash_fn ask;
    dibs_once_lost_fn on_lost; /* the run was lost: others may take over. As dibs_lost_fn */
    void *data;                /* for ask and on_lost */
    const char *owner;         /* who runs it, for people. Default as in dibs_lock_options */
} dibs_once_options;

/* DIBS_OK: it is ours to do: end it with finish, fail or abandon. DIBS_ALREADY: it was done, here is
 * what it left. DIBS_UNKNOWN: no answer; nothing was begun for the caller. What the engine may have begun
 * in its name is withdrawn, also when the request arrives later: the key is then as it was before.
 * DIBS_UNAVAILABLE: the same, if the answer came only after the lease was over. DIBS_RUNNING: another is at it, see dibs_once_runner; dibs_once_wait waits for it.
 * DIBS_MISMATCH, DIBS_CRASHED, DIBS_EXPIRED. `out` is set after all of these, and freed by the
 * caller; after any other status it is NULL. */
DIBS_API dibs_status dibs_once_begin(dibs *d, const char *key, const dibs_once_options *options,
                                     dibs_once **out, dibs_error *err);

/* After DIBS_RUNNING: asks again, waiting up to wait_ms. The answers are those of begin. */
DIBS_API dibs_status dibs_once_wait(dibs_once *o, int64_t wait_ms, dibs_error *err);

/* While it is ours. `fence` grows with every run of this key; held is by our own clock, no I/O. */
DIBS_API uint64_t dibs_once_fence(const dibs_once *o);
DIBS_API bool dibs_once_held(const dibs_once *o);
DIBS_API int64_t dibs_once_remaining_ms(const dibs_once *o); /* 0 when it is not ours (any more) */
DIBS_API bool dibs_once_again(const dibs_once *o);           /* an earlier runner died */

/* A recovery point: what was done so far, kept with the key until the run ends. A later run of the
 * same key finds it and goes on from there. The same name again replaces its data. DIBS_LOST: the run
 * is not ours any more, or not by our clock. */
DIBS_API dibs_status dibs_once_step(dibs_once *o, const char *step, const void *data, size_t size,
                                    dibs_error *err);
/* The data of a step that was kept, NULL: it was not reached. Lives as long as `o`, or until the step
 * is replaced. */
DIBS_API const void *dibs_once_step_data(const dibs_once *o, const char *step, size_t *size);

/* Done: keeps the result and a code of the caller's for duplicates. DIBS_LOST: another run has taken
 * over, or the record is gone: nothing was written. DIBS_UNAVAILABLE, DIBS_UNKNOWN: call it again. */
DIBS_API dibs_status dibs_once_finish(dibs_once *o, const void *result, size_t size, int code,
                                      dibs_error *err);
/* It failed. `final`: duplicates get this result. Not final: the key is given back, and the next call is
 * the first again. But if this run had taken over from one that died, that crash is left: what the
 * earlier run did is as unknown as before. The steps of both stay with it. */
DIBS_API dibs_status dibs_once_fail(dibs_once *o, bool final, const void *result, size_t size,
                                    int code, dibs_error *err);
/* Nobody knows how far it came: as if the runner had died, without waiting for its lease. An end that has
 * reached the engine stays, also if its answer was lost (DIBS_UNKNOWN). */
DIBS_API dibs_status dibs_once_abandon(dibs_once *o, dibs_error *err);

/* After DIBS_ALREADY. */
DIBS_API const void *dibs_once_result(const dibs_once *o, size_t *size); /* NULL: it left none */
DIBS_API int dibs_once_code(const dibs_once *o);
DIBS_API bool dibs_once_failed(const dibs_once *o); /* it ended with a final failure */
/* Who runs it, ran it, or died of it; `left_ms`: until it counts as dead, or its result ends. */
DIBS_API void dibs_once_runner(const dibs_once *o, dibs_party *out);

/* A run that has not ended is abandoned. NULL is allowed. */
DIBS_API void dibs_once_free(dibs_once *o);

/* ---- Tokens ---------------------------------------------------------------------------------- */

#define DIBS_TOKEN_SIZE 64 /* with its NUL */

/* Zero means default. */
typedef struct dibs_token_options {
    const char *scope; /* what it is good for: "" */
    int64_t ttl_ms;    /* how long: 10 minutes */
} dibs_token_options;

/* An unguessable token, good for one redemption in its scope. */
DIBS_API dibs_status dibs_token_issue(dibs *d, const dibs_token_options *options,
                                      char out[DIBS_TOKEN_SIZE], dibs_error *err);
/* DIBS_OK: exactly one caller is told this; do the work now. DIBS_REFUSED: spent, expired, never
 * issued, or for another scope. */
DIBS_API dibs_status dibs_token_redeem(dibs *d, const char *scope, const char *token,
                                       dibs_error *err);
/* The work behind a redeemed token failed: one new token for it, the same one when asked again.
 * DIBS_REFUSED: it is not spent, or is gone. */
DIBS_API dibs_status dibs_token_reissue(dibs *d, const dibs_token_options *options,
                                        const char *token, char out[DIBS_TOKEN_SIZE],
                                        dibs_error *err);

/* ---- Looking and breaking -------------------------------------------------------------------- */

typedef struct dibs_lock_info {
    const char *name;
    uint32_t slots; /* 0: a plain lock (exclusive or shared); else a semaphore's */
    uint32_t used;  /* slots taken; plain locks: 1 exclusive, else the number that share */
    uint64_t fence; /* the highest ever given out */
    const dibs_party *holders;
    size_t holder_count;
    const dibs_party *waiters; /* in line, first first; NULL in a list */
    size_t waiter_count;
    const char *broken_by; /* who broke it last, or NULL */
    int64_t broken_at_ms;
    const char *const *notes; /* what else the engine has to say, a line each; NULL in a list */
    size_t note_count;
} dibs_lock_info;

typedef struct dibs_report dibs_report;

/* DIBS_NOT_FOUND: nobody has ever (or for a day; on ZooKeeper a minute) used that name, or on etcd nobody
 * uses it. */
DIBS_API dibs_status dibs_inspect(dibs *d, const char *name, dibs_report **out, dibs_error *err);

/* Every lock whose name starts with `prefix` (NULL: all), sorted by name. Idle ones only with
 * `idle`. */
DIBS_API dibs_status dibs_list(dibs *d, const char *prefix, bool idle, dibs_report **out,
                               dibs_error *err);
DIBS_API size_t dibs_report_count(const dibs_report *r);
DIBS_API const dibs_lock_info *dibs_report_at(const dibs_report *r, size_t i);
DIBS_API void dibs_report_free(dibs_report *r);

/* Takes the lock from its holders and raises the fence; `by` is recorded. Every holder learns of it
 * within about a second (Redlock: at its next renewal, after a third of its lease), and the lock passes
 * on when it lets go or its lease ends; the call returns then, or with DIBS_BUSY after wait_ms (0: no
 * bound). With `now` the lock passes on at once: only the fence
 * protects the resource. */
DIBS_API dibs_status dibs_break(dibs *d, const char *name, const char *by, bool now,
                                int64_t wait_ms, dibs_error *err);

/* ---- Examining a server ---------------------------------------------------------------------- */

/* DANGER: two clients can hold a lock at the same time, or no lock can be taken. WARNING: the same after a
 * rarer fault, or a fault that locks survive only as long as nothing else fails. UNSEEN: could not be
 * checked, and `what` says why. */
typedef enum dibs_severity {
    DIBS_SEVERITY_UNSEEN,
    DIBS_SEVERITY_NOTE,
    DIBS_SEVERITY_WARNING,
    DIBS_SEVERITY_DANGER,
} dibs_severity;

typedef struct dibs_finding {
    dibs_severity severity;
    const char *id;     /* "redis.eviction": stays the same from version to version */
    const char *what;   /* what was found, with figures */
    const char *why;    /* why it matters for locks; "": UNSEEN */
    const char *advice; /* what to do about it; "": UNSEEN */
} dibs_finding;

/* Round trips to the server, measured one after the other. */
typedef struct dibs_latency {
    size_t exchanges; /* 0: none were measured */
    int64_t p50_us, p99_us, max_us;
    int64_t lease_ms; /* that they were compared with */
} dibs_latency;

typedef struct dibs_findings dibs_findings;

/* Checks what on the server of `url` (NULL as in dibs_open) endangers locks: settings, rights, topology,
 * clocks, latency. Works also where dibs_open would fail, for example on a replica or without tables.
 * Needs no more rights than dibs_open and leaves nothing behind. `options`: connect_ms, request_ms and
 * lease_ms are used; NULL: defaults. DIBS_UNSUPPORTED: memory: has no server. */
DIBS_API dibs_status dibs_examine(const char *url, const dibs_options *options, dibs_findings **out,
                                  dibs_error *err);
DIBS_API size_t dibs_findings_count(const dibs_findings *f);
DIBS_API const dibs_finding *dibs_findings_at(const dibs_findings *f, size_t i); /* worst first */
DIBS_API const dibs_latency *dibs_findings_latency(const dibs_findings *f);
DIBS_API const char *dibs_findings_engine(const dibs_findings *f); /* "redis" */
DIBS_API void dibs_findings_free(dibs_findings *f);
DIBS_API const char *dibs_severity_name(dibs_severity severity); /* "danger" */

/* ---- Statistics ------------------------------------------------------------------------------ */

#define DIBS_BUCKETS 40

/* bucket[i] counts values below 2^i microseconds and not below half of that. */
typedef struct dibs_histogram {
    uint64_t count;
    uint64_t sum_us;
    uint64_t max_us;
    uint64_t bucket[DIBS_BUCKETS];
} dibs_histogram;

typedef struct dibs_stats {
    uint64_t grants, reentries, busy, cancelled, failures; /* outcomes of lock calls */
    uint64_t releases, renewals, renewal_failures;
    uint64_t losses[6];     /* by dibs_loss */
    uint64_t held;          /* now */
    uint64_t waiting;       /* now */
    dibs_histogram acquire; /* call to grant, when nobody was in the way */
    dibs_histogram wait;    /* call to grant, when there was a line */
    dibs_histogram hold;    /* grant to release or loss */
    dibs_histogram late;    /* how late renewals were sent */
} dibs_stats;

DIBS_API void dibs_stats_read(dibs *d, dibs_stats *out);

/* ---- For wrappers that guard a child process ---------------------------------------------------
 */

/* Called in a forked child of the handle's process: on engines that notice a dead process, the
 * locks of `d` stay taken until this child is gone too. Safe after fork in a program with threads.
 */
DIBS_API dibs_status dibs_stand_in(dibs *d);

#ifdef __cplusplus
}
#endif
#endif
