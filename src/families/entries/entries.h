/* The queue: the recipe that ZooKeeper and etcd share, and the adapter that each of them brings.
 *
 * A lock is a folder of ordered entries which vanish with the session (ZooKeeper) or lease (etcd)
 * that made them. One rule decides: an entry holds when the weights of all live entries up to and
 * including it do not exceed the capacity, and none of those ahead is of the same owner by name. Entries
 * ahead only vanish, so once true it stays true.
 *
 *   entries.c    opening, closing, entering        keep.c     keep-alives
 *   own_entry.c  attempts of this handle           leave.c    giving back, leaving the queue
 *   view.c       what is known of a lock's queue   inspect.c  inspect, list, break
 *   turn.c       whom each waiter watches          text.c     names and values
 *   ask.c        calls to the adapter              cell.c     cells
 *   await.c      watching a cell                   crowd.c    many who change one cell
 *   cells.c      listing cells
 *
 * An adapter knows how to talk. It gets calls (`dibs__entries_call`), each of which it completes once
 * with dibs__entries_done, and tells three kinds of events: an entry that was watched is gone, a
 * session is over, events may have been missed. All names, weights and decisions are the recipe's;
 * sessions, connections and transactions are the adapter's.
 *
 * Threads. Slots that start a call are called with the recipe's mutex held or not: they must not
 * block, must not complete the call from inside (dibs__entries_done comes later, from a thread of the
 * adapter's), and return anything but DIBS_OK only when the call was not
 * started and will not be completed. dibs__entries_done and the events are called with no lock of the
 * adapter's held that a slot needs; they may start further calls. Where `in_order` says so, requests of
 * one session take effect in the order in which their calls were started. */
#ifndef DIBS_FAMILIES_ENTRIES_H
#define DIBS_FAMILIES_ENTRIES_H

#include "engines/engine.h"

typedef struct dibs__entries dibs__entries; /* the recipe's own, one a handle */
typedef struct dibs__entries_call dibs__entries_call;
typedef struct dibs__entries_adapter dibs__entries_adapter;

/* What an adapter's structure begins with. */
typedef struct dibs__entries_backend {
    const dibs__entries_adapter *adapter;
    const dibs__env *env;
    dibs__entries *entries; /* set by dibs__entries_new: where events and log lines go */
} dibs__entries_backend;

/* ---- Listings -------------------------------------------------------------------------------- */

#define DIBS__ENTRIES_KEY_SIZE   160 /* a key of ours, with terminator, is never longer */
#define DIBS__ENTRIES_VALUE_SIZE 512 /* nor is what an entry or a lock stores */

typedef struct dibs__queue_entry {
    const char *key;   /* as the adapter knows it inside its lock's folder */
    const char *value; /* who: only when the call asked for `values`, else NULL */
    uint64_t place;    /* the order in the queue: sequence number, creation revision */
    uint64_t fence;    /* czxid, creation revision; 0: not known from a listing */
    int64_t since;     /* Unix time in µs by the server's clock; 0: not known */
    uint64_t owner;    /* as in dibs__entries_key; 0: none, also when it is kept */
    uint32_t weight;
    bool marked;    /* written to after it was made: an operator wants it back */
    bool lingering; /* given back, stays until its min_hold is over: belongs to nobody */
} dibs__queue_entry;

/* What the server knows of one lock. */
typedef struct dibs__entries_listing {
    bool exists;      /* there is such a lock, be it idle */
    char *value;      /* the lock's own value, allocated; NULL: a foreign lock without one */
    uint64_t version; /* of that value, for `write` */
    uint64_t fence;   /* the highest number that the server has used for this lock so far */
    uint64_t as_of;   /* the adapter's: `watch` of an entry seen here gets it back */
    uint64_t from;    /* entries with a place below this may be missing; 0: it is complete */
    dibs__queue_entry *entry; /* in any order; the recipe sorts */
    size_t count, size;
    struct dibs__entries_text *text; /* what the strings are in: text.c's */
} dibs__entries_listing;

