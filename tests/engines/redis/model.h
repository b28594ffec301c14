/* The guard and the acknowledgements of docs/engines/redis.md (Failover), explored: a master, two replicas, two clients that
 * want one lock, and every order in which time can pass, messages can arrive, replicas can catch up, be promoted and
 * change sides, and masters can restart empty, as far as it leads to new states.
 *
 * Time is counted in ticks, and only what lies ahead of a state matters: without fences the search has no end of time, and
 * no limit of tries. A lease is LEASE ticks: for the server from when it ran the command, for the
 * client from when it sent it. A cut-off master is one whose replicas have left: clients still reach it. Any message may
 * be late, or lost. What a command did counts for its client when one replica (of two) has had it *while it
 * followed that master*; the client may learn that at any later time.
 *
 * Commands carry the identity of the server that the client connected to; a connection is made to a server that
 * says that it is a master, and looks at the marker.
 *
 * The rules: no two hold at the same time; whoever is granted later has the higher fence. Assumed: a promoted
 * replica is at most LAG ticks behind, as far as fences are concerned (for the lock itself it may lack anything).
 *
 * The same search on variants that lack a part of the scheme must find what that part is for. */
#ifndef DIBS_TESTS_REDIS_MODEL_H
#define DIBS_TESTS_REDIS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SERVERS = 3, CLIENTS = 2, LEASE = 2, QUIET = LEASE, RESERVE = 8, LAG = 1 };
enum { NEVER = 200, NOW = 10 };

typedef enum variant {
    SOUND,
    NO_GUARD,      /* a server that took over grants at once */
    NO_WAIT,       /* grants and renewals count without replicas */
    NO_WAIT_RENEW, /* renewals do */
    EARLY_QUIET, /* the quiet period begins when it is noticed, without replicas of the new master */
    EARLY_RESTART, /* that of a server that restarted begins with its process */
    NO_CEILING,    /* fences follow the clock alone */
} variant;

typedef struct world {
    const char *label;
    variant variant;
    bool fences;                 /* look at these, too */
    uint8_t failovers, restarts; /* in all */
    uint8_t ticks;               /* in all; with fences only */
    uint8_t clock[SERVERS];      /* what it shows at tick 0 */
} world;

/* What is replicated: the lock and the marker. */
typedef struct data {
    uint8_t holder, ends; /* client + 1, by the server's clock */
    uint8_t last;         /* fence */
    uint8_t id, opens;    /* of the marker: which server, when it may grant */
    uint8_t base, ceiling;
} data;

typedef struct node {
    data d;
    uint8_t follows;  /* itself: a master */
    uint8_t id;       /* changes when it is promoted or restarts */
    uint8_t promoted; /* 0: the data began with this process */
    uint8_t seen;     /* replicas that have had its marker, as bits */
    uint8_t synced;   /* when it was last the same as its master */
} node;

enum { NOTHING, ENTER, RENEW };

typedef struct client {
    uint8_t server, id;      /* of its connection; id 0: none */
    uint8_t asks, sent;      /* what is under way, and since when */
    uint8_t at, had;         /* the server that did it + 1, and replicas that have had it */
    uint8_t fence, deadline; /* held until then */
    uint8_t got;             /* the fence of what is under way */
} client;

typedef struct state {
    uint8_t now, failovers, restarts, ids;
    uint8_t newest; /* the master that the sentinels know */
    uint8_t granted;
    node node[SERVERS];
    client client[CLIENTS];
} state;

enum { STEP_KINDS = 12, CHOICES = STEP_KINDS * SERVERS * CLIENTS };

void model_begin(const world *w, state *s);
/* Changes the state; false: there is no such step now. `wrong`: the text of the rule that it breaks. */
bool model_step(const world *w, state *s, int choice, const char **wrong);
/* Writes down as one what differs in nothing that matters. */
void model_forget(const world *w, state *s);
/* For people, like snprintf. */
int model_describe(int choice, char *out, size_t size);

#endif
