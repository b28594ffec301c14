/* The shop's pages, with libmicrohttpd: a pool of threads, each serving one request at a time.
 *
 *   GET /                 the goods, how many are left, and a button
 *   POST /order           one piece: 200 sold, 409 sold out, 503 failed (and why)
 *   GET /stock            what was sold and what the books say, as JSON
 *   POST /reset?stock=N   the shelf filled again
 *
 * It listens on the loopback interface only: everybody may buy, and everybody may reset. */
#define _GNU_SOURCE
#include "shop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STOCK_MAX 100000000
#define BACKLOG   1024
#define IDLE_S    60

struct lab_shop_http {
    struct MHD_Daemon *daemon;
    lab_shop *shop;
};

typedef struct answer {
    unsigned status;
    const char *type;
    const char *allow; /* of a 405 */
    char *body;        /* malloc'ed; NULL: no memory for it */
} answer;

static const char plain[] = "text/plain; charset=utf-8";

static answer say(unsigned status, const char *format, ...) __attribute__((format(printf, 2, 3)));

static answer say(unsigned status, const char *format, ...)
{
    answer a = {.status = status, .type = plain};
    va_list list;

    va_start(list, format);
    if (vasprintf(&a.body, format, list) < 0)
        a.body = NULL;
    va_end(list);
    return a;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static answer show_goods(lab_shop *shop, struct MHD_Connection *c)
{
    const lab_strategy *s = lab_shop_strategy(shop);
    lab_tally t;
    char note[256];
    answer a;

    (void)c;
    if (!lab_shop_tally(shop, &t, note))
        return say(503, "the stock record cannot be read: %s\n", note);
    a = say(200,
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Goods 1</title>\n"
            "<style>body{font:16px system-ui,sans-serif;max-width:36em;margin:3em auto;"
            "padding:0 1em}button{font:inherit;padding:.5em 1.5em}</style>\n"
            "<h1>Goods 1</h1>\n<p><b>%" PRId64 "</b> of %" PRId64 " left, %" PRId64 " sold.</p>\n"
            "<form method=\"post\" action=\"order\"><button%s>Order one</button></form>\n"
            "<p>Sold with <code>%s</code> (%s): %s.</p>\n</html>\n",
            t.left, t.stock, t.sold, t.left > 0 ? "" : " disabled", s->name, s->id, s->title);
    a.type = "text/html; charset=utf-8";
    return a;
}

static answer take_order(lab_shop *shop, struct MHD_Connection *c)
{
    char note[256];

    (void)c;
    switch (lab_shop_order(shop, note)) {
    case LAB_SOLD:
        return say(200, "sold\n");
    case LAB_SOLD_OUT:
        return say(409, "sold out\n");
    default:
        return say(503, "failed: %s\n", note);
    }
}

static answer show_stock(lab_shop *shop, struct MHD_Connection *c)
{
    answer a = {.status = 200, .type = "application/json"};
    lab_tally t;
    char note[256];
    json_t *o;

    (void)c;
    if (!lab_shop_tally(shop, &t, note))
        return say(503, "the stock record cannot be read: %s\n", note);
    o = lab_shop_json(shop, &t);
    a.body = json_dumps(o, JSON_PRESERVE_ORDER);
    json_decref(o);
    return a;
}

static answer fill_shelf(lab_shop *shop, struct MHD_Connection *c)
{
    const char *text = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "stock");
    char *end = NULL, note[256];
    long long stock;

    errno = 0;
    stock = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (stock < 1 || stock > STOCK_MAX || errno || *end)
        return say(400, "how many: POST /reset?stock=N, N from 1 to %d\n", STOCK_MAX);
    if (!lab_shop_reset(shop, stock, note))
        return say(503, "the stock record cannot be written: %s\n", note);
    return say(200, "%lld on the shelf\n", stock);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static const struct {
    const char *path, *method;
    answer (*serve)(lab_shop *, struct MHD_Connection *);
} pages[] = {
    {"/", "GET", show_goods},
    {"/order", "POST", take_order},
    {"/stock", "GET", show_stock},
    {"/reset", "POST", fill_shelf},
};

static answer serve(lab_shop *shop, struct MHD_Connection *c, const char *path, const char *method)
{
    if (strcmp(method, "HEAD") == 0)
        method = "GET"; /* the library leaves the body out */
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        answer a;
        if (strcmp(pages[i].path, path) != 0)
            continue;
        if (strcmp(pages[i].method, method) == 0)
            return pages[i].serve(shop, c);
        a = say(405, "%s takes %s\n", path, pages[i].method);
        a.allow = pages[i].method;
        return a;
    }
    return say(404, "there are GET /, POST /order, GET /stock and POST /reset?stock=N\n");
}

/* Takes the body. */
static enum MHD_Result send_answer(struct MHD_Connection *c, answer a)
{
    struct MHD_Response *r = NULL;
    enum MHD_Result sent = MHD_NO;

    if (a.body)
        r = MHD_create_response_from_buffer(strlen(a.body), a.body, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(a.body);
        return MHD_NO; /* no memory: the connection is closed */
    }
    if (MHD_add_response_header(r, "Content-Type", a.type) == MHD_YES &&
        MHD_add_response_header(r, "Cache-Control", "no-store") == MHD_YES &&
        (!a.allow || MHD_add_response_header(r, "Allow", a.allow) == MHD_YES))
        sent = MHD_queue_response(c, a.status, r);
    MHD_destroy_response(r);
    return sent;
}

/* Called first with the headers, then with what is in the body (which nobody needs), then to answer. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *c, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **seen)
{
    lab_shop_http *http = ctx;

    (void)version;
    (void)data;
    if (!*seen) {
        *seen = http;
        return MHD_YES;
    }
    if (*size > 0) {
        *size = 0;
        return MHD_YES;
    }
    return send_answer(c, serve(http->shop, c, path, method));
}

/* ---- The server ------------------------------------------------------------------------------ */

int lab_shop_http_listen(int64_t *port, char why[256])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    a.sin_port = htons((uint16_t)*port);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
        bind(fd, (struct sockaddr *)&a, size) == 0 && listen(fd, BACKLOG) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &size) == 0) {
        *port = ntohs(a.sin_port);
        return fd;
    }
    snprintf(why, 256, "port %" PRId64 ": %s; --port names another, 0 a free one", *port,
             strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

lab_shop_http *lab_shop_http_start(lab_shop *shop, int64_t clerks, int socket, char why[256])
{
    lab_shop_http *http = calloc(1, sizeof *http);
    /* A pool of one is no pool: the library wants that said by leaving it out. */
    const struct MHD_OptionItem pool[] = {
        {clerks > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)clerks, NULL},
        {MHD_OPTION_END, 0, NULL}};

    if (http) {
        http->shop = shop;
        http->daemon =
            MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, http,
                             MHD_OPTION_LISTEN_SOCKET, socket, MHD_OPTION_CONNECTION_TIMEOUT,
                             (unsigned)IDLE_S, MHD_OPTION_ARRAY, pool, MHD_OPTION_END);
        if (http->daemon)
            return http;
    }
    snprintf(why, 256, "the HTTP server did not start: %s", strerror(http ? errno : ENOMEM));
    close(socket);
    free(http);
    return NULL;
}

void lab_shop_http_stop(lab_shop_http *http)
{
    MHD_stop_daemon(http->daemon); /* closes the socket */
    free(http);
}