/* Adds an entry; all strings are copied. The key tells weight and kind if it is one of ours; for a
 * stranger's, `foreign_weight` counts: DIBS__PLAIN exclusive, 1 shared, 0: no entry, left out. Fills
 * place, fence, since and marked from `facts`, whose strings are ignored. false: out of memory. */
bool dibs__entries_listing_add(dibs__entries_listing *l, const char *key, const char *value,
                               const dibs__queue_entry *facts, uint32_t foreign_weight);
void dibs__entries_listing_fini(dibs__entries_listing *l);

/* ---- Calls ----------------------------------------------------------------------------------- */

/* An entry that is to be checked. */
typedef struct dibs__entries_check {
    const char *name;
    const char *key;
    bool there, marked; /* out, like the next */
    uint64_t fence;
} dibs__entries_check;

/* One question and its answer. The recipe makes it, fills the first part (what all operations may have, and what belongs
 * to its own) and starts it; the adapter fills the second and completes it. It stays valid until dibs__entries_done;
 * strings that it points to as well. */
struct dibs__entries_call {
    const char *name; /* the lock, as its user wrote it: up to 512 bytes of anything */
    const char *key;  /* watch, remove, linger: which entry; list with a place: the own one */
    /* enter: 39 bytes at most, no dots. Else the recipe's: who asks. */
    const char *attempt;
    /* watch: the entry's. list: only those below this are needed; UINT64_MAX: all. */
    uint64_t place;
    /* enter without an owner, list with a place: nearest ones first; may stop when their weights exceed this (then says
     * so in `from`). */
    uint32_t enough;
    /* enter: an earlier try may have made the entry: look for it first. list, check: see everything that anybody has
     * done before this is asked (sync, linearizable). */
    bool again;
    dibs__deadline until; /* nobody waits for the answer after this */

    struct {
        const char *owner;      /* given by name, else NULL */
        const char *value;      /* the entry's */
        const char *lock_value; /* the lock's, if this call creates the lock */
        uint32_t weight, capacity;
        bool may_linger; /* has a min_hold */
        /* A hint, if the last is not NULL. As of that listing we know the whole queue up to (not including) our entry
         * `known_last` of place known_upto. An adapter that finds that nothing but our own entry has come or gone since
         * may answer with known_last alone, and from = known_upto. */
        uint64_t known_as_of, known_upto;
        const char *known_last;
    } enter;
    struct {
        bool values; /* with values, fences, times and marks of the entries */
        /* With a place: from here on nobody is ahead of it; an adapter that knows the same of those before may
         * answer with an empty listing. 0: not known. */
        uint64_t known_from;
    } list;
    struct {
        uint64_t as_of; /* of the listing in which the entry was seen; 0: not known */
    } watch;
    struct {
        bool was_first; /* it held, `own.fence`, and nothing was ahead of it or beside it */
    } remove;
    struct {
        const char *value; /* what the entry stores from now on */
        int64_t span;      /* microseconds */
    } linger;
    struct {
        dibs__entries_check *entry; /* sorted by name */
        size_t count;
    } check;
    struct {
        const char *value;       /* the lock's new one; NULL: it has none, and gets none */
        uint64_t version;        /* only if the lock's value still has this version */
        const char *const *keys; /* entries, and what they store (again, when they are marked) */
        const char *const *key_values;
        size_t count;
        bool at_once; /* remove the entries; else mark them */
    } write;
    struct {
        const char *prefix;
        bool idle;            /* those without entries too */
        _Atomic size_t reads; /* locks that are being read, one by one */
    } names;

    dibs_status status; /* DIBS_OK, or as engine.h says: UNAVAILABLE, UNKNOWN, DENIED … */
    dibs_error err;
    uint64_t session;                  /* enter: whose entry it is; list: ours now; never 0 */
    char made[DIBS__ENTRIES_KEY_SIZE]; /* enter: the key of our entry */
    dibs__queue_entry own;             /* enter: place and fence; watch: fence, marked */
    bool verified; /* enter: the entry was there in the very look that `listing` tells */
    /* enter: false: not made, the lock's value does not fit. watch: the entry lives, and
     * dibs__entries_gone will be told. list with a place: `key` was there in the very look that `listing`
     * tells, which has seen everything that was done before (false: not known). remove, linger: it was
     * there. write: it was done */
    bool there;
    uint64_t fence;                         /* write: the number that the server gave it */
    dibs__entries_listing listing;          /* enter, list */
    void (*then)(dibs__entries_call *call); /* the recipe's: dibs__entries_done calls it */
    void *context;                          /* the recipe's */
    void *adapter_data;                     /* the adapter's, while the call is under way */
};

