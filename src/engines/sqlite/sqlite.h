/* The inside of the SQLite engine: what its files share.
 *
 *   sqlite.c   the engine's table: open, close, and each slot as one job
 *   dispatch.c many threads, one connection: whoever finds it idle does everybody's jobs
 *   batch.c    jobs in one transaction: gate, BEGIN, state machine, COMMIT, wake-ups
 *   store.c    the state machine's store over SQL
 *   schema.c   the tables, the boot, the ceiling of the fences
 *   cell.c     the cells' store over SQL, and waiting for a cell
 *   maintenance.c   what nobody asked for: rescue from the dead, burials, reaping
 *   fork.c     the handles of this process, and what a fork does to them
 *   gate.c     where writers of different processes queue without polling
 *   life.c     a file a client, locked while its process lives; who is alive
 *   wake.c     pipes between clients; what the keeper or a waiting thread polls
 *   location.c    where the database is, and what lies beside it
 *   inspect.c     inspect and list, on a connection of their own
 *   fault.c    SQLite's errors as statuses */
#ifndef DIBS_ENGINES_SQLITE_H
#define DIBS_ENGINES_SQLITE_H

#include "engines/engine.h"
#include "engines/sqlite/statements.h"

#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>

#define DIBS__LITE_PEERS 64

typedef struct dibs__lite dibs__lite;
typedef struct dibs__lite_job dibs__lite_job;
typedef struct dibs__lite_gate_page dibs__lite_gate_page;

/* ---- Jobs ------------------------------------------------------------------------------------ */

typedef enum dibs__lite_kind {
    DIBS__LITE_ENTER,
    DIBS__LITE_KEEP,
    DIBS__LITE_RELEASE,
    DIBS__LITE_CANCEL,
    DIBS__LITE_BREAK,
    DIBS__LITE_SETTLE,
    DIBS__LITE_RESCUE, /* settle whatever this client waits for */
    DIBS__LITE_BURY,   /* settle some of all that is held or waited for, after `after` */
    DIBS__LITE_CELL,
    DIBS__LITE_PEEK, /* the version of a cell, without its value */
} dibs__lite_kind;

typedef enum dibs__lite_progress {
    DIBS__LITE_QUEUED,
    DIBS__LITE_TAKEN,
    DIBS__LITE_DRIVE, /* the connection is yours: do everybody's jobs */
    DIBS__LITE_DONE,
} dibs__lite_progress;

/* Clients that are dead. */
typedef struct dibs__lite_roll {
    char (*client)[DIBS__WAKE_SIZE];
    size_t count;
} dibs__lite_roll;

/* One command. It lives on the stack of the thread that waits for it. */
struct dibs__lite_job {
    dibs__lite_kind kind;
    const char *name;
    const dibs__asker *who; /* enter */
    uint32_t capacity;
    int64_t window;
    const dibs__claim *claim;   /* release, cancel */
    dibs__claim *const *claims; /* keep */
    size_t count;
    const char *by; /* break */
    bool at_once;
    const dibs__lite_roll *dead;       /* bury */
    const char *after;                 /* bury: "" at the beginning */
    char *last;                        /* bury, out: DIBS_NAME_MAX + 1 bytes; "" at the end */
    const dibs__cell_command *command; /* cell */
    dibs__deadline until;
    /* out */
    dibs__cell_reply cell; /* of a watch: the version alone */
    bool no_memory;        /* for the value in it */
    dibs_status status;
    dibs__reply reply;
    dibs_error *err;
    /* the dispatcher's */
    _Atomic int progress;
    bool sleeps; /* its thread waits to be told */
    dibs__lite_job *next;
};

/* A wake-up to be sent once the transaction is on record. */
typedef struct dibs__lite_notice {
    char client[DIBS__WAKE_SIZE];
    char attempt[DIBS__ATTEMPT_SIZE];
    uint64_t fence; /* 0: have a look */
    uint64_t floor;
} dibs__lite_notice;

/* ---- The engine ------------------------------------------------------------------------------ */

