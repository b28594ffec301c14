/* Reading the configuration: what is not understood is an error, with the place where it is. */
#define _GNU_SOURCE
#include "gateway/config.h"

#include "core/span.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DAY_MS  ((int64_t)24 * 3600 * 1000)
#define YEAR_MS (366 * DAY_MS)

const char *const gate_result_names[GATE_RESULTS] = {"passed",  "first",       "replayed",
                                                     "refused", "unprotected", "failed"};

/* ---- One member ------------------------------------------------------------------------------ */

typedef struct reader {
    dibs_error *err;
    const char *file;
    char where[64]; /* "routes[2]" */
} reader;

static bool wrong(reader *r, const char *member, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool wrong(reader *r, const char *member, const char *format, ...)
{
    char what[512];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    *r->err = (dibs_error){.status = DIBS_INVALID};
    snprintf(r->err->message, sizeof r->err->message, "%.400s: %s%s%s: %s", r->file, r->where,
             *member && r->where[0] ? "." : "", member, what);
    return false;
}

static bool no_memory(reader *r)
{
    *r->err = (dibs_error){.status = DIBS_NO_MEMORY, .message = "out of memory"};
    return false;
}

/* An index of `words`, which end with NULL. */
static bool read_word(reader *r, const char *name, const json_t *value, const char *const *words,
                      int *out)
{
    char all[256] = "";

    for (int i = 0; words[i]; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) {
            *out = i;
            return true;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", words[i]);
    }
    return wrong(r, name, "must be one of: %s", all);
}

static bool read_flag(reader *r, const char *name, const json_t *value, bool *out)
{
    *out = json_is_true(value);
    return json_is_boolean(value) || wrong(r, name, "must be true or false");
}

static bool read_span(reader *r, const char *name, const json_t *value, int64_t low, int64_t high,
                      int64_t *out)
{
    char a[32], b[32];

    *out = json_is_string(value) ? dibs__span_parse(json_string_value(value)) : -1;
    return (*out >= low && *out <= high) ||
           wrong(r, name, "must be a duration from \"%s\" to \"%s\"", dibs__span_write(a, low),
                 dibs__span_write(b, high));
}

/* Bytes: a number, or "64KiB", "1MiB". */
static bool read_size(reader *r, const char *name, const json_t *value, int64_t low, int64_t high,
                      int64_t *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;

    *out = json_is_integer(value) ? json_integer_value(value) : -1;
    if (text && strspn(text, "0123456789") > 0 && strlen(text) < 12) {
        *out = strtoll(text, &end, 10);
        *out = strcmp(end, "KiB") == 0   ? *out * 1024
               : strcmp(end, "MiB") == 0 ? *out * 1024 * 1024
                                         : -1;
    }
    return (*out >= low && *out <= high) ||
           wrong(r, name, "must be a number from %lld to %lld%s", (long long)low, (long long)high,
                 high > 100000 ? ", or a text like \"64KiB\"" : "");
}

static bool read_text(reader *r, const char *name, const json_t *value, size_t most, char **out)
{
    const char *text = json_string_value(value);

    if (!text || !*text || strlen(text) > most || strlen(text) != json_string_length(value))
        return wrong(r, name, "must be a text of 1 to %zu bytes", most);
    free(*out);
    *out = strdup(text);
    return *out || no_memory(r);
}

/* ---- A route --------------------------------------------------------------------------------- */

static const char *const needs[] = {"optional", "required", "ignored", NULL};

static bool read_method(reader *r, const json_t *value, unsigned *out)
{
    static const char *const methods[] = {"POST", "PUT", "PATCH", "DELETE", NULL};
    int i;

    if (!read_word(r, "method", value, methods, &i))
        return false;
    *out |= 1u << i;
    return true;
}

static bool read_methods(reader *r, const json_t *value, unsigned *out)
{
    size_t i;
    const json_t *one;

    *out = 0;
    if (!json_is_array(value))
        return read_method(r, value, out);
    json_array_foreach(value, i, one)
    {
        if (!read_method(r, one, out))
            return false;
    }
    return *out || wrong(r, "method", "is empty");
}

static bool read_path(reader *r, const json_t *value, char **out)
{
    return read_text(r, "path", value, GATE_PATTERN_MAX, out) &&
           (gate_pattern_valid(*out) || wrong(r, "path",
                                              "must begin with /, be in normal form (%%XX only "
                                              "where it is needed), and have * "
                                              "only as a segment and ** only as the last one"));
}

static bool read_caller(reader *r, const json_t *value, gate_route *route)
{
    if (!read_text(r, "caller", value, 64, &route->caller))
        return false;
    route->by_certificate = strcmp(route->caller, "certificate") == 0;
    if (route->by_certificate || strcmp(route->caller, "none") == 0) {
        free(route->caller);
        route->caller = NULL;
    }
    return true;
}

static bool read_on_error(reader *r, const json_t *value, gate_route *route)
{
    static const char *const words[] = {"forget", "keep", "unknown", NULL};
    int i;

    if (!read_word(r, "on_error", value, words, &i))
        return false;
    route->on_5xx = route->on_429 = (gate_on_error)i;
    return true;
}

static bool read_choice(reader *r, const char *name, const json_t *value, gate_route *route)
{
    static const char *const crash[] = {"refuse", "rerun", NULL};
    static const char *const down[] = {"closed", "open", NULL};
    static const char *const cookie[] = {"drop", "keep", NULL};
    int i = 0;
    bool good = true;

    if (strcmp(name, "key") == 0 && (good = read_word(r, name, value, needs, &i)))
        route->key = (gate_need)i;
    else if (strcmp(name, "token") == 0 && (good = read_word(r, name, value, needs, &i)))
        route->token = (gate_need)i;
    else if (strcmp(name, "on_crash") == 0 && (good = read_word(r, name, value, crash, &i)))
        route->on_crash = i ? DIBS_CRASH_RERUN : DIBS_CRASH_REFUSE;
    else if (strcmp(name, "engine_down") == 0 && (good = read_word(r, name, value, down, &i)))
        route->open = i;
    else if (strcmp(name, "set_cookie") == 0 && (good = read_word(r, name, value, cookie, &i)))
        route->set_cookie = i;
    else if (good)
        return wrong(r, name, "no such member");
    return good;
}

static bool read_member(reader *r, const char *name, const json_t *value, gate_route *route)
{
    if (strcmp(name, "method") == 0)
        return read_methods(r, value, &route->methods);
    if (strcmp(name, "path") == 0)
        return read_path(r, value, &route->path);
    if (strcmp(name, "caller") == 0)
        return read_caller(r, value, route);
    if (strcmp(name, "wait") == 0)
        return read_span(r, name, value, 0, 3600 * 1000, &route->wait_ms);
    if (strcmp(name, "keep") == 0)
        return read_span(r, name, value, 1, YEAR_MS, &route->keep_ms);
    if (strcmp(name, "tombstone") == 0)
        return read_span(r, name, value, 0, YEAR_MS, &route->tombstone_ms);
    if (strcmp(name, "lease") == 0)
        return read_span(r, name, value, 100, DAY_MS, &route->lease_ms);
    if (strcmp(name, "timeout") == 0)
        return read_span(r, name, value, 10, DAY_MS, &route->timeout_ms);
    if (strcmp(name, "on_error") == 0)
        return read_on_error(r, value, route);
    if (strcmp(name, "prove") == 0)
        return read_flag(r, name, value, &route->prove);
    if (strcmp(name, "fence") == 0)
        return read_text(r, name, value, 128, &route->fence);
    return read_choice(r, name, value, route);
}

static void set_defaults(gate_route *route)
{
    *route = (gate_route){.methods = GATE_POST | GATE_PUT | GATE_PATCH,
                          .token = GATE_IGNORED,
                          .caller = strdup("Authorization"),
                          .wait_ms = 10000,
                          .keep_ms = DAY_MS,
                          .lease_ms = 30000,
                          .timeout_ms = 60000,
                          .on_5xx = GATE_UNKNOWN,
                          .on_429 = GATE_FORGET};
}

/* "{segment}" needs a segment that it can stand for; what else is in braces is a mistake. */
static bool check_fence(reader *r, const gate_route *route)
{
    const char *brace = route->fence ? strchr(route->fence, '{') : NULL, *star;

    if (!brace)
        return true;
    star = strchr(route->path, '*');
    if (strncmp(brace, "{segment}", 9) != 0 || strchr(brace + 1, '{'))
        return wrong(r, "fence", "has {segment} at most once, and nothing else in braces");
    return (star && star[1] != '*') ||
           wrong(r, "fence", "{segment} stands for the first * of the path, which has none");
}

static bool check_reachable(reader *r, const gate_config *c, const gate_route *route)
{
    unsigned left = route->methods;

    for (const gate_route *before = c->route; before < route; before++)
        if (gate_pattern_covers(before->path, route->path))
            left &= ~before->methods;
    return left || wrong(r, "path", "can never match: routes before it match all its requests");
}

static bool read_route(reader *r, gate_config *c, const json_t *value)
{
    gate_route *route = &c->route[c->count++];
    const char *name;
    json_t *member;

    set_defaults(route);
    if (!route->caller)
        return no_memory(r);
    if (!json_is_object(value))
        return wrong(r, "", "must be an object");
    json_object_foreach((json_t *)(uintptr_t)value, name, member)
    {
        if (!read_member(r, name, member, route))
            return false;
    }
    if (!route->path)
        return wrong(r, "path", "is missing");
    return check_fence(r, route) && check_reachable(r, c, route);
}

static bool read_routes(reader *r, gate_config *c, const json_t *list)
{
    size_t count = json_array_size(list);

    strcpy(r->where, "routes");
    if (!json_is_array(list) || count > GATE_ROUTES_MAX)
        return wrong(r, "", "must be an array of at most %d routes", GATE_ROUTES_MAX);
    c->route = calloc(count + 1, sizeof *c->route);
    if (!c->route)
        return no_memory(r);
    for (size_t i = 0; i < count; i++) {
        snprintf(r->where, sizeof r->where, "routes[%zu]", i);
        if (!read_route(r, c, json_array_get(list, i)))
            return false;
    }
    return true;
}

/* ---- Limits ---------------------------------------------------------------------------------- */

bool gate_address_parse(const char *text, struct in6_addr *out)
{
    struct in_addr four;

    if (inet_pton(AF_INET6, text, out) == 1)
        return true;
    if (inet_pton(AF_INET, text, &four) != 1)
        return false;
    memset(out, 0, sizeof *out);
    memset(out->s6_addr + 10, 0xff, 2);
    memcpy(out->s6_addr + 12, &four, 4);
    return true;
}

/* ADDRESS or ADDRESS/BITS */
static bool read_network(reader *r, const char *text, gate_network *out)
{
    char address[64] = "";
    const char *slash = text ? strchr(text, '/') : NULL;
    char *end = NULL;
    size_t n = text ? (slash ? (size_t)(slash - text) : strlen(text)) : 0;
    long bits = 128;

    if (n > 0 && n < sizeof address)
        memcpy(address, text, n);
    if (slash && slash[1] >= '0' && slash[1] <= '9') {
        bits = strtol(slash + 1, &end, 10);
        bits += strchr(address, ':') ? 0 : 96;
    }
    if (!gate_address_parse(address, &out->address) || bits > 128 || bits < 0 ||
        (slash && (!end || *end)))
        return wrong(r, "trusted", "must be an array of addresses like \"10.0.0.0/8\"");
    out->bits = (unsigned)bits;
    return true;
}

static bool read_trusted(reader *r, const json_t *list, gate_limits *l)
{
    size_t i;
    const json_t *one;

    if (!json_is_array(list) || json_array_size(list) > GATE_TRUSTED_MAX)
        return wrong(r, "trusted", "must be an array of at most %d addresses", GATE_TRUSTED_MAX);
    json_array_foreach(list, i, one)
    {
        if (!read_network(r, json_string_value(one), &l->trusted[l->trusted_count++]))
            return false;
    }
    return true;
}

static bool read_limit(reader *r, const char *name, const json_t *value, gate_limits *l)
{
    if (strcmp(name, "head") == 0)
        return read_size(r, name, value, 1024, 1024 * 1024, &l->head);
    if (strcmp(name, "body") == 0)
        return read_size(r, name, value, 0, 1024 * 1024 * 1024, &l->body);
    if (strcmp(name, "answer") == 0)
        return read_size(r, name, value, 0, 1024 * 1024 * 1024, &l->answer);
    if (strcmp(name, "connections") == 0) {
        l->connections_given = true;
        return read_size(r, name, value, 1, 1000000, &l->connections);
    }
    if (strcmp(name, "slow") == 0)
        return read_span(r, name, value, 100, DAY_MS, &l->slow_ms);
    if (strcmp(name, "upload") == 0)
        return read_span(r, name, value, 100, DAY_MS, &l->upload_ms);
    if (strcmp(name, "upstream") == 0)
        return read_size(r, name, value, 1, 100000, &l->upstream);
    if (strcmp(name, "trusted") == 0)
        return read_trusted(r, value, l);
    return wrong(r, name, "no such member");
}

static bool read_limits(reader *r, const json_t *object, gate_limits *l)
{
    const char *name;
    json_t *value;

    strcpy(r->where, "limits");
    if (!json_is_object(object))
        return wrong(r, "", "must be an object");
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (!read_limit(r, name, value, l))
            return false;
    }
    return true;
}

