/* What the files of families/rows share among themselves, and drivers do not need. */
#ifndef DIBS_FAMILIES_ROWS_INNER_H
#define DIBS_FAMILIES_ROWS_INNER_H

#include "families/rows/rows.h"

/* ---- batch.c --------------------------------------------------------------------------------- */

/* Room for one more after `count`: the array, perhaps moved; NULL: out of memory, it is as it was.
 */
void *dibs__sql_grown(void *array, size_t count, size_t *room, size_t each);

/* ---- rows.c: rows of the tables as the machine's structures ---------------------------------- */

void dibs__sql_read_record(const dibs__sql_value *cells, dibs__record *out, uint64_t *first_place);
void dibs__sql_read_holder(const dibs__sql_value *cells, dibs__holder *out);
void dibs__sql_read_waiter(const dibs__sql_value *cells, dibs__waiter *out);
void dibs__sql_read_text(const dibs__sql_value *cell, char *out, size_t size);
void dibs__sql_add_who(dibs__sql_batch *b, const dibs__asker *who);
void dibs__sql_add_record(dibs__sql_batch *b, const dibs__record *record, uint64_t first_place);
void dibs__sql_add_holder(dibs__sql_batch *b, const dibs__holder *holder);
void dibs__sql_add_waiter(dibs__sql_batch *b, const dibs__waiter *waiter);
void dibs__sql_add_nobody(dibs__sql_batch *b);

/* ---- session.c: one lock inside one transaction ---------------------------------------------- */

/* An entry that we know of: as the database has it, and what has become of it since. */
typedef struct dibs__sql_holding {
    dibs__holder holder;
    bool stored, changed, dropped;
} dibs__sql_holding;

typedef struct dibs__sql_place {
    dibs__waiter waiter;
    bool stored, changed, dropped;
} dibs__sql_place;

typedef struct dibs__sql_session {
    dibs__sql *e;
    dibs__conn_slot *conn_slot;
    dibs__deadline until;
    dibs_error *err;
    const char *name;
    dibs__sql_task **task; /* the commands on this lock, in order */
    size_t task_count;
    dibs__sql_value *owners; /* those of the commands */
    size_t owner_count, owner_room;
    char **sought; /* our copies of the owners that were asked for later */
    size_t sought_count, sought_room;
    dibs__time now;
    bool exists;
    bool durable; /* what was written must survive a crash of the server */
    dibs__record record, loaded;
    uint64_t first_place, loaded_first;
    bool held, loaded_held; /* by one exclusive holder, which is kept in the lock's row */
    bool held_changed;
    dibs__holder holder;
    /* Entries in tables of their own. What we do not know of is not below these bounds. */
    dibs__sql_holding *holding;
    size_t holding_count, holding_room;
    dibs__sql_place *place;
    size_t place_count, place_room;
    int64_t limit;
    bool queue_only; /* holders were not looked at */
    int64_t expires_bound;
    uint64_t fence_bound, place_bound;
    size_t seen_expires, seen_fence, seen_place; /* rows of each kind in this look */
    dibs__sql_value *drops;
    size_t drop_room;
    dibs__sql_notice *notice;
    size_t notice_count, notice_room;
    dibs_status status; /* why the store failed */
    /* For a report: all entries, read with the lock's row locked. */
    dibs__holder *shown;
    size_t shown_count, shown_room;
    dibs__waiter *shown_queue;
    size_t shown_queue_count, shown_queue_room;
} dibs__sql_session;

void dibs__sql_session_fini(dibs__sql_session *s);
/* One more owner whose entries will be asked for. 0, or -1: out of memory. */
int dibs__sql_session_owner(dibs__sql_session *s, const char *owner);
/* Adds LOCK and LOOK (after MAKE if `make`) to the batch. `hint` as in hint.c. */
void dibs__sql_session_ask(dibs__sql_session *s, dibs__sql_batch *b, bool make, unsigned hint);
/* A row of the answer to LOCK or LOOK. 0, or -1: out of memory. */
int dibs__sql_session_row(dibs__sql_session *s, dibs__sql_op op, const dibs__sql_value *cells);
/* Adds everything that has changed, and the wake-ups for other handles. */
void dibs__sql_session_write(dibs__sql_session *s, dibs__sql_batch *b);

/* Writes what was collected and reads the entries anew, more of them. 0, or -1: `status` says why.
 */
int dibs__sql_session_wider(dibs__sql_session *s);
/* The same, with all entries of that owner. */
int dibs__sql_session_seek(dibs__sql_session *s, const char *owner);
/* The entries that we know of; NULL: none, or out of memory. */
dibs__sql_holding *dibs__sql_holding_of(dibs__sql_session *s, uint64_t fence);
dibs__sql_holding *dibs__sql_holding_new(dibs__sql_session *s);
dibs__sql_place *dibs__sql_place_of(dibs__sql_session *s, uint64_t place);
dibs__sql_place *dibs__sql_place_new(dibs__sql_session *s);

