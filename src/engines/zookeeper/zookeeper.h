/* ZooKeeper, as an adapter of the queue (see src/families/entries/entries.h).
 *
 *   zookeeper.c   the URL and the tables
 *   session.c     connection, session, and the thread that keeps both
 *   proof.c       until when the session surely lives
 *   op.c          requests and their answers
 *   enter.c list.c entry.c watch.c   the calls
 *   known.c       what is known of a lock that was entered before
 *   cell.c        cells; walk.c: all of them, for the reaper; queue.c: who wants to change one; exchange.c: the answers that callers wait for
 *   stray.c       places in such queues that nobody wants any more
 *   watches.c     how many watches the library has, and when there must not be more
 *   lingering.c        entries that linger until their min_hold is over
 *
 * A lock is a container node ROOT/NAME, which the server removes when it has been empty for a while;
 * its entries are ephemeral sequential nodes KEY__lock__SEQUENCE (exclusive), KEY__rlock__SEQUENCE
 * (shared) and KEY__slot__SEQUENCE, so that kazoo's locks and ours respect each other. The fence is
 * the czxid of the entry. */
#ifndef DIBS_ENGINES_ZOOKEEPER_H
#define DIBS_ENGINES_ZOOKEEPER_H

#include "core/table.h"
#include "families/entries/cell.h"
#include "families/entries/entries.h"

#include <pthread.h>
#include <zookeeper/zookeeper.h>

#define DIBS__ZK_STAMPS 64
#define DIBS__ZK_KNOWN  256

typedef struct dibs__zk_lingering dibs__zk_lingering;
typedef struct dibs__zk_op dibs__zk_op;
typedef struct dibs__zk_stray dibs__zk_stray;

/* When our keep-alives were sent; see proof.c. */
typedef struct dibs__zk_proof {
    dibs__deadline touch[DIBS__ZK_STAMPS]; /* a ring: requests that were answered */
    size_t touches;
    dibs__deadline last;  /* of all answered ones, the latest */
    dibs__deadline base;  /* the ensemble has counted a keep-alive that was sent then */
    dibs__deadline tried; /* the last proof was sent */
} dibs__zk_proof;

/* A lock's value as it was read last, so that it need not be read again while it is the same node and
 * version; and our entry that held it last, alone, so that the queue need not be read either (known.c). */
typedef struct dibs__zk_known {
    char *path; /* of the lock; NULL: nothing */
    int64_t czxid;
    int32_t version;
    char value[64];
    dibs__deadline read_at;
    uint64_t last_place,
        last_fence; /* of that entry, which we have removed; fence 0: there is none */
    bool follows;   /* the entry after it was ours too */
} dibs__zk_known;

/* What a listing of a folder of cells brought, in order; see walk.c. */
typedef struct dibs__zk_name_list {
    char **name;
    size_t count, next; /* those before `next` were walked over */
    bool cut;           /* there were more behind them */
    dibs__deadline at;
} dibs__zk_name_list;

typedef enum dibs__zk_state {
    DIBS__ZK_STARTING, /* no session yet */
    DIBS__ZK_OPEN,     /* there is one, connected or not */
    DIBS__ZK_EXPIRED,  /* a new one is to be made */
    DIBS__ZK_REFUSED,  /* open fails: `why` */
} dibs__zk_state;

typedef struct dibs__zk {
    dibs__entries_backend backend; /* first */
    char *hosts;                   /* as libzookeeper takes them */
    char *root;                    /* path of the folder of locks; "" for the top */
    char *auth;                    /* "user:password", or NULL */
    const struct ACL_vector *acl;
    int64_t asked;        /* session, microseconds; fixed once it is open */
    bool exact;           /* it was asked for by the user */
    int64_t session_span; /* as the server granted it; 0: not yet */

    pthread_mutex_t mutex; /* all of the following; held while requests are handed to the library */
    pthread_cond_t cond;
    zhandle_t *zh;
    dibs__zk_state state;
    bool connected;
    bool leaving; /* this connection is given up, with its session */
    bool ending;
    dibs_error why;  /* refused: open fails with it */
    dibs_error last; /* why there is no connection, as far as the library tells */
    int64_t granted; /* the span of the last session */
    uint64_t session;
    dibs__deadline init_at; /* before the connection was asked for */
    dibs__deadline stepped; /* the next server was taken */
    dibs__zk_proof proof;
    dibs__zk_op *open; /* answers are awaited */
    struct dibs__zk_exchange *exchanges;
    dibs__zk_lingering *lingering; /* timers */
    dibs__zk_stray *strays;
    dibs__table watches; /* by path, and how long a request for all of them is */
    size_t watch_bytes;
    dibs__zk_known known[DIBS__ZK_KNOWN];
    int64_t server_time; /* Unix time of the server, µs, at `server_time_at` or before */
    dibs__deadline server_time_at;
    int64_t clock; /* what the leader's showed at `clock_at` or before, for cells; 0: not asked */
    dibs__deadline clock_at;
    dibs__zk_name_list names[2]; /* of "%c" and "%r" */
    unsigned connections;        /* so far: each may lead to another leader */
    pthread_t thread;
    bool thread_runs;
} dibs__zk;

