/* The inside of a handle: what the files of the core share.
 *
 * One mutex guards all of it. It is never held while the engine is called or while
 * a callback of the user's runs. A grant is made before its lock is asked for, so that nothing can
 * fail once the engine has said yes; while the answer is out, it has a ticket. Whoever works on a
 * grant without the mutex holds a reference to it.
 *
 *   entering   some thread is inside the engine's `enter` for it       (has a ticket)
 *   waiting    in the queue; the keeper keeps it alive                       (has a ticket)
 *   held       ours; the keeper renews it
 *   lost       not ours any more, and the user has not unlocked it yet
 *   orphan     the user is gone, the engine may still have it: the keeper gives it back
 *   over       nothing left to do; freed with the last reference */
#ifndef DIBS_CORE_HANDLE_H
#define DIBS_CORE_HANDLE_H

#include "core/calls.h"
#include "core/env.h"
#include "core/heap.h"
#include "core/reader.h"
#include "core/table.h"
#include "dibs.h"
#include "engines/engine.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/types.h>

#define DIBS__DEFAULT_LEASE (30 * DIBS__SECOND)
#define DIBS__MIN_LEASE     (10 * DIBS__MS)
#define DIBS__MAX_LEASE     (24 * 3600 * DIBS__SECOND)
#define DIBS__WINDOW        (6 * DIBS__SECOND) /* how long a silent waiter counts as alive */
/* A caller whose time is up waits so long for the answer to its last request: whatever it waited for, a
 * request gets at least this, and no call takes longer. */
#define DIBS__GRACE (200 * DIBS__MS)

typedef enum dibs__state {
    DIBS__ENTERING,
    DIBS__WAITING,
    DIBS__HELD,
    DIBS__GRANT_LOST,
    DIBS__ORPHAN,
    DIBS__OVER,
} dibs__state;

/* Something that the user is to hear; lives inside the thing that it is about. Either a callback, which
 * the keeper runs: `call` is called with the mutex and gives it away meanwhile. Or an outcome, which
 * dibs_take hands out: `fill` is called with the mutex. */
typedef struct dibs__news {
    struct dibs__news *next, **at; /* `at` NULL: not listed */
    bool calling;                  /* `call` runs */
    void (*call)(dibs *d, struct dibs__news *n);
    void (*fill)(dibs *d, struct dibs__news *n, dibs_outcome *out);
} dibs__news;

typedef struct dibs__news_list {
    dibs__news *first, **end;
} dibs__news_list;

/* A request to the engine that a worker makes; lives inside the thing that it is about. `run` is called with
 * the mutex and gives it away meanwhile. Of jobs with the same key the workers run one at a time, in order. */
typedef struct dibs__job {
    struct dibs__job *next, **at; /* `at` NULL: not listed */
    uint64_t key;                 /* 0: none */
    void (*run)(dibs *d, struct dibs__job *j);
} dibs__job;

#define DIBS__WORKERS 4

typedef struct dibs__ticket dibs__ticket;

struct dibs_grant {
    dibs *d;
    int refs; /* the user's, the keeper's, one for each list it is in */
    dibs__state state;
    const char *name, *owner; /* in `text` */
    uint64_t fence;
    dibs__node by_attempt;
    dibs__node by_owner; /* (owner, name), when `reentrant` */
    bool reentrant;      /* found by its owner */
    bool in_attempts, in_owners;
    bool owner_named;
    bool portable; /* lives by its lease alone; its attempt is a secret: portable.c */
    bool adopted;  /* another handle may have asked for it */
    bool renew;    /* the keeper renews it */
    bool whole;  /* has had a lease of its own: false after a hand-over, until the first renewal */
    bool last;   /* max_hold is reached by the lease it has: no more renewals */
    bool silent; /* the last renewal got no answer */
    bool release_it; /* orphan: release (min_hold counts), not cancel */
    bool owed;       /* lost, but the engine may still have it: goes back with dibs_unlock */
    bool delivered;  /* the user has it: from then on its loss is told */
    uint32_t capacity, weight;
    int depth;
    _Atomic int loss; /* dibs_loss */
    int64_t lease, max_hold, min_hold;
    dibs__deadline asked;     /* when the call began */
    dibs__deadline since;     /* when it was granted, by our clock */
    dibs__deadline max_until; /* since + max_hold */
    _Atomic int64_t deadline; /* held until then, by our clock; 0: lost */
    _Atomic uint64_t floor;
    dibs__due due;          /* what the keeper does next */
    dibs__due exchange;     /* the same, when it is an exchange of its own */
    dibs__due expiry;       /* `deadline`, while held */
    dibs__deadline give_up; /* orphan: the engine has forgotten it by then */
    dibs__ticket *ticket;
    dibs_lost_fn on_lost;
    void *data;
    dibs__news news; /* of its loss */
    char attempt[DIBS__ATTEMPT_SIZE];
    char secret[13]; /* in the attempts of a portable lock; else "" */
    char text[];     /* owner, name */
};

