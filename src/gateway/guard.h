/* What the files of a guarded request share.
 *
 *     guard_head.c   what its head says, and what is refused for it
 *     guard_claim.c  the claim of its key, and what duplicates get
 *     guard_send.c   fence, token, record, and then the application
 *     guard.c        the answer, and the end of the claim
 *     guard_token.c  tokens for pages */
#ifndef DIBS_GATEWAY_GUARD_H
#define DIBS_GATEWAY_GUARD_H

#include "gateway/gate.h"
#include "gateway/key.h"
#include "gateway/stored.h"

struct gate_guard {
    gate_exchange *x;
    bool keyed, tokened, fenced;
    char key[GATE_KEY_SIZE], scope[GATE_PATTERN_MAX + 48], key_hash[17];
    char token[DIBS_TOKEN_SIZE], cell[DIBS_NAME_MAX + 1];
    dibs_cell_options fence;
    http_digest *hash;
    char *path;
    char *query;
    unsigned char fingerprint[GATE_HASH_SIZE];
    http_buffer body;

    dibs_once *once; /* the claim, or what is known of the key */
    uint64_t asked;  /* the begin that is out */
    bool busy;       /* a request about it is out */
    bool waiting;    /* it is the begin */
    bool claimed;    /* and this run has to end */
    bool again;      /* an earlier run died */
    bool redeemed;   /* our token */
    bool proved;     /* it was proved that an earlier run sent nothing */
    unsigned attempt;

    gate_on_error verdict;            /* of the answer */
    gate_failure failure;             /* why there is none */
    http_buffer head, kept, trailers; /* what is stored */
    bool too_large;
    bool hold; /* the whole answer is held back: its end could not be told from a broken one */
    http_buffer tail; /* what the client gets when the claim is finished */
    bool broken;      /* the client must not take its answer for whole */
    bool own;         /* the answer is the gateway's */
    bool issues;      /* a request for a token */
    dibs_op ending;
    http_timer timer;
};

/* NULL: it was refused. */
gate_guard *gate_guard_new(gate_exchange *x, const char *path, wire_text query);
/* The body is needed first; a client that asks whether to send it may do so. False: it was refused. */
bool gate_guard_expect_body(gate_exchange *x, const wire_head *h);
void gate_guard_issue(gate_guard *g); /* a token */

/* The claim is ours: fence, token, application. */
void gate_guard_admit(gate_guard *g);
/* A request to the engine about this claim. */
void gate_guard_ask(gate_guard *g, dibs_request *r, gate_outcome_fn done);
/* The route says what happens when the engine is down. */
void gate_guard_without_engine(gate_guard *g, const dibs_error *err);

void gate_guard_set_claimed(gate_guard *g, bool claimed);
/* Ends the claim by this operation; then the client gets the rest of its answer. */
void gate_guard_settle(gate_guard *g, dibs_op op);
/* The client gets it now. */
void gate_guard_deliver(gate_guard *g);

/* An answer of our own, when `op` is done: a client that reads it can rely on it. */
#define GATE_ANSWER(g, op, result_, http, code, retry, headers, ...)                       \
    do {                                                                                   \
        (g)->x->result = (result_);                                                        \
        (g)->own = true;                                                                   \
        gate_problem((g)->x, &(g)->tail, (http), (code), (retry), (headers), __VA_ARGS__); \
        gate_guard_settle((g), (op));                                                      \
    } while (0)

#endif
