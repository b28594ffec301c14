/* The nodes: N independent Redis servers, and questions that go to all of them at once.
 *
 * Each node has one connection for commands, shared by all threads of the handle. A question is
 * written to every node that is connected; whoever finds nobody reading polls all connections and
 * reads for everybody, until its own question has enough answers. So one thread asks N nodes in the
 * time of the slowest that it needs, and many threads share their writes. A question that has
 * enough leaves; what comes for it later is thrown away.
 *
 * A node that is not connected is dialled by a thread of its own, which lasts as long as that takes:
 * nobody waits for a node that hangs, and names, TLS and login are the Redis engine's own code. The
 * threads share what they need with the engine, and whoever is last frees it.
 *
 * What a node must hear, because it may have given a vote that nobody uses, is a *owed release*: sent on the
 * same connection behind the question, and again on the next connection if that one is cut. */
#ifndef DIBS_REDLOCK_VOTERS_H
#define DIBS_REDLOCK_VOTERS_H

#include "core/driver.h"
#include "engines/engine.h"
#include "engines/redis/address.h"
#include "engines/redis/handshake.h"

#include <pthread.h>
#include <stdatomic.h>

#define DIBS__VOTERS_MAX DIBS__HOSTS_MAX
#define DIBS__FEW        32 /* replies that a question has room for by itself */

typedef enum dibs__redlock_script {
    DIBS__RED_ENTER,
    DIBS__RED_PASS,
    DIBS__RED_ACCEPT,
    DIBS__RED_KEEP,
    DIBS__RED_RELEASE,
    DIBS__RED_BREAK,
    DIBS__RED_INSPECT,
    DIBS__RED_MARK,
    DIBS__RED_INDEX,
    DIBS__RED_SCRIPTS,
} dibs__redlock_script;

extern const char *const dibs__redlock_lua[DIBS__RED_SCRIPTS];

typedef struct dibs__voters dibs__voters;
typedef struct dibs__ask dibs__ask;

/* A release that must reach one node. */
typedef struct dibs__owed_release {
    struct dibs__owed_release *next;
    dibs__deadline until; /* the vote is over by then */
    size_t length;
    char word[]; /* the script's argument, then the key */
} dibs__owed_release;

/* A request in the queue for its replies: somebody's question, or a owed release, or neither any more. */
typedef struct dibs__in_flight {
    dibs__ask *ask;
    dibs__owed_release *owed;
    size_t left; /* replies to come */
    dibs__deadline sent;
    bool again;   /* it has been sent with the scripts already */
    bool unknown; /* the server had no such script */
    bool last;    /* of its write */
} dibs__in_flight;

typedef struct dibs__voter {
    dibs__voters *all;
    size_t index;
    dibs__redis_address address;

    /* Commands. */
    dibs__conn *conn;
    bool broken;    /* closed when nobody polls */
    bool flags;     /* the server knows those of scripts */
    short wait_for; /* what a write waits for, 0: none does */
    dibs__bytes out;
    size_t out_sent;
    dibs__in_flight *in_flight; /* a ring */
    size_t room, first, count;
    int flights; /* unanswered writes */
    dibs__deadline used;
    dibs__owed_release *owed_releases; /* for the next connection */
    size_t owed_count;

    /* The subscription: the reader's, but for the moment in which it is put here. */
    dibs__conn *subscription;
    bool subscription_new;

    /* Dialling, [1] for the subscription. */
    bool dialling[2];
    unsigned dialled; /* times */
    dibs__deadline retry_at[2];
    int64_t pause[2];
    dibs_error why; /* the last failure; DIBS_OK: none since it was connected */
    bool warned;

    /* What its marker said when it was connected. */
    int64_t born, longest, clock_ahead; /* born: its wall clock; 0: for ever */
    bool always;
    char run[48];
} dibs__voter;

struct dibs__voters {
    const dibs__env *env;
    dibs__sink *sink;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* a dial has ended */
    int refs;
    bool closed;
    dibs__voter voter[DIBS__VOTERS_MAX];
    size_t count, majority;
    dibs__tls_context *tls;
    dibs__scripts scripts;
    char prefix[DIBS__REDIS_PREFIX_MAX + 1];
    char marker[DIBS__REDIS_PREFIX_MAX + 8];
    char gone[DIBS__REDIS_PREFIX_MAX + 32]; /* key of this handle's own mark */
    char wake[DIBS__REDIS_PREFIX_MAX + 32]; /* its channel */
    char handle[20];
    uint64_t dials;    /* of commands, of all nodes, beyond the first of each; with the lock */
    int64_t limit;     /* how long one node may take */
    int64_t max_lease; /* that this handle may ask for */
    _Atomic int64_t longest; /* that any client may: the highest limit that a node told us */
    bool vouched;            /* guard=off */
    dibs__calls calls;       /* questions, and which of them reads for all */
    bool polling;            /* somebody does so just now: no connection may be closed */
    int wake_fd;             /* there is more to poll for */
    int tend_fd; /* a timer: owed releases that nobody waits for are looked after then */
    bool tending;
    int subscription_fd;      /* the reader has something to do */
    _Atomic uint64_t highest; /* fence seen */
    _Atomic uint64_t rounds;  /* given out */
};

