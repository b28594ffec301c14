/* What is said when a connection is new: who we are; and on one that carries commands also the
 * scripts and a look at what kind of server this is. A replica is refused. Used by both engines that
 * talk to Redis. */
#ifndef DIBS_REDIS_HANDSHAKE_H
#define DIBS_REDIS_HANDSHAKE_H

#include "engines/redis/connection.h"
#include "engines/redis/script.h"

/* A connection that is logged in. Messages say which server. */
dibs_status dibs__redis_connect(const dibs__redis_address *address, dibs__deadline until,
                                dibs__conn **out, dibs_error *err);

typedef struct dibs__server_kind {
    bool flags;       /* it knows flags of scripts */
    bool may_evict;   /* under its settings locks that are held can vanish */
    bool cluster;     /* it is a node of one */
    redisReply *info; /* what INFO says, the caller's to free; NULL: we may not ask */
} dibs__server_kind;

/* Loads `scripts` and looks at the server. `out->info` may be set after a failure too. */
dibs_status dibs__redis_prepare(const dibs__scripts *scripts, dibs__conn *c, dibs__deadline until,
                                dibs__server_kind *out, dibs_error *err);

/* The value of "key:value" in what INFO says, in `out`; NULL: it does not say. */
const char *dibs__info_value(const char *info, const char *key, char *out, size_t size);

#endif
