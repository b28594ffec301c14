/* What the SQL engines share: locks as rows, decided by the state machine here, not in the server.
 *
 * The work is divided so that an engine brings only its client library and its dialect:
 *
 *   slots.c    the slots of the engine table; opening and closing
 *   dispatch.c many threads, few connections: whoever finds one idle does everybody's commands
 *   tasks.c    a batch of commands: the fast way first, then the general way for the rest
 *   fast.c     one statement a command
 *   general.c  lock, look, decide, write
 *   session.c  one lock in one transaction: the rows that came, and what is to be written
 *   store.c    the state machine's store over a session
 *   rows.c     rows as the machine's structures
 *   batch.c    what is sent in one go
 *   hint.c     which fast statement would be in vain
 *   notice.c   wake-ups as text, and where they go
 *   inspect.c  listing
 *   reap.c     dropping what nobody has used for a day
 *   cell.c     cells and counters: a command that one statement can do, or lock, look, decide, write
 *   keep.c     keep-alives: holders first, and nobody waits for a row
 *   stray.c    connections that were given up: they are ended in the server first
 *   maintenance.c   cells: who waits for one, and dropping those that have ended
 *
 * A *driver* executes a `dibs__sql_batch`: a list of operations with arguments, all sent in one
 * message, each answered by rows in a fixed order of columns. It keeps the text of each operation in
 * its own dialect; an operation may be several statements there, as long as rows in and rows out are
 * as listed. Everything is numbers (int64) and bytes (names, owners: any byte but NUL).
 *
 * A command takes one statement when a fast operation applies, else two exchanges:
 *
 *   BEGIN, LOCK the row, LOOK at what belongs to it and at the clock  →  the machine decides  →
 *   what it wrote, NOTIFY, COMMIT
 *
 * Commands of several threads go into one batch, sorted by name, so that batches cannot deadlock and
 * one commit serves many. The clock is read after the row is locked: an operation that waited for
 * its row sees the time at which it got it.
 *
 * Outcomes: nothing of a batch counts before its commit is answered. No answer to a batch that ends
 * with a commit is DIBS_UNKNOWN; every other failure is surely not done. */
#ifndef DIBS_FAMILIES_ROWS_H
#define DIBS_FAMILIES_ROWS_H

#include "core/table.h"
#include "engines/engine.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct dibs__sql dibs__sql;
typedef struct dibs__sql_driver dibs__sql_driver;
typedef struct dibs__conn_slot dibs__conn_slot;

/* ---- Values, operations, batches ------------------------------------------------------------- */

typedef enum dibs__sql_kind {
    DIBS__SQL_NULL,
    DIBS__SQL_NUMBER,
    DIBS__SQL_BYTES, /* `size` bytes; a zero follows them in arguments, not always in cells */
    DIBS__SQL_LIST,  /* `size` items, all numbers or all bytes, at least one: for ANY() or IN () */
} dibs__sql_kind;

typedef struct dibs__sql_value {
    dibs__sql_kind kind;
    int64_t number;
    const char *bytes;
    const struct dibs__sql_value *items;
    size_t size;
} dibs__sql_value;

