/* The simulated engine: locks and cells in the memory of a server that no process is, behind a network that
 * loses, doubles, delays and reorders; `sim:` is its URL. */
#ifndef DIBS_TESTS_SIM_SERVER_H
#define DIBS_TESTS_SIM_SERVER_H

#include "sim/sched.h"

/* What may go wrong, in millionths for each message, and for how long. */
typedef struct sim_weather {
    uint64_t lost;    /* a request, or its answer */
    uint64_t doubled; /* a request that is executed twice */
    uint64_t late;    /* comes after `latest` at most: long after its caller has gone */
    int64_t latest;
    int64_t usual;       /* the longest way of a message that is not late */
    uint64_t wake_lost;  /* a wake-up */
    bool ends_abandoned; /* a newer request ends what older, abandoned ones still carry */
} sim_weather;

void sim_server_begin(const sim_weather *weather);
void sim_server_calm(void); /* nothing goes wrong any more */
/* Nothing gets through between that process and the server for so long. What is sent meanwhile is lost, or comes
 * when the way is free again. */
void sim_server_cut_off(const sim_process *p, int64_t span);
/* It is down for so long; what is on its way is lost. */
void sim_server_restart(int64_t span, bool keeps_data);

#endif
