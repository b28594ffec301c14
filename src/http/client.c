/* Who asks, and what it may do. Without tokens everybody who can reach the server may do everything: then it
 * listens at loopback addresses and unix sockets only. A certificate's common name is looked up as a name of
 * the token file, which says what that client may do; one that is not there may do nothing, so that removing a line
 * takes its rights away. Without a token file every certificate of the CA may do everything. */
#define _GNU_SOURCE
#include "inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sockaddr *address_of(const http_exchange *x, struct sockaddr_storage *out)
{
    socklen_t size = sizeof *out;

    *out = (struct sockaddr_storage){.ss_family = AF_UNSPEC};
    getpeername(x->connection->c.link.fd, (struct sockaddr *)out, &size);
    return (struct sockaddr *)out;
}

static bool refuse(http_exchange *x, int status, const char *what)
{
    if (status == 401)
        http_set_header(x, "WWW-Authenticate", "Bearer realm=\"dibs\"");
    http_reply_problem(x, status, DIBS_DENIED, "%s", what);
    return false;
}

static bool check_verb(http_exchange *x)
{
    return http_may(x, x->route->verb) ||
           refuse(x, 403, "this client may not do that: its token lacks the verb");
}

/* True: the client has a certificate of the CA that says who it is. */
static bool has_certificate(http_exchange *x)
{
    char name[65];

    if (!x->server->o.client_ca ||
        !http_tls_peer(x->server->tls, x->connection->c.link.tls, name, sizeof name))
        return false;
    if (x->tokens) {
        x->client = http__tokens_named(x->tokens, name);
        return x->client != NULL;
    }
    x->own_client = calloc(1, sizeof *x->own_client);
    if (!x->own_client)
        return false;
    x->own_client->verbs = HTTP_READ | HTTP_LOCK | HTTP_BREAK | HTTP_ADMIN;
    snprintf(x->own_client->name, sizeof x->own_client->name, "%s", name);
    x->client = x->own_client;
    return true;
}

static const char *secret_of(const http_exchange *x)
{
    const char *header = http_header(x, "Authorization");

    if (!header || strncasecmp(header, "Bearer ", 7) != 0)
        return NULL;
    return header + 7 + strspn(header + 7, " ");
}

/* Tokens that are right are accepted whatever else comes from the address, which may be that of a proxy; wrong
 * ones are answered 401 a few times, and then not looked at more closely. */
static bool check_token(http_exchange *x)
{
    const char *secret = secret_of(x);
    struct sockaddr_storage storage;
    const struct sockaddr *address;
    int wait;
    char text[16];

    x->client = secret ? http__tokens_find(x->server->tokens, secret) : NULL;
    if (x->client)
        return true;
    address = address_of(x, &storage);
    wait = http__failures_wait(x->server->failures, address);
    if (secret)
        http__failures_count(x->server->failures, address);
    if (wait == 0)
        return refuse(x, 401,
                      secret ? "this token is not known"
                             : "send a token: Authorization: Bearer TOKEN");
    snprintf(text, sizeof text, "%d", wait);
    http_set_header(x, "Retry-After", text);
    return refuse(x, 429, "too many wrong tokens from this address");
}

bool http__client_check(http_exchange *x)
{
    const http_server *s = x->server;

    if (s->tokens)
        x->tokens = http__tokens_share(s->tokens);
    if (x->route->verb == HTTP_OPEN || (!s->tokens && !s->o.client_ca))
        return true;
    if (has_certificate(x))
        return check_verb(x);
    if (!s->tokens)
        return refuse(x, 401, "a certificate of the server's CA is needed");
    return check_token(x) && check_verb(x);
}

bool http_same_client(const http_exchange *a, const http_exchange *b)
{
    return a->client == b->client ||
           (a->own_client && b->own_client && strcmp(a->client->name, b->client->name) == 0);
}

bool http_is_welcome(const http_exchange *x)
{
    return !x->tokens || !x->client || http__tokens_keep(x->server->tokens, x->client);
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