typedef struct dibs__lite_gate {
    dibs__lite_gate_page *page; /* NULL: there is none, SQLite's own lock must do */
    dibs__deadline skip_until;  /* it was stuck: not before then */
} dibs__lite_gate;

/* Another client that we have looked at: its process, its life, and the pipe that wakes it. */
typedef struct dibs__lite_peer {
    char client[DIBS__WAKE_SIZE];
    int pidfd;
    int life;
    int wake;
    uint64_t used; /* the one not used for longest makes room */
} dibs__lite_peer;

struct dibs__lite {
    dibs__engine base;
    int64_t request_span;
    char path[PATH_MAX];
    char boot[40];
    char client[DIBS__WAKE_SIZE -
                1]; /* "handle.process": one is left for the mark of a named owner */

    /* fork.c's */
    dibs__lite *next_handle;
    pid_t pid;
    bool inherited; /* from a parent that was forked */
    bool idle;      /* and its connection was idle then */

    /* the dispatcher's: the mutex guards the queue and who drives; the driver has all that follows */
    pthread_mutex_t mutex;
    bool driving;
    dibs__lite_job *first, **last;

    /* the driver's */
    sqlite3 *db;
    sqlite3_stmt *sql[DIBS__LITE_STATEMENTS]; /* dibs__lite_sql; NULL: not needed yet */
    dibs__deadline busy_until;
    int commits;     /* counted up to a few */
    bool called_out; /* of the wait for another process, by a fork */
    bool durable;    /* synchronous=FULL just now */
    int64_t location_sure_until;
    dibs__lite_gate gate;
    uint64_t floor;   /* no fence at or below it: given out before the machine started, perhaps */
    uint64_t ceiling; /* no fence above it before a higher ceiling is on the disk */
    uint64_t highest; /* the highest fence of this batch */
    int64_t clock;    /* of cells: so much ahead of this boot's */
    int64_t reap_at;  /* wall: look for what has been idle for a day */
    dibs__lite_notice *notices;
    size_t notice_count, notice_room;

    /* beside the database */
    int folder;
    mode_t mode; /* the database's: whoever may use it may use what lies beside it */
    uid_t uid;
    gid_t gid;
    int life, wake, epoll;
    _Atomic int inotify;
    atomic_bool watching; /* the folder is watched, or cannot be */

    pthread_mutex_t peers_mutex;
    dibs__lite_peer peers[DIBS__LITE_PEERS];
    uint64_t peers_clock;
    unsigned peers_swept; /* the next to be looked at: is it gone? */

    /* await.c's */
    pthread_mutex_t watch_mutex;
    struct dibs__lite_watch *watched;
    int log, log_timer; /* -1: none */
    int64_t log_pause;
};

/* The file that tells boots apart; a test gives its own. */
extern const char *dibs__lite_boot_file;

extern const dibs__engine_class dibs__engine_sqlite;

/* location.c */
dibs_status dibs__lite_location(dibs__url *url, char *path, size_t size, dibs_error *err);
/* Makes what is missing of a place that nobody named: the user's own folders, or the machine's store. */
dibs_status dibs__lite_location_make(const dibs__url *url, char *path, dibs_error *err);
/* The folder that the database is in. */
void dibs__lite_location_folder(const char *path, char folder[PATH_MAX]);
/* The name of a network file system by its type; NULL: it is none. */
const char *dibs__lite_far_away(uint32_t type);
dibs_status dibs__lite_location_check(const char *path, dibs_error *err);
/* Makes `path` one without links. A link to the database is followed only out of a folder where nobody
 * but this user and root can put one. */
dibs_status dibs__lite_location_resolve(char *path, size_t size, dibs_error *err);
/* Opens or creates the folder beside the database `e->path`. */
dibs_status dibs__lite_location_beside(dibs__lite *e, dibs_error *err);
/* A new file beside the database gets the database's rights and, if we are root, its owner. */
void dibs__lite_location_share(const dibs__lite *e, int fd);

/* fault.c: what the connection's last error is to a caller. `doing` is what failed. */
dibs_status dibs__lite_status(int system, dibs_status otherwise);
dibs_status dibs__lite_fault(sqlite3 *db, const char *path, const char *doing, dibs_error *err);

