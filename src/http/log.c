/* The access log: one JSON object per request, without anything that a client sent except its method. Paths and
 * queries are not in it, because names and tokens may be secrets: the route is. */
#include "inner.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void http__log(const http_exchange *x, int64_t us)
{
    char line[512];
    struct timespec t;
    int size;

    if (x->server->log < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    size = snprintf(line, sizeof line,
                    "{\"at_ms\":%lld,\"method\":\"%s\",\"route\":\"%s\",\"status\":%d,\"us\":%lld,"
                    "\"client\":\"%s\"}\n",
                    (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000, x->method,
                    x->route ? x->route->path : "", x->status, (long long)us, http_client(x));
    if (size > 0 && (size_t)size < sizeof line && write(x->server->log, line, (size_t)size) < 0)
        return; /* a full disk is no reason to stop serving */
}
