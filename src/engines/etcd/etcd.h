/* The etcd engine's adapter: what it knows and what its files share.
 *
 *   PREFIX/NAME/~SESSION.SLOT   an entry, bound to the lease (= session) of the handle that made it;
 *                        its creation revision is its place in the queue and its fence. SLOT is a number
 *                        that the handle uses again (slot.c); the recipe's key begins the value
 *   PREFIX/%/NAME        the lock's own value: the capacity of a semaphore, who broke the lock. Bound
 *                        to a lease of a day that belongs to the name, so that it goes by itself
 *   PREFIX/%s/SESSION    the session's own key: guards its requests, and tells its end
 *   PREFIX/%%/NAME       the end of a long queue: the entry that was made last, if it is there at all.
 *                        Whoever makes an entry writes it or removes it, so that the next one finds
 *                        who is before it without a look at all of them
 *   PREFIX/%h/NAME       the beginning of a long queue: a place up to which all entries are gone, written with
 *                        the removal of the one that held there alone; bound to the lease of that one's handle
 *
 * NAME is escaped, one component of a path, and never "%" or "%%". `etcdctl lock PREFIX/NAME` makes
 * its keys in the same place and waits for everything there that is older; that is why the value
 * lives elsewhere. */
#ifndef DIBS_ETCD_ETCD_H
#define DIBS_ETCD_ETCD_H

#include "engines/etcd/client.h"
#include "families/entries/cell.h"
#include "families/entries/entries.h"

#define DIBS__ETCD_PREFIX_MAX 200
#define DIBS__ETCD_SHORT      64 /* a queue of so many is told whole */
#define DIBS__ETCD_NEAREST    4  /* of a longer one, so many, unless more are needed */
#define DIBS__ETCD_KEY_SIZE   (DIBS__ETCD_PREFIX_MAX + 3 * DIBS_NAME_MAX + DIBS__ENTRIES_KEY_SIZE + 8)

typedef struct dibs__etcd dibs__etcd;
typedef struct dibs__etcd_op dibs__etcd_op;

/* One call of the recipe's while it is under way. */
struct dibs__etcd_op {
    dibs__etcd_call rpc;
    dibs__etcd *e;
    dibs__entries_call *call;
    dibs__etcd_op *next; /* among those that wait for a session, or for its renewal */
    dibs__deadline until;
    int64_t lease;    /* enter: the session that the entry is to belong to; linger: its lease */
    int64_t lock_rev; /* enter: what the lock's value must not have changed since */
    int tries;
    bool guessed;     /* enter: the lock's value is taken to be what it usually is */
    bool value_lease; /* the transaction puts the lock's value */
    bool shelved; /* the lease of the value was made since the session was last known to be there */
    unsigned slot;
    bool by_tail;        /* enter: asks for the end of the queue alone */
    bool seen_long;      /* enter: another try has seen that it is long */
    bool no_tail;        /* enter: removes that end, because the queue is short */
    size_t counted;      /* enter: which answer tells how long the queue is; 0: none */
    bool head;           /* remove: writes where the queue begins */
    bool strict;         /* list: linearizable */
    uint64_t below;      /* list: entries before this place */
    int parts;           /* check: answers to come; with the mutex */
    dibs__deadline ends; /* linger */
    bool (*again)(dibs__etcd_op *op);
};

/* How a new session comes about: see session.c. */
typedef enum dibs__etcd_step {
    DIBS__ETCD_NO_STEP,
    DIBS__ETCD_REVOKES,
    DIBS__ETCD_GRANTS,
    DIBS__ETCD_GUARDS,
} dibs__etcd_step;

