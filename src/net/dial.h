/* A connected socket, within a deadline. */
#ifndef DIBS_NET_DIAL_H
#define DIBS_NET_DIAL_H

#include "core/env.h"
#include "dibs.h"

#include <sys/socket.h>

/* Both are non-blocking and the caller's to close; TCP goes without delay. `stop_fd` readable: given up at
 * once; -1: there is none. */

/* Every address of the host gets its share of the time, so that one that is silent does not eat it all. */
dibs_status dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                       dibs__deadline until, int *out, dibs_error *err);

/* The descriptor, or -1 with errno. */
int dibs__dial_address(const dibs__env *env, const struct sockaddr *address, socklen_t size,
                       int stop_fd, dibs__deadline until);

#endif
