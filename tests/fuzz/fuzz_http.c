/* libFuzzer on what `dibs serve` does with a request before the engine is asked: paths, queries, JSON bodies, tokens,
 * conditions and fences. The input is a request as it is written: a line with method and target, headers, an empty
 * line, the body. libmicrohttpd's part is played here; each handler runs until it calls dibs_start, where what it asks
 * for is checked against the request, and refused. Every request is answered.
 *
 * A line that begins with ! asks a server with tokens. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "http/inner.h"
#include "serve/metrics.h"
#include "serve/sets.h"

#include <inttypes.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADERS = 24, DAY_MS = 24 * 3600 * 1000 };

typedef struct pair {
    char *key, *value;
} pair;

/* The request that is being served. */
static struct {
    char *method, *path;
    pair header[HEADERS], argument[HEADERS];
    size_t headers, arguments;
    http_exchange *x;
    unsigned answers, asked;
} now;

static http_server server;
static serve program;
static http__connection connection;
static http__tokens *tokens;

/* ---- libmicrohttpd --------------------------------------------------------------------------- */

const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *c, enum MHD_ValueKind kind,
                                               const char *key);
int __wrap_MHD_get_connection_values(struct MHD_Connection *c, enum MHD_ValueKind kind,
                                     MHD_KeyValueIterator each, void *data);
const union MHD_ConnectionInfo *
__wrap_MHD_get_connection_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType type, ...);
enum MHD_Result __wrap_MHD_queue_response(struct MHD_Connection *c, unsigned status,
                                          struct MHD_Response *response);
void __wrap_MHD_suspend_connection(struct MHD_Connection *c);

const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *c, enum MHD_ValueKind kind,
                                               const char *key)
{
    (void)c;
    must(kind == MHD_HEADER_KIND, "only headers are looked up");
    for (size_t i = 0; i < now.headers; i++)
        if (strcasecmp(now.header[i].key, key) == 0)
            return now.header[i].value;
    return NULL;
}

int __wrap_MHD_get_connection_values(struct MHD_Connection *c, enum MHD_ValueKind kind,
                                     MHD_KeyValueIterator each, void *data)
{
    const pair *all = kind == MHD_HEADER_KIND ? now.header : now.argument;
    size_t i, count = kind == MHD_HEADER_KIND ? now.headers : now.arguments;

    (void)c;
    for (i = 0; i < count; i++)
        if (each(data, kind, all[i].key, all[i].value) != MHD_YES)
            break;
    return (int)i;
}

const union MHD_ConnectionInfo *
__wrap_MHD_get_connection_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType type, ...)
{
    static struct sockaddr_in from = {.sin_family = AF_INET};
    static union MHD_ConnectionInfo info;

    (void)c;
    if (type == MHD_CONNECTION_INFO_SOCKET_CONTEXT)
        info.socket_context = &connection;
    else
        info.client_addr = (struct sockaddr *)&from;
    return &info;
}

enum MHD_Result __wrap_MHD_queue_response(struct MHD_Connection *c, unsigned status,
                                          struct MHD_Response *response)
{
    (void)c;
    must(response && status >= 200 && status < 600, "an answer with a status");
    now.answers++;
    return MHD_YES;
}

void __wrap_MHD_suspend_connection(struct MHD_Connection *c)
{
    (void)c;
    must(now.x && now.x->stream, "a request is left without an answer");
}

/* ---- What the engine would be asked ---------------------------------------------------------- */

static const char *header(const char *name)
{
    return __wrap_MHD_lookup_connection_value(NULL, MHD_HEADER_KIND, name);
}

static void check_name(const char *name)
{
    must(name && *name && strlen(name) <= DIBS_NAME_MAX, "a name is too short or too long");
    must(http_is_utf8(name), "a name is no UTF-8");
    if (now.x->server->tokens && strcmp(http_client(now.x), "shop") == 0)
        must(strncmp(name, "shop:", 5) == 0, "a name that the client may not use");
}

/* Is `text` the number, maybe with zeros before it? */
static bool is_number(const char *text, size_t size, uint64_t value)
{
    char digits[24];

    while (size > 1 && *text == '0') {
        text++;
        size--;
    }
    return (size_t)sprintf(digits, "%" PRIu64, value) == size && strncmp(text, digits, size) == 0;
}

static void check_condition(uint64_t version)
{
    const char *match = header("If-Match"), *none = header("If-None-Match");

    must(!match != !none, "a write has one condition");
    if (version == 0)
        must(none && strcmp(none, "*") == 0, "a cell that must not exist");
    else if (version == DIBS_ANY_VERSION)
        must(match && strcmp(match, "*") == 0, "a condition that holds for every version");
    else
        must(match && match[0] == '"' &&
                 is_number(match + 1, strlen(match) >= 2 ? strlen(match) - 2 : 0, version),
             "a condition with another version than the client's");
}