struct dibs__etcd {
    dibs__entries_backend backend; /* first */
    dibs__etcd_client *client;
    const dibs__env *env;
    char prefix[DIBS__ETCD_PREFIX_MAX + 1];
    int64_t request_span;
    int64_t ttl; /* of the session */
    pthread_mutex_t lock;
    int64_t lease;          /* the session; 0: none */
    int64_t old;            /* one that is over, and that the server may still have */
    bool opened, closing;   /* the first session stood; there is to be no other */
    uint64_t guard_tag;     /* of the watch of its key */
    dibs__etcd_step step;   /* of a new session that is on its way */
    dibs__deadline granted; /* when it was asked for */
    dibs__etcd_call grant;
    int64_t grant_id;
    dibs__etcd_op *waiting; /* for a session */
    dibs__etcd_op *proving; /* for its renewal */
    dibs__table watched;    /* by tag */
    dibs__table awaited;    /* cells, by tag */
    pthread_cond_t stands;  /* the watch of one of them does */
    uint64_t tags;
    dibs__table slots;   /* of attempts whose entries may exist */
    uint64_t *slot_used; /* a bit each */
    size_t slot_words;
    struct dibs__etcd_lingering *lingering; /* given back, to be removed at their time */
    struct {
        int64_t lease;
        dibs__deadline at;
    } touched[16]; /* leases of names, and when they were put off last */
    struct {
        int64_t span, lease;
        dibs__deadline until;
    } heartbeat[4]; /* leases for keep-alives of runs */
    _Atomic unsigned enters;
    _Atomic uint64_t lengthy[64]; /* hashes of names whose queue was long when we looked last */
};

/* ---- op.c: what every call does -------------------------------------------------------------- */

/* NULL: out of memory. */
dibs__etcd_op *dibs__etcd_op_new(dibs__entries_backend *s, dibs__entries_call *call);
/* false: out of memory; the op is as it was. */
bool dibs__etcd_op_send(dibs__etcd_op *op, dibs__etcd_kind kind, const char *method,
                        const ProtobufCMessage *request, dibs__etcd_done_fn *done);
/* For a slot: DIBS_OK, or the op is freed and the call was not started. */
dibs_status dibs__etcd_op_started(dibs__etcd_op *op, bool ok);
/* On the client's thread: as op_send, and the call is completed if that fails. */
void dibs__etcd_op_go_on(dibs__etcd_op *op, bool ok);
/* On the client's thread: completes the call with what is in it, and frees the op. */
void dibs__etcd_op_done(dibs__etcd_op *op);
void dibs__etcd_op_fail(dibs__etcd_op *op, dibs_status status, const char *why);
/* The answer, or NULL when there is none; then call->status and call->err say why. */
void *dibs__etcd_op_answer(dibs__etcd_op *op, const ProtobufCMessageDescriptor *type);

/* ---- key.c: keys and requests ---------------------------------------------------------------- */

typedef struct dibs__etcd_key {
    size_t length;
    char text[DIBS__ETCD_KEY_SIZE];
} dibs__etcd_key;

/* What the recipe calls a key is "BODY~SLOT~PLACE" for entries of ours, and the key itself for
 * strangers'. */
void dibs__etcd_entry_key(const dibs__etcd *e, const char *name, const char *key,
                          dibs__etcd_key *out);
/* Its creation revision; 0: a stranger's. */
int64_t dibs__etcd_place_of(const char *key);
/* Is it there, and not another that has the key now? */
void dibs__etcd_compare_entry(Etcd__Compare *c, const dibs__etcd_key *entry, const char *key);
bool dibs__etcd_is_entry(const Etcd__RangeResponse *r, int64_t place);
void dibs__etcd_value_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out);
void dibs__etcd_tail_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out);
void dibs__etcd_head_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out);
/* The lease of a name's value: the same for everybody. */
int64_t dibs__etcd_value_lease(const dibs__etcd *e, const char *name);
ProtobufCBinaryData dibs__etcd_bytes(const dibs__etcd_key *key);
ProtobufCBinaryData dibs__etcd_text(const char *text);

/* A request with room for its parts: `at` points to what the caller fills. */
void dibs__etcd_compare(Etcd__Compare *c, const dibs__etcd_key *key,
                        Etcd__Compare__CompareTarget target, int64_t number);
void dibs__etcd_range(Etcd__RangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key);
void dibs__etcd_put(Etcd__PutRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key,
                    const char *value, int64_t lease);