/* Columns, in this order wherever they are named below:
 *   WHO     owner, attempt, host, pid, wake, weight, lease, min_hold                    (8)
 *   RECORD  capacity, used, holders, waiters, fence, place, broken_fence, broken_at,
 *           broken_by, first_place                                                      (10)
 *   HELD    WHO, held, since, expires, released: the exclusive holder, kept in the
 *           lock's own row; all NULL when there is none                                 (12)
 *   HOLDER  WHO, fence, since, expires, released: those who share a lock, and slots     (12)
 *   WAITER  WHO, place, since, span, alive_until                                        (12)
 * Text columns are bytes, all others numbers; released is 0 or 1. `first_place`: nobody in the queue
 * stands below it, so that the head is found without passing the dead rows of those before it.
 * "clock" is the server's Unix time in microseconds, read when the row is locked. A holder is *live*
 * while expires > clock, a waiter while alive_until > clock.
 *
 * A lock's row also has `listed`, the index of what a listing shows: > 0 if there are holders or waiters,
 * and maybe if not. Whatever makes a lock busy sets it, to 2 if the lock had been granted less than a
 * second before, else to 1; what makes it idle takes 1 back and leaves 2 to UNLIST. So a lock that is
 * used again and again changes no index.
 *
 * Fast operations answer a row only if they did all there was to do; else they change nothing:
 *
 *   TAKE    name, WHO (weight is DIBS__PLAIN)
 *           A plain lock that nobody holds (holders = 0, or the exclusive holder in the row is not
 *           live), nobody waits for (waiters = 0), with capacity 0 or DIBS__PLAIN, becomes held:
 *           capacity = used = DIBS__PLAIN, holders = 1, held = fence = max(fence + 1, clock), since =
 *           clock, expires = clock + lease, released = 0. A missing row may be created.  → fence
 *   GIVE    name, owner, attempt
 *           That live, not released, exclusive holder goes, if nobody waits and its min_hold is over
 *           (since + min_hold <= clock): used = holders = 0, HELD all NULL.               → fence
 *   HAND    name, owner, attempt, wake of this handle
 *           That live, not released, exclusive holder goes, if its min_hold is over and the first in the queue is
 *           live with weight DIBS__PLAIN: that one becomes the holder, with held = fence = max(fence + 1, clock),
 *           since = clock, expires = its alive_until, released = 0, and leaves the queue. If its wake is another
 *           handle's it is woken as by NOTIFY.   → waiters, wake and attempt of the new holder, fence
 *   JOIN    name, WHO (weight is DIBS__PLAIN, no other handle can use that owner), window
 *           If the lock has capacity DIBS__PLAIN and a live exclusive holder of another owner, and this owner does
 *           not wait for it: it stands at the end of the queue, with place = ++place of the lock, since = clock,
 *           span = min(window, lease), alive_until = clock + span. A first live one in the queue may be told so
 *           twice.                → remaining, and the other columns of TOUCH after it
 *   EXTEND  name, owner, attempt, lease, 1 if no other handle can use that owner
 *           That live, not released, exclusive holder with held >= broken_fence gets expires = clock
 *           + lease, if nobody waits or the last argument is 1: else its owner may be one of those who
 *           wait.                                                                         → fence
 *   TOUCH   name, list of owners, list of attempts
 *           If the lock has a live exclusive holder, every live waiter whose owner and attempt are in
 *           the lists gets alive_until = clock + span. The lock's row must be locked meanwhile: a
 *           hand-over must not overlook the new alive_until.
 *                       → for each that was touched: attempt, remaining (the first live one in the queue:
 *                         the holder's expires - clock; all others 0), the holder's expires - clock,
 *                         fence, pid, owner, host
 *
 * The general way, inside one transaction:
 *
 *   MAKE         name                     creates an empty row (all numbers 0) if there is none
 *   LOCK         name                     → RECORD, HELD; the row stays locked. No row: none there
 *   LOOK         name, limit, list of owners
 *                Comes after LOCK and must see everything committed before the lock was had.
 *                → kind, 12 columns of HOLDER or WAITER:
 *                  'c': only the 12th column is set: the clock
 *                  'e': the first `limit` holders by expires   'f': by fence
 *                  'h': the holders of the given owners, not the released ones
 *                  'w': the first `limit` waiters by place (place >= first_place)
 *                  'o': the waiters of the given owners
 *                An entry may come in several kinds. `kind` is a number, the character's code.
 *   LOOK_LINE    as LOOK, without 'e', 'f' and 'h': for locks that are not shared. Used if the driver
 *                lists it among its fast ones
 *   SAVE         name, RECORD, HELD
 *   HOLDER_ADD   name, HOLDER
 *   HOLDER_SET   name, fence, expires, released
 *   HOLDER_DROP  name, list of fences
 *   WAITER_ADD   name, WAITER
 *   WAITER_SET   name, place, attempt, host, pid, wake, lease, min_hold, span, alive_until
 *   WAITER_DROP  name, list of places
 *   NOTIFY       wake, text               a wake-up for another handle, if the commit succeeds. The
 *                                         text is what dibs__sql_notice_arrived understands
 *
 * Looking:
 *
 *   CLOCK                                 → clock
 *   SHOW_HOLDERS  name                    → HOLDER, by fence
 *   SHOW_WAITERS  name                    → WAITER, by place
 *   LIST_LOCKS    prefix                  → name, RECORD, HELD
 *   LIST_BUSY     prefix                  the same, of those with `listed` > 0
 *   LIST_HOLDERS  prefix                  → name, HOLDER, by name and fence
 *   REAP          after, limit            looks at `limit` locks whose name comes after that one.
 *                                         Drops those with holders = waiters = 0 and fence < clock -
 *                                         24 h (locked ones are left alone)
 *                                         → name of the last one looked at, if there was one
 *   UNLIST        limit                   listed = 0 for as many with holders = waiters = 0 and fence <
 *                                         clock - 1 s (locked ones are left alone)
 *   STALE         after, limit            → names, up to `limit`, after that one, with holders or
 *                                         waiters but fence < clock - 24 h
 *
 * Cells. CELL is version, floor, written, expires, number, counter, empty, stamp, data (9), in the
 * terms of state/cell.h; `expires` is INT64_MAX for never; counter and empty are 0 or 1. A cell is
 * *there* while empty = 0 and expires > clock. Beside them a row has `reap`: when it may be dropped,
 * which is at `expires`, but for one with a floor not before a day after the floor and `written`.
 * "keep" is 0 for ever (a counter's: as it is), a version of -1 is any, a fence of 0 is none, "tell" is
 * NULL or what those who wait for the cell are told if it changes. Those that change a cell on a
 * condition answer a row if they did; the new version is max(version + 1, clock), written = clock:
 *
 *   CELL_NEW         name, keep, stamp, data, fence, floor, tell
 *                    If it is not there and its floor <= fence: it is, and no counter. Its floor is not
 *                    below that given.
 *   CELL_SWAP        name, version, keep, stamp, data, fence, floor, tell
 *                    If it is there, no counter, of that version, with another stamp, its floor <= fence.
 *                    The same.
 *   CELL_DELETE      name, version, tell  without a fence
 *                    If it is there, no counter, of that version, floor = 0 and version < clock: gone.
 *   CELL_COUNT       name, times, number, least, most, keep, stamp
 *                    If it is there, a counter, with another stamp, least <= its number <= most: the
 *                    number is number * times + number.
 *   CELL_COUNT_ONCE  the same, request, request_keep (0: for ever)
 *                    If the request has no answer that lasts; then it has this one. After CELL_LOCK.
 *   CELL_PASS        name, fence, floor
 *                    If it is there, no counter, and its floor is below both: raised. Version and stamp
 *                    stay.
 *   CELL_MAKE        name                 an empty row without a version, if there is none
 *   CELL_LOCK        name                 the row stays locked → 1; no row: none there
 *   CELL_LOOK        name, request or NULL, stamp
 *                    → CELL (all NULL: none there; data NULL if the stamp is that), the number that the
 *                      request was answered or NULL, clock. Sees all that was committed before CELL_LOCK
 *   CELL_LIST        first, end, after, limit, head
 *                    → name, version, written, expires, length of data, the first `head` bytes of data, clock
 *                      of those that are there, no counters, first <= name < end, name > after; by name
 *   CELL_PUT         name, CELL (data NULL: as it is), reap, tell
 *   CELL_DROP        name, tell
 *   REQUEST_PUT      name, request, number, expires
 *   CELL_WAIT        name, version        somebody waits from now on for the next tell
 *                                         → 1 if it is still there with that version
 *   CELL_REAP        limit                drops as many whose `reap` has come and whose version the clock has
 *                                         passed, so that the next one is higher → how many
 *   REQUEST_REAP     limit                → how many
 */