static void check_fence(const dibs_cell_options *o)
{
    const char *text = header("Dibs-Fence");
    size_t size = text ? strcspn(text, "/") : 0;

    must((o->fence > 0) == (text != NULL), "a fence that was not given, or was left out");
    must(o->floor <= o->fence, "a floor above its fence");
    if (!text)
        return;
    must(is_number(text, size, o->fence), "another fence than the client's");
    if (text[size])
        must(is_number(text + size + 1, strlen(text) - size - 1, o->floor),
             "another floor than the client's");
    else
        must(o->floor == 0, "a floor that was not given");
}

static void check_lock(const dibs_lock_options *o)
{
    must(o->wait_ms == DIBS_NO_WAIT || o->wait_ms == DIBS_FOREVER ||
             (o->wait_ms > 0 && o->wait_ms <= DAY_MS),
         "a wait is out of range");
    must(o->lease_ms >= 10 && o->lease_ms <= DAY_MS, "a lease is out of range");
    must(o->slots <= 1000000 && (o->weight == 0 || o->weight <= o->slots),
         "slots and weight are out of range");
    must(o->owner && http_is_utf8(o->owner), "an owner is no UTF-8");
}

/* Whatever the handler: what it was given is what the route's tables allow. */
static void check_field(const http_field *f, const json_t *value)
{
    if (!value)
        must(!f->required, "a required member is missing");
    else if (f->kind == HTTP_INTEGER)
        must(json_is_integer(value) && json_integer_value(value) >= f->low &&
                 json_integer_value(value) <= f->high,
             "a number is out of range");
    else if (f->kind == HTTP_BOOLEAN)
        must(json_is_boolean(value), "is not true or false");
    else if (f->kind == HTTP_NAMES)
        must(json_is_array(value) && (int64_t)json_array_size(value) >= f->low &&
                 (int64_t)json_array_size(value) <= f->high,
             "a list is out of range");
    else
        must(json_is_string(value) &&
                 strlen(json_string_value(value)) == json_string_length(value) &&
                 (f->kind == HTTP_PREFIX || (int64_t)json_string_length(value) >= f->low) &&
                 (int64_t)json_string_length(value) <= f->high,
             "a text is out of range");
}

static void check_given(void)
{
    const http_route *r = now.x->route;

    for (const http_field *f = r->query; f && f->name; f++)
        check_field(f, http__given_value(now.x, f->name));
    for (const http_field *f = r->body; f && f->name; f++)
        check_field(f, http__given_value(now.x, f->name));
}

/* What a server in front may have read in another way does not reach the engine. */
static void check_headers(void)
{
    for (size_t i = 0; i < now.headers; i++) {
        const char *key = now.header[i].key, *value = now.header[i].value;

        must(!strpbrk(key, " \t\r\"(),/:;<=>?@[\\]{}"), "a header has a name that is none");
        must(!strpbrk(value, "\r\n\001\177"), "a header has a control character");
    }
}

static void check_client(void)
{
    const char *said = header("Authorization");

    if (!now.x->server->tokens)
        return;
    must(said && strcasestr(said, "bearer"), "asked without a token");
    must((strstr(said, "shop-token") != NULL) == (strcmp(http_client(now.x), "shop") == 0) &&
             (strstr(said, "reader-token") != NULL) == (strcmp(http_client(now.x), "reader") == 0),
         "another client than the token's");
    must(http_may(now.x, now.x->route->verb), "a client without the verb");
}

dibs_status __wrap_dibs_start(dibs *d, const dibs_request *r, uint64_t *id, dibs_error *err);

dibs_status __wrap_dibs_start(dibs *d, const dibs_request *r, uint64_t *id, dibs_error *err)
{
    (void)d;
    now.asked++;
    if (now.x) {
        check_given();
        check_headers();
        check_client();
    }
    if (now.x && r->name && r->op != DIBS_OP_GRANT_ADOPT && r->op != DIBS_OP_LOCK_LIST &&
        r->op != DIBS_OP_ONCE_LIST && r->op != DIBS_OP_TOKEN_ISSUE &&
        r->op != DIBS_OP_TOKEN_REDEEM && r->op != DIBS_OP_TOKEN_REISSUE)
        check_name(r->name);
    if (r->op == DIBS_OP_LOCK)
        check_lock(r->options.lock);
    if (r->op == DIBS_OP_CELL_SWAP || r->op == DIBS_OP_CELL_DELETE)
        check_condition(r->version);
    if (r->op == DIBS_OP_CELL_SWAP || r->op == DIBS_OP_CELL_DELETE || r->op == DIBS_OP_CELL_PASS)
        check_fence(r->options.cell);
    must(r->size <= DIBS_VALUE_MAX && (r->size == 0 || r->data), "data is too long, or missing");
    if (id)
        *id = 0;
    *err = (dibs_error){.status = DIBS_UNAVAILABLE, .next = DIBS_NEXT_LATER};
    return DIBS_UNAVAILABLE;
}