void dibs__etcd_delete(Etcd__DeleteRangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key);
void dibs__etcd_nested(Etcd__TxnRequest *r, Etcd__RequestOp *op);
/* All entries of a lock, the youngest first. `key` and `end` must last. */
void dibs__etcd_range_queue(Etcd__RangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key,
                            const dibs__etcd_key *end);
void dibs__etcd_end_of(const dibs__etcd_key *key, dibs__etcd_key *out);

/* ---- listing.c: from answers to listings ----------------------------------------------------- */

/* Adds the entries of an answer; `below` leaves out what is not older. false: out of memory. */
bool dibs__etcd_listing_fill(dibs__entries_listing *l, const dibs__etcd *e, const char *name,
                             const Etcd__RangeResponse *r, uint64_t below, bool values);
/* Takes the lock's own value out of an answer. */
bool dibs__etcd_listing_value(dibs__entries_listing *l, const Etcd__RangeResponse *r);
/* The entry at the end of the queue, as the tail tells it: nothing of ours is between it and the one
 * that comes after it. It may be gone already. */
bool dibs__etcd_listing_tail(dibs__entries_listing *l, const Etcd__KeyValue *tail);

/* ---- slot.c ---------------------------------------------------------------------------------- */

/* The attempt's number, the same when it asks again. false: out of memory. */
bool dibs__etcd_slot_take(dibs__etcd *e, const char *attempt, bool by_tail, unsigned *out);
/* May the end of the queue tell of its entry? Also true when the attempt is not known. */
bool dibs__etcd_slot_by_tail(dibs__etcd *e, const char *attempt, size_t length);
/* Its entry is not there, and will not be. `reuse`: the key is free. */
void dibs__etcd_slot_drop(dibs__etcd *e, const char *attempt, size_t length, bool reuse);
void dibs__etcd_slots_clear(dibs__etcd *e); /* with the lock: the session is another */
void dibs__etcd_slots_fini(dibs__etcd *e);

/* ---- session.c ------------------------------------------------------------------------------- */

/* Asks for the first one and waits. The server's choice must be what was asked for. */
dibs_status dibs__etcd_session_open(dibs__etcd *e, dibs__deadline until, dibs_error *err);
int64_t dibs__etcd_lease_id(const dibs__etcd *e); /* a number for a new one */
/* Runs `dibs__etcd_enter_send` of the op under a session, now or when there is one. false: out of
 * memory. */
bool dibs__etcd_session_need(dibs__etcd_op *op);
/* The server does not know it any more. */
void dibs__etcd_session_gone(dibs__etcd *e, int64_t lease);
void dibs__etcd_session_end(dibs__etcd *e);
/* Makes one if there is none: after a failure. */
void dibs__etcd_session_retry(dibs__etcd *e);
/* False: the tag is not that of the session's key. */
bool dibs__etcd_session_event(dibs__etcd *e, uint64_t tag, dibs__etcd_news news);
void dibs__etcd_on_lease_over(void *ctx, int64_t lease);
void dibs__etcd_on_lease_renewed(void *ctx, bool proved);
/* On the client's thread: makes the lease of a name's value, then runs `op->again`. */
void dibs__etcd_value_lease_make(dibs__etcd_op *op, bool (*again)(dibs__etcd_op *op));
/* Puts its end off, at most once an hour. */
void dibs__etcd_value_lease_touch(dibs__etcd *e, const char *name);

/* ---- The slots ------------------------------------------------------------------------------- */

