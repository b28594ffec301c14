/* The file of routes and limits, and which route a request belongs to. */
#ifndef DIBS_GATEWAY_CONFIG_H
#define DIBS_GATEWAY_CONFIG_H

#include "dibs.h"

#include "gateway/path.h"

#include <netinet/in.h>

enum { GATE_PATTERN_MAX = 160, GATE_ROUTES_MAX = 1000, GATE_TRUSTED_MAX = 32 };

typedef enum gate_need { GATE_OPTIONAL, GATE_REQUIRED, GATE_IGNORED } gate_need;
typedef enum gate_on_error { GATE_FORGET, GATE_KEEP, GATE_UNKNOWN } gate_on_error;
typedef enum gate_method {
    GATE_POST = 1,
    GATE_PUT = 2,
    GATE_PATCH = 4,
    GATE_DELETE = 8
} gate_method;

/* How a request ended: a label of the metrics and of the access log. */
typedef enum gate_result {
    GATE_PASSED,
    GATE_FIRST,
    GATE_REPLAYED,
    GATE_REFUSED,
    GATE_UNPROTECTED,
    GATE_FAILED,
    GATE_RESULTS
} gate_result;

extern const char *const gate_result_names[GATE_RESULTS];

typedef struct gate_route {
    unsigned methods;
    char *path;
    gate_need key, token;
    char *caller; /* a header's name; NULL: see by_certificate */
    bool by_certificate;
    int64_t wait_ms, keep_ms, tombstone_ms, lease_ms, timeout_ms;
    dibs_on_crash on_crash;
    gate_on_error on_5xx, on_429;
    bool open;  /* the engine is down: pass, unprotected */
    bool prove; /* record that the request is being sent before it is */
    bool set_cookie;
    char *fence;
} gate_route;

typedef struct gate_network {
    struct in6_addr address;
    unsigned bits;
} gate_network;

typedef struct gate_limits {
    int64_t head, body, answer, connections, slow_ms, upload_ms, upstream;
    bool connections_given; /* not the default */
    gate_network trusted[GATE_TRUSTED_MAX];
    size_t trusted_count;
} gate_limits;

typedef struct gate_config {
    size_t users;
    gate_limits limits;
    gate_route *route;
    size_t count;
} gate_config;

/* `path` NULL: every POST, PUT and PATCH that has a key is guarded. */
gate_config *gate_config_read(const char *path, dibs_error *err);
gate_config *gate_config_share(gate_config *c);
void gate_config_drop(gate_config *c);

/* NULL: none matches. */
const gate_route *gate_config_find(const gate_config *c, gate_method method, const char *path);
/* The first route with tokens whose pattern is written like this, whatever its methods; NULL: there is none. */
const gate_route *gate_config_with_tokens(const gate_config *c, const char *pattern);
bool gate_config_trusts(const gate_config *c, const struct in6_addr *address);
bool gate_address_parse(const char *text, struct in6_addr *out); /* IPv4 as ::ffff:a.b.c.d */

#endif
