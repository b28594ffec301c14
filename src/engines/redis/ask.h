/* Requests, and the way of each to the server that has its key.
 *
 * A request belongs to a bucket (see cluster.h; there is one where there is one server) and is written anew for every
 * server that it is sent to. Many go out in one write per server. What nobody has done yet is asked again: a script
 * that the server has forgotten goes out with its text; in a cluster, a request goes where the slot is now, and waits
 * while the slot is on its way (MOVED, ASK, TRYAGAIN, CLUSTERDOWN) or while its master is being replaced. */
#ifndef DIBS_REDIS_ASK_H
#define DIBS_REDIS_ASK_H

#include "engines/redis/key.h"
#include "engines/redis/names.h"
#include "engines/redis/node.h"
#include "engines/redis/script.h"

#define DIBS__NODES_MAX 256 /* masters of a cluster at the same time */

typedef struct dibs__redis_ask {
    unsigned bucket;
    bool must_last; /* it counts only when replicas have it, where the guard says so */
    bool wakes;     /* it wakes another client, probably: see send_batch */
    /* Writes it for this server; `whole`: with the script's text. */
    void (*write)(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out);
    const void *what;
    /* Out: */
    dibs_status status; /* DIBS_UNAVAILABLE: surely not done */
    redisReply *reply;  /* the caller's to free, whatever the status; NULL: none */
    bool safe;          /* enough replicas have what it did */
    dibs__redis_node *node;
    unsigned looks; /* of the node, when it was sent */
    /* Of ask.c: */
    bool settled, whole;
    unsigned pass;
} dibs__redis_ask;

/* One: its status. */
dibs_status dibs__redis_ask_one(dibs__redis *r, dibs__redis_ask *q, dibs__deadline until,
                                dibs_error *err);
/* Many, each with a status of its own. What is still on its way after a while is DIBS_UNAVAILABLE. In a cluster no
 * server keeps the others waiting for longer than `patience`. */
void dibs__redis_ask_many(dibs__redis *r, dibs__redis_ask *q, size_t count, int64_t patience,
                          dibs__deadline until, dibs_error *err);

/* A command for one server, whatever the key: a part of a listing. The reply is the caller's to free. */
dibs_status dibs__redis_ask_node(dibs__redis_node *n, dibs__bytes *bytes, redisReply **reply,
                                 dibs__deadline until, dibs_error *err);

/* The key of a lock, and its bucket. */
unsigned dibs__redis_lock_key(const dibs__redis *r, const char *name,
                              char out[DIBS__REDIS_KEY_SIZE]);
/* How the keys of a bucket begin. */
void dibs__redis_prefix(const dibs__redis *r, unsigned bucket,
                        char out[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE]);
/* The name in a key of any bucket; NULL: it is none of ours; `key` is changed. */
char *dibs__redis_name_in(const dibs__redis *r, char *key);
unsigned dibs__redis_bucket_in(const dibs__redis *r, const char *key);

/* A pattern that was made with the prefix of bucket 0 becomes one for all buckets. */
void dibs__redis_any_bucket(const dibs__redis *r, char *pattern);

/* SCAN of all servers, page by page, until `at` is `count`. */
typedef struct dibs__redis_scan {
    dibs__redis_node *node[DIBS__NODES_MAX];
    size_t count, at;
    char cursor[DIBS__CURSOR_SIZE];
} dibs__redis_scan;

void dibs__redis_scan_begin(dibs__redis *r, dibs__redis_scan *s);
dibs_status dibs__redis_scan_next(dibs__redis_scan *s, const char *pattern, dibs__deadline until,
                                  dibs__names *found, dibs_error *err);

/* "EVALSHA sha keys": a script on a lock, with as many words to follow. In a cluster all keys are declared that it may
 * touch: the server refuses it as a whole while one of them is elsewhere. */
void dibs__redis_begin_lock(dibs__redis_node *n, dibs__redis_script script, bool whole,
                            const char *key, size_t words, dibs__bytes *out);

#endif
