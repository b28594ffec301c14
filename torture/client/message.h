/* What workers and the coordinator say to each other: one message, one answer, over a socket of packets. */
#ifndef DIBS_TORTURE_MESSAGE_H
#define DIBS_TORTURE_MESSAGE_H

#include "torture.h"

typedef enum torture_kind {
    TORTURE_SAY_OPENED, /* the engine was reached */
    TORTURE_SAY_RAISE,  /* presents `fence`, gets the fenced counter of `index` */
    TORTURE_SAY_READ,   /* gets the plain counter of `index` */
    TORTURE_SAY_STORE,  /* writes one of them: `fenced` */
    TORTURE_SAY_EFFECT, /* the effect of a run of once, of key `text` */
    TORTURE_SAY_GIVE,   /* a token for others to redeem */
    TORTURE_SAY_TAKE,   /* one that another worker issued */
} torture_kind;

typedef struct torture_message {
    torture_kind kind;
    uint32_t index;
    uint64_t sequence; /* of the attempt: "WORKER.SEQUENCE" */
    uint64_t fence;
    int64_t value;
    bool fenced;
    bool ok; /* of the answer */
    char text[96];
} torture_message;

/* Sends it and waits for the answer, which replaces it. Without a coordinator the worker ends. */
void torture_ask(torture_worker *w, torture_message *m);

#endif
