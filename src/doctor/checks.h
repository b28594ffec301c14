/* A check is data: conditions on facts, and what to say when all of them hold.
 *
 * To add one, put a row into the table of its engine (redis.c, postgresql.c, …). If it needs a fact that
 * nobody collects yet, add that to the engine's own examine.c. */
#ifndef DIBS_DOCTOR_CHECKS_H
#define DIBS_DOCTOR_CHECKS_H

#include "dibs.h"

typedef enum dibs__relation {
    DIBS__IS = 1,
    DIBS__IS_NOT,
    DIBS__BELOW, /* as numbers */
    DIBS__ABOVE,
    DIBS__HAS, /* contains */
} dibs__relation;

/* A fact that nobody stated makes a condition false. One that could not be looked at leaves it open: then
 * the check ends as "could not check" unless another condition is false. */
typedef struct dibs__condition {
    const char *fact;
    dibs__relation is;
    const char *value;
} dibs__condition;

typedef struct dibs__check {
    const char *id; /* NULL ends the table */
    dibs_severity severity;
    dibs__condition when[3];
    const char *what; /* {fact} stands for its text */
    const char *why, *advice;
} dibs__check;

#define DIBS__DANGER  DIBS_SEVERITY_DANGER
#define DIBS__WARNING DIBS_SEVERITY_WARNING
#define DIBS__NOTE    DIBS_SEVERITY_NOTE

/* Checks of several engines. */
#define DIBS__SERVER_CLOCK(id)                                                    \
    {                                                                             \
        id, DIBS__WARNING, {{"clock_off_ms", DIBS__ABOVE, "5000"}},               \
            "the server's clock and ours differ by {clock_off_ms} ms",            \
            "leases and fences follow the server's clock: when it is corrected, " \
            "leases end early or late by as much",                                \
            "run NTP on the server and here"                                      \
    }
#define DIBS__CLIENT_CLOCK(id)                                                                \
    {                                                                                         \
        id, DIBS__NOTE, {{"clock_synchronised", DIBS__IS, "no"}},                             \
            "the kernel says that this machine's clock is not synchronised",                  \
            "the end of values, results of once and tokens is judged by the clients' clocks " \
            "(locks are not)",                                                                \
            "run NTP here (chrony, systemd-timesyncd)"                                        \
    }

/* The tables. `any` is for every engine; `redis_server` for each server of redis: and redlock:. */
extern const dibs__check dibs__checks_any[], dibs__checks_sqlite[], dibs__checks_redis_server[],
    dibs__checks_redis[], dibs__checks_redlock[], dibs__checks_redlock_node[],
    dibs__checks_postgresql[], dibs__checks_mysql[], dibs__checks_zookeeper[],
    dibs__checks_zookeeper_server[], dibs__checks_etcd[], dibs__checks_etcd_member[];

#endif
