/* The inside of the PostgreSQL engine: a driver for families/rows over libpq.
 *
 *   postgresql.c  the engine table
 *   address.c       where the server is and how to reach it, from the URL
 *   connection.c  connecting, and setting a session up
 *   dialect.c     the text of every operation
 *   exchange.c    a batch as one pipeline, and its answers as rows
 *   schema.c      the tables
 *   wake.c        wake-ups: a session that sleeps, and is cancelled
 *   listen.c      wake-ups: LISTEN on a connection of its own, or looks at intervals
 *   await.c       watching a cell
 *   error.c       what the server's errors are to a caller
 *
 * Everything goes through libpq's non-blocking calls, so that the caller's deadline is kept whatever the
 * server does. Looking a host name up it does in one go nevertheless: there the connection is made by a
 * thread that can be left behind. */
#ifndef DIBS_ENGINES_POSTGRESQL_H
#define DIBS_ENGINES_POSTGRESQL_H

#include "families/rows/rows.h"

#include <libpq-fe.h>

#define DIBS__PG_PREFIX_MAX      60
#define DIBS__PG_KEYWORDS        48
#define DIBS__PG_ROW_MS          100 /* so long a row that is locked is waited for, mostly */
#define DIBS__PG_TEXT_OF(number) #number
#define DIBS__PG_TEXT(number)    DIBS__PG_TEXT_OF(number)
#define DIBS__PG_IDLE_MS \
    2000 /* the server ends a transaction of ours that has been silent so long */

/* ---- address.c --------------------------------------------------------------------------------- */

/* What PQconnectStartParams gets; all text is owned by `text`. */
typedef struct dibs__pg_address {
    const char *keyword[DIBS__PG_KEYWORDS];
    const char *value[DIBS__PG_KEYWORDS];
    size_t count;
    char *text[DIBS__PG_KEYWORDS];
    char prefix[DIBS__PG_PREFIX_MAX + 1]; /* of the tables; may begin with "schema." */
    int64_t connections;
    char wake_db[64]; /* where wake.c's session sleeps; "": nowhere */
    bool detached;    /* there may be a host name to be looked up */
    char label[200];  /* for messages: host:port/database */
} dibs__pg_address;

/* Takes the URL's parameters. A failed read leaves something that fini accepts. */
dibs_status dibs__pg_address_read(dibs__pg_address *address, dibs__url *url, dibs_error *err);
void dibs__pg_address_fini(dibs__pg_address *address);
/* The keywords alone; false: out of memory, and there is nothing to fini. */
bool dibs__pg_address_copy(dibs__pg_address *to, const dibs__pg_address *from);
/* The same, of another database of that server. */
bool dibs__pg_address_elsewhere(dibs__pg_address *to, const dibs__pg_address *from,
                                const char *database);

/* ---- Statements: the operations, and short forms for lists of one ---------------------------- */

enum {
    DIBS__PG_HOLDER_DROP_ONE = DIBS__SQL_OPS,
    DIBS__PG_WAITER_DROP_ONE,
    DIBS__PG_RING,
    DIBS__PG_RING_NEXT,
    DIBS__PG_TEXTS,
};

/* ---- The engine ------------------------------------------------------------------------------ */

typedef enum dibs__pg_sleep {
    DIBS__PG_AWAKE,
    DIBS__PG_DOZING, /* it was told to sleep */
    DIBS__PG_ASLEEP, /* it does, and a cancel ends that */
} dibs__pg_sleep;

typedef struct dibs__pg {
    dibs__sql sql;
    dibs__pg_address address;
    char *text[DIBS__PG_TEXTS]; /* of every statement, with the tables' names */
    /* listen.c's and wake.c's */
    pthread_mutex_t listen_mutex;
    PGconn *listener; /* NULL: not now */
    bool pooled;      /* there is a pooler in between: it would give our LISTEN to somebody else */
    bool looking;     /* the timer runs */
    dibs__deadline retry; /* the listener could not be had: not before then */
    int epoll, timer;
    _Atomic bool hears; /* somebody has waited for a cell: it takes the listener to hear of one */
    PGconn *sleeper;    /* NULL: not now */
    dibs__pg_sleep sleep;
    bool noticed;               /* it has said that it sleeps */
    bool due;                   /* somebody entered a queue before that: look */
    bool silent;                /* who enters the queue now is woken by a cancel */
    bool no_sleep;              /* it cannot be had here */
    char wake[DIBS__WAKE_SIZE]; /* how others find the sleeper */
    int64_t slept_at;
    int misses; /* wake-ups that did not arrive, since the last that did */
    dibs__deadline listen_until, sleep_retry;
    _Atomic bool connecting, skipped; /* see dibs__pg_lock */
} dibs__pg;

typedef struct dibs__pg_bell {
    int64_t pid, start;
} dibs__pg_bell;

typedef struct dibs__pg_conn {
    dibs__sql_conn base;
    PGconn *pg;
    bool pooled;       /* the session is not ours alone: no state outside of transactions */
    uint64_t prepared; /* statements, by bit */
    char commit[16];   /* what synchronous_commit is for what must last */
    char *args;        /* lists in the server's own form */
    size_t args_room;
    int32_t *expect; /* what the answers on their way are for: see exchange.c */
    size_t expected, expect_room;
    char wake[DIBS__WAKE_SIZE]; /* what stands for the handle's id in what is being sent */
    struct dibs__pg_bell *bell; /* who is woken once the commit is answered */
    size_t bells, bell_room;
    bool rung;      /* that was sent, and its answer was not read yet */
    bool rings;     /* the last hand-over was to one who sleeps: the next may be, too */
    bool ahead;     /* so this is sent along with it: */
    size_t settled; /* the statements before it */
} dibs__pg_conn;

