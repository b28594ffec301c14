/* What the engines can do that a build may lack: for the engine itself, and for its stand-in (missing.c), so that every
 * build says the same of it. */
#ifndef DIBS_ENGINES_CAPABILITIES_H
#define DIBS_ENGINES_CAPABILITIES_H

#include "engines/engine.h"

#define DIBS__SQLITE_CAN                                                                           \
    {                                                                                              \
        .across_processes = true, .first_come = true, .names_holder = true, .notices_death = true, \
        .notifies_holders = true, .waiters_read = true, .wakes_own = true, .cells = true,          \
        .value_max = DIBS_VALUE_MAX                                                                \
    }

/* Redis, PostgreSQL and MariaDB: a server with one clock, whose connections can be waited on. */
#define DIBS__SERVER_CAN                                                                          \
    {                                                                                             \
        .across_processes = true, .first_come = true, .names_holder = true, .waiters_read = true, \
        .cells = true, .value_max = DIBS_VALUE_MAX                                                \
    }

#define DIBS__REDLOCK_CAN                                                                         \
    {                                                                                             \
        .across_processes = true, .waiters_read = true,                                           \
        .no_shared = "N independent nodes keep no queue, and without one a writer waits forever " \
                     "while readers come and go: use redis, or an exclusive lock",                \
        .no_slots =                                                                               \
            "any two majorities of N independent nodes overlap, but three need not: three "       \
            "clients could hold two slots; use redis, or several locks"                           \
    }

/* ZooKeeper and etcd: sessions, and entries in the order of their creation. */
#define DIBS__ENTRIES_CAN(most)                                                                    \
    {                                                                                              \
        .across_processes = true, .first_come = true, .cells = true, .value_max = (most),          \
        .lease_of_handle = true, .fence_of_place = true, .own_numbers = true, .forgets_idle = true \
    }

/* A server takes requests of 1 MiB unless told otherwise. */
#define DIBS__ZOOKEEPER_CAN DIBS__ENTRIES_CAN(1000 * 1000)
#define DIBS__ETCD_CAN      DIBS__ENTRIES_CAN(DIBS_VALUE_MAX)

#endif