/* ---- session.c ------------------------------------------------------------------------------- */

/* zookeeper.c */
#define DIBS__ZK_PORT 2181
dibs__zk *dibs__zk_new(const dibs__env *env); /* NULL: out of memory */
/* What the URL says: hosts, root, auth, acl, asked, exact. */
dibs_status dibs__zk_read_url(const dibs__open_request *request, dibs__zk *z, dibs_error *err);
void dibs__zk_free(dibs__zk *z);
dibs_status dibs__zk_connect(dibs__zk *z, dibs__deadline until, dibs_error *err);
void dibs__zk_close(dibs__entries_backend *s);
void dibs__zk_abandon(dibs__entries_backend *s);

/* ---- proof.c: with the mutex ----------------------------------------------------------------- */

void dibs__zk_proof_reset(dibs__zk *z, dibs__deadline at); /* a new session, asked for then */
void dibs__zk_proof_moved(dibs__zk *z); /* connected again: the ensemble has been told */
/* A request that was sent then was answered; `quorum`: it needed a quorum. */
void dibs__zk_proof_answered(dibs__zk *z, dibs__deadline sent, bool quorum);
dibs__deadline dibs__zk_proof_until(const dibs__zk *z);
/* When the next request is due, and which: a proof or a mere touch. */
dibs__deadline dibs__zk_proof_due(const dibs__zk *z);
int64_t dibs__zk_usable(const dibs__entries_backend *s);
dibs__deadline dibs__zk_alive_until(dibs__entries_backend *s);

/* ---- op.c ------------------------------------------------------------------------------------ */

/* One answer that is awaited, with what it is about. */
typedef struct dibs__zk_item {
    dibs__zk_op *op;
    const char *key; /* in the call, or in the listing */
    int rc;
    bool over; /* kept, and its time has passed */
    char *value;
    struct Stat stat;
} dibs__zk_item;

/* A call under way: one or several flushes of requests. */
struct dibs__zk_op {
    dibs__zk *z;
    dibs__entries_call *call;
    void (*next)(dibs__zk_op *op);  /* when all answers of a flush are here; without the mutex */
    void (*done)(dibs__zk_op *op);  /* instead of answering the call; NULL: answers it */
    void (*after)(dibs__zk_op *op); /* a listing: when it is complete */
    dibs__zk_op *whole;             /* names: of which this is a part */
    dibs__deadline sent;
    size_t left; /* answers that are awaited; then it is in z->open */
    dibs__zk_op *next_open, **at_open;
    int rc; /* of create, delete, multi */
    int lock_rc, list_rc, sync_rc;
    bool watching; /* watch: it is set with the look */
    int tries;
    uint64_t session;
    dibs__zk_known lock; /* enter: what is known of the lock */
    bool lock_known;     /* the same, as of the request */
    bool alone;          /* enter: made without a look at the queue */
    dibs__entries_listing *listing;
    dibs__zk_item *item;
    size_t items;
    zoo_op_t *multi;
    zoo_op_result_t *multi_result;
    struct Stat stat;                 /* of a multi's first set */
    char key[DIBS__ENTRIES_KEY_SIZE]; /* watch: the entry's, or that under which it lingers */
    size_t lock_length;
    char path[]; /* of the lock, and room for a key behind it */
};

