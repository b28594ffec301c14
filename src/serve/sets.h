/* A set: the locks that one request asks for, from the first question to the end of the last lease.
 *
 *     COLLECTING  they are asked for, one after another in the order of their names
 *     HELD        all of them are held; the set has an id, which is the client's grant
 *     ENDED       released or lost: freed when nothing about it is out any more. Hashes of it are remembered for
 *                 answers that were lost (past.h)
 *
 * While a set is held here, its grants are in this process, without the keeper's renewal: the client renews.
 * That they are here is a convenience (a renewal needs no adoption, a loss is reported): a set that nobody
 * renews here is forgotten without being released, because its client may have gone to another server.
 * Where the lease belongs to the handle (lease_of_handle) nobody else can have it: then the keeper renews, and
 * a timer of ours releases what its client does not renew. */
#ifndef DIBS_SERVE_SETS_H
#define DIBS_SERVE_SETS_H

#include "serve/serve.h"

enum {
    SERVE_NAMES = 16,
    SERVE_REQUEST_MIN = 16,
    SERVE_REQUEST_MAX = 128,
    SERVE_LABEL_MAX = 80,
    SERVE_ID_MAX = SERVE_NAMES * DIBS_GRANT_SIZE,
    SERVE_SLICE_MS = 25000,    /* of --slice: an answer takes no longer */
    SERVE_KEPT_MS = 10000,     /* a place in the queue without a client */
    SERVE_REMEMBER_MS = 60000, /* what has ended */
    SERVE_DAY_MS = 24 * 3600 * 1000,
};

typedef enum serve_state {
    SERVE_COLLECTING,
    SERVE_HELD,
    SERVE_ENDED,
} serve_state;

typedef struct serve_lock {
    struct serve_set *set;
    dibs_grant *g;
    dibs_loss lost;
    char *name;
    char *text; /* of a grant that is taken up */
} serve_lock;

typedef struct serve_terms {
    int64_t lease_ms;
    uint32_t slots, weight;
    bool shared;
    bool by_keeper; /* the keeper renews: hold streams, and where the lease is the handle's */
    bool portable;
} serve_terms;

typedef struct serve_op serve_op;

typedef struct serve_set {
    serve *s;
    serve_state state;
    serve_terms terms;
    int64_t deadline_ms; /* of the wait */
    int64_t promised_ms; /* a stream that holds: its client knows that it may work until then */
    uint64_t asked;      /* a LOCK that is out */
    size_t out;          /* releases and adoptions that are out: it may not be freed */
    size_t adopting;     /* adoptions alone */
    size_t held, count;
    bool stopped;       /* nobody wants it any more */
    bool restart;       /* one was lost while others were waited for */
    bool own_id;        /* the client chose the request id */
    bool delivered;     /* an answer with the grant was sent */
    bool used;          /* the client has the grant: it came back with it */
    bool unwanted;      /* freed when nothing is out any more */
    bool operating;     /* its operations are being run through */
    bool released;      /* by an operation: a release that comes behind it is answered alike */
    bool by_key, by_id; /* in these tables */
    http_exchange *x;
    http_timer timer;
    /* Called once when all are held (DIBS_OK), or when that failed and nothing is held. */
    void (*collected)(struct serve_set *set, const dibs_error *err);
    void (*lost)(struct serve_set *set, dibs_loss why); /* HELD: once for each lock */
    void (*shutdown)(struct serve_set *set);
    void *data;
    dibs_error *failure; /* why collecting failed, while what is held is given back */
    serve_op *first_op;  /* renewals and releases, one at a time */
    char *request, *id;
    char *owner;
    char key[33], digest[33];
    serve_lock locks[];
} serve_set;

/* Reads names and terms from the exchange; `label` is the owner that it shows. NULL: it was answered. */
serve_set *serve_set_read(http_exchange *x, bool stream);

/* Asks for the locks, until s->deadline_ms. */
void serve_set_collect(serve_set *set);
/* Ends a wait: `collected` is not called any more, what is granted is released, and the set is freed. */
void serve_set_abandon(serve_set *set);
/* HELD: releases all without waiting for the answers. The set is ENDED. */
void serve_set_release(serve_set *set);
/* HELD: forgets them; they are free when their leases end. The set is ENDED. */
void serve_set_detach(serve_set *set);
void serve_set_lost(serve_lock *lock, dibs_loss why); /* an outcome said so */
void serve_set_free(serve_set *set);                  /* ENDED, or never collected */
bool serve_set_is_held(const serve_set *set);
int64_t serve_set_remaining_ms(const serve_set *set); /* the shortest */
/* {"fence", "locks": [...], "lease_ms", "remaining_ms"} */
json_t *serve_set_json(const serve_set *set);

/* Tables of the sets of one server. */
serve_set *serve_set_of_key(serve *s, const char *key);
serve_set *serve_set_of_id(serve *s, const char *id);
bool serve_set_enlist_key(serve_set *set);
bool serve_set_enlist_id(serve_set *set);
void serve_set_delist_id(serve_set *set);
void serve_set_delist_key(serve_set *set);
void serve_sets_each(void *table, void (*visit)(serve_set *set)); /* visit may free it */

/* ---- The life of a grant of a client's (acquire.c) -------------------------------------------- */

void serve_set_on_lost(serve_set *set, dibs_loss why);
void serve_set_settle(serve_set *set);  /* after an operation: were locks lost meanwhile? */
void serve_set_end(serve_set *set);     /* ENDED, and remembered: to be freed */
void serve_set_renewed(serve_set *set); /* its client has come back */
void serve_waits_drain(serve *s);       /* answers all waits, ends all hold streams */
void serve_streams_check(serve *s);     /* ends hold streams of clients whose token has changed */
void serve_grants_drain(serve *s);      /* forgets all grants: they stay with their leases */

extern const http_field serve_acquire_fields[], serve_hold_fields[];
extern const http_route serve_acquire_routes[], serve_grant_routes[], serve_hold_routes[];

#endif
