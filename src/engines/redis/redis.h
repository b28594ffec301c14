/* What the files of the Redis engine share.
 *
 *   node       the main connection, for every command of every thread; in a cluster one for each master
 *   events     the subscription by which all who wait are told
 *
 * Keys: PREFIX:{NAME} (in a cluster PREFIX{BUCKET}:{NAME}) and, after it, :h :x :f and :q, see lua/head.lua; of a cell
 * PREFIX:{KEY}:c and, after that, :r:REQUEST and :w, see lua/cell.lua. */
#ifndef DIBS_REDIS_REDIS_H
#define DIBS_REDIS_REDIS_H

#include "engines/engine.h"
#include "engines/redis/abandoned.h"
#include "engines/redis/address.h"
#include "engines/redis/ask.h"
#include "engines/redis/cluster.h"
#include "engines/redis/connection.h"
#include "engines/redis/guard.h"
#include "engines/redis/handshake.h"
#include "engines/redis/key.h"
#include "engines/redis/node.h"
#include "engines/redis/pipeline.h"
#include "engines/redis/script.h"
#include "engines/redis/sentinel.h"

#include <stdatomic.h>

typedef struct dibs__events dibs__events;

struct dibs__redis {
    dibs__engine base;
    dibs__redis_address address;
    dibs__scripts scripts;
    dibs__guard guard;
    int64_t request_span;
    dibs__redis_node *node; /* the only one; NULL in a cluster, which has its own */
    dibs__events *events;
    atomic_bool warned; /* about the server's settings: once is enough */
    char prefix[DIBS__REDIS_PREFIX_MAX + 1];
    char id[17]; /* the handle's */
    char channel[DIBS__REDIS_PREFIX_MAX + 64];
};

/* lock.c */
/* Can a grant have this fence and floor? Else it is no answer of our scripts. */
uint64_t dibs__redis_read_double(const char *at); /* as the scripts' struct.pack writes it */
/* As the scripts' struct.unpack reads it; returns the end. */
char *dibs__redis_add_double(char *at, int64_t value);
bool dibs__redis_is_fence(int64_t fence, int64_t floor);
/* What a command answered, see lua/head.lua; `lease` is the one that was asked for. */
dibs_status dibs__redis_read_reply(const redisReply *reply, int64_t lease, dibs__reply *out,
                                   dibs_error *err);
dibs_status dibs__redis_enter(dibs__engine *e, const dibs__enter_request *request,
                              dibs__deadline until, dibs__reply *out, dibs_error *err);
void dibs__redis_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                      dibs__deadline until);
dibs_status dibs__redis_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                dibs__reply *out, dibs_error *err);
dibs_status dibs__redis_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs_error *err);
dibs_status dibs__redis_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                              dibs__deadline until, dibs__reply *out, dibs_error *err);

/* cell.c */
#define DIBS__REDIS_CELL_KEY_SIZE \
    (DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE + 3 * DIBS__CELL_KEY_SIZE + 16)
unsigned dibs__redis_cell_key(const dibs__redis *r, const char *name,
                              char out[DIBS__REDIS_CELL_KEY_SIZE]);
/* The key, and its bucket. */
/* `whole`: with the script's text. A READ with a number gets so many bytes, and the size as the number. */
void dibs__redis_cell_write(dibs__redis_node *n, const char *key, const dibs__cell_command *c,
                            bool notify, bool whole, dibs__bytes *out);
dibs_status dibs__redis_cell_answer(const redisReply *reply, dibs__cell_op op,
                                    dibs__cell_reply *out, dibs_error *err);
dibs_status dibs__redis_cell(dibs__engine *e, const char *name, const dibs__cell_command *command,
                             bool notify, dibs__deadline until, dibs__cell_reply *out,
                             dibs_error *err);
dibs_status dibs__redis_watch(dibs__engine *e, const char *name, uint64_t version,
                              dibs__deadline until, void **out, dibs_error *err);
#define DIBS__REDIS_CHANGED \
    "=" /* so begins what is told about a cell, before its hash; no attempt does */

/* cells.c */
dibs_status dibs__redis_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                  dibs__deadline until, dibs__cell_page *out, dibs_error *err);

/* inspect.c */
dibs_status dibs__redis_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                dibs__report_builder *out, dibs_error *err);
dibs_status dibs__redis_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                             dibs__report_builder *out, dibs_error *err);

/* event.c */
dibs__events *dibs__events_new(void); /* NULL: out of memory or descriptors */
void dibs__events_free(dibs__events *v);
void dibs__events_abandon(dibs__events *v);
/* Subscribes unless that is done already. */
dibs_status dibs__events_need(dibs__redis *r, dibs__deadline until, dibs_error *err);
/* `fd` becomes a part of the engine's event_fd. False: out of memory. */
bool dibs__events_watch(dibs__events *v, int fd);
/* The subscription is made anew. */
void dibs__events_renew(dibs__events *v);
/* Which subscription stands; 0: none. */
uint64_t dibs__events_standing(const dibs__redis *r);
int dibs__redis_event_fd(dibs__engine *e);
void dibs__redis_events(dibs__engine *e, dibs__deadline until);

#endif
