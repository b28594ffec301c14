/* The inside of the MariaDB and MySQL engine: a driver for families/rows over libmariadb.
 *
 *   mysql.c      the engine table and the URL
 *   address.c      where the server is and how to reach it, from the URL
 *   connection.c connecting and setting a session up
 *   dial.c       connecting in a thread of its own: the library would block
 *   wire.c       libmariadb's calls, one by one, each within a deadline
 *   dialect.c    the text of every operation
 *   text.c       text that grows: literals, patterns
 *   build.c      a batch as one message of several statements
 *   answer.c     the answers as rows
 *   quick.c      the repeated path: one fast operation alone
 *   exchange.c   sending and reading, and what a failure means
 *   schema.c     the tables
 *   wake.c       the one connection of a handle that sleeps in the server until somebody wakes it
 *   round.c      what it asks and is answered
 *   seen.c       which wake-ups have been read
 *   latch.c      what it waits for
 *   call.c       libmariadb's calls for somebody who never waits: wake.c
 *   await.c      watching a cell
 *   notify.c     waking handles after the commit: a cell that they wait for has changed
 *   error.c      what the server's and the library's error numbers are to a caller
 *
 * Every call of libmariadb that could block is made through its non-blocking form, so that the
 * caller's deadline is kept whatever the server does. Two things it does in one go nevertheless:
 * looking a host name up, and the handshake of TLS. There the connection is made by a thread that can
 * be left behind. */
#ifndef DIBS_ENGINES_MYSQL_H
#define DIBS_ENGINES_MYSQL_H

#include "core/bytes.h"
#include "families/rows/rows.h"

#include <mysql.h>
#include <stdatomic.h>

#define DIBS__MY_PREFIX_MAX 32
#define DIBS__MY_ROW_MS     1000 /* innodb_lock_wait_timeout knows no less, beside none */
#define DIBS__MY_MESSAGE    256  /* of the server's own words, in an error of ours */

/* ---- address.c --------------------------------------------------------------------------------- */

/* Where the server is. All text is owned; NULL: not given. */
typedef struct dibs__my_address {
    char *host, *user, *password, *database, *socket;
    unsigned port;
    bool tls, verify;
    bool detached; /* connecting may block */
    char *ca, *ca_path, *cert, *key;
    char prefix[DIBS__MY_PREFIX_MAX + 1];
    char label[160]; /* for messages: host:port/database */
} dibs__my_address;

/* Takes the URL's parameters. A failed read leaves something that fini accepts. */
dibs_status dibs__my_address_read(dibs__my_address *address, dibs__url *url, dibs_error *err);
void dibs__my_address_fini(dibs__my_address *address);
/* What dibs__my_connect takes of it; false: out of memory, and there is nothing to fini. */
bool dibs__my_address_copy(dibs__my_address *to, const dibs__my_address *from);

/* ---- text.c ---------------------------------------------------------------------------------- */

void dibs__my_add(dibs__bytes *t, const char *text);
/* As a literal: NULL, a number, 'bytes', or (…, …) for a list. */
void dibs__my_add_value(dibs__bytes *t, const dibs__sql_value *value);
/* `pattern` with $1…$9, $a… for `args`, and {lock}, {holder}, {waiter}, {wake}, {cell}, {request}
 * for tables. */
void dibs__my_add_pattern(dibs__bytes *t, const char *prefix, const char *pattern,
                          const dibs__sql_value *args);
/* The same with ? in the place of each value, and the values alone, in that order. */
void dibs__my_add_template(dibs__bytes *t, const char *prefix, const char *pattern,
                           const dibs__sql_value *args);
void dibs__my_add_values(dibs__bytes *t, const char *pattern, const dibs__sql_value *args);

/* ---- dialect.c ------------------------------------------------------------------------------- */