/* NULL: out of memory. `call` may be NULL when `done` will be set. */
dibs__zk_op *dibs__zk_op_new(dibs__zk *z, dibs__entries_call *call, const char *name);
void dibs__zk_op_free(dibs__zk_op *op);
bool dibs__zk_op_items(dibs__zk_op *op, size_t count); /* false: out of memory */

/* A flush: begin takes the mutex; then requests; end leaves it. From a slot: DIBS_OK, or the op is
 * freed and nothing was sent. From `next`: `finish` is called if nothing could be sent. */
dibs_status dibs__zk_flush_begin(dibs__zk_op *op, void (*next)(dibs__zk_op *op));
dibs_status dibs__zk_flush_end(dibs__zk_op *op);
/* The same for a following flush, filled by `fill`. */
void dibs__zk_follow(dibs__zk_op *op, void (*fill)(dibs__zk_op *op), void (*next)(dibs__zk_op *op));
/* A request was handed over, or not. */
void dibs__zk_sent(dibs__zk_op *op, int rc, int *where);

/* Answers the call and frees the op. */
void dibs__zk_finish(dibs__zk_op *op, int rc);
void dibs__zk_finish_ok(dibs__zk_op *op);
void dibs__zk_finish_no_memory(dibs__zk_op *op);

/* The path of an entry; valid until the next call for this op. */
const char *dibs__zk_entry_path(dibs__zk_op *op, const char *key);
const char *dibs__zk_lock_path(dibs__zk_op *op);

/* Completions for the library: data is an op, or an item. */
void dibs__zk_on_sync(int rc, const char *value, const void *data);
void dibs__zk_on_lock(int rc, const char *value, int size, const struct Stat *stat,
                      const void *data);
void dibs__zk_on_children(int rc, const struct String_vector *names, const struct Stat *stat,
                          const void *data);
void dibs__zk_on_void(int rc, const void *data);
void dibs__zk_on_item_stat(int rc, const struct Stat *stat, const void *data);
void dibs__zk_on_item_data(int rc, const char *value, int size, const struct Stat *stat,
                           const void *data);
/* One more answer is here: with the last one the op goes on. */
void dibs__zk_answered(dibs__zk_op *op, int rc, bool quorum);
void dibs__zk_op_closed(dibs__zk_op *op); /* out of z->open; with the mutex */
/* The library has closed its handle: what it has not answered it never will. Without the mutex. */
void dibs__zk_ops_lost(dibs__zk *z);

dibs_status dibs__zk_status(int rc);
dibs_status dibs__zk_fail(const dibs__zk *z, int rc, dibs_error *err);

/* Where an entry stands, by the sequence number at the end of its key. */
#define DIBS__ZK_NOWHERE UINT64_MAX       /* it has none: no entry */
#define DIBS__ZK_BY_ZXID (UINT64_MAX - 1) /* too high to be relied on: place_by tells */
uint64_t dibs__zk_place(const char *key);
uint64_t dibs__zk_place_by(const char *key, const struct Stat *stat);
bool dibs__zk_is_late(uint64_t place); /* not by its sequence number */
/* What somebody else's entry weighs, by the recipes of kazoo and Curator; 0: no entry. */
uint32_t dibs__zk_foreign_weight(const char *key);

/* ---- The calls ------------------------------------------------------------------------------- */

