/* A connected socket, within a deadline. */
#ifndef DIBS_ETCD_DIAL_H
#define DIBS_ETCD_DIAL_H

#include "core/env.h"
#include "dibs.h"

/* Non-blocking, without delay, kept alive; the caller's to close. Every address of the host gets
 * its share of the time. `stop_fd` readable: UNAVAILABLE at once. */
dibs_status dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                       dibs__deadline until, int *out, dibs_error *err);

#endif
