/* Host names to addresses, within a deadline: getaddrinfo() has none of its own. */
#ifndef DIBS_NET_RESOLVE_H
#define DIBS_NET_RESOLVE_H

#include "core/env.h"
#include "dibs.h"

#include <netdb.h>

/* `out` is freed with freeaddrinfo(). */
dibs_status dibs__resolve(const dibs__env *env, const char *host, int port, dibs__deadline until,
                          struct addrinfo **out, dibs_error *err);

#endif