/* ---- The file -------------------------------------------------------------------------------- */

static bool read_all(reader *r, gate_config *c, json_t *root)
{
    const char *name;
    json_t *value;

    if (!json_is_object(root))
        return wrong(r, "", "must be an object with 'routes' and 'limits'");
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "routes") != 0 && strcmp(name, "limits") != 0)
            return wrong(r, name, "no such member");
    }
    value = json_object_get(root, "limits");
    if (value && !read_limits(r, value, &c->limits))
        return false;
    value = json_object_get(root, "routes");
    r->where[0] = '\0';
    return value ? read_routes(r, c, value) : wrong(r, "routes", "is missing");
}

static const gate_limits limits = {.head = 16 * 1024,
                                   .body = 1024 * 1024,
                                   .answer = 1024 * 1024,
                                   .connections = 20000,
                                   .slow_ms = 30000,
                                   .upload_ms = 300000,
                                   .upstream = 100};

static json_t *load(const char *path, dibs_error *err)
{
    json_error_t where;
    json_t *root = path ? json_load_file(path, JSON_REJECT_DUPLICATES, &where)
                        : json_pack("{s:[{s:s},{s:s}]}", "routes", "path", "/", "path", "/**");

    if (!root) {
        *err = (dibs_error){.status = DIBS_INVALID};
        snprintf(err->message, sizeof err->message, "%.400s: %s (line %d, column %d)",
                 path ? path : "", where.text, where.line, where.column);
    }
    return root;
}