#define DIBS__SQL_OPERATIONS(X) \
    X(TAKE)                     \
    X(GIVE)                     \
    X(HAND)                     \
    X(JOIN)                     \
    X(EXTEND)                   \
    X(TOUCH)                    \
    X(MAKE)                     \
    X(LOCK)                     \
    X(LOOK)                     \
    X(LOOK_LINE)                \
    X(SAVE)                     \
    X(HOLDER_ADD)               \
    X(HOLDER_SET)               \
    X(HOLDER_DROP)              \
    X(WAITER_ADD)               \
    X(WAITER_SET)               \
    X(WAITER_DROP)              \
    X(NOTIFY)                   \
    X(CLOCK)                    \
    X(SHOW_HOLDERS)             \
    X(SHOW_WAITERS)             \
    X(LIST_LOCKS)               \
    X(LIST_BUSY)                \
    X(LIST_HOLDERS)             \
    X(REAP)                     \
    X(UNLIST)                   \
    X(STALE)                    \
    X(CELL_NEW)                 \
    X(CELL_SWAP)                \
    X(CELL_DELETE)              \
    X(CELL_COUNT)               \
    X(CELL_COUNT_ONCE)          \
    X(CELL_PASS)                \
    X(CELL_MAKE)                \
    X(CELL_LOCK)                \
    X(CELL_LOOK)                \
    X(CELL_LIST)                \
    X(CELL_PUT)                 \
    X(CELL_DROP)                \
    X(REQUEST_PUT)              \
    X(CELL_WAIT)                \
    X(CELL_REAP)                \
    X(REQUEST_REAP)

