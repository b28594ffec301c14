/* Calls to an etcd cluster: one connection, one thread that reads it, any number of callers.
 *
 * A caller writes its request to the connection itself; the thread reads the answer and tells.
 * Requests of many callers are under way at once. Two streams go along on the same connection: one
 * carries all watches (watch.c), one keeps the lease alive (lease.c). When the connection ends, the
 * thread goes to the next server of the URL, takes both streams up again, and what is asked
 * meanwhile waits for that or learns why it fails. What was asked on the old connection and not
 * answered has no effect from then on (guard.c). One mutex guards all of it and is never held
 * over anything that can block, nor while a callback of the engine's runs. */
#ifndef DIBS_ETCD_CLIENT_H
#define DIBS_ETCD_CLIENT_H

#include "core/table.h"
#include "engines/engine.h"
#include "engines/etcd/h2.h"
#include "engines/etcd/rpc.pb-c.h"

#include <pthread.h>

typedef struct dibs__etcd_client dibs__etcd_client;
typedef struct dibs__etcd_call dibs__etcd_call;

typedef enum dibs__etcd_news {
    DIBS__ETCD_SET_UP = 1,
    DIBS__ETCD_GONE = 2,
    DIBS__ETCD_DOUBT = 4,
    DIBS__ETCD_PUT = 8,
} dibs__etcd_news;

/* What the client tells, from its thread, with no lock held. */
typedef struct dibs__etcd_events {
    /* A watch is set up (once each), its key was deleted or put, or may have been unseen. */
    void (*watched)(void *ctx, uint64_t tag, dibs__etcd_news news);
    /* The lease has ended: by the server's word, or by our clock. Once a lease. */
    void (*lease_over)(void *ctx, int64_t lease);
    /* A keep-alive was proved (`until` is its new end), or did not come through. */
    void (*lease_renewed)(void *ctx, bool proved);
    /* The moment that was given to dibs__etcd_alarm has come. */
    void (*alarm)(void *ctx);
    void *ctx;
} dibs__etcd_events;

/* Where the servers are and as whom to come: what the URL said. Owned by the client. */
typedef struct dibs__etcd_address {
    struct {
        char *name;
        int port;
    } host[DIBS__HOSTS_MAX];
    size_t count;
    char *user, *password;  /* NULL: none */
    char *probe;            /* a key that we may read */
    dibs__tls_context *tls; /* NULL: plain */
} dibs__etcd_address;

/* ---- Life ------------------------------------------------------------------------------------ */

/* `address` is taken, also on failure. NULL: out of memory or descriptors. */
dibs__etcd_client *dibs__etcd_client_new(const dibs__env *env, dibs__sink *sink,
                                         dibs__etcd_address *address,
                                         const dibs__etcd_events *events);
void dibs__etcd_address_fini(dibs__etcd_address *address);

/* Starts the thread and waits for the first connection. */
dibs_status dibs__etcd_client_open(dibs__etcd_client *c, dibs__deadline until, dibs_error *err);
void dibs__etcd_client_free(dibs__etcd_client *c);
/* In a forked child: closes descriptors. */
void dibs__etcd_client_abandon(dibs__etcd_client *c);

/* ---- Calls ----------------------------------------------------------------------------------- */

/* What a call may do when it arrives late, after its caller has given it up; see guard.c. */
typedef enum dibs__etcd_kind {
    DIBS__ETCD_URGENT, /* nothing that matters: leases, keep-alives. It never waits for the guard */
    /* What stays right for ever, like removing an entry that was given up. Nor does this wait for it. */
    DIBS__ETCD_FINAL,
    /* Nothing at all: are our entries there? Nor does this; it is asked again when the connection is cut. */
    DIBS__ETCD_LOOK,
    DIBS__ETCD_READ, /* the same, but what is decided by it must not change: it waits for the guard */
    DIBS__ETCD_GUARDED, /* a transaction that must not come late, under whichever session */
    DIBS__ETCD_BOUND,   /* the same, and it belongs to the session that it was made for */
} dibs__etcd_kind;