/* A lock call that has no answer yet: of a thread that waits for it (on its stack), or of a
 * request. */
struct dibs__ticket {
    dibs_grant *grant;
    dibs__deadline until; /* when the caller's patience ends */
    bool try_once;
    bool asked; /* the engine, at least once */
    int64_t window;
    dibs__deadline
        alive; /* in the queue until then if not heard of: counted from the last answered keep-alive */
    bool enter_again; /* the entry is not (surely) there: enter, not keep */
    bool maybe_there; /* the engine may have an entry of this attempt */
    bool unsure;      /* it may have had one before, and ended it: see dibs__ticket_handed */
    bool queued_once;
    bool cancelled; /* while a thread was inside `enter` */
    bool handed;    /* a hand-over overtook the answer to `enter` */
    bool doubt;     /* wake-ups may have been missed before that answer */
    uint64_t handed_fence, handed_floor;
    dibs__in_way in_way;         /* as the last answer said */
    dibs__deadline in_way_until; /* until its lease ends, by that answer */
    int64_t pause;               /* grows with every failure in a row; 0: the engine answers */
    dibs__deadline retry_at;     /* not before */
    bool settled;
    dibs_status status;
    dibs_error *err;        /* of the last failure; NULL: there was none, or no memory to keep it */
    _Atomic int bell;       /* threads only, like the next: rung when it has something to do */
    dibs__driver_call turn; /* to read the engine's events */
    bool by_event;          /* a request's, like the next */
    dibs__job job;          /* to enter */
    void (*done)(dibs *d, struct dibs__ticket *t); /* with the mutex: it is settled */
};

/* Work for the keeper that is no grant's; lives inside the thing that it is about. `run` is called
 * with the mutex, once, when its time has come; it may give the mutex away meanwhile. */
typedef struct dibs__keeper_task {
    dibs__due due;
    void (*run)(dibs *d, struct dibs__keeper_task *c, int64_t now);
} dibs__keeper_task;

/* A thread in dibs_lock_break; lives on its stack. */
typedef struct dibs__breaker {
    const char *name;
    _Atomic bool cancelled; /* its wait for the holders */
    struct dibs__breaker *next;
} dibs__breaker;

struct dibs {
    dibs__sink sink;
    dibs__engine *engine;
    const dibs__engine_class *class;
    /* The same, for the user: before and after the engine is open. It is read without a lock: neither is written again. */
    dibs_engine_info info, info_open;
    const dibs__env *env;
    pid_t pid;
    const char *here; /* a page that reads 0 in a forked child; NULL: ask for the pid */
    char id[17];
    char host[DIBS__HOST_SIZE];
    char owner[DIBS_OWNER_MAX + 1]; /* "": the calling thread */
    int64_t request_span;
    int64_t lease;     /* of a lock that is asked for without one */
    int64_t run_lease; /* of a run of once; it is no session's */
    int64_t wait_ms;   /* of a call that does not say how long; never 0 */
    uint64_t base;     /* added to every fence that goes out: base.c */
    dibs_log_fn log;
    void *log_data;