typedef enum dibs__sql_op {
#define X(name) DIBS__SQL_##name,
    DIBS__SQL_OPERATIONS(X)
#undef X
        DIBS__SQL_OPS
} dibs__sql_op;

#define DIBS__SQL_WHO_COLUMNS    8
#define DIBS__SQL_RECORD_COLUMNS 10
#define DIBS__SQL_ENTRY_COLUMNS  12

typedef struct dibs__sql_command {
    dibs__sql_op op;
    size_t first, count; /* its arguments in the batch's values */
} dibs__sql_command;

typedef enum dibs__sql_mode {
    DIBS__SQL_WHOLE,    /* a transaction of its own, committed at its end */
    DIBS__SQL_BEGIN,    /* opens a transaction (READ COMMITTED) and leaves it open */
    DIBS__SQL_MORE,     /* inside the open one */
    DIBS__SQL_END,      /* inside the open one, then commits. May have no commands */
    DIBS__SQL_SNAPSHOT, /* WHOLE, reads only; all of it sees one moment, if the server can */
} dibs__sql_mode;

typedef struct dibs__sql_batch dibs__sql_batch;

/* A row of the answer to command number `command`. The cells are valid during the call. Returns 0,
 * or -1 when it is out of memory: the driver then ends the exchange like any other failure. */
typedef int (*dibs__sql_row_fn)(void *ctx, size_t command, const dibs__sql_value *cells,
                                size_t count);

struct dibs__sql_batch {
    dibs__sql_mode mode;
    bool
        durable; /* WHOLE, END: false when losing the commit in a crash of the server does no harm */
    dibs__sql_command *command;
    size_t count, room;
    dibs__sql_value *value; /* the arguments of all; bytes are borrowed */
    size_t value_count, value_room;
    bool failed; /* out of memory while it was built */
    dibs__sql_row_fn row;
    void *ctx;
};

/* batch.c: building. `reset` keeps the memory. */
void dibs__sql_batch_reset(dibs__sql_batch *b, dibs__sql_mode mode);
void dibs__sql_batch_fini(dibs__sql_batch *b);
void dibs__sql_add(dibs__sql_batch *b, dibs__sql_op op); /* then its arguments, in order: */
void dibs__sql_null(dibs__sql_batch *b);
void dibs__sql_number(dibs__sql_batch *b, int64_t number);
void dibs__sql_text(dibs__sql_batch *b, const char *text);
void dibs__sql_bytes(dibs__sql_batch *b, const void *data, size_t size);
void dibs__sql_items(dibs__sql_batch *b, const dibs__sql_value *items, size_t count);

static inline const dibs__sql_value *dibs__sql_args(const dibs__sql_batch *b,
                                                    const dibs__sql_command *c)
{
    return b->value + c->first;
}