/* What the answer to one statement becomes. */
typedef enum dibs__my_answer {
    DIBS__MY_NOTHING,  /* it is only done */
    DIBS__MY_FENCE,    /* a row was changed: its LAST_INSERT_ID is the fence */
    DIBS__MY_ROWS,     /* as they are */
    DIBS__MY_LISTED,   /* a lock's row: HELD is NULL unless `held` is set */
    DIBS__MY_LOCKED,   /* the same and the clock, which is for the look that follows */
    DIBS__MY_WATCHERS, /* who waits for the cell that was changed */
    DIBS__MY_DECIDED, /* as they are, unless its number DIBS__MY_DECISION is NULL: nothing is done */
    DIBS__MY_WAKE,    /* only done, and only if it is likely that somebody has to be woken */
} dibs__my_answer;

#define DIBS__MY_DECISION   3 /* HAND: the fence; JOIN: the holder's pid */
#define DIBS__MY_STATEMENTS 4

/* One operation in this dialect: up to four statements, NULL-terminated. */
typedef struct dibs__my_form {
    struct {
        const char *pattern;
        dibs__my_answer answer;
    } statement[DIBS__MY_STATEMENTS];
    bool alone; /* needs no transaction around it when it is the only one */
} dibs__my_form;

extern const dibs__my_form dibs__my_forms[DIBS__SQL_OPS];
/* Variants: SAVE when nobody holds the lock, LOOK in the same message as its LOCK, and NOTIFY for a
 * cell. */
extern const dibs__my_form dibs__my_save_idle, dibs__my_look_holders, dibs__my_look_waiters,
    dibs__my_notify_cell;
#define DIBS__MY_SAVE_IDLE    DIBS__SQL_OPS
#define DIBS__MY_HOLDERS_HERE (DIBS__SQL_OPS + 1)
#define DIBS__MY_WAITERS_HERE (DIBS__SQL_OPS + 2)
#define DIBS__MY_NOTIFY_CELL  (DIBS__SQL_OPS + 3)
#define DIBS__MY_FORMS        (DIBS__SQL_OPS + 4)

/* The statements of LOOK. */
#define DIBS__MY_LOOK_CLOCK   0
#define DIBS__MY_LOOK_HOLDERS 1
#define DIBS__MY_LOOK_WAITERS 2

#define DIBS__MY_CLOCK "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

/* ---- wire.c ---------------------------------------------------------------------------------- */

/* Each returns 0 when the server or the library has answered (see mysql_errno), -1 when the
 * deadline passed first: the connection is of no use then. */
int dibs__my_connect(MYSQL *m, const dibs__my_address *address, const dibs__env *env,
                     dibs__deadline until);
int dibs__my_query(MYSQL *m, const char *text, size_t size, const dibs__env *env,
                   dibs__deadline until);
int dibs__my_store(MYSQL *m, MYSQL_RES **out, const dibs__env *env, dibs__deadline until);
/* `more`: there is another result, or an error in its place. */
int dibs__my_next(MYSQL *m, bool *more, const dibs__env *env, dibs__deadline until);
int dibs__my_stmt_prepare(MYSQL *m, MYSQL_STMT *s, const char *text, size_t size,
                          const dibs__env *env, dibs__deadline until);
int dibs__my_stmt_execute(MYSQL *m, MYSQL_STMT *s, const dibs__env *env, dibs__deadline until);
/* Never blocks. */
void dibs__my_close(MYSQL *m);
/* While it connects: nothing that the program executes inherits its socket. */
void dibs__my_close_on_exec(MYSQL *m);

/* ---- connection.c ---------------------------------------------------------------------------- */

typedef struct dibs__my dibs__my;

typedef struct dibs__my_statement {
    size_t command; /* of the batch; SIZE_MAX: our own */
    dibs__my_answer answer;
} dibs__my_statement;

#define DIBS__MY_QUICK 3

/* A LOOK that follows its LOCK: only what is likely to be there is asked for along with it, and
 * what turns out to be missing afterwards. Each is a set of 1 << DIBS__MY_LOOK_…. */
typedef struct dibs__my_forecast {
    size_t command;
    uint64_t hash; /* of the name */
    unsigned asked, needed;
} dibs__my_forecast;

/* Who is told something once the commit is over. */
typedef struct dibs__my_watcher {
    char handle[DIBS__WAKE_SIZE];
    char text[DIBS__ATTEMPT_SIZE + 48]; /* see DIBS__MY_CELL and dibs__sql_notice_text */
} dibs__my_watcher;

