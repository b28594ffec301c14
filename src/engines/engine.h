/* What an engine is: one const table of functions, with a contract on every slot.
 *
 * Who calls      The core, with no lock of its own held, from many threads at once: the engine brings its own order
 *                (usually: whoever finds the connection idle drives it for everybody).
 * How long       Every call is bounded by an absolute deadline `until`, which the engine keeps whatever its peer does.
 * What comes of  DIBS_OK        answered; `out` says what.
 * it             a refusal      surely not done, and `err` says why: DIBS_UNAVAILABLE, DIBS_DENIED, DIBS_INVALID,
 *                               DIBS_ENGINE_FAILED, DIBS_NO_MEMORY.
 *                DIBS_UNKNOWN   the request went out and no answer came: the core asks again with the same attempt.
 * Waiting        Entering the queue is one bounded call. Wake-ups are events, and the handle's sink is the only channel
 *                for them: called from `events`, from threads of the engine's own, or from inside any other call (an engine
 *                that hands over to a waiter of the same handle calls it directly). They may be lost, doubled or late:
 *                the keeper's `keep` finds what was missed.
 *
 * The comments of this file are tables, line by line: the formatter leaves comments alone (ReflowComments), and so do we. */
#ifndef DIBS_ENGINES_ENGINE_H
#define DIBS_ENGINES_ENGINE_H

#include "core/env.h"
#include "core/page.h"
#include "core/url.h"
#include "dibs.h"
#include "state/cell.h"
#include "state/lock.h"

typedef struct dibs__engine dibs__engine;
typedef struct dibs__engine_class dibs__engine_class;
typedef struct dibs__report_builder dibs__report_builder; /* core/report.h */
typedef struct dibs__facts dibs__facts;                   /* doctor/facts.h */

/* What `check_all` is about; a sum. */
enum { DIBS__WAITERS = 1, DIBS__HOLDERS = 2, DIBS__CELLS = 4 };

/* Where an engine delivers wake-ups: given to `open`, valid until `close` returns. All of it may be called from any
 * thread, also from inside a call of the core. All but `log` take the handle's mutex: while they run, hold no lock of the
 * engine's that a call of the core needs. What nobody knows (an attempt that is over, a cell that nobody watches) is
 * ignored. */
