/* The access log: one JSON object per request, without anything that a client sent except its method. Paths and
 * queries are not in it, because names and tokens may be secrets: the route is. */
#include "inner.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The name of a certificate is whatever its CA has signed. What is no UTF-8 is not written. */
static void escape(char *to, size_t size, const char *name)
{
    static const char hex[] = "0123456789abcdef";
    const char *end = to + size - 7; /* the longest escape, and the end */

    if (!http_is_utf8(name))
        name = "";
    for (; *name && to < end; name++) {
        unsigned char c = (unsigned char)*name;

        if (c < ' ' || c == '"' || c == '\\' || c == 0x7f) {
            memcpy(to, "\\u00", 4);
            to[4] = hex[c >> 4];
            to[5] = hex[c & 15];
            to += 6;
        } else {
            *to++ = *name;
        }
    }
    *to = '\0';
}

void http__log(const http_exchange *x, int64_t us)
{
    char line[1024], client[6 * sizeof x->client->name + 8];
    struct timespec t;
    int size;

    if (x->server->log < 0)
        return;
    escape(client, sizeof client, http_client(x));
    clock_gettime(CLOCK_REALTIME, &t);
    size = snprintf(line, sizeof line,
                    "{\"at_ms\":%lld,\"method\":\"%s\",\"route\":\"%s\",\"status\":%d,\"us\":%lld,"
                    "\"client\":\"%s\"}\n",
                    (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000, x->method,
                    x->route ? x->route->path : "", x->status, (long long)us, client);
    if (size > 0 && (size_t)size < sizeof line && write(x->server->log, line, (size_t)size) < 0)
        return; /* a full disk is no reason to stop serving */
}
