/* What an error reply of the server means to the caller, and what to do about it. */
#ifndef DIBS_REDIS_ERROR_H
#define DIBS_REDIS_ERROR_H

#include "dibs.h"

#include <hiredis/hiredis.h>

/* For a reply that is an error, or of a shape that we did not ask for. */
dibs_status dibs__redis_refusal(const redisReply *reply, dibs_error *err);

/* The script is not known to the server (any more): surely not done, load it and ask again. */
bool dibs__redis_no_script(const redisReply *reply);

/* The key is on another server of the cluster, or is on its way, or nobody may serve it now: surely not done. */
bool dibs__redis_redirects(const redisReply *reply);

/* This server is no master (any more). */
bool dibs__redis_is_replica(const redisReply *reply);

/* Because this server has no slots that it may serve now, not because the key is elsewhere. */
bool dibs__redis_is_down(const redisReply *reply);

/* The command is unknown there, or this user may not use it: asking again is of no use. */
bool dibs__redis_will_never(const redisReply *reply);

#endif