typedef struct dibs__sink {
    /* A waiter was handed the lock. How long it lasts the core counts from the last keep-alive that was answered, never
     * from the arrival of this. */
    void (*granted)(struct dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor);

    /* Something may have changed for this attempt, holder or waiter: `keep` it soon. */
    void (*check)(struct dibs__sink *sink, const char *attempt);

    /* A cell that is watched may have changed: the one with this dibs__hash of its key. */
    void (*changed)(struct dibs__sink *sink, uint64_t cell);

    /* Wake-ups may have been missed (a subscription was cut, whether it stands again or not; a session ended): look again
     * at all of these. */
    void (*check_all)(struct dibs__sink *sink, unsigned at);

    /* Does anybody wait, for a lock or for a cell, or is about to? An engine that stops listening first and asks then
     * misses nobody: whoever comes later calls the engine. */
    bool (*waited_for)(struct dibs__sink *sink);

    void (*log)(struct dibs__sink *sink, dibs_log_level level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
} dibs__sink;

/* The first member of every engine's own structure. */
struct dibs__engine {
    const dibs__engine_class *class; /* set by the core after `open` */
    const dibs__env *env;
    dibs__sink *sink;
    /* Set by `open` where the lease belongs to the handle, else 0: how long one keep-alive counts
     * by our clock, and what people call the lease. No lock has a longer one. */
    int64_t lease, session;
};

/* What `open` gets. `handle_id` is random hex, unique to this handle; attempts start with it and a
 * dash. */
typedef struct dibs__open_request {
    dibs__url *url; /* take the parameters, then dibs__url_all_taken */
    const dibs__env *env;
    dibs__sink *sink;
    const char *handle_id;
    int64_t request_span; /* how long one exchange may take */
    int64_t lease;        /* the handle's, if it was asked for: 0 if not */
    dibs__deadline until;
} dibs__open_request;

typedef struct dibs__enter_request {
    const char *name;
    dibs__asker who;  /* `wake` is empty: the engine fills in its own */
    bool owner_named; /* or portable: lives by its lease alone, survives its process */
    uint32_t capacity;
    int64_t window; /* 0: do not queue */
} dibs__enter_request;

/* One entry that the core knows of: a grant to renew or release, a waiter to keep or cancel. */
typedef struct dibs__claim {
    const char *name;
    const char *owner;
    const char *attempt;
    uint64_t fence;   /* 0: a waiter */
    int64_t lease;    /* keep: the lease from now on */
    bool adopted;     /* entered through another handle, which may be dead; never by this one */
    bool handed_over; /* to us, and not renewed since: others probably wait for it as well */
    /* out, for keep: */
    dibs_status status;
    dibs__reply reply;
} dibs__claim;

/* What a cell command came to. `data` is the caller's to free, a NUL follows it, also when its size
 * is 0; NULL where dibs__cell_shows_data says that it is no part of the answer. Times are counted by
 * the engine: `age` since the last change (INT64_MAX: whoever made it is surely dead,
 * where the engine knows that better than a clock), `left` until it ends (INT64_MAX: never). */
typedef struct dibs__cell_reply {
    dibs__cell_verdict verdict;
    uint64_t version;
    uint64_t floor;
    int64_t number;
    int64_t age;
    int64_t left;
    void *data;
    size_t size;
} dibs__cell_reply;

/* The reply for what the C machine answered; copies the value where it belongs to the answer. false:
 * out of memory. */
bool dibs__cell_reply_of(const dibs__cell_command *command, const dibs__cell_answer *answer,
                         dibs__time now, dibs__cell_reply *out);

#define DIBS__VALUE_EXTRA 4096
#define DIBS__OWN_CELL    "=" /* so begin the keys of cells that the library keeps for itself */

typedef struct dibs__capabilities {
    bool across_processes;
    bool first_come;
    bool notices_death;
    bool notifies_holders; /* a break reaches the sink of every holder by itself: no break notice */
    bool cells;            /* cells, counters, once, tokens */
    size_t value_max;      /* bytes of a user's value; the recipes add up to DIBS__VALUE_EXTRA */
    const char *no_shared; /* NULL: locks can be shared. Else why not, for people */
    const char *no_slots;  /* the same for semaphores */
    bool lease_of_handle;
    bool fence_of_place;
    bool own_numbers; /* fences are the store's own count, and not its clock in microseconds */
    bool forgets_idle;
    bool names_holder; /* BUSY and QUEUED say who is in the way */
    bool never_waits;  /* for a server, a disk, a process: a call takes as long as its work */
    bool waiters_read; /* `events` keeps `until` so well that a thread that waits may call it */
    bool
        wakes_own; /* hand-overs inside a handle are no events: of several that wait there, none reads */
} dibs__capabilities;

struct dibs__engine_class {
    const char *scheme;         /* what people call it */
    const char *const *schemes; /* all URL schemes that it answers to, NULL-terminated */
    const char *missing;        /* package to install; non-NULL: all slots are NULL */
    dibs__capabilities can;
    const char *no_cells; /* why there are none, for people; NULL where there are */

    /* ---- Beginning and end ---- */

    /* Connects, or creates the store. On failure nothing is left behind. */
    dibs_status (*open)(const dibs__open_request *request, dibs__engine **out, dibs_error *err);

    /* No other call is running, and none follows. */
    void (*close)(dibs__engine *e);

    /* In a forked child: closes descriptors and says nothing to anybody. Memory may leak; locks may be held. */
    void (*abandon)(dibs__engine *e);

    /* ---- Locks ---- */

    /* Enters once. Repeated for the same attempt it gives the same answer.
     *   GRANTED, QUEUED, BUSY, MISMATCH
     *   RESUMED            a late message: the handle has a newer attempt
     *   DIBS_UNAVAILABLE   with `remaining`: the servers answer, and refuse everybody, for so long at least
     * After QUEUED the sink hears of what happens. What happened before the engine listened is made up for: it calls
     * `check`. */
    dibs_status (*enter)(dibs__engine *e, const dibs__enter_request *request, dibs__deadline until,
                         dibs__reply *out, dibs_error *err);

    /* keep-alives for many, sorted by name; a waiter has fence 0. Fills status and reply of each:
     *   GRANTED, QUEUED, LOST, BROKEN, RESUMED */
    void (*keep)(dibs__engine *e, dibs__claim *const claims[], size_t count, dibs__deadline until);

    /* A holder gives back.
     *   RELEASED, LOST, BROKEN, RESUMED */
    dibs_status (*release)(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                           dibs__reply *out, dibs_error *err);

    /* A waiter leaves, or a holder that never used it: min_hold does not count.
     *   RELEASED */
    dibs_status (*cancel)(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                          dibs_error *err);

    /* Takes it from its holders, as dibs__state_break.
     *   RELEASED, BUSY, LOST */
    dibs_status (*break_lock)(dibs__engine *e, const char *name, const char *by, bool at_once,
                              dibs__deadline until, dibs__reply *out, dibs_error *err);

    /* ---- Reports ---- */

    /* Puts one lock with its holders and waiters into the report; nothing if there is no such lock. */
    dibs_status (*inspect)(dibs__engine *e, const char *name, dibs__deadline until,
                           dibs__report_builder *out, dibs_error *err);

    /* Every lock whose name starts with `prefix`, with holders, without waiters, in any order; idle ones if asked for.
     * Expired holders are left out. */
    dibs_status (*list)(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                        dibs__report_builder *out, dibs_error *err);

    /* ---- Cells; all NULL: none ---- */

    /* One command on one cell, in one step of the engine's: DIBS_OK with a verdict. After DIBS_UNKNOWN the same command
     * with the same stamp may be sent again.
     *   `notify`   those who watch this cell are notified. */
    dibs_status (*cell)(dibs__engine *e, const char *key, const dibs__cell_command *command,
                        bool notify, dibs__deadline until, dibs__cell_reply *out, dibs_error *err);

    /* After DIBS_OK the sink is told `changed` once the cell may no longer have `version`: at once if it has another
     * already. One change is enough, false alarms do no harm. Called while the keeper runs. NULL: the core looks again at
     * a bounded, growing interval.
     *   `until`   is for setting it up
     *   `out`     what `unwatch` gets, once; NULL: no need to tell */
    dibs_status (*watch)(dibs__engine *e, const char *key, uint64_t version, dibs__deadline until,
                         void **out, dibs_error *err);
    void (*unwatch)(dibs__engine *e, void *watch);

    /* Adds the values whose keys begin with `range->prefix`, after `range->after`. DIBS_UNKNOWN: no answer; the core asks
     * for the page again. NULL: cannot be listed.
     *   order      one of the engine's that never changes: that of the bytes, or (ZooKeeper, etcd) of the escaped key
     *   left out   counters, and what has ended
     *   bound      looks at `range->limit` at the most, and says with `more` and `reached` where the next page begins;
     *              each exchange is bounded, whatever there is
     *   meanwhile  what is there during the whole of a listing is in it once; what comes, goes or changes is in it or not,
     *              as it was at some moment */
    dibs_status (*cell_list)(dibs__engine *e, const dibs__cell_range *range, dibs__deadline until,
                             dibs__cell_page *out, dibs_error *err);

    /* Removes up to `limit` cells and requests that have ended; true: there is more. Called by the keeper now and then.
     * NULL: the engine does it by itself. */
    bool (*cell_reap)(dibs__engine *e, size_t limit, dibs__deadline until);

    /* ---- Events ---- */

    /* -1, or a descriptor that stays the same for the engine's life. The keeper polls it or, with `waiters_read`, a
     * thread that waits for a lock. */
    int (*event_fd)(dibs__engine *e);

    /* Reads what is there without blocking, and tells the sink. What takes an exchange ends by `until`. Called by one
     * thread at a time. May be NULL where there is no descriptor. */
    void (*events)(dibs__engine *e, dibs__deadline until);

    /* ---- The rest; each may be NULL ---- */

    /* In a forked child, async-signal-safe: take part in the process's liveness. */
    dibs_status (*stand_in)(dibs__engine *e);

    /* What an administrator runs once when the account may not create what the engine needs: text to be freed by the
     * caller. Takes the URL's parameters and connects to nothing. */
    dibs_status (*schema)(dibs__url *url, char **out, dibs_error *err);

    /* Collects facts about the server for dibs_examine (src/doctor): connects as `open` does, also where `open` would
     * refuse the server, and leaves nothing behind. Fails only when the server cannot be reached. NULL: there is no
     * server. */
    dibs_status (*examine)(const dibs__open_request *request, dibs__facts *out, dibs_error *err);
};

/* NULL-terminated, in the order in which people are told about them. */
extern const dibs__engine_class *const dibs__engines[];

/* By URL scheme; NULL when there is none. */
const dibs__engine_class *dibs__engine_find(const char *scheme);

#endif