/* ---- Drivers --------------------------------------------------------------------------------- */

/* The first member of a driver's own connection. Used by one thread at a time. */
typedef struct dibs__sql_conn {
    dibs__sql *e;
    uint64_t key; /* of the lock that this session holds in the server, see stray.c; 0: none */
    bool broken;  /* set by the driver: close it */
    bool
        again; /* set by a failed exchange: surely not done, and worth doing again at once (deadlock,
                    serialization failure, a statement that the server has forgotten, a connection
                    that had gone before anything was sent) */
    int64_t
        row_wait; /* set before an exchange that begins something: so long a row that is locked is
                         waited for, as far as the server can. 0: not at all */
    bool locked; /* set by a failed exchange: surely not done, because another session keeps the row
                    of command number `culprit` locked */
    size_t culprit;
} dibs__sql_conn;

struct dibs__sql_driver {
    const char *name; /* "postgresql": how messages begin */
    int64_t row_wait; /* so long a row that is locked is waited for, mostly */
    unsigned fast;    /* which fast operations there are: 1u << DIBS__SQL_TAKE | … */

    /* Connects and sets the session up; refuses servers that cannot do it. */
    dibs_status (*connect)(dibs__sql *e, dibs__deadline until, dibs__sql_conn **out,
                           dibs_error *err);
    void (*disconnect)(dibs__sql_conn *c); /* says goodbye if it can, never blocks */
    void (*abandon)(dibs__sql_conn *c); /* in a forked child: close the descriptor, say nothing */
    /* No I/O that blocks: has the server left meanwhile? */
    bool (*usable)(dibs__sql_conn *c);
    /* Once, at open: are the tables there and ours? Creates them if the account may; else DIBS_DENIED
     * and the message begins with what is missing and says `dibs schema` prints the SQL. */
    dibs_status (*prepare)(dibs__sql_conn *c, dibs__deadline until, dibs_error *err);
    /* The same for the tables of the cells, before the first command on one: whoever has only locks
     * does not need them, and tables of an older version go on as they are. Without `make` none are created:
     * DIBS_NOT_FOUND if they are not there. A refusal leaves the connection usable. */
    dibs_status (*prepare_cells)(dibs__sql_conn *c, bool make, dibs__deadline until,
                                 dibs_error *err);
    /* Sends all, reads all answers. DIBS_OK; DIBS_UNKNOWN: a commit may have happened; anything else:
     * surely not done, and no transaction is open any more. `broken` and `again` as above. */
    dibs_status (*exchange)(dibs__sql_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                            dibs_error *err);
    /* Ends the open transaction without its effects. */
    void (*rollback)(dibs__sql_conn *c, dibs__deadline until);

    /* Ends these sessions of this account in the server, if they are still there, and waits until they are
     * over. DIBS_OK: they are. DIBS_DENIED: the server refuses that, and will again. */
    dibs_status (*end_strays)(dibs__sql_conn *c, const uint64_t keys[], size_t count,
                              dibs__deadline until, dibs_error *err);

    /* All below may be NULL. */

    /* Called (often) before a command of this handle may stand in the queue: see to it that wake-ups can
     * arrive from now on. Must be cheap when they can. What cannot be had is made up for by looks. */
    void (*listen)(dibs__sql *e, dibs__deadline until);
    /* After a commit that brought, or took, places in the queue of this handle's attempts. */
    void (*queue_changed)(dibs__sql *e);
};

/* ---- Commands -------------------------------------------------------------------------------- */

typedef enum dibs__sql_what {
    DIBS__SQL_ENTER,
    DIBS__SQL_KEEP,
    DIBS__SQL_RELEASE,
    DIBS__SQL_CANCEL,
    DIBS__SQL_BREAK,
    DIBS__SQL_SETTLE,
} dibs__sql_what;