/* ---- store.c: the state machine's store over a session --------------------------------------- */

extern const dibs__store dibs__sql_store;

/* ---- tasks.c --------------------------------------------------------------------------------- */

/* Tasks that are done together, on one connection. */
typedef struct dibs__sql_tasks {
    dibs__sql *e;
    dibs__conn_slot *conn_slot;
    dibs__sql_task **task; /* those not done yet, sorted by name */
    size_t count;
    bool company; /* of several names, or of somebody who waits for no row */
    dibs__deadline until;
    dibs_error *err;
} dibs__sql_tasks;

/* Does `count` tasks on that connection slot; every one has its status afterwards. `tasks` is put in order.
 * `err` is of the last that failed. */
void dibs__sql_tasks_do(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_task *tasks[],
                        size_t count, dibs__deadline until, dibs_error *err);
/* Sees to it that the connection slot has a connection that seems to work. */
dibs_status dibs__conn_slot_ready(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                  dibs_error *err);
/* Closes a connection that is broken. */
void dibs__conn_slot_give_up(dibs__sql *e, dibs__conn_slot *conn_slot);
/* Ends the open transaction without its effects; closes a broken connection. */
void dibs__conn_slot_rollback(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until);
/* Whether, and for how long, the row of that name is waited for by who has it to himself. */
void dibs__conn_slot_waits(dibs__sql *e, dibs__conn_slot *conn_slot, uint64_t hash);
void dibs__conn_slot_waited(dibs__sql *e, dibs__conn_slot *conn_slot); /* afterwards */
/* Sends the connection slot's batch; closes a broken connection. */
dibs_status dibs__conn_slot_exchange(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                     dibs_error *err);
/* How many tasks from `at` on are of one name. */
size_t dibs__sql_tasks_group(const dibs__sql_tasks *ts, size_t at);

/* Marks those whose row is locked. */
void dibs__sql_tasks_mark_locked(dibs__sql_tasks *ts, size_t first, size_t count);

/* fast.c, general.c: one try. DIBS_OK: what could be done this way is marked as done (general:
 * all). Else nothing was done, or DIBS_UNKNOWN. */
dibs_status dibs__sql_fast(dibs__sql_tasks *ts);
dibs_status dibs__sql_general(dibs__sql_tasks *ts);

/* ---- hint.c: what is known of a name without asking ------------------------------------------ */

#define DIBS__SQL_SEEN  1u  /* its row is there */
#define DIBS__SQL_LINE  2u  /* some wait */
#define DIBS__SQL_HELD  4u  /* some hold */
#define DIBS__SQL_CROWD 8u  /* and share it */
#define DIBS__SQL_STUCK 16u /* another session kept its row locked */

unsigned dibs__sql_hint(dibs__sql *e, uint64_t hash);
void dibs__sql_hint_set(dibs__sql *e, uint64_t hash, unsigned hint);
void dibs__sql_hint_stuck(dibs__sql *e, uint64_t hash, bool stuck);

/* ---- keep.c --------------------------------------------------------------------------------- */

/* Does the job's tasks on that connection slot; every one has its status afterwards. */
void dibs__sql_keep_batch(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                          dibs_error *err);

/* ---- stray.c --------------------------------------------------------------------------------- */

/* Memory for noting that the connection slot's connection was given up; false: there is none. */
bool dibs__sql_stray_reserve(dibs__conn_slot *conn_slot);
/* The connection slot's connection is given up, and a request on it may be unanswered. */
void dibs__sql_stray_add(dibs__sql *e, dibs__conn_slot *conn_slot);
/* Before anything newer is sent. DIBS_OK: there are no strays any more. */
dibs_status dibs__sql_strays_end(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                 dibs_error *err);
void dibs__sql_stray_fini(dibs__sql *e);

/* ---- dispatch.c ------------------------------------------------------------------------------------ */

/* Returns when the job is done; its tasks have their statuses. */
void dibs__sql_do(dibs__sql *e, dibs__sql_job *job);

/* ---- cell.c ---------------------------------------------------------------------------------- */

/* Sees to it that the tables of the cells are there. Without `make` it only looks: DIBS_NOT_FOUND. A broken
 * connection is closed. */
dibs_status dibs__sql_cells_ready(dibs__sql *e, dibs__conn_slot *conn_slot, bool make,
                                  dibs__deadline until, dibs_error *err);

/* ---- notice.c -------------------------------------------------------------------------------- */

void dibs__sql_notice_deliver(dibs__sql *e, const dibs__sql_notice *n);
void dibs__sql_mail_add(dibs__sql_mail *mail, const dibs__sql_notice *n);
void dibs__sql_mail_deliver(dibs__sql *e, dibs__sql_mail *mail); /* and frees it */

/* ---- reap.c ---------------------------------------------------------------------------------- */

#define DIBS__SQL_REAP_INTERVAL (600 * DIBS__SECOND)

/* Now and then: drops what nobody has used for a day. */
void dibs__sql_reap(dibs__sql *e);

#endif
