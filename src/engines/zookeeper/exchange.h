/* Exchanges: requests about cells whose answers a thread waits for.
 *
 *   begin → expect and sent for each request → wait → what came → drop
 *
 * A thread that gives up leaves the exchange to the answers that still come (core/answer.h): the last one frees it, or
 * the end of the library's handle does. The backend's mutex guards it. */
#ifndef DIBS_ENGINES_ZOOKEEPER_EXCHANGE_H
#define DIBS_ENGINES_ZOOKEEPER_EXCHANGE_H

#include "core/answer.h"
#include "engines/zookeeper/zookeeper.h"

/* Of a multi: a stretch of cells that are dropped, with their guards, and the folder. */
#define DIBS__ZK_OPS     (2 * DIBS__ENTRIES_BATCH + 1)
#define DIBS__ZK_REPLIES DIBS__ZK_OPS

typedef struct dibs__zk_exchange dibs__zk_exchange;

/* A node that was asked for, or made: then `data` is its path. */
typedef struct dibs__zk_reply {
    dibs__zk_exchange *e;
    int rc;
    char *data;
    size_t size;
    struct Stat stat;
} dibs__zk_reply;

struct dibs__zk_exchange {
    dibs__zk *z;
    dibs__zk_exchange *next, **at; /* of z->exchanges, while answers are awaited */
    dibs__answer answer;
    int rc; /* of what is not a reply, or of a reply that failed */
    char **names;
    size_t name_count;
    zoo_op_result_t results[DIBS__ZK_OPS];
    dibs__zk_reply reply[DIBS__ZK_REPLIES];
};

/* NULL: out of memory. */
dibs__zk_exchange *dibs__zk_exchange_new(dibs__zk *z);
void dibs__zk_exchange_drop(dibs__zk_exchange *e);

/* Takes the mutex if there is a session to send on. */
dibs_status dibs__zk_exchange_begin(dibs__zk *z, dibs_error *err);
/* With the mutex: before a request is handed over, and when it was, or was not: then no answer will
 * come. */
dibs__zk_exchange *dibs__zk_expect(dibs__zk_exchange *e);
dibs__zk_reply *dibs__zk_expect_reply(dibs__zk_exchange *e, size_t i);
void dibs__zk_exchange_sent(dibs__zk_exchange *e, int rc);
/* Leaves the mutex and waits for all answers. */
dibs_status dibs__zk_exchange_wait(dibs__zk_exchange *e, dibs__deadline until, dibs_error *err);
/* What came of it; of one that has not ended, nothing is known: ZOPERATIONTIMEOUT. */
int dibs__zk_exchange_rc(dibs__zk_exchange *e);

/* cell.c: the values of blobs, as many as DIBS__ENTRIES_BATCH, and the guards of the first so many. */
dibs_status dibs__zk_cells_get(dibs__zk *z, dibs__zk_exchange *e, dibs__entries_blob *blobs,
                               size_t count, size_t guards, dibs__deadline until, dibs_error *err);

/* Completions for the library: data is an exchange, or a reply. */
void dibs__zk_exchange_on_text(int rc, const char *value, const void *data);
void dibs__zk_exchange_on_void(int rc, const void *data);
void dibs__zk_exchange_on_names(int rc, const struct String_vector *names, const void *data);
void dibs__zk_reply_on_stat(int rc, const struct Stat *stat, const void *data);
void dibs__zk_reply_on_path(int rc, const char *path, const void *data);
void dibs__zk_reply_on_data(int rc, const char *value, int size, const struct Stat *stat,
                            const void *data);

#endif