typedef void dibs__etcd_done_fn(dibs__etcd_call *call);

/* Part of a structure of the caller's, which stays until `done` has begun. */
struct dibs__etcd_call {
    dibs__h2_stream stream;
    dibs__etcd_client *client;
    const char *method;
    dibs__etcd_done_fn *done;
    dibs__deadline until;
    dibs__etcd_call *next, **link; /* among those that wait for a connection, or for an answer */
    dibs__etcd_kind kind;
    int tries;
    size_t whole;    /* bytes of the request without the guard */
    int64_t session; /* whose guard it bears, and which */
    int64_t epoch;
};

/* Sends it, or keeps it until there is a connection; never blocks, any thread. `done` runs once, on
 * the client's thread with no lock held: when the answer is there, when the connection was closed, when
 * no server can be reached, or soon after `until`. false: out of memory, and `done` will not run. */
bool dibs__etcd_post(dibs__etcd_client *c, dibs__etcd_call *call, dibs__etcd_kind kind,
                     const char *method, const ProtobufCMessage *request, dibs__deadline until,
                     dibs__etcd_done_fn *done);

/* In `done`: what came of it. `out` is freed with protobuf_c_message_free_unpacked. UNKNOWN,
 * UNAVAILABLE and other refusals as in engine.h. */
dibs_status dibs__etcd_answer(dibs__etcd_call *call, const ProtobufCMessageDescriptor *type,
                              ProtobufCMessage **out, dibs_error *err);
/* The call may be used again. */
void dibs__etcd_call_fini(dibs__etcd_call *call);

/* Post and wait; not on the client's thread. */
dibs_status dibs__etcd_ask(dibs__etcd_client *c, dibs__etcd_kind kind, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                           ProtobufCMessage **out, dibs__deadline until, dibs_error *err);

/* ---- The guard ------------------------------------------------------------------------------- */

/* The session's guard: its key, and the revision at which it was written. Guarded calls wait until there
 * is one; with it, those of earlier sessions have no effect any more. 0: none. false: out of memory. */
bool dibs__etcd_guard_set(dibs__etcd_client *c, int64_t session, const void *key, size_t length,
                          int64_t epoch);
/* It is written anew before anything else goes out; when it is not there, the lease is over. */
void dibs__etcd_guard_doubt(dibs__etcd_client *c);

/* ---- Watches --------------------------------------------------------------------------------- */

/* Watches one key, from a revision or (0) from now on; `events` are told about `tag`, which is the
 * caller's name for it and not 0. Survives the connection. false: out of memory. */
bool dibs__etcd_watch(dibs__etcd_client *c, uint64_t tag, const void *key, size_t length,
                      int64_t from);
/* An event that is under way may still be told. */
void dibs__etcd_unwatch(dibs__etcd_client *c, uint64_t tag);

/* ---- The lease ------------------------------------------------------------------------------- */

/* The lease to keep alive from now on: granted at `sent` for `ttl` microseconds. 0: none. */
void dibs__etcd_lease_set(dibs__etcd_client *c, int64_t lease, dibs__deadline sent, int64_t ttl);
/* It is over, if it is this one; nothing will be told. */
void dibs__etcd_lease_drop(dibs__etcd_client *c, int64_t lease);

/* Until when it surely lasts, by our clock; 0 when there is none. `events` are told when a sign of
 * life is proved, or was asked for and is not. */
dibs__deadline dibs__etcd_lease_until(dibs__etcd_client *c);

/* A keep-alive now, unless one is on its way. */
void dibs__etcd_lease_renew(dibs__etcd_client *c);

/* Puts off the end of another lease, without an answer. */
void dibs__etcd_lease_touch(dibs__etcd_client *c, int64_t lease);

/* `events` are told at that moment, or earlier; the soonest counts. */
void dibs__etcd_alarm(dibs__etcd_client *c, dibs__deadline when);

#endif
