/* The shop over HTTP, with libmicrohttpd: a pool of threads, each serving one request at a time. It listens on the loopback
 * interface only: everybody may buy, and everybody may reset. Pages of other sites may not: a POST with their Origin is
 * refused. */
#define _GNU_SOURCE
#include "routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
#define IDLE_S  60

struct lab_shop_http {
    struct MHD_Daemon *daemon;
    lab_premises premises;
};

/* Pages bring everything along, and nobody else may show them in a frame. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/* ---- Requests -------------------------------------------------------------------------------- */

/* A page of another site can make a browser send a form here, but not hide where it came from. */
static bool is_foreign(const lab_call *c)
{
    const char *origin = lab_header(c, "Origin"), *host = lab_header(c, "Host");
    const char *named = origin ? strstr(origin, "://") : NULL;

    return origin && (!named || !host || strcmp(named + 3, host) != 0);
}

static lab_answer serve(const lab_call *c, const char *method)
{
    if (strcmp(method, "POST") == 0 && is_foreign(c))
        return lab_say(403, "a page of another site may not do that\n");
    if (lab_input_fault(c->input))
        return lab_say(lab_input_fault(c->input), "the form cannot be read\n");
    return lab_route(c, strcmp(method, "HEAD") == 0 ? "GET"
                                                    : method); /* the library leaves the body out */
}

static bool add_headers(struct MHD_Response *r, const lab_answer *a)
{
    const struct {
        const char *name, *value;
    } list[] = {
        {"Content-Type", a->type},
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy", a->type == lab_html ? policy : NULL},
        {"Referrer-Policy", a->type == lab_html ? "same-origin" : NULL},
        {"Allow", a->allow},
        {"Location", *a->location ? a->location : NULL},
        {"Idempotent-Replayed", a->replayed ? "true" : NULL},
    };

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].value && MHD_add_response_header(r, list[i].name, list[i].value) != MHD_YES)
            return false;
    return true;
}

/* Takes the body. */
static enum MHD_Result send_answer(struct MHD_Connection *c, lab_answer a)
{
    struct MHD_Response *r = NULL;
    enum MHD_Result sent = MHD_NO;

    if (a.body)
        r = MHD_create_response_from_buffer(strlen(a.body), a.body, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(a.body);
        return MHD_NO; /* no memory: the connection is closed */
    }
    if (add_headers(r, &a))
        sent = MHD_queue_response(c, a.status, r);
    MHD_destroy_response(r);
    return sent;
}

/* Called first with the headers, then with what is in the body, then to answer. */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **seen)
{
    lab_shop_http *http = ctx;
    lab_call c = {&http->premises, connection, *seen, path};

    (void)version;
    if (!*seen) {
        *seen = lab_input_open(connection);
        return *seen ? MHD_YES : MHD_NO;
    }
    if (*size > 0) {
        lab_input_take(*seen, data, *size);
        *size = 0;
        return MHD_YES;
    }
    return send_answer(connection, serve(&c, method));
}

static void forget(void *ctx, struct MHD_Connection *c, void **seen,
                   enum MHD_RequestTerminationCode why)
{
    (void)ctx;
    (void)c;
    (void)why;
    lab_input_close(*seen);
    *seen = NULL;
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

static void close_premises(lab_shop_http *http)
{
    lab_orders_close(http->premises.orders);
    lab_book_close(http->premises.book);
    lab_journal_close(http->premises.journal);
    free(http);
}

static struct MHD_Daemon *start_daemon(lab_shop_http *http, int64_t clerks, int socket)
{
    /* A pool of one is no pool: the library wants that said by leaving it out. */
    const struct MHD_OptionItem pool[] = {
        {clerks > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)clerks, NULL},
        {MHD_OPTION_END, 0, NULL}};

    return MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, http,
                            MHD_OPTION_LISTEN_SOCKET, socket, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)IDLE_S, MHD_OPTION_NOTIFY_COMPLETED, forget, NULL,
                            MHD_OPTION_ARRAY, pool, MHD_OPTION_END);
}

/* False: `why`. */
static bool open_premises(lab_premises *p, lab_shop *shop, const char *url, char why[256])
{
    snprintf(why, 256, "out of memory");
    p->shop = shop;
    p->book = lab_book_open();
    p->journal = lab_journal_open();
    if (p->book && p->journal)
        p->orders = lab_orders_open(shop, url, p->book, p->journal, why);
    return p->orders != NULL;
}

lab_shop_http *lab_shop_http_start(lab_shop *shop, const char *url, int64_t clerks, int socket,
                                   char why[256])
{
    lab_shop_http *http = calloc(1, sizeof *http);

    if (!http) {
        snprintf(why, 256, "out of memory");
    } else if (open_premises(&http->premises, shop, url, why)) {
        http->daemon = start_daemon(http, clerks, socket);
        if (http->daemon)
            return http;
        snprintf(why, 256, "the HTTP server did not start: %s", strerror(errno));
    }
    if (http)
        close_premises(http);
    close(socket);
    return NULL;
}

void lab_shop_http_stop(lab_shop_http *http)
{
    MHD_stop_daemon(http->daemon); /* closes the socket */
    close_premises(http);
}
