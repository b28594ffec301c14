/* What comes in is checked here, before a handler sees it: the head, the query, the JSON body, all against the
 * route's tables. What no table names is refused. */
#define _GNU_SOURCE
#include "http/json.h"
#include "inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_MEMBERS = 16 };

/* ---- Texts ----------------------------------------------------------------------------------- */

/* Length of the UTF-8 character at `s`; 0: none (also: too long for its value, a surrogate, above U+10FFFF). */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    uint32_t code = s[0] & (0xffu >> (n + 1));

    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    return n == 1 || (code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff)) ? n
                                                                                                : 0;
}

bool http__is_utf8(const char *text, size_t size)
{
    for (size_t n, at = 0; at < size; at += n)
        if ((n = utf8_length((const unsigned char *)text + at, size - at)) == 0)
            return false;
    return true;
}

bool http_is_utf8(const char *text)
{
    return http__is_utf8(text, strlen(text));
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool http__decode(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++, to++) {
        *to = *at;
        if (*at == '%') {
            int high = hex(at[1]), low = high < 0 ? -1 : hex(at[2]);
            if (low < 0 || (*to = (char)(high * 16 + low)) == '\0')
                return false;
            at += 2;
        }
    }
    *to = '\0';
    return http__is_utf8(text, (size_t)(to - text));
}

/* ---- One value ------------------------------------------------------------------------------- */

static bool refuse(http_exchange *x, json_t *value, const char *name, const char *what)
{
    json_decref(value);
    http_reply_problem(x, 400, DIBS_INVALID, "'%.60s': %s", name, what);
    return false;
}

static bool check_text(http_exchange *x, const http_field *f, const json_t *value, const char *name)
{
    size_t size = json_string_length(value);
    char what[96];

    if (strlen(json_string_value(value)) != size)
        return refuse(x, NULL, name, "a text has no NUL");
    if ((int64_t)size < f->low || (int64_t)size > f->high) {
        snprintf(what, sizeof what, "a text has %lld to %lld bytes here", (long long)f->low,
                 (long long)f->high);
        return refuse(x, NULL, name, what);
    }
    if ((f->kind == HTTP_NAME || f->kind == HTTP_NAMES || f->kind == HTTP_PREFIX) &&
        !http_may_name(x, json_string_value(value))) {
        http_reply_problem(x, 403, DIBS_DENIED, "this client may not use the name '%.200s'",
                           json_string_value(value));
        return false;
    }
    return true;
}

static bool check_names(http_exchange *x, const http_field *f, const json_t *value)
{
    static const http_field name = {.kind = HTTP_NAME, .low = 1, .high = DIBS_NAME_MAX};
    size_t i, count = json_array_size(value);
    const json_t *one;
    char what[96];

    if ((int64_t)count < f->low || (int64_t)count > f->high) {
        snprintf(what, sizeof what, "give %lld to %lld names", (long long)f->low,
                 (long long)f->high);
        return refuse(x, NULL, f->name, what);
    }
    json_array_foreach(value, i, one)
    {
        if (!json_is_string(one))
            return refuse(x, NULL, f->name, "is an array of texts");
        if (!check_text(x, &name, one, f->name))
            return false;
    }
    return true;
}

static bool check_integer(http_exchange *x, const http_field *f, const json_t *value)
{
    char what[96];

    if (json_integer_value(value) >= f->low && json_integer_value(value) <= f->high)
        return true;
    snprintf(what, sizeof what, "is a whole number from %lld to %lld", (long long)f->low,
             (long long)f->high);
    return refuse(x, NULL, f->name, what);
}

static bool check_value(http_exchange *x, const http_field *f, const json_t *value)
{
    switch (f->kind) {
    case HTTP_TEXT:
    case HTTP_NAME:
    case HTTP_PREFIX:
        return json_is_string(value) ? check_text(x, f, value, f->name)
                                     : refuse(x, NULL, f->name, "is a text");
    case HTTP_NAMES:
        return json_is_array(value) ? check_names(x, f, value)
                                    : refuse(x, NULL, f->name, "is an array of texts");
    case HTTP_INTEGER:
        return json_is_integer(value) ? check_integer(x, f, value)
                                      : refuse(x, NULL, f->name, "is a whole number");
    case HTTP_BOOLEAN:
        return json_is_boolean(value) || refuse(x, NULL, f->name, "is true or false");
    }
    return false;
}

json_t *http__given_value(const http_exchange *x, const char *name)
{
    for (size_t i = 0; i < x->given_count; i++)
        if (strcmp(x->given[i].name, name) == 0)
            return x->given[i].value;
    return NULL;
}