typedef struct dibs__my_conn {
    dibs__sql_conn base;
    MYSQL *m;
    bool open;         /* a transaction is */
    bool prepares;     /* the server takes EXECUTE … USING with literals */
    bool binary;       /* and has room for prepared statements of the protocol */
    bool mariadb;      /* and not Oracle's */
    bool hands_out;    /* the last hand-over was to another handle: expect the same */
    bool wakes;        /* and so does the message that is under way, by itself */
    int row_wait;      /* how long a row is waited for in this session, in ms; -1: not known */
    size_t packet_max; /* no message may be longer: max_allowed_packet */
    MYSQL_STMT *quick[DIBS__MY_QUICK];
    bool ready[DIBS__MY_QUICK];
    uint8_t prepared[DIBS__MY_FORMS][DIBS__MY_STATEMENTS]; /* for which lengths of lists */
    dibs__bytes text;
    dibs__my_statement *statement; /* what `text` consists of */
    size_t count, room;
    dibs__my_forecast *forecast;
    size_t forecast_count, forecast_room;
    dibs__sql_value *cells;
    size_t cell_room;
    dibs__my_watcher *watcher;
    size_t watcher_count, watcher_room;
    dibs__sql_batch notifying;
} dibs__my_conn;

/* A handle that is ready to connect, or NULL: out of memory. */
MYSQL *dibs__my_new(const dibs__my_address *address);
/* What every session sends first. */
extern const char dibs__my_session[];

dibs_status dibs__my_conn_open(dibs__sql *e, dibs__deadline until, dibs__sql_conn **out,
                               dibs_error *err);
void dibs__my_conn_close(dibs__sql_conn *c);
void dibs__my_conn_abandon(dibs__sql_conn *c);
bool dibs__my_conn_usable(dibs__sql_conn *c);
dibs_status dibs__my_end_strays(dibs__sql_conn *c, const uint64_t keys[], size_t count,
                                dibs__deadline until, dibs_error *err);

/* ---- dial.c ---------------------------------------------------------------------------------- */

typedef struct dibs__my_dial dibs__my_dial;

/* Begins to connect, for `span` at most. `notice`: an eventfd that is rung when it is over, or -1.
 * NULL: out of memory or threads. */
dibs__my_dial *dibs__my_dial_start(const dibs__my_address *address, int64_t span, int notice);
bool dibs__my_dial_is_over(dibs__my_dial *d);
bool dibs__my_dial_wait(dibs__my_dial *d, const dibs__env *env, dibs__deadline until);
/* Frees it, or leaves it behind. The connection, or one that failed (see mysql_errno); NULL: it took
 * too long. */
MYSQL *dibs__my_dial_end(dibs__my_dial *d);

/* ---- build.c --------------------------------------------------------------------------------- */

/* Puts the batch into `text`, and says if it opens a transaction. Returns which statement commits;
 * SIZE_MAX: none does. */
size_t dibs__my_build(dibs__my_conn *c, const dibs__sql_batch *b);
/* Are rows that are locked waited for as long as `row_wait` says, without more ado? */
bool dibs__my_waits_right(const dibs__my_conn *c, const dibs__sql_batch *b);
/* The row of LOCK number `lock` has come: notes what the look after it needs. */
void dibs__my_forecast_at(dibs__my_conn *c, size_t lock, const dibs__sql_value *cells);
/* Command number `i` takes a lock of a name that we have not met yet: its row may have to be made. */
bool dibs__my_is_new(const dibs__my_conn *c, const dibs__sql_batch *b, size_t i);
/* The looks that asked for too little, and the wake signals from command number `from` on; false: none. */
bool dibs__my_build_looks(dibs__my_conn *c, const dibs__sql_batch *b);
bool dibs__my_build_wake_signals(dibs__my_conn *c, const dibs__sql_batch *b, size_t from);

/* ---- answer.c -------------------------------------------------------------------------------- */

typedef enum dibs__my_outcome {
    DIBS__MY_READ_ALL,
    DIBS__MY_FAILED, /* see mysql_errno */
    DIBS__MY_LATE,
    DIBS__MY_NO_MEMORY,
} dibs__my_outcome;

