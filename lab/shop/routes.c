/* The shop's answers; see the header. */
#define _GNU_SOURCE
#include "routes.h"

#include "assets.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOCK_MAX 100000000

const char lab_plain[] = "text/plain; charset=utf-8";
const char lab_html[] = "text/html; charset=utf-8";

lab_answer lab_say(unsigned status, const char *format, ...)
{
    lab_answer a = {.status = status, .type = lab_plain};
    va_list list;

    va_start(list, format);
    if (vasprintf(&a.body, format, list) < 0)
        a.body = NULL;
    va_end(list);
    return a;
}

static lab_answer show(unsigned status, char *page)
{
    return (lab_answer){.status = status, .type = lab_html, .body = page};
}

const char *lab_header(const lab_call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

static bool is_browser(const lab_call *c)
{
    const char *accepted = lab_header(c, "Accept");

    return accepted && strstr(accepted, "text/html");
}

static lab_answer redirect(const char *format, ...) __attribute__((format(printf, 1, 2)));

static lab_answer redirect(const char *format, ...)
{
    lab_answer a = {.status = 303, .type = lab_plain, .body = strdup("")};
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
static bool copy_key(const lab_call *c, char out[LAB_KEY_SIZE])
{
    const char *sent = lab_header(c, "Idempotency-Key");
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

static bool read_form(const lab_call *c, lab_form *form)
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

static const char *argument(const lab_call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* A new form; or a given one once more, for a second tab. */
static lab_answer show_form(const lab_call *c)
{
    lab_form form = {.colour = "blue"};
    const char *host = lab_header(c, "Host"), *token = argument(c, "token"),
               *key = argument(c, "key");
    char why[200];

    if (token && key && copy_word(form.token, sizeof form.token, token) &&
        copy_word(form.key, sizeof form.key, key))
        return show(200, lab_page_form(c->at, &form, host ? host : ""));
    if (lab_orders_form(c->at->orders, &form, why))
        return show(200, lab_page_form(c->at, &form, host ? host : ""));
    return show(503, lab_page_said(c->at, "The shop is closed", why));
}

static lab_answer show_sold(const lab_call *c, const lab_reply *v)
{
    bool replayed = v->fate == LAB_FATE_REPLAYED;
    lab_answer a;

    if (v->status == 303) {
        a = redirect("/orders/%" PRIu64 "%s", v->order, replayed ? "?replayed=1" : "");
    } else if (is_browser(c)) {
        lab_order order = lab_book_find(c->at->book, v->order);
        a = show(200, lab_page_order(c->at, &order, true, replayed));
    } else {
        a = lab_say(200, "%s\n", v->text);
    }
    a.replayed = replayed;
    return a;
}

static lab_answer take_form(const lab_call *c)
{
    lab_form form;
    lab_reply v;

    if (!read_form(c, &form))
        return lab_say(400, "token and key are words, colour is blue, red or green\n");
    lab_orders_submit(c->at->orders, &form, &v);
    if (v.status == 200 || v.status == 303)
        return show_sold(c, &v);
    return is_browser(c) ? show(v.status, lab_page_reply(c->at, &v))
                         : lab_say(v.status, "%s\n", v.text);
}

static lab_answer show_order(const lab_call *c)
{
    const char *text = c->path + strlen("/orders/");
    char *end = NULL;
    uint64_t number = *text >= '1' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    lab_order order = lab_book_find(c->at->book, end && !*end ? number : 0);
    lab_entry e = {.fate = LAB_FATE_SHOWN, .status = 200, .text = "A GET orders nothing."};

    if (!order.number)
        return is_browser(c) ? show(404, lab_page_said(c->at, "No such order",
                                                       "The shop keeps the last 1000 orders."))
                             : lab_say(404, "no such order\n");
    snprintf(e.request, sizeof e.request, "GET /orders/%" PRIu64, order.number);
    snprintf(e.key, sizeof e.key, "%.6s", order.key);
    lab_journal_add(c->at->journal, &e);
    if (is_browser(c))
        return show(200, lab_page_order(c->at, &order, false, argument(c, "replayed") != NULL));
    return lab_say(200, "order %" PRIu64 ": one %s mug\n", order.number, order.colour);
}

/* ---- The rest of the page -------------------------------------------------------------------- */

static lab_answer show_live(const lab_call *c)
{
    return show(200, lab_page_live(c->at));
}

/* Boxes that are not ticked are not sent. A button may set all guards at once. */
static lab_answer turn_switches(const lab_call *c)
{
    const char *all = lab_input_get(c->input, "guards");

    for (int i = 0; i < LAB_SWITCHES; i++) {
        bool on = lab_input_get(c->input, lab_switch_names[i]) != NULL;
        if (all && i != LAB_SLOW)
            on = strcmp(all, "on") == 0;
        lab_orders_turn(c->at->orders, (lab_switch)i, on);
    }
    return is_browser(c) ? redirect("/") : lab_say(200, "switched\n");
}

static lab_answer show_style(const lab_call *c)
{
    (void)c;
    return (lab_answer){200, "text/css", .body = strdup(lab_shop_shop_css)};
}

static lab_answer show_script(const lab_call *c)
{
    (void)c;
    return (lab_answer){200, "text/javascript", .body = strdup(lab_shop_shop_js)};
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

static lab_answer take_order(const lab_call *c)
{
    lab_entry e = {.request = "POST /order"};
    char note[256];
    lab_sale sale = lab_shop_order(c->at->shop, note);

    e.fate = sales[sale].fate;
    e.status = sales[sale].status;
    snprintf(e.text, sizeof e.text, "%s", sales[sale].text);
    lab_journal_count(c->at->journal, &e);
    if (e.status == 503)
        return lab_say(503, "failed: %s\n", note);
    return lab_say(e.status, "%s\n", lab_fate_text(e.fate));
}

static lab_answer show_stock(const lab_call *c)
{
    lab_answer a = {.status = 200, .type = "application/json"};
    lab_tally t;
    char note[256];
    json_t *o;

    if (!lab_shop_tally(c->at->shop, &t, note))
        return lab_say(503, "the stock record cannot be read: %s\n", note);
    o = lab_shop_json(c->at->shop, &t);
    a.body = json_dumps(o, JSON_PRESERVE_ORDER);
    json_decref(o);
    return a;
}

static lab_answer fill_shelf(const lab_call *c)
{
    const char *text = argument(c, "stock");
    char *end = NULL, note[256];
    long long stock;

    errno = 0;
    stock = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (stock < 1 || stock > STOCK_MAX || errno || *end)
        return lab_say(400, "how many: POST /reset?stock=N, N from 1 to %d\n", STOCK_MAX);
    if (!lab_shop_reset(c->at->shop, stock, note))
        return lab_say(503, "the stock record cannot be written: %s\n", note);
    lab_orders_reset(c->at->orders);
    return is_browser(c) ? redirect("/") : lab_say(200, "%lld on the shelf\n", stock);
}

/* ---- The table ------------------------------------------------------------------------------- */

/* A path that ends with '/' stands for all that begin with it. */
static const struct {
    const char *path, *method;
    lab_answer (*serve)(const lab_call *);
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

lab_answer lab_route(const lab_call *c, const char *method)
{
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        lab_answer a;
        if (!is_path(pages[i].path, c->path))
            continue;
        if (strcmp(pages[i].method, method) == 0)
            return pages[i].serve(c);
        a = lab_say(405, "%s takes %s\n", c->path, pages[i].method);
        a.allow = pages[i].method;
        return a;
    }
    return lab_say(404,
                   "there are GET /, POST /buy, POST /order, GET /stock and POST /reset?stock=N\n");
}