/* NULL: out of memory. */
static http__given *next_given(http_exchange *x)
{
    size_t room = x->given_room ? 2 * x->given_room : 8;
    http__given *more;

    if (x->given_count == x->given_room) {
        more = realloc(x->given, room * sizeof *more);
        if (!more)
            return NULL;
        x->given = more;
        x->given_room = room;
    }
    return &x->given[x->given_count];
}

bool http__give(http_exchange *x, const http_field *f, json_t *value)
{
    http__given *to = value ? next_given(x) : NULL;

    if (!to) {
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "%s", dibs_status_text(DIBS_NO_MEMORY));
    } else if (check_value(x, f, value)) {
        to->name[0] = '\0';
        strncat(to->name, f->name, sizeof to->name - 1);
        to->value = value;
        x->given_count++;
        return true;
    }
    json_decref(value);
    return false;
}

bool http__give_text(http_exchange *x, const http_field *f, const char *text)
{
    char *end;
    long long n;

    if (f->kind == HTTP_INTEGER) {
        n = strtoll(text, &end, 10);
        if (!*text ||
            strspn(text + (*text == '-'), "0123456789") != strlen(text + (*text == '-')) ||
            end == text || strlen(text) > 19)
            return refuse(x, NULL, f->name, "is a whole number");
        return http__give(x, f, json_integer(n));
    }
    if (f->kind == HTTP_BOOLEAN) {
        if (strcmp(text, "true") != 0 && strcmp(text, "1") != 0 && strcmp(text, "false") != 0 &&
            strcmp(text, "0") != 0)
            return refuse(x, NULL, f->name, "is true or false");
        return http__give(x, f, json_boolean(*text == 't' || *text == '1'));
    }
    return http__give(x, f, json_string(text));
}

static const http_field *find_field(const http_field *fields, const char *name)
{
    for (const http_field *f = fields; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

/* Required ones are there; a prefix that is absent is the empty one, which a client with prefixes of its own
 * may not ask for. */
static bool check_absent(http_exchange *x, const http_field *fields)
{
    for (const http_field *f = fields; f && f->name; f++) {
        if (http_given(x, f->name))
            continue;
        if (f->required)
            return refuse(x, NULL, f->name, "is missing");
        if (f->kind == HTTP_PREFIX && !http__give_text(x, f, ""))
            return false;
    }
    return true;
}

/* ---- The query ------------------------------------------------------------------------------- */

/* Of a form, as browsers write it: a plus is a space. */
static bool decode(char *text)
{
    for (char *plus = text; (plus = strchr(plus, '+'));)
        *plus = ' ';
    return http__decode(text);
}

static bool read_parameter(http_exchange *x, char *name)
{
    char *equals = strchr(name, '='), *text = equals ? equals + 1 : name + strlen(name);
    const http_field *f;

    if (equals)
        *equals = '\0';
    if (!decode(name) || !decode(text)) {
        http_reply_problem(
            x, 400, DIBS_INVALID,
            "the query has an escape that is invalid, a NUL or bytes that are no UTF-8");
        return false;
    }
    f = find_field(x->route->query, name);
    if (!f)
        return refuse(x, NULL, name, "no such parameter: see /openapi.json");
    if (http_given(x, name))
        return refuse(x, NULL, name, "is given twice");
    return http__give_text(x, f, text);
}

static bool read_query(http_exchange *x)
{
    char *rest = NULL;

    for (char *one = strtok_r(x->query, "&", &rest); one; one = strtok_r(NULL, "&", &rest))
        if (!read_parameter(x, one))
            return false;
    return true;
}

/* ---- The head -------------------------------------------------------------------------------- */

size_t http__body_max(const http_exchange *x)
{
    return x->route->body_max ? x->route->body_max : HTTP_BODY;
}

/* What else has to be clear; wire.c has refused whatever two servers could understand in two ways. */
static bool check_framing(http_exchange *x)
{
    const wire_head *h = x->head;

    if (wire_find(h, "Authorization", 1) || wire_find(h, "Content-Type", 1))
        http_reply_problem(x, 400, DIBS_INVALID, "Content-Type and Authorization are given once");
    else if (h->framing == WIRE_LENGTH && h->length > http__body_max(x))
        http_reply_problem(x, 413, DIBS_INVALID, "the body has more than %zu bytes",
                           http__body_max(x));
    return !x->answered;
}

/* Is `origin` where this server was asked from? Compared without its scheme: a proxy may add TLS. */
static bool is_own_origin(http_exchange *x, const char *origin)
{
    const char *host = http_header(x, "Host"), *at = strstr(origin, "://");

    return host && at && strcmp(at + 3, host) == 0;
}

static bool is_loopback_name(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]", NULL};

    for (size_t i = 0; names[i]; i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n) == 0 && (!host[n] || host[n] == ':'))
            return true;
    }
    return strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.:") == strlen(host);
}

/* A page of another site may not use a browser of this machine's to ask: neither across origins, nor by a name
 * of its own that leads here. */