/* schema.c */
/* The database is empty or of a version that we know. */
dibs_status dibs__lite_recognise(dibs__lite *e, dibs_error *err);
dibs_status dibs__lite_connect(dibs__lite *e, dibs__deadline until, dibs_error *err);
dibs_status dibs__lite_schema_open(dibs__lite *e, dibs__deadline until, dibs_error *err);
/* A statement of statements.h; NULL: it could not be prepared, and a step of it fails. */
sqlite3_stmt *dibs__lite_sql(dibs__lite *e, int which);
/* Puts a ceiling above `fence` on the disk, outside of any transaction. 0, or -1: roll back. */
int dibs__lite_raise_ceiling(dibs__lite *e, uint64_t fence);
/* Whether commits are on the disk when they return, or at the next checkpoint. Not in a transaction.
 * 0 or -1. */
int dibs__lite_durable(dibs__lite *e, bool durable);
/* 0 or -1. Tries until `e->busy_until`. */
int dibs__lite_begin(dibs__lite *e);
int dibs__lite_commit(dibs__lite *e);
void dibs__lite_rollback(dibs__lite *e);

/* store.c: the state machine's store for one lock. */
typedef struct dibs__lite_session {
    dibs__lite *e;
    const char *name;
    uint32_t wants; /* the weight asked for; UINT32_MAX: all there is; 0: nothing */
    int64_t id;     /* 0: there is no such row */
    dibs__record loaded;
    bool held; /* by one exclusive holder, which is kept in the lock's row */
    dibs__holder holder;
    /* of the row, as it is now */
    bool busy;
    int listed;
    uint64_t fence;
    bool probed;
    char alive[DIBS__WAKE_SIZE]; /* the client that was found alive last */
} dibs__lite_session;

extern const dibs__store dibs__lite_store;

/* Readers of rows whose columns are as statements.h lists them, from column `at` on. */
void dibs__lite_read_record(sqlite3_stmt *q, dibs__record *out);
void dibs__lite_read_holder(sqlite3_stmt *q, int at, dibs__holder *out);
void dibs__lite_read_waiter(sqlite3_stmt *q, int at, dibs__waiter *out);
int dibs__lite_bind_text(sqlite3_stmt *q, int at, const char *text);
/* One step of a statement that answers at most one row; resets it unless there is one. -1: it failed. */
int dibs__lite_step(sqlite3_stmt *q);

/* batch.c: takes all that is queued and does it. False: the database was busy until `until`. */
bool dibs__lite_batch(dibs__lite *e, dibs__deadline until);

/* cell.c: 0, or -1 when the store failed. `now.lease` is on the cells' clock. */
int dibs__lite_cell(dibs__lite *e, dibs__time now, dibs__lite_job *job);
int dibs__lite_cell_reap(dibs__lite *e, dibs__time now, int limit, int *dropped);
dibs__time dibs__lite_cell_time(const dibs__lite *e, dibs__time now);
/* Must it be on the disk before the caller is told? */
bool dibs__lite_cell_lasts(const dibs__lite_job *job);
bool dibs__lite_read_listed(dibs__lite *e, sqlite3_stmt *q, dibs__cell *out,
                            char key[DIBS__CELL_KEY_SIZE]);

/* await.c */
dibs_status dibs__lite_watch(dibs__engine *e, const char *key, uint64_t version,
                             dibs__deadline until, void **out, dibs_error *err);
void dibs__lite_unwatch(dibs__engine *e, void *watched);
bool dibs__lite_await_events(dibs__lite *e, int fd,
                             dibs__deadline until); /* false: it is none of its descriptors */

/* maintenance.c: 0, or -1 when the store failed. */
int dibs__lite_settle(dibs__lite *e, dibs__time now, const char *name, dibs__reply *out);
int dibs__lite_rescue(dibs__lite *e, dibs__time now);
int dibs__lite_bury(dibs__lite *e, dibs__time now, const dibs__lite_job *job);
/* Does nothing unless it is time. */
int dibs__lite_reap(dibs__lite *e, dibs__time now);