/* names: one more lock; the adapter fills the listing, with values. NULL: out of memory. What the one
 * before returned may have moved. */
dibs__entries_listing *dibs__entries_add_lock(dibs__entries_call *call, const char *name);

/* The adapter has filled the second part. May free the call. */
void dibs__entries_done(dibs__entries_call *call);

/* ---- The adapter ----------------------------------------------------------------------------- */

struct dibs__entries_adapter {
    const char *name; /* for messages: "zookeeper" */
    /* A `check` that was started after a `remove` has seen it done, and whatever was done before it. */
    bool in_order;

    /* Makes our entry and lists the queue, in one flush or one transaction. Makes a session first if
     * there is none, and the lock (with `lock_value`) if there is none. The entry's key begins with
     * dibs__entries_body, its value is `value`; it vanishes with the session.
     *   again: an entry with this attempt and *this* session is taken up instead; another session's
     * is none of ours. The look must see everything that was sent before (sync, linearizable).
     *   The listing has at least the entries ahead of ours; our own may be in it, which says as much as
     * `verified`. `listing.value` is
     * the lock's value as of now. If it differs from `lock_value` in its capacity, an adapter that can
     * tell in the same step may refuse to make the entry (there = false); else the recipe removes it.
     *   UNKNOWN: the entry may exist. */
    dibs_status (*enter)(dibs__entries_backend *s, dibs__entries_call *call);
    /* The queue as it is now (ZooKeeper: as far as our server knows). exists = false: no such lock. */
    dibs_status (*list)(dibs__entries_backend *s, dibs__entries_call *call);
    /* Is it there? If so, dibs__entries_gone is told once when it is not any more (marks are not told).
     * An adapter whose kept entries need somebody to end them does that here. */
    dibs_status (*watch)(dibs__entries_backend *s, dibs__entries_call *call);
    /* Deletes an entry, whoever's it is. */
    dibs_status (*remove)(dibs__entries_backend *s, dibs__entries_call *call);
    /* Gives our entry back, but it stays in its place, as `kept`, for `span` from now, whatever
     * becomes of our session. */
    dibs_status (*linger)(dibs__entries_backend *s, dibs__entries_call *call);
    /* Which of these are there, in as few exchanges as can be, and a keep-alive if the last one is
     * not fresh: answered OK, alive_until() should be at least usable() after the start of this call
     * (the recipe looks). With count = 0 only that. UNAVAILABLE when the session has expired. */
    dibs_status (*check)(dibs__entries_backend *s, dibs__entries_call *call);
    /* One step: the lock's value, and `keys` marked or removed. there = false: somebody was faster,
     * nothing was done. */
    dibs_status (*write)(dibs__entries_backend *s, dibs__entries_call *call);
    /* Every lock whose name starts with `prefix`: dibs__entries_add_lock for each. */
    dibs_status (*names)(dibs__entries_backend *s, dibs__entries_call *call);

    /* Until when our session surely lives, by our own clock, whatever happens to the network from now
     * on: counted from the send time of something that a quorum has confirmed since. Any thread, no
     * blocking. A moment in the past when there is no session. */
    dibs__deadline (*alive_until)(dibs__entries_backend *s);
    /* What alive_until is ahead of now at the least while all is well, and so the longest lease that a
     * lock gets (ZooKeeper: half of the session). Fixed once the backend is open. */
    int64_t (*usable)(const dibs__entries_backend *s);
    /* The session itself, for people: what ?session= gave, as the server granted it. */
    int64_t (*session_span)(const dibs__entries_backend *s);

    const struct dibs__entries_cells *cells; /* cell.h; NULL: none */