    pthread_mutex_t mutex;
    pthread_cond_t quiet; /* `users` fell */
    int users;            /* threads inside a call that may block, and jobs */
    _Atomic bool closing; /* set with the mutex; calls that begin now are refused */
    bool drained;         /* nothing is left to do but to free it */
    bool drainer_runs;
    pthread_t drainer;          /* of DIBS_OP_DRAIN */
    dibs__deadline close_until; /* no exchange lasts longer once the handle is being closed */
    uint64_t attempts_made;
    size_t
        waits; /* lock calls that may stand in the queue, until they are settled; waits for cells */
    dibs__table watches; /* of cells: watch.c */
    dibs__table attempts, owners;
    dibs__heap due, expiries;
    dibs__heap
        exchanges; /* out of `due`: what takes an exchange of its own, and waits for renewals */
    /* Of what is no grant. renewals: of runs. maintenance: what else asks the engine, and waits for renewals.
     * ends: the deadline of a run is over, no I/O. */
    dibs__heap renewals, maintenance, ends;
    size_t keeper_tasks;      /* each has a place in all of them */
    dibs__news_list news;     /* callbacks to run */
    dibs__news_list outcomes; /* to be taken: readable at `notice_fd` */
    dibs__table requests;     /* by id, until their outcome is there */
    uint64_t requests_made;
    struct dibs_once *onces; /* all of the handle's */
    /* Set by whoever puts the first one there, so that the core calls nothing by name that is built on it; NULL: none yet.
     * With the mutex, ends the waits of requests. Without it: frees what an outcome has that is neither grant nor run;
     * ends the runs that have not ended, as far as the time allows; frees all runs. */
    void (*stop_requests)(struct dibs *d);
    void (*free_outcome)(dibs_outcome *out);
    void (*end_onces)(struct dibs *d, dibs__deadline until);
    void (*free_onces)(struct dibs *d);
    dibs__keeper_task reap;
    bool reaping, reaped; /* begun; done at least once */
    int64_t reap_rest;    /* the last pause */
    dibs__breaker *breakers;
    dibs__keeper_task break_notice;
    bool listening; /* for the break notice: something is held */
    bool adopts;    /* has adopted a grant: the engine tells its breaks to another handle */
    uint64_t break_notice_version; /* the break notice's version that was heard last; 0: none */
    uint64_t cancels;              /* of all waits */
    int notice_fd;                 /* eventfd: dibs_fd */
    dibs_stats stats;

    struct {
        dibs__job *first, **end;
        pthread_cond_t wake;
        pthread_t thread[DIBS__WORKERS];
        uint64_t key[DIBS__WORKERS + 1]; /* of the job that each runs, and the guest; 0: none */
        int count, started, idle;
        int busy;   /* workers that run a job */
        bool guest; /* a thread that starts a request does it */
        bool stop;
    } workers;

    _Atomic bool ready; /* the engine is open */
    struct {            /* in the background: opening.c */
        bool runs, over;
        pthread_t thread;
        pthread_cond_t changed;
        char *url;
        dibs_options options;
        dibs_status status; /* of the last try, as `err` */
        dibs_error err;
    } opening;

    dibs__readers readers;
    pthread_t leader; /* who polls now, or did so last; wakes up by leader_fd */
    int leader_fd;

    bool keeper_runs, keeper_stops;
    pthread_t keeper;
    int timer_fd, wake_fd;
    dibs__deadline armed; /* when the keeper wakes by itself, or before */
    int64_t brief;        /* the shortest lease of late, until `brief_until` */
    dibs__deadline brief_until;
    void *keeper_batch;
};

/* handle.c */
/* dibs_open for tests: with clocks, sleep and randomness of theirs, which outlive the handle. */
dibs_status dibs__open_in(const dibs__env *env, const char *url, const dibs_options *options,
                          dibs **out, dibs_error *err);