static bool check_origin(http_exchange *x)
{
    const char *origin = http_header(x, "Origin"), *site = http_header(x, "Sec-Fetch-Site");
    const char *cors = x->server->o.cors, *host = http_header(x, "Host");
    bool allowed = cors && (strcmp(cors, "*") == 0 || (origin && strcmp(cors, origin) == 0));

    if (origin && !is_own_origin(x, origin) && !allowed)
        http_reply_problem(x, 403, DIBS_DENIED,
                           "requests from pages of other sites are not accepted");
    else if (!origin && site && x->route->verb != HTTP_OPEN && strcmp(site, "same-origin") != 0 &&
             strcmp(site, "none") != 0)
        http_reply_problem(x, 403, DIBS_DENIED,
                           "requests from pages of other sites are not accepted");
    else if (!x->server->tokens && x->connection->listener->socket.local &&
             !x->connection->listener->socket.unix_socket && host && !is_loopback_name(host))
        http_reply_problem(x, 421, DIBS_DENIED,
                           "without tokens this server answers to localhost and 127.0.0.1 only");
    return !x->answered;
}

static bool is_acceptable(http_exchange *x)
{
    const char *accept = http_header(x, "Accept");

    return !x->route->stream || (accept && strstr(accept, "text/event-stream"));
}

bool http__request_check(http_exchange *x, const char *path)
{
    if (!check_framing(x) || !check_origin(x) || !http__client_check(x) ||
        !http__route_give(x, path))
        return false;
    if (!is_acceptable(x)) {
        http_reply_problem(x, 406, DIBS_INVALID,
                           "this is a stream of events: send Accept: text/event-stream");
        return false;
    }
    return read_query(x) && check_absent(x, x->route->query);
}

/* ---- The body -------------------------------------------------------------------------------- */

static bool is_json_type(const char *type)
{
    static const char json[] = "application/json";

    return type && strncasecmp(type, json, sizeof json - 1) == 0 &&
           (!type[sizeof json - 1] || strchr("; \t", type[sizeof json - 1]));
}

static bool give_members(http_exchange *x, json_t *body)
{
    const char *name;
    json_t *value;

    json_object_foreach(body, name, value)
    {
        const http_field *f = find_field(x->route->body, name);
        if (!f)
            return refuse(x, NULL, name, "no such member: see /openapi.json");
        if (!json_is_null(value) && !http__give(x, f, json_incref(value)))
            return false;
    }
    return check_absent(x, x->route->body);
}

static json_t *value_of(const http_json_member *m)
{
    switch (m->type) {
    case JSON_STRING:
        return json_stringn_nocheck(m->text, m->size);
    case JSON_INTEGER:
        return json_integer(m->number);
    default:
        return json_boolean(m->type == JSON_TRUE);
    }
}

static bool give_plain(http_exchange *x, const http_json_member *m)
{
    const http_field *f;
    char name[64] = "";

    strncat(name, m->name, m->name_size < sizeof name ? m->name_size : sizeof name - 1);
    f = find_field(x->route->body, name);
    if (!f)
        return refuse(x, NULL, name, "no such member: see /openapi.json");
    return m->type == JSON_NULL || http__give(x, f, value_of(m));
}

static bool parse_all(http_exchange *x);

/* As parse_all, for what most requests send. */
static bool parse(http_exchange *x)
{
    http_json_member members[PLAIN_MEMBERS];
    size_t count;

    if (!http_json_plain(x->body.at, x->body.size, members, PLAIN_MEMBERS, &count))
        return parse_all(x);
    for (size_t i = 0; i < count; i++)
        if (!give_plain(x, &members[i]))
            return false;
    return check_absent(x, x->route->body);
}

static bool parse_all(http_exchange *x)
{
    json_error_t where;
    json_t *body =
        json_loadb(x->body.at, x->body.size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    bool good;

    if (!body) {
        http_reply_problem(x, 400, DIBS_INVALID,
                           "the body is not JSON: %.100s (line %d, column %d)", where.text,
                           where.line, where.column);
        return false;
    }
    good = json_is_object(body) ? give_members(x, body) : refuse(x, NULL, "body", "is an object");
    json_decref(body);
    return good;
}

bool http__request_body(http_exchange *x)
{
    const char *type = http_header(x, "Content-Type");

    if (x->route->raw)
        return true;
    if (!x->route->body && x->body.size > 0)
        return refuse(x, NULL, "body", "this request has none");
    if (!x->route->body)
        return true;
    if ((x->body.size > 0 || type) && !is_json_type(type)) {
        http_reply_problem(x, 415, DIBS_INVALID,
                           "send the body with Content-Type: application/json");
        return false;
    }
    return x->body.size > 0 ? parse(x) : check_absent(x, x->route->body);
}
