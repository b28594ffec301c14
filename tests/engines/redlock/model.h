/* Redlock's votes and fences, explored: three nodes, two clients, every order in which messages can
 * arrive, leases can end and nodes can restart, as far as it leads to new states.
 *
 * Time is left out and what it means is kept: a client believes that it holds until the moment
 * "its lease is over by its own clock"; only after that may a node, each by itself, let go of that
 * vote. A try whose lease is over cannot be granted any more. Every message of a try is delivered at
 * any moment, or never; a release may come long after the client has gone on. A fence is a small
 * number; clients propose max(highest seen + 1, their clock), and the clocks are worlds apart.
 *
 * Questions of one client reach a node in the order in which they were sent, or not at all: what a
 * dead connection still brings is refused. Releases come whenever they come.
 *
 * Hints are not modelled, but all that they can do is: a node that keeps its vote for another refuses a question
 * although no vote is out. Here it may do so at any moment, to anybody, and each node by itself, so that nothing rests on whom
 * the hints name, on their being the same on two nodes, or on how long a vote is kept.
 *
 * The rules: no two believe at once, and whoever is granted later has the higher fence. The same
 * search runs on variants that are known to be wrong, and must catch them: writing the fence back to
 * any majority; restarted nodes that vote at once; a release that does not name its round; questions
 * of a dead connection that still count; being told that the votes are kept taken for having them. */
#ifndef DIBS_TESTS_REDLOCK_MODEL_H
#define DIBS_TESTS_REDLOCK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NODES = 3, MAJORITY = 2, CLIENTS = 2, TRIES = 2 };
enum { NO_ONE = 0 }; /* instead of a vote */

typedef enum variant {
    SOUND,
    ANY_MAJORITY,   /* the fence is written back to nodes that did not vote, too */
    NO_GUARD,       /* a restarted node votes at once */
    NO_ROUND,       /* a late release of an old try takes the new vote away */
    NO_ORDER,       /* a late question of an old try still counts */
    NOTICE_IS_HELD, /* a node that keeps its vote for a client counts as a vote */
} variant;

typedef struct world {
    const char *label;
    variant variant;
    int restarts;   /* of nodes, in all */
    bool lose_data; /* a restart forgets */
    uint8_t clock[CLIENTS];
    uint8_t tries[CLIENTS];
} world;

/* What became of a message: not sent, on its way, arrived (its answer is kept), never. */
enum { UNSENT, SENT, ARRIVED };
/* Where a try is. */
enum { IDLE, VOTING, WRITING, HELD, OVER };

typedef struct attempt {
    uint8_t phase;
    uint8_t proposal, fence;
    uint8_t ask[NODES], back[NODES], give[NODES]; /* messages */
    uint8_t answer[NODES];                        /* the fence of the vote; 0: refused */
    uint8_t took[NODES];                          /* the node has taken the fence on */
    uint8_t expired;                              /* by the client's clock */
} attempt;

typedef struct node {
    uint8_t vote, last;
    uint8_t mute; /* restarted, and may not vote yet */
} node;

typedef struct state {
    attempt try[CLIENTS][TRIES];
    node node[NODES];
    uint8_t seen[CLIENTS];
    uint8_t clock[CLIENTS];
    uint8_t granted; /* the highest fence ever granted */
    uint8_t restarts;
} state;

/* A vote is a try of a client's. */
static inline uint8_t vote_of(int client, int try)
{
    return (uint8_t)(1 + client * TRIES + try);
}

/* ---- Steps (model.c) ------------------------------------------------------------------------- */

enum { STEP_KINDS = 10, CHOICES = STEP_KINDS * CLIENTS * TRIES * NODES };

/* Changes the state; false: there is no such step now. `wrong`: the text of the rule that it breaks. */
bool model_step(const world *w, state *s, int choice, const char **wrong);
/* For people, like snprintf. */
int model_describe(int choice, char *out, size_t size);

/* ---- The search (search.c) ------------------------------------------------------------------- */

typedef struct finding {
    const char *wrong; /* the rule that was broken, or NULL */
    char how[4096];    /* by these steps */
    size_t states;     /* how many were seen */
    bool full;         /* there may be more: that is all that there is room for */
} finding;

void model_explore(const world *w, finding *out);

#endif