bool dibs__same_process(const dibs *d);
dibs_status dibs__forked(dibs_error *err);
dibs_status dibs__closing(dibs_error *err);
void dibs__log(dibs *d, dibs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dibs__log_args(dibs *d, dibs_log_level level, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
void dibs__handle_free(dibs *d); /* nothing of it is used any more */
dibs_status dibs__check_name(const char *name, dibs_error *err);
/* The same, in a process to which the handle belongs. */
static inline dibs_status dibs__check_lock(const dibs *d, const char *name, dibs_error *err)
{
    return dibs__same_process(d) ? dibs__check_name(name, err) : dibs__forked(err);
}
dibs_status dibs__check_lease(int64_t lease_ms, dibs_error *err); /* of a handle, a lock or a run */
/* Fresh for every command on a cell, and for every run. Without the mutex. */
void dibs__stamp(dibs *d, char out[DIBS__STAMP_SIZE]);
/* In and out of a call that may block; false: the handle is closing. */
bool dibs__begin_call(dibs *d);
void dibs__end_call(dibs *d);
/* Around a call of several steps, without the mutex between them: dibs_close waits for the whole of it. */
void dibs__stay(dibs *d);
void dibs__go(dibs *d);
/* When a request sent now by a caller with that patience ends: one request, and not long after it. */
dibs__deadline dibs__request_until(const dibs *d, dibs__deadline patience);

/* handle.c: one try. The handle is ready after DIBS_OK. Without the mutex. */
dibs_status dibs__engine_open(dibs *d, const char *url, const dibs_options *o, dibs_error *err);

/* opening.c: without the mutex */
static inline bool dibs__is_open(const dibs *d)
{
    return atomic_load_explicit(&d->ready, memory_order_acquire);
}
dibs_status dibs__open_later(dibs *d, const char *url, const dibs_options *o, dibs_error *err);
void dibs__open_join(dibs *d); /* `closing` was set, and `changed` was signalled */
/* Before anything that needs the engine: waits until it is open, for the time of one request, or until then. Any other
 * status than DIBS_OK is that of the call. */
dibs_status dibs__usable(dibs *d, dibs_error *err);
dibs_status dibs__usable_until(dibs *d, dibs__deadline until, dibs_error *err);

/* grant.c: with the mutex held */
/* `owner` NULL: the grant itself. NULL: out of memory. */
dibs_grant *dibs__grant_new(dibs *d, const char *name, const char *owner, bool portable);
dibs__claim dibs__grant_claim(const dibs_grant *g); /* as the engine is told of it: not answered */
void dibs__grant_fit_lease(dibs_grant *g);
void dibs__grant_ref(dibs_grant *g);
void dibs__grant_unref(dibs_grant *g);
bool dibs__grant_enlist(dibs_grant *g);      /* into the tables; false: out of memory */
void dibs__grant_leave_owner(dibs_grant *g); /* the owner may ask for the lock again */
void dibs__grant_retire(dibs_grant *g);      /* out of tables and heaps: it is over */
void dibs__grant_new_attempt(dibs_grant *g); /* the old one is dead */
dibs_grant *dibs__grant_of_owner(dibs *d, const char *owner, const char *name);
dibs_grant *dibs__grant_of_attempt(dibs *d, const char *attempt);
void dibs__grant_hold(dibs_grant *g, uint64_t fence, uint64_t floor, dibs__deadline deadline,
                      bool whole);
void dibs__grant_schedule(dibs_grant *g, dibs__deadline when); /* the keeper looks at it then */
void dibs__grant_check(dibs_grant *g);                         /* now */
void dibs__check_all(dibs *d, unsigned at); /* at all of these: DIBS__WAITERS and so on */
void dibs__grant_lose(dibs_grant *g, dibs_loss why);
void dibs__grant_lose_if_over(dibs_grant *g);
void dibs__grant_note_end(dibs_grant *g); /* it is not held any more: for the statistics */
/* Held, it becomes the user's on these terms, which count from now. */
void dibs__grant_deliver_anew(dibs_grant *g, bool renew, int64_t max_hold);
/* It becomes the user's. False: it is lost already, and nobody else needs to be told. */
bool dibs__grant_deliver(dibs_grant *g);
/* What a renewal sent at `sent` asks for, and what its answer means. */
int64_t dibs__grant_lease_left(const dibs_grant *g, dibs__deadline sent);
void dibs__grant_answer(dibs_grant *g, dibs__deadline sent, dibs_status status,
                        const dibs__reply *reply);
dibs_status dibs__no_grant(const char *verb, dibs_error *err); /* the caller gave none */
/* unlock.c: one level of it in a forked child; the parent's grant stays. */
dibs_status dibs__grant_free_in_child(dibs_grant *g, dibs_error *err);
/* Not with the mutex: what a cell is written under, by its options; 0 and 0: nothing. */
dibs_status dibs__grant_guard(const dibs_cell_options *o, uint64_t *fence, uint64_t *floor,
                              dibs_error *err);
/* dibs_renew with a bound; not with the mutex. */
dibs_status dibs__grant_renew(dibs_grant *g, dibs__deadline until, dibs_error *err);
/* The engine may still have it: the keeper gives it back. Takes the caller's reference. */
void dibs__grant_orphan(dibs_grant *g, bool release_it);
dibs__deadline dibs__deadline_of(dibs__deadline sent, int64_t remaining, int64_t lease);

/* ticket.c: with the mutex held */
void dibs__ticket_answer(dibs__ticket *t, dibs__deadline sent, dibs_status status,
                         const dibs__reply *reply, const dibs_error *err);
void dibs__ticket_handed(dibs__ticket *t, uint64_t fence, uint64_t floor);
void dibs__ticket_settle(dibs__ticket *t, dibs_status status, const dibs_error *err);
void dibs__ticket_time_out(dibs__ticket *t);
void dibs__ticket_cancel(dibs__ticket *t);
void dibs__ticket_note(dibs__ticket *t, const dibs_error *err); /* keeps it */
void dibs__ticket_error(const dibs__ticket *t, dibs_error *out);
void dibs__ticket_fini(dibs__ticket *t); /* frees what it keeps */
/* Asks the engine, at the latest until then; gives the mutex away meanwhile. */
void dibs__ticket_enter(dibs__ticket *t, dibs__deadline latest);
void dibs__ticket_await(dibs__ticket *t);        /* the calling thread waits until it is settled */
void dibs__ticket_lead(dibs__driver_call *turn); /* it has been given the role of reading */
void dibs__ticket_send(dibs__ticket *t);         /* a request's: a worker enters */
/* The same, or the calling thread does: it may be settled and freed afterwards. */
void dibs__ticket_begin(dibs__ticket *t);

/* watch.c: with the mutex */
/* In a call, without the mutex meanwhile: until the cell may have another version, or `until`; may return early.
 * DIBS_UNSUPPORTED: the engine tells nobody. */
dibs_status dibs__cell_wait(dibs *d, const char *key, uint64_t version, dibs__deadline until,
                            dibs_error *err);
/* Those who wait for this cell (its dibs__hash), or for any, go and look. */
void dibs__watches_end(dibs *d, uint64_t cell);
void dibs__watches_end_all(dibs *d);

/* worker.c: with the mutex */
bool dibs__workers_start(dibs *d); /* at least one; false: no thread to be had */
void dibs__job_add(dibs *d, dibs__job *j);
/* The same; where the engine keeps nobody waiting the calling thread does it, and gives the mutex away meanwhile. What
 * the job is in may be gone afterwards. */
void dibs__job_do(dibs *d, dibs__job *j);
bool dibs__job_drop(dibs *d, dibs__job *j); /* false: not listed, a worker may have it */
void dibs__workers_stop(dibs *d);           /* without the mutex; no job is left */

/* outcome.c: with the mutex, when nobody else is left */
void dibs__outcomes_free(dibs *d);

/* keeper_task.c: with the mutex */
/* A place in `renewals`, `maintenance` and `ends`; false: out of memory or threads. */
bool dibs__keeper_reserve(dibs *d);
void dibs__keeper_unreserve(dibs *d);
void dibs__keeper_task_at(dibs *d, dibs__heap *heap, dibs__keeper_task *c, dibs__deadline when);
void dibs__news_add(dibs *d, dibs__news *n);
/* The next callback; the mutex is given away meanwhile. False: there is none. */
bool dibs__news_run(dibs *d);
/* It is not told any more. True: it was still to be told. */
bool dibs__news_drop(dibs *d, dibs__news *n);
/* The same, and no callback about it runs after this, unless we are inside it, or it waits for us. The
 * mutex may be given away meanwhile. */
bool dibs__news_forget(dibs *d, dibs__news *n);
void dibs__reap_start(dibs *d); /* the engine's cells, now and then, from now on */
void dibs__reap_last(dibs *d);  /* nobody else is there: by chance, if it never came to it */

/* base.c: while the handle is opened; `above` 0: not asked for */
dibs_status dibs__base_open(dibs *d, int64_t above, dibs__deadline until, dibs_error *err);

/* break_notice.c */
/* With the mutex: something is held. */
void dibs__break_notice_listen(dibs *d, int64_t now);
/* Without it: a break is on record, tell those who hold. */
void dibs__break_notice_send(dibs *d, dibs__deadline until);

/* callbacks.c: what runs now, in all handles of the process; `about` is an address and no more. */
typedef struct dibs__callback {
    const void *about;
    pthread_t thread;
    const void *waits_for; /* NULL: its thread does not wait for another's end */
    struct dibs__callback *next;
} dibs__callback;

void dibs__callback_begin(dibs__callback *t, const void *about);
void dibs__callback_end(dibs__callback *t);
void dibs__callback_await(const void *about); /* without the mutex */

/* unlock.c: unlocking in two steps, each with the mutex. First one level less, without I/O. Then, if it was the last
 * one (`last`), the lock goes back; the mutex is given away meanwhile. `ask` false: there is no time left, and the
 * keeper does it. The status, and what to say. */
typedef struct dibs__unlocking {
    char name[201]; /* the grant is gone when this is told */
    dibs_loss why;
    bool last, held;
} dibs__unlocking;

dibs_status dibs__unlock_begin(dibs_grant *g, dibs__unlocking *u);
dibs_status dibs__unlock_end(dibs_grant *g, dibs__unlocking *u, bool ask);
dibs_status dibs__unlock_say(const dibs__unlocking *u, dibs_status status, dibs_error *err);

/* inspect.c: is it over, after a break that waits? DIBS_BUSY: not yet. In a call, without the mutex. */
dibs_status dibs__break_check(dibs *d, const char *name, dibs__deadline until, dibs_error *err);
/* With the mutex: the threads that break this lock (NULL: any) do not wait for its holders any more. */
void dibs__breakers_cancel(dibs *d, const char *name);

/* lock.c */
/* Everything of a request's lock call that needs no engine. DIBS_OK: its ticket will be settled. */
dibs_status dibs__lock_request(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs__ticket *t, dibs_error *err);
dibs_status dibs__check_lock_options(const dibs *d, const dibs_lock_options *o, dibs_error *err);
/* The options of a call with the handle's defaults filled in; `given` may be NULL. */
dibs_lock_options dibs__lock_terms(const dibs *d, const dibs_lock_options *given);
/* How long a call waits that was given this: never 0. */
static inline int64_t dibs__wait_ms(const dibs *d, int64_t given)
{
    return given ? given : d->wait_ms;
}
/* When a wait that begins now ends. DIBS_NO_WAIT: now. `wait_ms` is not 0. */
dibs__deadline dibs__wait_until(const dibs *d, int64_t wait_ms);
/* What is left of a caller's patience, as the next wait_ms. */
int64_t dibs__wait_left(const dibs *d, int64_t wait_ms, dibs__deadline until);
/* dibs_lock without its last step: the grant is not delivered yet. */
dibs_status dibs__lock(dibs *d, const char *name, const dibs_lock_options *o, dibs_grant **out,
                       dibs_error *err);
/* With the mutex: one level more of a grant that the same call has obtained. */
void dibs__lock_again(dibs_grant *g);
/* In a call: as if it had not been asked for; one level up. The engine is told until then, or by the
 * keeper. */
void dibs__lock_undo(dibs_grant *g, dibs__deadline until);
/* lock.c: with the mutex. For this lock, to acquire it and to break it; NULL: for any, and for cells. Requests with a
 * ticket are among them, others are not. */
void dibs__waits_cancel(dibs *d, const char *name);
/* portable.c: whether the engine has locks that outlive their handle; else why not */
dibs_status dibs__check_portable(const dibs__engine_class *class, dibs_error *err);
/* lock.c: the calling thread, as an owner */
void dibs__thread_owner(const dibs *d, char *out, size_t size);

/* keeper.c */
/* How long the keeper may be away: with a renewal, and with anything else. */
dibs__deadline dibs__keeper_renew_until(const dibs *d, int64_t now);
dibs__deadline dibs__keeper_until(const dibs *d, int64_t now);
/* With the mutex: something is held for so long at a time. More of the kind may come while the keeper is away. */
void dibs__keeper_expect(dibs *d, int64_t lease, int64_t now);
bool dibs__keeper_start(dibs *d); /* with the mutex; false: no thread to be had */
void dibs__keeper_wake(dibs *d);
/* It looks at `when`, or before. */
void dibs__keeper_arm(dibs *d, dibs__deadline when);
/* With the mutex: nobody else reads the engine's events. It does from now on, or soon if nobody waits for them. */
void dibs__keeper_mind(dibs *d);
void dibs__keeper_stop(dibs *d); /* without the mutex; it was told so: `keeper_stops` */

/* close.c: all that dibs_close does, except freeing. Without the mutex; once. */
void dibs__drain(dibs *d);

/* sink.c: of every handle */
extern const dibs__sink dibs__core_sink;

/* handle.c: reads a URL (NULL as in dibs_open) and finds its engine. `url` is to be finished in any case. */
dibs_status dibs__url_begin(dibs__url *url, const char *text, const dibs__engine_class **out,
                            dibs_error *err);

#endif