bool dibs__etcd_enter_send(dibs__etcd_op *op);
/* Whether the queue of that lock was long when this handle looked last. */
bool dibs__etcd_is_long(dibs__etcd *e, const char *name);
dibs_status dibs__etcd_enter(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__etcd_list(dibs__entries_backend *s, dibs__entries_call *call);
/* Asks who is before that place, and completes the call. */
bool dibs__etcd_send_ahead(dibs__etcd_op *op, uint64_t below);
dibs_status dibs__etcd_names(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__etcd_watch_entry(dibs__entries_backend *s, dibs__entries_call *call);
void dibs__etcd_on_watched(void *ctx, uint64_t tag, dibs__etcd_news news);
void dibs__etcd_watched_fini(dibs__etcd *e);
dibs_status dibs__etcd_remove(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__etcd_linger(dibs__entries_backend *s, dibs__entries_call *call);
void dibs__etcd_on_alarm(void *ctx);
void dibs__etcd_lingering_fini(dibs__etcd *e);
dibs_status dibs__etcd_check(dibs__entries_backend *s, dibs__entries_call *call);
void dibs__etcd_check_proved(dibs__etcd_op *op, bool proved);
dibs_status dibs__etcd_write(dibs__entries_backend *s, dibs__entries_call *call);

/* ---- heartbeat.c ---------------------------------------------------------------------------------- */

/* A lease that lasts `span` from now at the least. Blocks. */
dibs_status dibs__etcd_heartbeat_lease(dibs__etcd *e, int64_t span, dibs__deadline until,
                                       int64_t *lease, dibs_error *err);
void dibs__etcd_heartbeat_gone(dibs__etcd *e,
                               int64_t lease); /* the server may not know it any more */

/* ---- cell.c and await.c ---------------------------------------------------------------------- */

#define DIBS__ETCD_CELL_KEY_SIZE                                                                   \
    (DIBS__ETCD_PREFIX_MAX + DIBS__ENTRIES_CELL_KEY_SIZE + sizeof((dibs__entries_turn *)0)->name + \
     8)
ProtobufCBinaryData dibs__etcd_cell_key(const dibs__etcd *e, const char *folder, const char *key,
                                        char room[DIBS__ETCD_CELL_KEY_SIZE]);
dibs_status dibs__etcd_cells_read(dibs__entries_backend *s, dibs__entries_blob *blobs, size_t count,
                                  dibs__deadline until, dibs_error *err);
dibs_status dibs__etcd_cells_write(dibs__entries_backend *s, const dibs__entries_blob *blobs,
                                   size_t count, dibs__deadline until, uint64_t *number,
                                   dibs_error *err);
dibs_status dibs__etcd_cells_walk(dibs__entries_backend *s, const char *folder, const char *after,
                                  size_t limit, dibs__deadline until, dibs__entries_blob **out,
                                  size_t *count, dibs_error *err);
dibs_status dibs__etcd_cells_watch(dibs__entries_backend *s, dibs__entries_blob *blob, void **out,
                                   dibs__deadline until, dibs_error *err);
void dibs__etcd_cells_unwatch(dibs__entries_backend *s, void *watch);
/* queue.c */
ProtobufCBinaryData dibs__etcd_queue_key(const dibs__etcd *e, const dibs__entries_blob *cell,
                                         const dibs__entries_turn *t,
                                         char room[DIBS__ETCD_CELL_KEY_SIZE]);
/* Everybody who is in it. The rooms last as long as the request. */
void dibs__etcd_queue_range(const dibs__etcd *e, const dibs__entries_blob *cell,
                            char room[2][DIBS__ETCD_CELL_KEY_SIZE], Etcd__RangeRequest *range);
dibs_status dibs__etcd_cells_join_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                        dibs__entries_turn *t, dibs__deadline until, size_t *ahead);
void dibs__etcd_cells_leave_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                  dibs__entries_turn *t);
/* False: the tag is not a cell's. */
bool dibs__etcd_cell_event(dibs__etcd *e, uint64_t tag, dibs__etcd_news news);

/* etcd.c: what the URL says, into `address`, `e->prefix` and `e->ttl`. `address` is to be finished in any case. */
#define DIBS__ETCD_PORT 2379
dibs_status dibs__etcd_read_url(const dibs__open_request *request, dibs__etcd *e,
                                dibs__etcd_address *address, dibs_error *err);

/* examine.c */
dibs_status dibs__etcd_examine(const dibs__open_request *request, dibs__facts *out,
                               dibs_error *err);

#endif
