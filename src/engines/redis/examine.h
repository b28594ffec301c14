/* Looking at one Redis server for dibs_examine; redlock: uses it for each of its nodes. */
#ifndef DIBS_REDIS_EXAMINE_H
#define DIBS_REDIS_EXAMINE_H

#include "doctor/facts.h"
#include "engines/redis/connection.h"

/* Connects, collects the facts and times exchanges. Fails only when it cannot connect. */
dibs_status dibs__redis_examine_server(const dibs__redis_address *address, const char *prefix,
                                       dibs__deadline until, dibs__facts *f, dibs_error *err);

#endif
