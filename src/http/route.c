/* From a method and a path to a route. Segments are compared as they were sent and decoded one by one, so
 * that an escaped slash is a part of a name and not a separator. */
#define _GNU_SOURCE
#include "inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_placeholder(const char *segment, size_t size)
{
    return size > 2 && segment[0] == '{' && segment[size - 1] == '}';
}

/* Do the segments fit? Nothing is decoded. */
static bool fits(const char *pattern, const char *path)
{
    for (;;) {
        size_t p = strcspn(pattern, "/"), q = strcspn(path, "/");

        if (is_placeholder(pattern, p) ? q == 0 : p != q || strncmp(pattern, path, p) != 0)
            return false;
        pattern += p;
        path += q;
        if (!*pattern || !*path)
            return *pattern == *path;
        pattern++;
        path++;
    }
}

/* GET answers HEAD as well. */
static bool serves(const http_route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

static bool give_segment(http_exchange *x, const char *pattern, size_t p, const char *path,
                         size_t q)
{
    char name[32], *text = strndup(path, q);
    http_field f = {.name = name, .kind = HTTP_NAME, .low = 1, .high = DIBS_NAME_MAX};
    bool good;

    snprintf(name, sizeof name, "%.*s", (int)(p - 2), pattern + 1);
    if (strcmp(name, "name") != 0 && strcmp(name, "key") != 0)
        f.kind = HTTP_TEXT;
    good = text && http__decode(text);
    if (!good)
        http_reply_problem(
            x, 400, DIBS_INVALID,
            "the path has an escape that is invalid, a NUL or bytes that are no UTF-8");
    else
        good = http__give_text(x, &f, text);
    free(text);
    return good;
}

bool http__route_give(http_exchange *x, const char *path)
{
    const char *pattern = x->route->path;

    for (;;) {
        size_t p = strcspn(pattern, "/"), q = strcspn(path, "/");

        if (is_placeholder(pattern, p) && !give_segment(x, pattern, p, path, q))
            return false;
        if (!pattern[p])
            return true;
        pattern += p + 1;
        path += q + 1;
    }
}

static void add_method(char allow[128], const char *method)
{
    if (strstr(allow, method))
        return;
    if (allow[0])
        strcat(allow, ", ");
    strcat(allow, method);
    if (strcmp(method, "GET") == 0)
        strcat(allow, ", HEAD");
}

/* "." and "..", also escaped: a proxy on the way may resolve them. */
static bool has_dots(const char *path)
{
    for (const char *at = path; *at; at += strcspn(at, "/"), at += *at == '/') {
        size_t size = strcspn(at, "/"), dots = 0, used = 0;

        while (used < size && (at[used] == '.' || strncasecmp(at + used, "%2e", 3) == 0)) {
            used += at[used] == '.' ? 1 : 3;
            dots++;
        }
        if (used == size && (dots == 1 || dots == 2))
            return true;
    }
    return false;
}

static const http_route *search(http_exchange *x, const char *path, char allow[128])
{
    for (const http_route *const *table = x->server->o.routes; *table; table++)
        for (const http_route *r = *table; r->method; r++)
            if (fits(r->path, path)) {
                if (serves(r, x->method))
                    return r;
                add_method(allow, r->method);
            }
    return NULL;
}

bool http__route_find(http_exchange *x, const char *path)
{
    char allow[128] = "";

    if (has_dots(path)) {
        http_reply_problem(x, 400, DIBS_INVALID, "the path has a segment '.' or '..'");
        return false;
    }
    x->route = search(x, path, allow);
    if (x->route)
        return true;
    if (strcmp(x->method, "OPTIONS") == 0 && (allow[0] || strcmp(path, "*") == 0)) {
        http_set_header(x, "Allow", allow[0] ? allow : "GET, HEAD, POST, PUT, DELETE, OPTIONS");
        if (x->server->o.cors) {
            http_set_header(x, "Access-Control-Allow-Methods", "GET, POST, PUT, DELETE");
            http_set_header(x, "Access-Control-Allow-Headers",
                            "Authorization, Content-Type, If-Match, If-None-Match, Dibs-Fence");
        }
        http_reply_empty(x, 204);
    } else if (allow[0]) {
        http_set_header(x, "Allow", allow);
        http_reply_problem(x, 405, DIBS_INVALID, "this resource has no such method: it has %s",
                           allow);
    } else {
        http_reply_problem(x, 404, DIBS_NOT_FOUND,
                           "there is no such resource: /openapi.json lists them all");
    }
    return false;
}