/* Sends `text` and reads the answers; `*at` is the statement that was answered last, or failed. */
dibs__my_outcome dibs__my_ask(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                              size_t *at);

/* ---- quick.c --------------------------------------------------------------------------------- */

bool dibs__my_is_quick(const dibs__my_conn *c, const dibs__sql_batch *b);
dibs__my_outcome dibs__my_ask_quick(dibs__my_conn *c, const dibs__sql_batch *b,
                                    dibs__deadline until);
void dibs__my_quick_fini(dibs__my_conn *c); /* after the connection was closed */

/* ---- exchange.c ------------------------------------------------------------------------------ */

dibs_status dibs__my_exchange(dibs__sql_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                              dibs_error *err);
void dibs__my_rollback(dibs__sql_conn *c, dibs__deadline until);
/* Sends text of our own, and drops what comes back. */
dibs_status dibs__my_do(dibs__my_conn *c, const char *text, dibs__deadline until, dibs_error *err);

/* ---- schema.c -------------------------------------------------------------------------------- */

dibs_status dibs__my_prepare(dibs__sql_conn *c, dibs__deadline until, dibs_error *err);
dibs_status dibs__my_prepare_cells(dibs__sql_conn *c, bool make, dibs__deadline until,
                                   dibs_error *err);
/* The tables as SQL, for a person to hand on. NULL: out of memory. The caller frees it. */
char *dibs__my_schema(const char *prefix);

/* ---- error.c --------------------------------------------------------------------------------- */

/* Says what the last error of `m` is and returns its status. `again`: the same may work at once. */
dibs_status dibs__my_fault(const dibs__my *e, MYSQL *m, const char *doing, bool *again,
                           dibs_error *err);
/* The connection is of no use after that error. */
bool dibs__my_fatal(unsigned number);
dibs_status dibs__my_late(const dibs__my *e, const char *doing, dibs_error *err);

/* ---- seen.c ---------------------------------------------------------------------------------- */

#define DIBS__MY_SEEN 64

typedef struct dibs__my_seen {
    size_t count;
    size_t going; /* so many of them, the first ones, are being deleted */
    char text[DIBS__MY_SEEN][97];
} dibs__my_seen;

/* False: it was there already. One too many is not kept: it will be told twice. */
bool dibs__my_seen_add(dibs__my_seen *s, const char *text);
/* All of them as ('…', '…'): they are being deleted. */
void dibs__my_seen_list(dibs__my_seen *s, dibs__bytes *out);
void dibs__my_seen_gone(dibs__my_seen *s);

/* ---- call.c ---------------------------------------------------------------------------------- */

typedef enum dibs__my_step {
    DIBS__MY_CONNECT,
    DIBS__MY_QUERY,
    DIBS__MY_STORE,
    DIBS__MY_NEXT,
} dibs__my_step;

/* A connection, and the call that is under way on it. */
typedef struct dibs__my_call {
    MYSQL *m; /* NULL: none */
    dibs__my_step step;
    int waits_for;    /* 0: no call is under way */
    dibs__bytes text; /* of the query */
    /* what came of it */
    MYSQL *connected;
    MYSQL_RES *result;
    int failed;
} dibs__my_call;

/* Both return what of MYSQL_WAIT_… is waited for; 0: it is over. */
int dibs__my_call_start(dibs__my_call *c, const dibs__my_address *address);
int dibs__my_call_go_on(dibs__my_call *c, int ready);
/* Ends the call and the connection, whatever they wait for. */
void dibs__my_call_end(dibs__my_call *c);

/* ---- round.c --------------------------------------------------------------------------------- */

typedef enum dibs__my_round_kind {
    DIBS__MY_SET_UP,
    DIBS__MY_EVICT,
    DIBS__MY_WATCH,
    DIBS__MY_CLEAN,
} dibs__my_round_kind;

typedef struct dibs__my_round {
    dibs__my *e;
    dibs__my_round_kind kind;
    unsigned results;     /* so far */
    unsigned asleep;      /* which of them the wait gives */
    bool has_wake_signal; /* SET_UP: others can find this session */
    bool latch_free;      /* WATCH: no session holds what it should have waited for */
    dibs__my_seen seen;
} dibs__my_round;

