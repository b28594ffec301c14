/* The shop over HTTP, with libmicrohttpd: a pool of threads, each serving one request at a time.
 *
 *   GET /                 the form, the switches and the log
 *   POST /buy             the form: 303 to the order, or why not (403, 409, 422, 503)
 *   GET /orders/N         an order
 *   GET /live             the stock and the log, as HTML; pages ask for it twice a second
 *   POST /guards          the switches
 *   POST /order           one piece, no guard, for load generators: 200 sold, 409 sold out, 503 failed (and why)
 *   GET /stock            what was sold and what the books say, as JSON
 *   POST /reset?stock=N   the shelf filled again
 *
 * A browser gets pages, any other client one line of text. It listens on the loopback interface only: everybody may buy, and
 * everybody may reset. Pages of other sites may not: a POST with their Origin is refused. */
#define _GNU_SOURCE
#include "assets.h"
#include "form.h"
#include "pages.h"

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
    lab_premises premises;
};

/* A request that has come in whole. */
typedef struct call {
    const lab_premises *at;
    struct MHD_Connection *connection;
    const lab_input *input;
    const char *path;
} call;

typedef struct answer {
    unsigned status;
    const char *type;
    const char *allow; /* of a 405 */
    char location[40]; /* of a 303 */
    bool replayed;
    char *body; /* malloc'ed; NULL: no memory for it */
} answer;

static const char plain[] = "text/plain; charset=utf-8";
static const char html[] = "text/html; charset=utf-8";

/* Pages bring everything along, and nobody else may show them in a frame. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

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

static answer show(unsigned status, char *page)
{
    return (answer){.status = status, .type = html, .body = page};
}

static const char *header(const call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

static bool is_browser(const call *c)
{
    const char *accepted = header(c, "Accept");

    return accepted && strstr(accepted, "text/html");
}

static answer redirect(const char *format, ...) __attribute__((format(printf, 1, 2)));

static answer redirect(const char *format, ...)
{
    answer a = {.status = 303, .type = plain, .body = strdup("")};
    va_list list;

    va_start(list, format);
    vsnprintf(a.location, sizeof a.location, format, list);
    va_end(list);
    return a;
}

/* ---- The form -------------------------------------------------------------------------------- */

/* Letters, digits and a few marks that mean nothing in HTML, in SQL or in a header. */
static bool is_word(const char *text, size_t max)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";

    return strlen(text) <= max && strspn(text, allowed) == strlen(text);
}

