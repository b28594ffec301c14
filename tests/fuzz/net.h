/* The fuzzer's network, and a clock with it; see drive.h. */
#ifndef DIBS_TESTS_FUZZ_NET_H
#define DIBS_TESTS_FUZZ_NET_H

#include "core/env.h"
#include "fuzz/drive.h"

/* net.c: connections */
void net_begin(const dibs__env *env, const drive_peer *peer, size_t connections);
void net_end(void);

/* alone.c: clock and threads of an engine that has no thread of its own */
extern const dibs__env alone_env;
void alone_begin(void);
void alone_run_threads(void); /* those that were started and have not run yet */

#endif
