/* Ids of grants and runs; see the header. */
#define _GNU_SOURCE
#include "serve/bound.h"
#include "serve/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *serve_bound_id(const serve *s)
{
    size_t size = strlen(s->advertise);
    char secret[33], *id = malloc(2 * size + 80), *at;

    if (!id)
        return NULL;
    serve_random(secret);
    at = id + sprintf(id, "b~%s~%s~", s->instance, secret);
    for (size_t i = 0; i < size; i++)
        at += sprintf(at, "%02x", (unsigned char)s->advertise[i]);
    return id;
}

static char *portable_id(const serve_set *set)
{
    char id[24 + SERVE_NAMES * DIBS_GRANT_SIZE], *at = id;
    dibs_error err;

    at += sprintf(at, "g%lld", (long long)set->terms.lease_ms);
    for (size_t i = 0; i < set->count; i++) {
        *at++ = '~';
        if (dibs_grant_export(set->locks[i].g, at, &err) != DIBS_OK)
            return NULL;
        at += strlen(at);
    }
    return strdup(id);
}

bool serve_set_make_id(serve_set *set)
{
    set->id = set->terms.portable ? portable_id(set) : serve_bound_id(set->s);
    return set->id != NULL;
}

bool serve_is_bound(const char *id)
{
    return id[0] == 'b' && id[1] == '~';
}

/* The address at the end of a bound id; false: it is damaged. */
static bool read_address(const char *id, char *out, size_t size)
{
    const char *hex = strrchr(id, '~') + 1;
    size_t n = strlen(hex) / 2;
    unsigned byte;

    if (n == 0 || n >= size || strspn(hex, "0123456789abcdef") != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    out[n] = '\0';
    return http_is_utf8(out);
}

void serve_bound_refuse(http_exchange *x, const char *id, const char *what)
{
    const serve *s = http_context(x);
    size_t size = strlen(s->instance);
    char address[512];
    dibs_error err = {.status = DIBS_LOST, .next = DIBS_NEXT_RESTART};

    if (!read_address(id, address, sizeof address)) {
        http_reply_problem(x, 400, DIBS_INVALID, "this id is damaged: send it unchanged");
    } else if (strncmp(id + 2, s->instance, size) == 0 || strcmp(address, s->advertise) == 0) {
        snprintf(err.message, sizeof err.message,
                 "this %s has ended, or the server that had it was restarted", what);
        http_reply_error(x, &err);
    } else {
        snprintf(err.message, sizeof err.message, "this %s belongs to the server at %s", what,
                 address);
        err.next = DIBS_NEXT_REPEAT;
        http_reply_error_with(x, 421, &err, json_pack("{s:s}", "server", address));
    }
}

size_t serve_id_split(char *id, int64_t *lease_ms, char *texts[SERVE_NAMES])
{
    char *at = strchr(id, '~'), *end;
    size_t n = 0;

    if (id[0] != 'g' || !at)
        return 0;
    *at++ = '\0';
    *lease_ms = strtoll(id + 1, &end, 10);
    if (end == id + 1 || *end || *lease_ms <= 0)
        return 0;
    while (n < SERVE_NAMES) {
        texts[n++] = at;
        at = strchr(at, '~');
        if (!at)
            return n;
        *at++ = '\0';
    }
    return 0;
}
