/* Who asks, and what it may do. Without tokens everybody who can reach the server may do everything: then it
 * listens at loopback addresses and unix sockets only. */
#include "inner.h"

#include <string.h>

bool http__client_check(http_exchange *x)
{
    return !x->response;
}

const char *http_client(const http_exchange *x)
{
    return x->client ? x->client->name : "";
}

bool http_may(const http_exchange *x, http_verb verb)
{
    return !x->client || (x->client->verbs & verb) == (unsigned)verb;
}

bool http_may_name(const http_exchange *x, const char *name)
{
    if (!x->client || !x->client->prefixes)
        return true;
    for (const char *const *prefix = x->client->prefixes; *prefix; prefix++)
        if (strncmp(name, *prefix, strlen(*prefix)) == 0)
            return true;
    return false;
}