/* One command of the state machine. */
typedef struct dibs__sql_task {
    dibs__sql_what what;
    const char *name;
    const char *owner, *attempt;  /* "" where there is none */
    const dibs__asker *who;       /* enter */
    uint32_t capacity;            /* enter */
    int64_t window;               /* enter */
    uint64_t fence;               /* keep, release */
    int64_t lease;                /* keep */
    const char *by;               /* break */
    bool at_once;                 /* break */
    dibs__report_builder *report; /* settle: puts the lock into it */
    /* out */
    dibs_status status;
    dibs__reply reply;
    /* tasks.c's */
    bool done, answered;
    bool locked;     /* another session keeps its row locked: it was not done */
    bool was_locked; /* keep.c's */
    size_t order;
    uint64_t hash; /* of the name */
    unsigned hint; /* fast.c: what is known of it once it is done */
} dibs__sql_task;

typedef enum dibs__sql_progress {
    DIBS__SQL_QUEUED,
    DIBS__SQL_TAKEN,
    DIBS__SQL_READY, /* the outcome is there */
} dibs__sql_progress;

/* What one thread wants done. It lives on that thread's stack. */
typedef struct dibs__sql_job {
    dibs__sql_task *task; /* one; keep-alives: `count` of them, sorted by name */
    size_t count;
    bool keep_alives; /* keep: may use the connection that is set aside for it */
    bool
        maintenance; /* waits for no row, but for its turn (tasks.c), and is not tried again here */
    /* Instead of tasks: whatever needs a connection. */
    dibs_status (*call)(dibs__sql *e, dibs__conn_slot *conn_slot, struct dibs__sql_job *job,
                        dibs_error *err);
    void *ctx;
    uint64_t hash; /* `call`: of the row that it needs; 0: of none */
    dibs__deadline until;
    dibs_error *err;
    dibs_status status; /* of `call` */
    /* the dispatcher's */
    dibs__sql_progress progress;
    bool called;  /* a connection is free: come and drive */
    bool light;   /* needs no durable commit */
    bool alone;   /* its row was locked when it went with others */
    bool locked;  /* its row stays locked */
    bool patient; /* waits for company until `lingers` */
    dibs__deadline came, lingers;
    pthread_cond_t cond;
    struct dibs__sql_job *next;
} dibs__sql_job;

/* A wake-up that is due once the commit is answered. */
typedef struct dibs__sql_notice {
    char wake[DIBS__WAKE_SIZE];
    char attempt[DIBS__ATTEMPT_SIZE];
    uint64_t fence; /* 0: have a look */
    uint64_t floor;
    char text[DIBS__ATTEMPT_SIZE + 48];
} dibs__sql_notice;

/* Wake-ups for our own handle, delivered when the connection slot is free again: whoever is woken wants it. */
typedef struct dibs__sql_mail {
    dibs__sql_notice *notice;
    size_t count, room;
} dibs__sql_mail;

/* ---- The engine ------------------------------------------------------------------------------ */

#define DIBS__SQL_CONNECTIONS 8   /* at most; the first is set aside for keep-alives */
#define DIBS__SQL_BATCH       128 /* tasks in one transaction */
#define DIBS__SQL_HINTS       1024

#define DIBS__SQL_STRAYS 16 /* so many are ended in one go */

typedef struct dibs__sql_stray {
    uint64_t key;
    struct dibs__sql_stray *next;
} dibs__sql_stray;

/* One connection and what its thread works with. */
struct dibs__conn_slot {
    dibs__sql_conn *conn;   /* its thread's */
    dibs__sql_stray *stray; /* what becomes of it if it is given up: there is memory for that */
    bool connected;         /* it had one when it was last left */
    bool taken;
    bool heavy;       /* taken for what needs a durable commit */
    bool again;       /* the exchange that failed last is worth doing again at once */
    bool hasty;       /* no row that is locked is waited for */
    bool queues;      /* it is the one that waits for a row that was locked the last time */
    int64_t patience; /* else: so long; 0: as the driver says */
    bool locked;    /* the exchange that failed last met a row that another session keeps locked: */
    size_t culprit; /* that of this command */
    dibs__sql_batch batch;
    dibs__sql_mail mail;
    uint64_t names[DIBS__SQL_BATCH]; /* hashes of what is under way, for the dispatcher */
    size_t name_count;
};

