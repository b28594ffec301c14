/* The inside of a request: what request.c (starting, stopping, ending) and perform.c (asking the engine) share.
 *
 *   queued     a worker will take it up                         (job is listed)
 *   running    a worker asks the engine
 *   waiting    another's run or a break is looked at again      (the keeper task has a time)
 *   ended      its outcome is there                             (not in d->requests any more)
 *
 * A lock's request has a ticket instead, which is queued, entered and kept alive as a ticket is. */
#ifndef DIBS_CALLS_REQUEST_H
#define DIBS_CALLS_REQUEST_H

#include "core/handle.h"
#include "recipes/once.h"

typedef struct dibs__request dibs__request;
typedef struct dibs__op_row dibs__op_row;

/* The copied arguments of a call, and what it returns. */
typedef struct dibs__call {
    const char *name;
    union {
        dibs_lock_options lock; /* adopt */
        dibs_lock_list_options lock_list;
        dibs_lock_break_options lock_break;
        dibs_once_options once;
        dibs_once_list_options once_list;
        dibs_once_inspect_options once_inspect;
        dibs_once_forget_options once_forget;
        dibs_once_resolve_options once_resolve;
        dibs_token_options token;
        dibs_counter_options counter;
        dibs_cell_options cell;
    } options;
    const void *data;
    size_t size;
    uint64_t version;
    int64_t number;
    dibs_once *once;
    dibs_grant *grant; /* adopted */
    dibs_lock_report *report;
    dibs_once_report *once_report;
    dibs_value value;
    char token[DIBS_TOKEN_SIZE];
    dibs__unlocking unlocking;
    dibs_error err;
} dibs__call;

struct dibs__request {
    dibs *d;
    uint64_t id;
    dibs_op op;
    const dibs__op_row *row; /* of a call */
    void *user;
    dibs__node by_id; /* in d->requests, until it has ended */
    dibs__job job;
    dibs__keeper_task again; /* waiting: when it is looked at again */
    dibs__news outcome;
    bool reserved;             /* has a place among the maintenance */
    bool stopped;              /* while it was running */
    bool begun;                /* the engine was asked once: what follows is waiting */
    dibs__deadline send_until; /* not taken up by then: not sent */
    dibs__deadline until;      /* when the caller's patience ends */
    int64_t pause;
    dibs_grant *grant; /* unlock; renew: a reference for as long as the call takes */
    union {
        dibs__ticket ticket; /* of a lock: there may be very many of these */
        dibs__call
            *call; /* of anything else; in the same allocation, and behind it what was copied */
    } of;
};

/* With the mutex: its outcome is there. For anything but a lock `err` says it. */
void dibs__request_end(dibs__request *r);
void dibs__request_cancel(dibs__request *r); /* the same: DIBS_CANCELLED */

/* perform.c */
typedef enum dibs__options_kind {
    DIBS__NO_OPTIONS,
    DIBS__LOCK_OPTIONS,
    DIBS__LIST_OPTIONS,
    DIBS__BREAK_OPTIONS,
    DIBS__ONCE_OPTIONS,
    DIBS__ONCE_LIST_OPTIONS,
    DIBS__ONCE_INSPECT_OPTIONS,
    DIBS__ONCE_FORGET_OPTIONS,
    DIBS__ONCE_RESOLVE_OPTIONS,
    DIBS__TOKEN_OPTIONS,
    DIBS__COUNTER_OPTIONS,
    DIBS__CELL_OPTIONS,
} dibs__options_kind;

/* What there is to know about an op that is a call. */
struct dibs__op_row {
    dibs_op op;
    dibs__options_kind options;
    bool takes_once, takes_grant; /* must be given */
    bool waits;                   /* for another client */
    /* The call, without waiting; `begun`: not for the first time. Without the mutex. */
    dibs_status (*ask)(dibs *d, dibs__request *r);
};

const dibs__op_row *dibs__op_find(dibs_op op); /* NULL: no such call */
/* With the mutex, which is given away meanwhile: asks the engine, then ends it or lets it wait. */
void dibs__request_perform(dibs *d, dibs__job *j);

#endif
