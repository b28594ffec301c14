/* The head of a guarded request: its key, token and fence, whose key it is, and the fingerprint's parts. What is invalid is
 * refused before anything is asked. */
#define _GNU_SOURCE
#include "gateway/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is refused at the head --------------------------------------------------------------- */

static bool refuse(gate_exchange *x, int http, dibs_status status, const char *what)
{
    gate_refuse(x, http, status, "%s", what);
    return false;
}

static bool read_key(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    const wire_field *f = x->route->key == GATE_IGNORED ? NULL : wire_find(h, "Idempotency-Key", 0);

    if (!f && x->route->key == GATE_REQUIRED)
        return refuse(x, 400, DIBS_INVALID, "this request needs an Idempotency-Key");
    if (!f)
        return true;
    if (wire_find(h, "Idempotency-Key", 1) || !gate_key_read(f->value, g->key))
        return refuse(x, 400, DIBS_INVALID,
                      "Idempotency-Key is one quoted string of 1 to 255 printable characters");
    g->keyed = true;
    return true;
}

/* A token that no engine would know is looked up all the same: it is refused there. */
static bool read_token(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    const wire_field *f = x->route->token == GATE_IGNORED ? NULL : wire_find(h, "Dibs-Token", 0);

    if (!f && x->route->token == GATE_REQUIRED)
        return refuse(x, 403, DIBS_REFUSED,
                      "this request needs a Dibs-Token: POST /.dibs/token issues one");
    if (!f)
        return true;
    if (wire_find(h, "Dibs-Token", 1))
        return refuse(x, 400, DIBS_INVALID, "Dibs-Token is given once");
    if (f->value.size == 0 || f->value.size >= sizeof g->token)
        return refuse(x, 409, DIBS_REFUSED, dibs_status_text(DIBS_REFUSED));
    memcpy(g->token, f->value.at, f->value.size);
    g->tokened = true;
    return true;
}

static bool read_fence(gate_exchange *x, const wire_head *h, gate_guard *g, const char *plain)
{
    const wire_field *f = x->route->fence ? wire_find(h, "Dibs-Fence", 0) : NULL;
    const char *brace = x->route->fence ? strstr(x->route->fence, "{segment}") : NULL,
               *segment = "";
    size_t size = 0;
    int written;

    if (!x->route->fence)
        return true;
    if (!f || wire_find(h, "Dibs-Fence", 1) ||
        !gate_fence_read(f->value, &g->fence.fence, &g->fence.floor))
        return refuse(x, 400, DIBS_INVALID,
                      "this request needs one Dibs-Fence: FENCE or FENCE/FLOOR");
    if (brace)
        gate_pattern_match(x->route->path, plain, &segment, &size);
    written = brace ? snprintf(g->cell, sizeof g->cell, "fence:%.*s%.*s%s",
                               (int)(brace - x->route->fence), x->route->fence, (int)size, segment,
                               brace + 9)
                    : snprintf(g->cell, sizeof g->cell, "fence:%s", x->route->fence);
    g->fenced = true;
    return written < (int)sizeof g->cell ||
           refuse(x, 400, DIBS_INVALID, "the path is too long for a fence");
}

/* Certificates without a name, or clients without a certificate, would have the same keys. */
static bool check_caller(gate_exchange *x, const gate_guard *g)
{
    return !g->keyed || !x->route->by_certificate || x->client->certificate[0] ||
           refuse(x, 403, DIBS_DENIED,
                  "this request needs a client certificate with a common name of 1 to 64 bytes");
}

/* Whose key it is. Only a hash of it is stored. */
static void write_scope(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    unsigned char hash[GATE_HASH_SIZE] = {0};
    http_digest *all = http_digest_new();
    const wire_field *f;
    char caller[33];

    for (size_t i = 0; x->route->caller && (f = wire_find(h, x->route->caller, i)); i++) {
        http_digest_add(all, "\n", 1);
        http_digest_add(all, f->value.at, f->value.size);
    }
    if (x->route->by_certificate)
        http_digest_add(all, x->client->certificate, strlen(x->client->certificate));
    http_digest_end(all, hash);
    gate_hash_hex(hash, 16, caller);
    snprintf(g->scope, sizeof g->scope, "%s %s", x->route->path, caller);
}

static void hash_key(gate_guard *g)
{
    unsigned char hash[GATE_HASH_SIZE] = {0};
    http_digest *all = http_digest_new();

    http_digest_add(all, g->key, strlen(g->key));
    http_digest_end(all, hash);
    gate_hash_hex(hash, 8, g->key_hash);
}

gate_guard *gate_guard_new(gate_exchange *x, const char *path, wire_text query)
{
    gate_guard *g = x->guard = calloc(1, sizeof *g);

    if (g) {
        g->x = x;
        g->attempt = 1;
        g->hash = http_digest_new();
        g->path = strdup(path);
        g->query = strndup(query.at, query.size);
    }
    if (g && g->hash && g->path && g->query)
        return g;
    refuse(x, 503, DIBS_NO_MEMORY, "out of memory");
    return NULL;
}

/* The body is needed first; a client that asks whether to send it may do so. */
bool gate_guard_expect_body(gate_exchange *x, const wire_head *h)
{
    if (h->framing == WIRE_LENGTH && h->length > (uint64_t)x->config->limits.body)
        return refuse(x, 413, DIBS_INVALID, "the body is larger than limits.body of the gateway");
    if (h->expects && (h->framing == WIRE_CHUNKED || h->length > 0))
        http_buffer_text(&x->client->c.out, "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

bool gate_guard_begin(gate_exchange *x, const wire_head *h, const char *path, const char *plain,
                      wire_text query)
{
    gate_guard *g = gate_guard_new(x, path, query);

    if (!g)
        return false;
    if (!read_key(x, h, g) || !check_caller(x, g) || !read_token(x, h, g) ||
        !read_fence(x, h, g, plain))
        return false;
    if (!g->keyed && !g->tokened && !g->fenced) {
        gate_guard_free(x);
        return true;
    }
    write_scope(x, h, g);
    hash_key(g);
    return gate_guard_expect_body(x, h);
}

void gate_guard_body(gate_exchange *x, wire_text part)
{
    gate_guard *g = x->guard;

    if (http_buffer_size(&g->body) + part.size > (size_t)x->config->limits.body) {
        gate_refuse(x, 413, DIBS_INVALID, "the body is larger than limits.body of the gateway");
        return;
    }
    http_digest_add(g->hash, part.at, part.size);
    http_buffer_add(&g->body, part.at, part.size);
}
