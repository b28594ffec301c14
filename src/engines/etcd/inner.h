/* What the files of the client share. Everything here is called with the client's mutex. */
#ifndef DIBS_ETCD_INNER_H
#define DIBS_ETCD_INNER_H

#include "engines/etcd/client.h"

/* All watches of the handle, on one stream. */
typedef struct dibs__etcd_watches {
    dibs__h2_stream stream;
    bool up;
    dibs__table by_tag, by_number;
    uint64_t numbers;                                    /* given out */
    struct dibs__etcd_watch *to_notify, **to_notify_end; /* to be told to the engine */
    char refused[200]; /* why a watch was, to be told to the log */
} dibs__etcd_watches;

/* The handle's lease and the stream that keeps it. A keep-alive counts when a linearizable read
 * that was asked after its answer has been answered by the same leader: see lease.c. */
typedef struct dibs__etcd_lease {
    dibs__h2_stream stream;
    dibs__etcd_call proof;
    bool up, answered, proving;
    int64_t id, ttl;
    int64_t proved;         /* which one the proof is about */
    dibs__deadline until;   /* proved */
    dibs__deadline sent;    /* of the question that is out, or being proved; 0: none is */
    dibs__deadline due;     /* of the next one */
    uint64_t term;          /* of the leader that answered it */
    int64_t seen_revision;  /* the highest that the cluster has told of */
    int64_t asked_revision; /* that, when the proof was asked for */
    uint64_t seen_term;
    int64_t over; /* its end is to be told to the engine; 0: nothing is */
    int renewed;  /* to be told: 1 proved, -1 not */
} dibs__etcd_lease;

/* What makes requests that arrive late harmless: see guard.c. */
typedef struct dibs__etcd_guard {
    int64_t session;      /* 0: there is none */
    int64_t epoch;        /* the revision at which its key was written */
    dibs__bytes key;      /* owned */
    dibs__bytes bytes;    /* what is added to a guarded transaction */
    bool stale;           /* a request without an answer may arrive: it is to be written anew */
    bool writing;         /* that is under way */
    bool reported;        /* that it could not be, and why */
    char refused[200];    /* to be told to the log */
    dibs__deadline again; /* not before */
    dibs__etcd_call put;
} dibs__etcd_guard;

struct dibs__etcd_client {
    const dibs__env *env;
    dibs__sink *sink;
    dibs__etcd_address address;
    dibs__etcd_events events;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* a connection came, or could not be made */
    pthread_t thread;
    bool running, stopping;
    bool cut;             /* the connection is of no use any more */
    dibs__deadline since; /* it was made */
    int kick;             /* wakes the thread */
    int stop;             /* readable once it shall end */
    dibs__h2 *h2;
    size_t at;       /* the server that it leads to, or was tried last */
    unsigned failed; /* rounds over all servers in vain */
    dibs_error why;  /* the last of them */
    char *token;
    bool full;                   /* the socket takes no more for now */
    bool asked;                  /* whether anybody is there */
    dibs__deadline asked_at;     /* that, last */
    dibs__etcd_call health;      /* with this */
    dibs__deadline goodbye;      /* no more requests on this connection since; 0: it takes them */
    dibs__deadline posted;       /* the last call */
    dibs__deadline asleep_until; /* the thread's */
    dibs__deadline soonest;      /* no call is late before this */
    dibs__deadline alarm;
    dibs__etcd_call *queued, *flying;
    dibs__etcd_call *over, **over_end;
    dibs__etcd_watches watches;
    dibs__etcd_lease lease;
    dibs__etcd_guard guard;
};

/* How long the thread sleeps at most while calls come. */
#define DIBS__ETCD_NAP DIBS__SECOND

/* What was queued goes out; a connection that cannot is given up. */
void dibs__etcd_flush(dibs__etcd_client *c);
void dibs__etcd_kick(dibs__etcd_client *c);
/* The thread shall leave this connection for another. */
void dibs__etcd_leave(dibs__etcd_client *c);

void *dibs__etcd_thread(void *client); /* without the mutex */

/* client.c: sends all that waits and may go; fails it because there is no connection; ends what is late
 * and returns when the next one will be. */
void dibs__etcd_calls_send(dibs__etcd_client *c);
void dibs__etcd_calls_fail(dibs__etcd_client *c);
dibs__deadline dibs__etcd_calls_late(dibs__etcd_client *c, int64_t now);

/* watch.c: after a connection was made; the next thing to tell (false: there is none). */
void dibs__etcd_watches_start(dibs__etcd_client *c);
bool dibs__etcd_watches_next(dibs__etcd_client *c, uint64_t *tag, dibs__etcd_news *news);
void dibs__etcd_watches_fini(dibs__etcd_client *c);

/* lease.c: after a connection was made; sends what is due and returns when to look again. */
void dibs__etcd_lease_start(dibs__etcd_client *c);
dibs__deadline dibs__etcd_lease_turn(dibs__etcd_client *c, int64_t now);

/* An answer came. It tells of a revision, and whatever a majority confirms later is not lower. */
void dibs__etcd_seen(dibs__etcd_client *c, const uint8_t *answer, size_t length);
/* The server has said that it is gone. */
void dibs__etcd_lease_end(dibs__etcd_client *c);

/* guard.c: may a call of this kind go out as far as the guard is concerned? */
bool dibs__etcd_guard_lets(const dibs__etcd_client *c, dibs__etcd_kind kind);
/* Puts the guard of now on a call that is about to be sent. false: out of memory. */
bool dibs__etcd_guard_put_on(dibs__etcd_client *c, dibs__etcd_call *call);
/* Answered: did the guard hold? If not, nothing was done. */
typedef enum dibs__etcd_held {
    DIBS__ETCD_HELD,
    DIBS__ETCD_MOVED, /* it was written meanwhile: again */
    DIBS__ETCD_GONE_WITH_SESSION,
} dibs__etcd_held;
dibs__etcd_held dibs__etcd_guard_held(dibs__etcd_client *c, const dibs__etcd_call *call);
/* A call ends so: does its request have to be made harmless? */
void dibs__etcd_guard_ended(dibs__etcd_client *c, const dibs__etcd_call *call, int rpc);
/* Writes it anew if that is due; when to look again. */
dibs__deadline dibs__etcd_guard_turn(dibs__etcd_client *c, int64_t now);
void dibs__etcd_guard_fini(dibs__etcd_client *c);

/* client.c: as dibs__etcd_post, with the mutex. */
bool dibs__etcd_post_locked(dibs__etcd_client *c, dibs__etcd_call *call, dibs__etcd_kind kind,
                            const char *method, const ProtobufCMessage *request,
                            dibs__deadline until, dibs__etcd_done_fn *done);
/* Nobody wants its answer any more: `done` will not run, and the call may be used again. false: it has
 * ended already, and `done` is about to. */
bool dibs__etcd_call_drop(dibs__etcd_call *call);
/* Requests may be written to the connection. */
bool dibs__etcd_takes_requests(const dibs__etcd_client *c);

#endif
