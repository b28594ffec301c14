/* What the files of the client share. Everything here is called with the client's mutex. */
#ifndef DIBS_ETCD_INNER_H
#define DIBS_ETCD_INNER_H

#include "engines/etcd/client.h"

/* All watches of the handle, on one stream. */
typedef struct dibs__etcd_watches {
    dibs__h2_stream stream;
    bool up;
    dibs__table by_tag;
    struct dibs__etcd_watch *told, **told_end; /* to be told to the engine */
    char refused[200];                         /* why a watch was, to be told to the log */
} dibs__etcd_watches;

/* The handle's lease and the stream that keeps it. A sign of life counts when a linearizable read
 * that was asked after its answer has been answered by the same leader: see lease.c. */
typedef struct dibs__etcd_lease {
    dibs__h2_stream stream;
    dibs__etcd_call proof;
    bool up, answered, proving;
    int64_t id, ttl;
    int64_t proved;       /* which one the proof is about */
    dibs__deadline until; /* proved */
    dibs__deadline sent;  /* of the question that is out, or being proved; 0: none is */
    dibs__deadline due;   /* of the next one */
    uint64_t term;        /* of the leader that answered it */
    int64_t over;         /* its end is to be told to the engine; 0: nothing is */
    int renewed;          /* to be told: 1 proved, -1 not */
} dibs__etcd_lease;

struct dibs__etcd_client {
    const dibs__env *env;
    dibs__sink *sink;
    dibs__etcd_place place;
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
    dibs__deadline pinged;       /* 0: no ping is out */
    dibs__deadline posted;       /* the last call */
    dibs__deadline asleep_until; /* the thread's */
    dibs__deadline soonest;      /* no call is late before this */
    dibs__deadline alarm;
    dibs__etcd_call *queued, *flying;
    dibs__etcd_call *over, **over_end;
    dibs__etcd_watches watches;
    dibs__etcd_lease lease;
};

/* How long the thread sleeps at most while calls come. */
#define DIBS__ETCD_NAP DIBS__SECOND

/* What was queued goes out; a connection that cannot is given up. */
void dibs__etcd_flush(dibs__etcd_client *c);
void dibs__etcd_kick(dibs__etcd_client *c);
/* The thread shall leave this connection for another. */
void dibs__etcd_leave(dibs__etcd_client *c);

void *dibs__etcd_thread(void *client); /* without the mutex */

/* client.c: sends all that waits for a connection; fails it because there is none; ends what is
 * late and returns when the next one will be. */
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

/* client.c: as dibs__etcd_post, with the mutex. */
bool dibs__etcd_post_locked(dibs__etcd_client *c, dibs__etcd_call *call, const char *method,
                            const ProtobufCMessage *request, dibs__deadline until,
                            dibs__etcd_done_fn *done);

#endif