/* dispatch.c */
dibs_status dibs__lite_do(dibs__lite *e, dibs__lite_job *job);
/* For batch.c: is there a job in the queue that must be on the disk? */
bool dibs__lite_lasting(dibs__lite *e);
/* For batch.c: takes the queue, marks its jobs as taken; and says that a job is done. */
dibs__lite_job *dibs__lite_take(dibs__lite *e);
void dibs__lite_done(dibs__lite_job *job);

/* sqlite.c: closes the connection; harmless when it is. */
void dibs__lite_drop(dibs__lite *e);

/* fork.c: every call of SQLite is made between these two; they may be nested. A fork waits for it. */
void dibs__lite_inside(void);
void dibs__lite_outside(void);
bool dibs__lite_called_out(void); /* a fork waits: whoever waits inside comes out */
void dibs__lite_enlist(dibs__lite *e);
void dibs__lite_delist(dibs__lite *e); /* harmless when it is not there */
void dibs__lite_set_client(dibs__lite *e, const char *client);
/* Is that client a handle of this process, through this copy of the library? */
bool dibs__lite_is_here(const char *client);
/* Closes what a forked child has inherited; the other: one handle of that, if it was inherited idle. */
dibs_status dibs__lite_shed(dibs_error *err);
void dibs__lite_shed_one(dibs__lite *e);

/* gate.c */
void dibs__lite_gate_open(dibs__lite *e, dibs__deadline until);
void dibs__lite_gate_close(dibs__lite *e);
/* True: we are in, and must leave. False: go on without. */
bool dibs__lite_gate_enter(dibs__lite *e, dibs__deadline until);
void dibs__lite_gate_leave(dibs__lite *e);

/* life.c */
dibs_status dibs__lite_life_open(dibs__lite *e, const char *handle_id, dibs_error *err);
void dibs__lite_life_close(dibs__lite *e);
dibs_status dibs__lite_life_stand_in(dibs__lite *e);
/* 1: the file is locked, by `pid` (0 if we cannot see it). 0: not locked. -1: not known. */
int dibs__lite_life_ask(int fd, pid_t *pid);
/* Is the handle of that entry surely gone, with its process or by an exec? Never for owners given by
 * name. */
bool dibs__lite_dead(dibs__lite *e, const char *wake);
/* Removes the files of the dead once `bury` has been through. */
dibs_status dibs__lite_sweep(dibs__lite *e, dibs__deadline until, dibs_error *err);
/* What goes into an entry's `wake`, and the client in it. */
void dibs__lite_mark(const dibs__lite *e, bool owner_named, char out[DIBS__WAKE_SIZE]);
const char *dibs__lite_client_of(const char *wake);

/* wake.c */
dibs_status dibs__lite_wake_open(dibs__lite *e, dibs_error *err);
void dibs__lite_wake_close(dibs__lite *e);
/* Sends, or tells our own sink. A wake-up that cannot be sent is found at the next keep-alive. */
void dibs__lite_wake_send(dibs__lite *e, const dibs__lite_notice *n);
/* True once, when the folder has just come under watch: look again at what was looked at before. */
bool dibs__lite_wake_watch(dibs__lite *e);
void dibs__lite_wake_events(dibs__lite *e, dibs__deadline until);
/* That process is the client's: tell us when it ends. `life` is its file. Takes both descriptors. */
void dibs__lite_peer_follow(dibs__lite *e, const char *client, int pidfd, int life);
/* 1: lives; 0: is dead; -1: not known. */
int dibs__lite_peer_lives(dibs__lite *e, const char *client);

/* inspect.c */
dibs_status dibs__lite_inspect(dibs__lite *e, const char *name, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err);
dibs_status dibs__lite_cell_list(dibs__lite *e, const dibs__cell_range *range, dibs__deadline until,
                                 dibs__cell_page *out, dibs_error *err);
dibs_status dibs__lite_list(dibs__lite *e, const char *prefix, bool idle, dibs__deadline until,
                            dibs__report_builder *out, dibs_error *err);

/* examine.c */
dibs_status dibs__lite_examine(const dibs__open_request *request, dibs__facts *out,
                               dibs_error *err);

#endif