    /* Ends the session (all entries go with it), completes what is under way, frees the backend. */
    void (*close)(dibs__entries_backend *s);
    /* In a forked child: closes descriptors, nothing else. */
    void (*abandon)(dibs__entries_backend *s);
};

/* ---- Events, told by the adapter from any thread --------------------------------------------- */

/* An entry that `watch` said is there is not any more; `place` as in that call. */
void dibs__entries_gone(dibs__entries *entries, const char *name, uint64_t place);
/* This session is over: all of its entries are gone, or will be before anybody else can hold. */
void dibs__entries_expired(dibs__entries *entries, uint64_t session);
/* Events may have been missed (compaction, a new connection): every waiter looks again. */
void dibs__entries_recheck(dibs__entries *entries);
/* How many entries this handle has: while 0, no keep-alive needs to be proved. Any thread. */
size_t dibs__entries_busy(dibs__entries *entries);
void dibs__entries_log(dibs__entries *entries, dibs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- For the adapters' engine tables --------------------------------------------------------- */

/* `backend` is taken, also on failure. Events may come when this returns: connect after it, then call
 * dibs__entries_opened, which reads the session's length; or, when connecting failed, dibs__entries_close. */
dibs_status dibs__entries_new(const dibs__open_request *request, dibs__entries_backend *backend,
                              dibs__engine **out, dibs_error *err);
void dibs__entries_opened(dibs__engine *e);

/* The rest of the engine's table is the same for all: .enter = dibs__entries_enter and so on. */
void dibs__entries_close(dibs__engine *e);
void dibs__entries_abandon(dibs__engine *e);
dibs_status dibs__entries_enter(dibs__engine *e, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err);
void dibs__entries_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                        dibs__deadline until);
dibs_status dibs__entries_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                  dibs__reply *out, dibs_error *err);
dibs_status dibs__entries_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                 dibs_error *err);
dibs_status dibs__entries_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err);
dibs_status dibs__entries_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err);
dibs_status dibs__entries_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err);
dibs_status dibs__entries_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                               bool notify, dibs__deadline until, dibs__cell_reply *out,
                               dibs_error *err);
dibs_status dibs__entries_watch(dibs__engine *e, const char *key, uint64_t version,
                                dibs__deadline until, void **out, dibs_error *err);
void dibs__entries_unwatch(dibs__engine *e, void *watch);
bool dibs__entries_cell_reap(dibs__engine *e, size_t limit, dibs__deadline until);
dibs_status dibs__entries_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                    dibs__deadline until, dibs__cell_page *out, dibs_error *err);
int dibs__entries_event_fd(dibs__engine *e); /* a timer: for leases shorter than the session */
void dibs__entries_events(dibs__engine *e, dibs__deadline until);

/* ---- Text ------------------------------------------------------------------------------------ */

/* What the key of an entry begins with: "dibs.ATTEMPT.SESSION.KIND[.OWNER]", letters, digits, dots
 * and dashes alone. */
void dibs__entries_body(const dibs__entries_call *call, uint64_t session,
                        char out[DIBS__ENTRIES_KEY_SIZE]);
/* Ours, of this attempt and this session? */
bool dibs__entries_is_ours(const char *key, const char *attempt, uint64_t session);
/* A lock's name as one component of a path: percent-escaped, and back. `out` has room for
 * 3 * DIBS_NAME_MAX + 1 bytes; unescape returns false for what is no escaped name. */
void dibs__entries_escape(const char *name, char *out);
bool dibs__entries_unescape(const char *text, char out[DIBS_NAME_MAX + 1]);
/* The same, of up to `most` bytes. */
bool dibs__entries_unescape_long(const char *text, char *out, size_t most);
/* The capacity that a lock's value tells; DIBS__PLAIN for NULL and for what is not ours. */
uint32_t dibs__entries_capacity(const char *lock_value);
/* ?session=10s, 1500ms, 10 (seconds): microseconds; `out` is left alone when absent. dibs_options'
 * lease_ms, if given, goes before it. */
dibs_status dibs__entries_take_session(const dibs__open_request *request, int64_t *out,
                                       dibs_error *err);

#endif