/* ---- The request ----------------------------------------------------------------------------- */

static char *cut(char **rest, const char *at)
{
    char *text = *rest, *end = strstr(text, at);

    *rest = end ? end + strlen(at) : text + strlen(text);
    if (end)
        *end = '\0';
    return text;
}

static void read_target(char *target)
{
    now.path = cut(&target, "?");
    while (*target && now.arguments < HEADERS) {
        char *key = cut(&target, "&"), *value = strchr(key, '=');

        if (value)
            *value++ = '\0';
        now.argument[now.arguments++] = (pair){key, value};
    }
}

/* False: libmicrohttpd would not hand it on. */
static bool read_head(char *head)
{
    char *line = cut(&head, "\n");

    now.method = cut(&line, " ");
    if (!*now.method || !*line)
        return false;
    read_target(line);
    while (*head && now.headers < HEADERS) {
        char *value = cut(&head, "\n"), *key = cut(&value, ":");

        if (!*key)
            return false;
        now.header[now.headers++] = (pair){key, value + strspn(value, " \t")};
    }
    return true;
}

static void call(const char *body, size_t size, void **exchange)
{
    http__on_request(&server.listens[0], NULL, now.path, now.method, "HTTP/1.1", body, &size,
                     exchange);
    now.x = *exchange;
    must(size == 0 || now.answers, "a piece of the body is left over");
}

static void ask(const char *body, size_t size)
{
    void *exchange = NULL;
    size_t half = size / 2;

    call(NULL, 0, &exchange);
    if (!now.answers && half)
        call(body, half, &exchange);
    if (!now.answers && size)
        call(body + half, size - half, &exchange);
    if (!now.answers)
        call(NULL, 0, &exchange);
    must(now.answers == 1, "a request has one answer");
    http__on_completed(&server.listens[0], NULL, &exchange, MHD_REQUEST_TERMINATED_COMPLETED_OK);
    now.x = NULL;
    http_timer_stop(&server, &connection.timer);
    while (server.timers.count > 0) { /* what is remembered for a while */
        http_timer *timer = server.timers.heap[1];
        http_timer_stop(&server, timer);
        timer->fire(timer);
    }
    must(!program.by_key && !program.by_id, "a set is left behind");
}

/* ---- The server ------------------------------------------------------------------------------ */

/* Of the secrets shop-token and reader-token. */
static void read_tokens(void)
{
    static const char text[] =
        "shop 88cc4600551e64b7cb97dd7f63ebad405255e5d17bdd71ee9fe1ed5cc20d0b3b read,lock shop:\n"
        "reader ba5005a40cf5212e4ac0190104cc127edab013294bb71279a975b27a80982d45 read\n";
    int fd = memfd_create("tokens", 0);
    char path[64];
    dibs_error err;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(write(fd, text, sizeof text - 1) == sizeof text - 1 &&
             http__tokens_read(path, &tokens, &err) == DIBS_OK,
         "no tokens");
    close(fd);
}

static void start_once(void)
{
    static const http_route *const routes[] = {
        serve_acquire_routes, serve_grant_routes, serve_inspect_routes,
        serve_run_routes,     serve_key_routes,   serve_token_routes,
        serve_counter_routes, serve_cell_routes,  NULL};
    static const dibs_engine_info engine = {.shared = true, .slots = true};

    if (server.o.routes)
        return;
    read_tokens();
    program = (serve){.http = &server,
                      .engine = &engine,
                      .advertise = "http://127.0.0.1:1",
                      .instance = "0123456789abcdef0123456789abcdef",
                      .slice_ms = 25000,
                      .lease_ms = 30000,
                      .metrics = serve_metrics_new()};
    server = (http_server){.o = {.routes = routes, .context = &program, .patience_ms = 30000},
                           .listen_count = 1,
                           .epoll = -1,
                           .log = -1,
                           .failures = http__failures_new()};
    server.listens[0] = (http__listen){.server = &server, .local = true};
    connection = (http__connection){.server = &server, .listen = &server.listens[0], .fd = -1};
    must(server.failures && program.metrics, "no memory");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 16];
    size_t length = fuzz_least(size, sizeof text - 1), head;
    char *end, *from = text;

    start_once();
    memcpy(text, data, length);
    text[length] = '\0';
    memset(&now, 0, sizeof now);
    end = memmem(text, length, "\n\n", 2);
    head = end ? (size_t)(end - text) + 2 : length;
    if (end)
        end[1] = '\0';
    if (strlen(text) < head - (end != NULL)) /* a NUL in the head: libmicrohttpd refuses it */
        return 0;
    server.tokens = *from == '!' ? tokens : NULL;
    from += *from == '!';
    if (read_head(from))
        ask(text + head, length - head);
    return 0;
}
