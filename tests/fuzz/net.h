/* The fuzzer's network and clock; see drive.h and net.c. */
#ifndef DIBS_TESTS_FUZZ_NET_H
#define DIBS_TESTS_FUZZ_NET_H

#include "core/env.h"
#include "fuzz/drive.h"

extern const dibs__env net_env;

void net_begin(const drive_peer *peer);
void net_run_threads(void); /* those that were started and have not run yet */
void net_end(void);         /* all connections must be closed */

#endif