/* ---- dialect.c ------------------------------------------------------------------------------- */

/* The statements' text for the given prefix; `out` has DIBS__PG_TEXTS places. */
dibs_status dibs__pg_dialect(char *out[], const char *prefix, dibs_error *err);
/* Replaces {lock}, {holder}, {waiter}, {cell}, {request} and {now}; {index_cell} is the table's name
 * without its schema. NULL: out of memory. */
char *dibs__pg_fill_in(const char *pattern, const char *prefix);
/* Its last argument is the setting of synchronous_commit; TOUCH and HAND have one more after it. */
bool dibs__pg_takes_commit(dibs__sql_op op);

/* ---- connection.c ---------------------------------------------------------------------------- */

dibs_status dibs__pg_connect(dibs__sql *e, dibs__deadline until, dibs__sql_conn **out,
                             dibs_error *err);
void dibs__pg_disconnect(dibs__sql_conn *c);
void dibs__pg_abandon(dibs__sql_conn *c);
dibs_status dibs__pg_end_strays(dibs__sql_conn *c, const uint64_t keys[], size_t count,
                                dibs__deadline until, dibs_error *err);
bool dibs__pg_usable(dibs__sql_conn *c);
/* A connection that answers and has no session settings yet. `database` NULL: the URL's. */
dibs_status dibs__pg_dial(dibs__pg *e, const char *database, dibs__deadline until, PGconn **out,
                          dibs_error *err);
/* Waits until the socket can be read (or written, if asked). 1; 0: `until` is over. */
int dibs__pg_wait(const dibs__env *env, PGconn *pg, bool write_too, dibs__deadline until);
/* Runs simple SQL, perhaps several statements; the last result, or NULL with `err` set. */
PGresult *dibs__pg_simple(const dibs__env *env, PGconn *pg, const char *sql, dibs__deadline until,
                          dibs_error *err);

/* ---- exchange.c ------------------------------------------------------------------------------ */

dibs_status dibs__pg_exchange(dibs__sql_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                              dibs_error *err);
void dibs__pg_rollback(dibs__sql_conn *c, dibs__deadline until);
/* Plain statements may be sent from now on. */
void dibs__pg_leave_pipeline(dibs__pg_conn *c, dibs__deadline until);
/* Wakes the session of that `wake`, and reads the answer. False: nobody was asked. */
bool dibs__pg_ring(dibs__sql_conn *c, const char *wake, dibs__deadline until);

/* ---- schema.c -------------------------------------------------------------------------------- */

dibs_status dibs__pg_prepare(dibs__sql_conn *c, dibs__deadline until, dibs_error *err);
dibs_status dibs__pg_prepare_cells(dibs__sql_conn *c, bool make, dibs__deadline until,
                                   dibs_error *err);
/* The SQL that makes the tables. NULL: out of memory. */
char *dibs__pg_schema_text(const char *prefix);

/* ---- listen.c -------------------------------------------------------------------------------- */

dibs_status dibs__pg_listen_open(dibs__pg *e, dibs_error *err);
void dibs__pg_listen_close(dibs__pg *e);
void dibs__pg_listen_abandon(dibs__pg *e);
void dibs__pg_listen(dibs__sql *e, dibs__deadline until); /* for who is about to enter a queue */
void dibs__pg_listen_cells(dibs__pg *e,
                           dibs__deadline until); /* for who is about to wait for a cell */
/* False: another thread has the mutex to connect with, which takes its time, and will have all look afterwards. */
bool dibs__pg_lock(dibs__pg *e);
void dibs__pg_kick(dibs__pg *e); /* with the mutex: dibs__pg_events is called soon */
int dibs__pg_event_fd(dibs__engine *e);
void dibs__pg_events(dibs__engine *e, dibs__deadline until);

/* ---- wake.c: the first four with the mutex -------------------------------------------- */

/* What a first connection shows of the server. */
void dibs__pg_wake_learn(dibs__pg *e, PGconn *pg);
/* A session that sleeps is how this handle should wait now. */
bool dibs__pg_is_silent(dibs__pg *e);
/* It sleeps, or is about to. False: it cannot be had now. */
bool dibs__pg_wake_begin(dibs__pg *e, dibs__deadline until);
void dibs__pg_wake_hang_up(dibs__pg *e);
/* False: the session is lost. */
bool dibs__pg_wake_events(dibs__pg *e, dibs__deadline until);
/* How who enters the queue now is woken. */
void dibs__pg_wake_text(dibs__pg *e, char out[DIBS__WAKE_SIZE]);
void dibs__pg_missed(dibs__sql *e);
/* Before the other connections are closed. */
void dibs__pg_wake_close(dibs__pg *e);

/* ---- await.c --------------------------------------------------------------------------------- */

dibs_status dibs__pg_watch(dibs__engine *e, const char *key, uint64_t version, dibs__deadline until,
                           void **out, dibs_error *err);

/* ---- error.c --------------------------------------------------------------------------------- */

/* A failed statement. `again`: surely not done, and worth doing again. */
dibs_status dibs__pg_fault(const PGresult *res, bool *again, dibs_error *err);
/* Another session kept a row locked for longer than we wait. */
bool dibs__pg_is_locked(const PGresult *res);
/* A connection that could not be made, or was lost. */
dibs_status dibs__pg_fault_connecting(PGconn *pg, const char *label, dibs_error *err);
dibs_status dibs__pg_fault_lost(PGconn *pg, dibs_status status, dibs_error *err);

/* ---- examine.c ------------------------------------------------------------------------------- */

dibs_status dibs__pg_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err);

#endif
