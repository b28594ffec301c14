/* Errands: requests about cells whose answers a thread waits for.
 *
 *   begin → expect and sent for each request → wait → what came → drop
 *
 * Whoever gives up leaves the errand to the answers that still come: the last one frees it, or the end
 * of the library's handle does. ZooKeeper's side guards it with its mutex. */
#ifndef DIBS_ENGINES_ZOOKEEPER_ERRAND_H
#define DIBS_ENGINES_ZOOKEEPER_ERRAND_H

#include "engines/zookeeper/zookeeper.h"

/* Of a multi: a stretch of cells that are dropped, with their guards, and the folder. */
#define DIBS__ZK_OPS     (2 * DIBS__LINE_STRETCH + 1)
#define DIBS__ZK_PARCELS DIBS__ZK_OPS

typedef struct dibs__zk_errand dibs__zk_errand;

/* A node that was asked for, or made: then `data` is its path. */
typedef struct dibs__zk_parcel {
    dibs__zk_errand *e;
    int rc;
    char *data;
    size_t size;
    struct Stat stat;
} dibs__zk_parcel;

struct dibs__zk_errand {
    dibs__zk *z;
    dibs__zk_errand *next, **at; /* of z->errands, while answers are awaited */
    pthread_cond_t cond;
    bool wanted; /* somebody has it */
    int left;    /* answers that are awaited */
    int rc;      /* of what is not a parcel, or of a parcel that failed */
    char **names;
    size_t name_count;
    zoo_op_result_t results[DIBS__ZK_OPS];
    dibs__zk_parcel parcel[DIBS__ZK_PARCELS];
};

/* NULL: out of memory. */
dibs__zk_errand *dibs__zk_errand_new(dibs__zk *z);
void dibs__zk_errand_drop(dibs__zk_errand *e);

/* Takes the mutex if there is a session to send on. */
dibs_status dibs__zk_errand_begin(dibs__zk *z, dibs_error *err);
/* With the mutex: before a request is handed over, and when it was, or was not: then no answer will
 * come. */
dibs__zk_errand *dibs__zk_expect(dibs__zk_errand *e);
dibs__zk_parcel *dibs__zk_expect_parcel(dibs__zk_errand *e, size_t i);
void dibs__zk_errand_sent(dibs__zk_errand *e, int rc);
/* Leaves the mutex and waits for all answers. */
dibs_status dibs__zk_errand_wait(dibs__zk_errand *e, dibs__deadline until, dibs_error *err);
/* What came of it; of one that has not ended, nothing is known: ZOPERATIONTIMEOUT. */
int dibs__zk_errand_rc(dibs__zk_errand *e);

/* cell.c: the values of blobs, as many as DIBS__LINE_STRETCH, and the guards of the first so many. */
dibs_status dibs__zk_cells_get(dibs__zk *z, dibs__zk_errand *e, dibs__line_blob *blobs,
                               size_t count, size_t guards, dibs__deadline until, dibs_error *err);

/* Completions for the library: data is an errand, or a parcel. */
void dibs__zk_errand_on_text(int rc, const char *value, const void *data);
void dibs__zk_errand_on_void(int rc, const void *data);
void dibs__zk_errand_on_names(int rc, const struct String_vector *names, const void *data);
void dibs__zk_parcel_on_stat(int rc, const struct Stat *stat, const void *data);
void dibs__zk_parcel_on_path(int rc, const char *path, const void *data);
void dibs__zk_parcel_on_data(int rc, const char *value, int size, const struct Stat *stat,
                             const void *data);

#endif