static bool copy_word(char *out, size_t size, const char *text)
{
    if (!text)
        return true;
    if (!is_word(text, size - 1))
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* As the header has it: a quoted string; or a bare word, as many clients send it. */
static bool copy_key(const call *c, char out[LAB_KEY_SIZE])
{
    const char *sent = header(c, "Idempotency-Key");
    char bare[LAB_KEY_SIZE] = "";
    size_t size = sent ? strlen(sent) : 0;

    if (!sent)
        return copy_word(out, LAB_KEY_SIZE, lab_input_get(c->input, "key"));
    if (size < 2 || *sent != '"' || sent[size - 1] != '"')
        return copy_word(out, LAB_KEY_SIZE, sent);
    if (size - 2 >= sizeof bare)
        return false;
    memcpy(bare, sent + 1, size - 2);
    return copy_word(out, LAB_KEY_SIZE, bare);
}

static bool is_colour(const char *text)
{
    return strcmp(text, "blue") == 0 || strcmp(text, "red") == 0 || strcmp(text, "green") == 0;
}

static bool read_form(const call *c, lab_form *form)
{
    const char *colour = lab_input_get(c->input, "colour");

    *form = (lab_form){0};
    colour = colour ? colour : "blue";
    if (!is_colour(colour))
        return false;
    strcpy(form->colour, colour);
    return copy_word(form->token, sizeof form->token, lab_input_get(c->input, "token")) &&
           copy_key(c, form->key);
}

static const char *argument(const call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* A new form; or a given one once more, for a second tab. */
static answer show_form(const call *c)
{
    lab_form form = {.colour = "blue"};
    const char *host = header(c, "Host"), *token = argument(c, "token"), *key = argument(c, "key");
    char why[200];

    if (token && key && copy_word(form.token, sizeof form.token, token) &&
        copy_word(form.key, sizeof form.key, key))
        return show(200, lab_page_form(c->at, &form, host ? host : ""));
    if (lab_orders_form(c->at->orders, &form, why))
        return show(200, lab_page_form(c->at, &form, host ? host : ""));
    return show(503, lab_page_said(c->at, "The shop is closed", why));
}

static answer show_sold(const call *c, const lab_reply *v)
{
    bool replayed = v->fate == LAB_FATE_REPLAYED;
    answer a;

    if (v->status == 303) {
        a = redirect("/orders/%" PRIu64 "%s", v->order, replayed ? "?replayed=1" : "");
    } else if (is_browser(c)) {
        lab_order order = lab_orders_find(c->at->orders, v->order);
        a = show(200, lab_page_order(c->at, &order, true, replayed));
    } else {
        a = say(200, "%s\n", v->text);
    }
    a.replayed = replayed;
    return a;
}

static answer take_form(const call *c)
{
    lab_form form;
    lab_reply v;

    if (!read_form(c, &form))
        return say(400, "token and key are words, colour is blue, red or green\n");
    lab_orders_submit(c->at->orders, &form, &v);
    if (v.status == 200 || v.status == 303)
        return show_sold(c, &v);
    return is_browser(c) ? show(v.status, lab_page_reply(c->at, &v))
                         : say(v.status, "%s\n", v.text);
}

static answer show_order(const call *c)
{
    const char *text = c->path + strlen("/orders/");
    char *end = NULL;
    uint64_t number = *text >= '1' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    lab_order order = lab_orders_find(c->at->orders, end && !*end ? number : 0);
    lab_entry e = {.fate = LAB_FATE_SHOWN, .status = 200, .text = "A GET orders nothing."};

    if (!order.number)
        return is_browser(c) ? show(404, lab_page_said(c->at, "No such order",
                                                       "The shop keeps the last 1000 orders."))
                             : say(404, "no such order\n");
    snprintf(e.request, sizeof e.request, "GET /orders/%" PRIu64, order.number);
    snprintf(e.key, sizeof e.key, "%.6s", order.key);
    lab_journal_add(c->at->journal, &e);
    if (is_browser(c))
        return show(200, lab_page_order(c->at, &order, false, argument(c, "replayed") != NULL));
    return say(200, "order %" PRIu64 ": one %s mug\n", order.number, order.colour);
}

/* ---- The rest of the page -------------------------------------------------------------------- */

static answer show_live(const call *c)
{
    return show(200, lab_page_live(c->at));
}

/* Boxes that are not ticked are not sent. A button may set all guards at once. */
static answer turn_switches(const call *c)
{
    const char *all = lab_input_get(c->input, "guards");

    for (int i = 0; i < LAB_SWITCHES; i++) {
        bool on = lab_input_get(c->input, lab_switch_names[i]) != NULL;
        if (all && i != LAB_SLOW)
            on = strcmp(all, "on") == 0;
        lab_orders_turn(c->at->orders, (lab_switch)i, on);
    }
    return is_browser(c) ? redirect("/") : say(200, "switched\n");
}

static answer show_style(const call *c)
{
    (void)c;
    return (answer){200, "text/css", .body = strdup(lab_shop_shop_css)};
}

static answer show_script(const call *c)
{
    (void)c;
    return (answer){200, "text/javascript", .body = strdup(lab_shop_shop_js)};
}

/* ---- The counter ----------------------------------------------------------------------------- */

static const struct {
    lab_fate fate;
    unsigned status;
    const char *text;
} sales[] = {
    [LAB_SOLD] = {LAB_FATE_SOLD, 200, "For load tests: no guard is on this way."},
    [LAB_SOLD_OUT] = {LAB_FATE_SOLD_OUT, 409, "Nothing is left."},
    [LAB_REFUSED] = {LAB_FATE_FAILED, 503, "The lock was not obtained in time."},
    [LAB_FAILED] = {LAB_FATE_FAILED, 503, "The sale failed."},
};

static answer take_order(const call *c)
{
    lab_entry e = {.request = "POST /order"};
    char note[256];
    lab_sale sale = lab_shop_order(c->at->shop, note);

    e.fate = sales[sale].fate;
    e.status = sales[sale].status;
    snprintf(e.text, sizeof e.text, "%s", sales[sale].text);
    lab_journal_count(c->at->journal, &e);
    if (e.status == 503)
        return say(503, "failed: %s\n", note);
    return say(e.status, "%s\n", lab_fate_text(e.fate));
}

static answer show_stock(const call *c)
{
    answer a = {.status = 200, .type = "application/json"};
    lab_tally t;
    char note[256];
    json_t *o;

    if (!lab_shop_tally(c->at->shop, &t, note))
        return say(503, "the stock record cannot be read: %s\n", note);
    o = lab_shop_json(c->at->shop, &t);
    a.body = json_dumps(o, JSON_PRESERVE_ORDER);
    json_decref(o);
    return a;
}

static answer fill_shelf(const call *c)
{
    const char *text = argument(c, "stock");
    char *end = NULL, note[256];
    long long stock;

    errno = 0;
    stock = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (stock < 1 || stock > STOCK_MAX || errno || *end)
        return say(400, "how many: POST /reset?stock=N, N from 1 to %d\n", STOCK_MAX);
    if (!lab_shop_reset(c->at->shop, stock, note))
        return say(503, "the stock record cannot be written: %s\n", note);
    lab_orders_reset(c->at->orders);
    return is_browser(c) ? redirect("/") : say(200, "%lld on the shelf\n", stock);
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* A path that ends with '/' stands for all that begin with it. */
static const struct {
    const char *path, *method;
    answer (*serve)(const call *);
} pages[] = {
    {"/", "GET", show_form},
    {"/buy", "POST", take_form},
    {"/orders/", "GET", show_order},
    {"/live", "GET", show_live},
    {"/guards", "POST", turn_switches},
    {"/shop.css", "GET", show_style},
    {"/shop.js", "GET", show_script},
    {"/order", "POST", take_order},
    {"/stock", "GET", show_stock},
    {"/reset", "POST", fill_shelf},
};

static bool is_path(const char *page, const char *path)
{
    size_t size = strlen(page);

    return strcmp(page, path) == 0 ||
           (size > 1 && page[size - 1] == '/' && strncmp(page, path, size) == 0);
}

/* A page of another site can make a browser send a form here, but not hide where it came from. */
static bool is_foreign(const call *c)
{
    const char *origin = header(c, "Origin"), *host = header(c, "Host");
    const char *named = origin ? strstr(origin, "://") : NULL;

    return origin && (!named || !host || strcmp(named + 3, host) != 0);
}

static answer serve(const call *c, const char *method)
{
    if (strcmp(method, "HEAD") == 0)
        method = "GET"; /* the library leaves the body out */
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        answer a;
        if (!is_path(pages[i].path, c->path))
            continue;
        if (strcmp(pages[i].method, method) != 0) {
            a = say(405, "%s takes %s\n", c->path, pages[i].method);
            a.allow = pages[i].method;
            return a;
        }
        if (strcmp(method, "POST") == 0 && is_foreign(c))
            return say(403, "a page of another site may not do that\n");
        if (lab_input_fault(c->input))
            return say(lab_input_fault(c->input), "the form cannot be read\n");
        return pages[i].serve(c);
    }
    return say(404,
               "there are GET /, POST /buy, POST /order, GET /stock and POST /reset?stock=N\n");
}

static bool add_headers(struct MHD_Response *r, const answer *a)
{
    const struct {
        const char *name, *value;
    } list[] = {
        {"Content-Type", a->type},
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy", a->type == html ? policy : NULL},
        {"Referrer-Policy", a->type == html ? "same-origin" : NULL},
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
    call c = {&http->premises, connection, *seen, path};

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

lab_shop_http *lab_shop_http_start(lab_shop *shop, const char *url, int64_t clerks, int socket,
                                   char why[256])
{
    lab_shop_http *http = calloc(1, sizeof *http);

    snprintf(why, 256, "out of memory");
    if (http) {
        http->premises.shop = shop;
        http->premises.journal = lab_journal_open();
        if (http->premises.journal)
            http->premises.orders = lab_orders_open(shop, url, http->premises.journal, why);
        if (http->premises.orders) {
            http->daemon = start_daemon(http, clerks, socket);
            if (http->daemon)
                return http;
            snprintf(why, 256, "the HTTP server did not start: %s", strerror(errno));
        }
        close_premises(http);
    }
    close(socket);
    return NULL;
}

void lab_shop_http_stop(lab_shop_http *http)
{
    MHD_stop_daemon(http->daemon); /* closes the socket */
    close_premises(http);
}