gate_config *gate_config_read(const char *path, dibs_error *err)
{
    reader r = {.err = err, .file = path ? path : ""};
    json_t *root = load(path, err);
    gate_config *c = root ? calloc(1, sizeof *c) : NULL;
    bool good = false;

    if (c) {
        *c = (gate_config){.users = 1, .limits = limits};
        good = read_all(&r, c, root);
    } else if (root) {
        no_memory(&r);
    }
    json_decref(root);
    if (good)
        return c;
    gate_config_drop(c);
    return NULL;
}

gate_config *gate_config_share(gate_config *c)
{
    c->users++;
    return c;
}

void gate_config_drop(gate_config *c)
{
    if (!c || --c->users > 0)
        return;
    for (size_t i = 0; i < c->count; i++) {
        free(c->route[i].path);
        free(c->route[i].caller);
        free(c->route[i].fence);
    }
    free(c->route);
    free(c);
}

/* ---- Looking --------------------------------------------------------------------------------- */

const gate_route *gate_config_find(const gate_config *c, gate_method method, const char *path)
{
    for (size_t i = 0; i < c->count; i++)
        if ((c->route[i].methods & method) &&
            gate_pattern_match(c->route[i].path, path, NULL, NULL))
            return &c->route[i];
    return NULL;
}

const gate_route *gate_config_with_tokens(const gate_config *c, const char *pattern)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->route[i].token != GATE_IGNORED && strcmp(c->route[i].path, pattern) == 0)
            return &c->route[i];
    return NULL;
}

bool gate_config_trusts(const gate_config *c, const struct in6_addr *address)
{
    for (size_t i = 0; i < c->limits.trusted_count; i++) {
        const gate_network *n = &c->limits.trusted[i];
        unsigned bytes = n->bits / 8, rest = n->bits % 8;

        if (memcmp(n->address.s6_addr, address->s6_addr, bytes) == 0 &&
            (rest == 0 || (n->address.s6_addr[bytes] ^ address->s6_addr[bytes]) >> (8 - rest) == 0))
            return true;
    }
    return false;
}
