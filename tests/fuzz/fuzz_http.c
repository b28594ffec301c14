/* libFuzzer on what `dibs serve` does with the bytes of a connection before the engine is asked: heads, bodies, paths,
 * queries, JSON, tokens, conditions and fences. The input is what a client sends, one request or several. Each handler runs
 * until it calls dibs_start, where what it asks for is checked against the request, and refused. Every request is answered.
 *
 * The bytes come twice, all at once and in small pieces: both times the server must understand the same.
 *
 * An input that begins with ! asks a server with tokens. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "http/inner.h"
#include "serve/metrics.h"
#include "serve/sets.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REQUESTS = 512, DAY_MS = 24 * 3600 * 1000 };

typedef struct outcome {
    const http_route *route;
    const char *method;
    int status;
} outcome;

/* The connection that is being served. */
static struct {
    const uint8_t *data;
    size_t left, piece;
    http_exchange *x; /* in its handler */
    outcome ended[REQUESTS];
    size_t count;
} now;

static http_server server;
static serve program;
static http__tokens *tokens;

/* ---- The network ----------------------------------------------------------------------------- */

ssize_t __wrap_recv(int fd, void *to, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags);
int __wrap_epoll_ctl(int epoll, int how, int fd, struct epoll_event *event);

ssize_t __wrap_recv(int fd, void *to, size_t size, int flags)
{
    size_t n = fuzz_least(fuzz_least(now.left, now.piece), size);

    (void)fd;
    (void)flags;
    memcpy(to, now.data, n);
    now.data += n;
    now.left -= n;
    return (ssize_t)n;
}

ssize_t __wrap_send(int fd, const void *data, size_t size, int flags)
{
    (void)fd;
    (void)data;
    (void)flags;
    return (ssize_t)fuzz_least(size, 1000);
}

int __wrap_epoll_ctl(int epoll, int how, int fd, struct epoll_event *event)
{
    (void)epoll;
    (void)how;
    (void)fd;
    (void)event;
    return 0;
}

static void on_ended(void *context, const http_route *route, const char *method, int status,
                     int64_t us)
{
    (void)context;
    (void)us;
    must(status == 0 || (status >= 200 && status < 600), "an answer has a status");
    if (now.count < REQUESTS)
        now.ended[now.count++] = (outcome){route, method, status};
}

/* ---- What the engine would be asked ---------------------------------------------------------- */

static const char *header(const char *name)
{
    return http_header(now.x, name);
}

/* The exchange whose handler runs. */
static http_exchange *current(void)
{
    http_exchange *x = server.all ? ((http__client_connection *)server.all)->exchange : NULL;

    return x && x->head && !x->answered ? x : NULL;
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
    const wire_head *h = now.x->head;

    for (size_t i = 0; i < h->count; i++) {
        const char *key = h->field[i].name.at, *value = h->field[i].value.at;

        must(strlen(key) == h->field[i].name.size && !strpbrk(key, " \t\r\"(),/:;<=>?@[\\]{}"),
             "a header has a name that is none");
        must(strlen(value) == h->field[i].value.size && !strpbrk(value, "\r\n\001\177"),
             "a header has a control character");
    }
    must(!header("Content-Length") || !header("Transfer-Encoding"), "two ways to find the end");
    must(now.x->body.size <= http__body_max(now.x), "a body that is too long");
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
    now.x = current();
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

/* ---- A connection ---------------------------------------------------------------------------- */

static void forget(void)
{
    while (server.timers.count > 0) { /* what is remembered for a while */
        http_timer *timer = server.timers.heap[1];
        http_timer_stop(&server, timer);
        timer->fire(timer);
    }
    must(!program.by_key && !program.by_id, "a set is left behind");
}

static void go(void)
{
    while (server.loop.first_again)
        http__links_go(&server.loop);
}

/* An event for each piece; the last one says that the client has shut down its side. */
static void feed(void)
{
    size_t before = now.left + 1;

    while (server.all && now.left < before) {
        before = now.left;
        http__link_event(&server.all->link, EPOLLIN | EPOLLOUT | (now.left == 0 ? EPOLLRDHUP : 0));
        go();
    }
    must(now.left == 0 || !server.all, "a connection stops reading");
    if (server.all)
        http__link_event(&server.all->link, EPOLLIN | EPOLLRDHUP);
    go();
    if (server.all)
        http_connection_close(server.all, true);
    http__links_bury(&server.loop);
    must(server.exchanges == 0 && server.connections == 0, "a request is left without an end");
}

static void converse(const uint8_t *data, size_t size, size_t piece)
{
    static const struct sockaddr_in from = {.sin_family = AF_INET};

    now.data = data;
    now.left = size;
    now.piece = piece;
    now.count = 0;
    free(server.failures); /* wrong tokens of the last input do not count */
    server.failures = http__failures_new();
    http__accept(&server.listeners[0], open("/dev/null", O_RDWR | O_CLOEXEC),
                 (const struct sockaddr *)&from, sizeof from);
    feed();
    now.x = NULL;
    forget();
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
    server = (http_server){.o = {.routes = routes,
                                 .context = &program,
                                 .connections = 8,
                                 .header_max = 8 * 1024,
                                 .patience_ms = 30000,
                                 .on_ended = on_ended},
                           .listen_count = 1,
                           .loop.epoll = -1,
                           .log = -1,
                           .failures = http__failures_new()};
    server.listeners[0] = (http_listener){.server = &server, .link.fd = -1, .socket.local = true};
    must(server.failures && program.metrics, "no memory");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static outcome first[REQUESTS];
    size_t count;

    start_once();
    server.tokens = size > 0 && *data == '!' ? tokens : NULL;
    if (server.tokens) {
        data++;
        size--;
    }
    converse(data, size, SIZE_MAX);
    count = now.count;
    memcpy(first, now.ended, count * sizeof *first);
    converse(data, size, 1 + size % 37);
    must(count == now.count, "the number of requests depends on how they come");
    for (size_t i = 0; i < count; i++)
        must(first[i].route == now.ended[i].route && first[i].method == now.ended[i].method &&
                 first[i].status == now.ended[i].status,
             "an answer depends on how its request comes");
    return 0;
}
