/* POST /.dibs/token: one-time tokens for pages of the application's own origin. */
#define _GNU_SOURCE
#include "gateway/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Tokens for pages -------------------------------------------------------------------------- */

enum { TOKEN_MS = 10 * 60 * 1000 };

static void on_issued(void *data, dibs_outcome *o)
{
    gate_guard *g = data;
    gate_exchange *x = g->x;
    char body[DIBS_TOKEN_SIZE + 64];
    int size =
        snprintf(body, sizeof body, "{\"token\":\"%s\",\"expires_ms\":%d}\n", o->token, TOKEN_MS);

    g->busy = false;
    if (o->err.status != DIBS_OK) {
        gate_guard_without_engine(g, &o->err);
        return;
    }
    x->status = 201;
    http_buffer_format(
        &g->tail,
        "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
        "Content-Length: %d\r\n%s\r\n%s",
        size, x->close ? "Connection: close\r\n" : "", body);
    gate_guard_deliver(g);
}

void gate_guard_issue(gate_guard *g)
{
    const dibs_token_options options = {.scope = g->x->route->path, .ttl_ms = TOKEN_MS};

    gate_guard_ask(g, &(dibs_request){.op = DIBS_OP_TOKEN_ISSUE, .options.token = &options},
                   on_issued);
}

/* Browsers say which page asks; whoever says nothing is no page. */
static bool is_own_page(const wire_head *h)
{
    const wire_field *origin = wire_find(h, "Origin", 0), *site = wire_find(h, "Sec-Fetch-Site", 0);
    const char *at = origin ? memmem(origin->value.at, origin->value.size, "://", 3) : NULL;
    size_t size = at ? origin->value.size - (size_t)(at + 3 - origin->value.at) : 0;

    if (origin)
        return at && size == h->host.size && strncasecmp(at + 3, h->host.at, size) == 0;
    return !site || wire_is(site->value, "same-origin") || wire_is(site->value, "none");
}

void gate_token_issue(gate_exchange *x, const wire_head *h, wire_text query)
{
    static const char name[] = "?route=";
    char path[GATE_PATTERN_MAX * 3 + 1] = "";
    size_t size = query.size > sizeof name - 1 ? query.size - (sizeof name - 1) : 0;
    bool given = size > 0 && size < sizeof path && memcmp(query.at, name, sizeof name - 1) == 0 &&
                 gate_query_decode(query.at + sizeof name - 1, size, path);

    x->route = given ? gate_config_with_tokens(x->config, path) : NULL;
    if (!is_own_page(h))
        gate_refuse(x, 403, DIBS_DENIED, "tokens are for pages of this origin");
    else if (!x->route)
        gate_refuse(x, 404, DIBS_NOT_FOUND, "?route= names the path of a route with tokens");
    else if (gate_guard_new(x, "", (wire_text){"", 0})) {
        x->guard->issues = true;
        gate_guard_expect_body(x, h);
    }
}