dibs_status dibs__zk_enter(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_list(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_names(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_watch(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_remove(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_linger(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_check(dibs__entries_backend *s, dibs__entries_call *call);
dibs_status dibs__zk_write(dibs__entries_backend *s, dibs__entries_call *call);

/* list.c: requests for a lock's value and children, into op->listing; with the mutex. */
void dibs__zk_ask_listing(dibs__zk_op *op);
/* The children are here: asks for their values if these are wanted, and for those that linger; leaves
 * out what has lingered long enough; then `next`. Without the mutex. */
void dibs__zk_complete_listing(dibs__zk_op *op, bool values, void (*next)(dibs__zk_op *op));

/* ---- known.c: what is known of the op's lock ---------------------------------------------------- */

bool dibs__zk_recall(dibs__zk_op *op); /* into op->lock; false: nothing. With the mutex. */
/* The listing has told the lock's value. */
void dibs__zk_remember(dibs__zk_op *op);
/* Our new entry comes right behind the one that was ours, in the same node: nobody is ahead of it. */
bool dibs__zk_follows(const dibs__zk_op *op);
/* That is likely: a look can wait until it proves wrong. */
bool dibs__zk_may_follow(const dibs__zk_op *op);
void dibs__zk_note_entry(dibs__zk_op *op);   /* our entry was made */
void dibs__zk_note_removed(dibs__zk_op *op); /* it was first and alone, and is removed */
void dibs__zk_note_written(dibs__zk_op *op); /* the lock's value may be another */
void dibs__zk_known_free(dibs__zk *z);

/* ---- watches.c: with the mutex --------------------------------------------------------------- */

/* May this be watched? If so, the request is answered by one of: */
bool dibs__zk_watch_may(dibs__zk *z, const char *path);
void dibs__zk_watch_answered(dibs__zk *z, const char *path, bool stands);
void dibs__zk_watch_fired(dibs__zk *z, const char *path); /* it has changed: the watch is over */
void dibs__zk_watches_clear(dibs__zk *z);                 /* the library is closed */

/* ---- lingering.c ---------------------------------------------------------------------------------- */

/* How long an entry lingers yet, by what it stores and when it was made. */
int64_t dibs__zk_lingering_left(dibs__zk *z, const char *value, const struct Stat *stat);
/* Removes it then. Without the mutex. Out of memory: whoever comes next does. */
void dibs__zk_lingering_end_after(dibs__zk *z, const char *path, int64_t span);
/* Removes those whose time has come; when the next one is due. Without the mutex. */
dibs__deadline dibs__zk_lingering_serve(dibs__zk *z);
void dibs__zk_lingering_free(dibs__zk *z);
/* Does this entry linger when it is given back early? (watch.c) */
bool dibs__zk_may_linger(const char *key);
/* The key under which an entry lingers. */
void dibs__zk_lingering_key(const char *key, char out[DIBS__ENTRIES_KEY_SIZE]);

/* ---- cell.c ---------------------------------------------------------------------------------- */

dibs_status dibs__zk_cells_read(dibs__entries_backend *s, dibs__entries_blob *blobs, size_t count,
                                dibs__deadline until, dibs_error *err);
dibs_status dibs__zk_cells_write(dibs__entries_backend *s, const dibs__entries_blob *blobs,
                                 size_t count, dibs__deadline until, uint64_t *number,
                                 dibs_error *err);
dibs_status dibs__zk_cells_watch(dibs__entries_backend *s, dibs__entries_blob *blob, void **out,
                                 dibs__deadline until, dibs_error *err);
dibs_status dibs__zk_cells_clock(dibs__entries_backend *s, dibs__deadline until, int64_t *out,
                                 dibs_error *err);
/* walk.c */
dibs_status dibs__zk_cells_walk(dibs__entries_backend *s, const char *folder, const char *after,
                                size_t limit, dibs__deadline until, dibs__entries_blob **out,
                                size_t *count, dibs_error *err);
void dibs__zk_names_free(dibs__zk_name_list *n);
/* ROOT/FOLDER/KEY, or ROOT/FOLDER for the key "". NULL: out of memory. */
char *dibs__zk_cell_path(const dibs__zk *z, const char *folder, const char *key);
/* The folder of that name, and what leads to it. */
dibs_status dibs__zk_make_folder(dibs__zk *z, const char *folder, dibs__deadline until,
                                 dibs_error *err);
/* queue.c: the path of a cell's queue, or of one place in it. NULL: out of memory. */
char *dibs__zk_queue_path(const dibs__zk *z, const dibs__entries_blob *cell, const char *name);
dibs_status dibs__zk_cells_join_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                      dibs__entries_turn *t, dibs__deadline until, size_t *ahead);
void dibs__zk_cells_leave_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                dibs__entries_turn *t);
/* stray.c: removes a place of that session, now or later; with a tag: those below `path` whose names have
 * it. Without the mutex, like the next, which is as dibs__zk_lingering_serve. */
void dibs__zk_stray_add(dibs__zk *z, uint64_t session, const char *path, const char *tag,
                        int64_t after);
dibs__deadline dibs__zk_strays_serve(dibs__zk *z);
void dibs__zk_strays_free(dibs__zk *z);
/* exchange.c: as dibs__zk_ops_lost. */
void dibs__zk_exchanges_lost(dibs__zk *z);

/* examine.c */
dibs_status dibs__zk_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err);

#endif