/* ---- Life (voters.c) ------------------------------------------------------------------------- */

/* NULL: out of memory or descriptors. Fill in the places, then start. */
dibs__voters *dibs__voters_new(const dibs__env *env, dibs__sink *sink);
void dibs__voters_close(dibs__voters *v); /* NULL is allowed */
void dibs__voters_abandon(dibs__voters *v);
void dibs__voters_unref(dibs__voters *v); /* with the lock, which is gone afterwards */

/* Dials all; DIBS_OK when a majority is there and the others had their chance too. */
dibs_status dibs__voters_start(dibs__voters *v, dibs__deadline until, dibs_error *err);

/* Says which nodes do not answer and why; with the lock. */
dibs_status dibs__voters_missing(dibs__voters *v, dibs_error *err);

/* Why it is not connected; with the lock. */
const char *dibs__voter_why(const dibs__voter *n);

uint64_t dibs__voters_propose(dibs__voters *v);
void dibs__voters_saw(dibs__voters *v, uint64_t fence);

/* ---- Dialling (dial.c); with the lock -------------------------------------------------------- */

void dibs__voter_dial(dibs__voter *n, bool subscription); /* unless it is under way or too soon */
void dibs__voters_dial_all(dibs__voters *v);
size_t dibs__voters_connected(const dibs__voters *v);

/* ---- One connection (link.c); with the lock -------------------------------------------------- */

bool dibs__link_up(const dibs__voter *n);
/* Puts a request in the queue, with `count` replies to come. false: out of memory. */
bool dibs__link_add(dibs__voter *n, const dibs__bytes *bytes, size_t count, dibs__in_flight what);
void dibs__link_flush(dibs__voter *n);
void dibs__link_read(dibs__voter *n); /* what has come */
void dibs__link_cut(dibs__voter *n, dibs__io why);
void dibs__link_tidy(dibs__voter *n);                   /* closes what is broken */
void dibs__link_doubt(dibs__voter *n);                  /* cuts what is silent or was hung up */
void dibs__link_forget(dibs__voter *n, dibs__ask *ask); /* it leaves */
void dibs__link_owe(dibs__voter *n, dibs__owed_release *owed); /* takes it */
void dibs__link_send_owed(dibs__voter *n); /* owed releases, on a new connection */
void dibs__link_fini(dibs__voter *n);

/* ---- Questions (ask.c) ----------------------------------------------------------------------- */

/* One argument of a script. */
typedef struct dibs__word {
    const char *data;
    size_t length;
} dibs__word;

/* One script on one key; DIBS__RED_SCRIPTS: no script, the words are a command. */
typedef struct dibs__query {
    dibs__redlock_script script;
    const char *key;
    dibs__word word[7];
    size_t words;
    char *
        dials; /* where in its words the number of dials belongs, which is known when it goes out; NULL: nowhere */
} dibs__query;

typedef uint32_t dibs__node_set; /* a bit a node */

/* On its caller's stack. The connections point to it from the moment it is sent until dibs__ask_run returns. */
struct dibs__ask {
    dibs__driver_call call; /* zeroed */
    dibs__voters *v;
    const dibs__query *query; /* `count` of them go to each node */
    size_t count;
    dibs__node_set to;
    /* Called with the lock whenever a node has answered or failed: enough? NULL: when all have. */
    bool (*enough)(const dibs__ask *ask);
    void *data;
    const dibs__owed_release
        *owed; /* a release: what nodes are told again that have not answered */
    /* out */
    dibs__node_set asked, answered, failed;
    redisReply **reply; /* of node i: reply[i * count], NULL where none came */
    redisReply *few[DIBS__FEW];
    size_t got[DIBS__VOTERS_MAX];
    dibs__bytes bytes[2]; /* [1]: for servers that know flags */
    bool asleep;
};

/* Before a question is written: connections that were hung up are dialled anew, and a majority is waited for. */
void dibs__voters_ready(dibs__voters *v, dibs__deadline until);
/* DIBS_OK: it was asked; look at the sets. Never later than `until`. */
dibs_status dibs__ask_run(dibs__ask *a, dibs__deadline until, dibs_error *err);
void dibs__ask_fini(dibs__ask *a);
/* The reader's: reads what has come for owed releases, calls nodes that are owed something. */
void dibs__voters_tend(dibs__voters *v);
void dibs__voters_tend_later(dibs__voters *v); /* with the lock */
/* Lets what is under way come to its end. */
void dibs__voters_drain(dibs__voters *v, dibs__deadline until);
redisReply *dibs__ask_reply(const dibs__ask *a, size_t node, size_t i);

/* For link.c, with the lock: a node has answered all, or will not. */
void dibs__ask_note(dibs__ask *a, size_t node, bool answered);
void dibs__ask_write(const dibs__voters *v, const dibs__query *q, bool flags, dibs__bytes *out);

/* Tells the nodes of `to` without waiting for an answer, now or when they are back. */
void dibs__voters_owe(dibs__voters *v, dibs__node_set to, const char *key, const char *word,
                      size_t length, dibs__deadline until);
dibs__owed_release *dibs__owed_release_new(const char *key, const char *word, size_t length,
                                           dibs__deadline until);

#endif