/* The first member of an engine's own structure; the engine table's slots below work on it. */
struct dibs__sql {
    dibs__engine base;
    const dibs__sql_driver *driver;
    char id[DIBS__WAKE_SIZE]; /* goes into `wake` of our entries */
    int64_t request_span;

    pthread_mutex_t mutex; /* guards the queue, the connection slots' `taken` and names */
    dibs__sql_job *first, **last;
    dibs__conn_slot conn_slot[DIBS__SQL_CONNECTIONS];
    size_t conn_slots; /* how many there may be */
    int luck, probes;  /* see dispatch.c: does it pay to wait for company? */
    _Atomic size_t
        keep_first; /* keep.c: where the next one begins; by the keeper, and by dibs_renew */
    _Atomic unsigned turns; /* tasks.c's: tries on rows that were locked the last time */
    _Atomic bool queues;    /* a connection slot waits for such a row */
    dibs__deadline no_more; /* the server refused one more connection: not before then */
    _Atomic uint8_t hint[DIBS__SQL_HINTS]; /* by name: which fast operation would be in vain */
    _Atomic int64_t reap_at;
    _Atomic bool cells;             /* their tables are there */
    char reaped[DIBS_NAME_MAX + 1]; /* how far, by name; of the thread that reaps */

    pthread_mutex_t stray_mutex;
    dibs__sql_stray *strays;
    _Atomic size_t stray_count;
    _Atomic bool stray_ended; /* that the account may not end them */
};

/* The engine's `open` allocates its structure, reads the URL, and calls this: sets up the shared
 * part and connects once. On failure everything of it is undone (the structure is the caller's). */
dibs_status dibs__sql_open(dibs__sql *e, const dibs__sql_driver *driver,
                           const dibs__open_request *request, size_t connections, dibs_error *err);
void dibs__sql_close(dibs__sql *e);   /* all but the structure itself */
void dibs__sql_abandon(dibs__sql *e); /* in a forked child */

/* slots.c: for the engine table. */
dibs_status dibs__sql_enter(dibs__engine *e, const dibs__enter_request *request,
                            dibs__deadline until, dibs__reply *out, dibs_error *err);
void dibs__sql_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                    dibs__deadline until);
dibs_status dibs__sql_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                              dibs__reply *out, dibs_error *err);
dibs_status dibs__sql_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                             dibs_error *err);
dibs_status dibs__sql_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                            dibs__deadline until, dibs__reply *out, dibs_error *err);
dibs_status dibs__sql_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                              dibs__report_builder *out, dibs_error *err);
dibs_status dibs__sql_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                           dibs__report_builder *out, dibs_error *err);

/* cell.c: as well. */
dibs_status dibs__sql_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                           bool notify, dibs__deadline until, dibs__cell_reply *out,
                           dibs_error *err);
/* maintenance.c */
bool dibs__sql_cell_reap(dibs__engine *e, size_t limit, dibs__deadline until);
/* inspect.c */
dibs_status dibs__sql_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                dibs__deadline until, dibs__cell_page *out, dibs_error *err);
/* CELL_WAIT, for a driver that can tell. `*same`: it still has that version. */
dibs_status dibs__sql_cell_mark(dibs__sql *e, const char *key, uint64_t version,
                                dibs__deadline until, bool *same, dibs_error *err);
/* What those who wait for the cell are told. */
#define DIBS__SQL_CELL_TEXT_SIZE 17
void dibs__sql_cell_text(const char *key, char out[DIBS__SQL_CELL_TEXT_SIZE]);
/* Such a text has arrived; what is behind it does not count. */
void dibs__sql_cell_notice_arrived(dibs__sql *e, const char *text);

/* For a driver's `connect`: a new session's key. */
uint64_t dibs__sql_stray_key(const dibs__env *env);

/* How a notice is written for dibs__sql_notice_arrived. */
void dibs__sql_notice_text(dibs__sql_notice *n);
/* For a driver's `events`: the text of a NOTIFY has arrived. Strange texts are ignored. */
void dibs__sql_notice_arrived(dibs__sql *e, const char *text);

#endif