#define DIBS__MY_PATIENCE (10 * DIBS__SECOND) /* for an answer that should come at once */

/* Puts the message in the place of `out`'s text. */
void dibs__my_round_begin(dibs__my_round *r, dibs__my_round_kind kind, dibs__bytes *out);
/* How long its answer may take. */
int64_t dibs__my_round_span(const dibs__my_round *r);
/* The answer to its next statement; NULL: no rows. Tells whoever is meant. */
void dibs__my_round_read(dibs__my_round *r, MYSQL_RES *result);
/* What takes away all that others left for this handle and, if it has `awaited` cells, its marks. */
void dibs__my_round_add_goodbye(const dibs__my_round *r, bool awaited, dibs__bytes *out);

/* ---- wake.c ---------------------------------------------------------------------------------- */

typedef struct dibs__my_wake dibs__my_wake;

/* NULL: out of memory or descriptors. */
dibs__my_wake *dibs__my_wake_new(dibs__my *e);
void dibs__my_wake_free(dibs__my_wake *w);
void dibs__my_wake_abandon(dibs__my_wake *w);
/* Before the end: takes away, by another connection, what was left for this handle. */
void dibs__my_wake_clean(dibs__my_wake *w, dibs__my_conn *c, dibs__deadline until);
int dibs__my_wake_fd(const dibs__my_wake *w);
void dibs__my_wake_events(dibs__my_wake *w); /* the keeper's */
void dibs__my_wake_listen(dibs__sql *e, dibs__deadline until);
void dibs__my_wake_queue_changed(dibs__sql *e);

/* Somebody may stand in the queue, or be about to. */
bool dibs__my_wake_wanted(const dibs__my_wake *w);

/* The names of the user locks, followed by the handle's: by which its sleeping connection is found,
 * and which that one waits for. */
#define DIBS__MY_WAKE_SIGNAL "dibs:"
#define DIBS__MY_LATCH       "dibs:latch:"

/* ---- await.c and notify.c -------------------------------------------------------------------- */

/* A row of `wake` with ("c:HASH:VERSION", handle) is a mark: that handle waits for the cell of
 * that hash, which had that version. Who changes the cell turns it around, and it is a wake-up
 * like any other. No version comes twice, so no wake-up has the text of one that was read before. */
#define DIBS__MY_CELL "c:"

void dibs__my_cell_key(const char *name, uint64_t version, char out[DIBS__WAKE_SIZE]);

dibs_status dibs__my_watch(dibs__engine *e, const char *key, uint64_t version, dibs__deadline until,
                           void **out, dibs_error *err);

/* A row of the answer that lists those who wait. Without memory it is left out. */
void dibs__my_watcher_add(dibs__my_conn *c, const dibs__sql_value *cells);
/* The answer to a HAND: who has it now? The message has not woken that handle itself: it is noted. */
void dibs__my_handed(dibs__my_conn *c, const dibs__sql_value *cells);
/* After the commit: wakes those that were noted. What fails is made up for by their looks. */
void dibs__my_watchers_notify(dibs__my_conn *c, dibs__deadline until);

/* ---- latch.c --------------------------------------------------------------------------------- */

/* Before an exchange. Not DIBS_OK: the connection broke, and nothing else was sent. */
dibs_status dibs__my_latch_hold(dibs__my_conn *c, dibs__deadline until, dibs_error *err);

#define DIBS__MY_FORECASTS 1024

/* ---- mysql.c --------------------------------------------------------------------------------- */

struct dibs__my {
    dibs__sql base;
    dibs__my_address address;
    dibs__my_wake *wake;
    _Atomic bool latched;         /* a session has the latch, as far as we know */
    _Atomic bool full;            /* the server had no connection for us */
    _Atomic bool denied_reported; /* that we may not wake clients of other accounts */
    _Atomic bool awaited;         /* we have left marks */
    _Atomic uint8_t forecast[DIBS__MY_FORECASTS]; /* by name: which parts a look will need */
};

/* ---- examine.c ------------------------------------------------------------------------------- */

dibs_status dibs__my_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err);

#endif
