/* gRPC's numbers are coarse ("unavailable" is both "not done" and "who knows"): etcd's own words
 * decide. */
#define _GNU_SOURCE
#include "engines/etcd/error.h"

#include "core/error.h"

#include <string.h>

enum { CANCELLED = 1, DEADLINE = 4, UNIMPLEMENTED = 12, UNAVAILABLE = 14, UNAUTHENTICATED = 16 };

typedef struct meaning {
    const char *has; /* part of etcd's message */
    dibs_status status;
    const char *advice;
} meaning;

static const meaning meanings[] = {
    {"no leader", DIBS_UNAVAILABLE,
     "the member has no leader: it is cut off, or the cluster has lost its majority"},
    {"user name is empty", DIBS_DENIED, "the cluster wants a user: etcd://user:password@host"},
    {"invalid user ID or password", DIBS_DENIED, "user or password in the URL is wrong"},
    {"authentication is not enabled", DIBS_DENIED,
     "the cluster has no users: take user and password out of the URL"},
    {"permission denied", DIBS_DENIED,
     "the user may not do that: it needs readwrite on the prefix (etcdctl role grant-permission "
     "--prefix)"},
    {"invalid auth token", DIBS_UNAVAILABLE, "the member does not know our token any more"},
    {"database space exceeded", DIBS_UNAVAILABLE,
     "etcd is out of space: compact, defragment, then etcdctl alarm disarm"},
    {"corrupt cluster", DIBS_ENGINE_FAILED, "etcd has found its data corrupt: look at its log"},
    {"too many requests", DIBS_UNAVAILABLE, "etcd has too much to do: try again"},
    {"too many operations in txn", DIBS_UNSUPPORTED,
     "the server's --max-txn-ops is below its default of 128: raise it"},
    {"lease not found", DIBS_UNAVAILABLE, "the session has expired"},
    {"lease already exists", DIBS_UNKNOWN, "the session's number is taken already"},
    {"too large lease TTL", DIBS_INVALID, "session= in the URL is too long for etcd"},
    {"not capable", DIBS_UNSUPPORTED, "the server is too old: use etcd 3.4 or later"},
};

static const meaning *find_meaning(const char *text)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (strstr(text, meanings[i].has))
            return &meanings[i];
    return NULL;
}

bool dibs__etcd_token_is_over(int rpc, const char *text)
{
    return rpc > 0 && (strstr(text, "invalid auth token") || rpc == UNAUTHENTICATED ||
                       strstr(text, "revision of auth store is old") ||
                       strstr(text, "auth revision in header is old"));
}

bool dibs__etcd_member_is_lost(int rpc, const char *text, bool *surely_not_done)
{
    *surely_not_done = rpc == UNAVAILABLE && strstr(text, "no leader");
    return *surely_not_done || (rpc == UNAVAILABLE && strstr(text, "timed out"));
}

bool dibs__etcd_lease_is_gone(int rpc, const char *text)
{
    return rpc > 0 && strstr(text, "lease not found");
}

static dibs_status explain(int rpc, const char *text, dibs_error *err)
{
    const meaning *m = rpc > 0 ? find_meaning(text) : NULL;

    if (rpc == DIBS__RPC_UNSENT)
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "the connection was closed before the request was sent");
    if (rpc == DIBS__RPC_CUT)
        return dibs__fail(err, DIBS_UNKNOWN, "the connection was closed%s%s", *text ? ": " : "",
                          text);
    if (rpc == DIBS__RPC_LATE)
        return dibs__fail(err, DIBS_UNKNOWN, "no answer in time");
    if (rpc == DIBS__RPC_MEMORY)
        return dibs__fail(err, DIBS_UNKNOWN, "out of memory while the answer came");
    if (rpc == DIBS__RPC_MEMORY_BEFORE)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (rpc == DIBS__RPC_JUNK)
        return dibs__fail(err, DIBS_ENGINE_FAILED,
                          "the reply is not gRPC%s%s; is it etcd's client port?", *text ? ": " : "",
                          text);
    if (rpc == DIBS__RPC_LONG)
        return dibs__fail(err, DIBS_UNSUPPORTED, "the reply is longer than %zu MiB",
                          dibs__h2_message_max >> 20);
    if (m)
        return dibs__fail(err, m->status, "%s (%s)", m->advice, text);
    if (rpc == UNAVAILABLE || rpc == DEADLINE || rpc == CANCELLED)
        return dibs__fail(err, DIBS_UNKNOWN, "etcd did not complete the request: %s", text);
    if (rpc == UNIMPLEMENTED)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "the server does not support a request: use etcd 3.4 or later");
    return dibs__fail(err, DIBS_ENGINE_FAILED, "etcd returned an error: %s (gRPC status %d)", text,
                      rpc);
}

dibs_status dibs__etcd_refusal(int rpc, const char *text, dibs_error *err)
{
    dibs_status status = explain(rpc, text, err);

    if (rpc > 0)
        dibs__error_code(err, "gRPC %d", rpc);
    return status;
}
