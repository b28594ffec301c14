/* Pages from templates; see the header. */
#define _GNU_SOURCE
#include "pages.h"

#include "assets.h"
#include "fill.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VALUES(...) ((const lab_value[]){__VA_ARGS__, {0}})

static char *fill(const char *page, const lab_value values[])
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    lab_fill(out, page, values);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* A number as text, in a buffer of the caller's. */
#define TEXT(n) number_text((char[24]){0}, (n))

static const char *number_text(char out[24], uint64_t n)
{
    snprintf(out, 24, "%" PRIu64, n);
    return out;
}

#define CLOCK(ms) clock_text((char[16]){0}, (ms))

static const char *clock_text(char out[16], int64_t unix_ms)
{
    time_t at = (time_t)(unix_ms / 1000);
    struct tm local;

    strftime(out, 16, "%H:%M:%S", localtime_r(&at, &local));
    return out;
}

/* ---- What moves ------------------------------------------------------------------------------ */

/* The same text has the same colour. */
static void write_id(char out[80], const char *what, const char *id)
{
    unsigned sum = 0;

    for (const char *c = id; *c; c++)
        sum = sum * 31 + (unsigned char)*c;
    if (*id)
        snprintf(out, 80, "<span class=\"dot h%u\">%s %s</span>", sum % 8, what, id);
    else
        *out = '\0';
}

static void write_row(FILE *out, const lab_entry *e)
{
    char key[80], token[80], times[32] = "", status[16] = "";

    write_id(key, "key", e->key);
    write_id(token, "token", e->token);
    if (e->times > 1)
        snprintf(times, sizeof times, " \u00d7 %" PRIu64, e->times);
    if (e->status)
        snprintf(status, sizeof status, "\u2192 %u", e->status);
    lab_fill(out, lab_shop_row_html,
             VALUES({"fate", lab_fate_name(e->fate)}, {"number", TEXT(e->number)},
                    {"time", CLOCK(e->at_ms)}, {"request", e->request}, {"times", times},
                    {"status", status}, {"word", lab_fate_text(e->fate)}, {"text", e->text},
                    {"key", key}, {"token", token}));
}

static char *make_rows(lab_journal *journal)
{
    char *text = NULL;
    size_t size = 0, n;
    lab_entry *entries = calloc(LAB_JOURNAL, sizeof *entries);
    FILE *out = entries ? open_memstream(&text, &size) : NULL;

    if (out) {
        n = lab_journal_read(journal, entries);
        for (size_t i = 0; i < n; i++)
            write_row(out, &entries[i]);
        if (n == 0)
            fputs("<li class=\"none\" data-number=\"0\">Nothing yet. Order a mug.</li>\n", out);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(entries);
    return text;
}

static void list_switches(lab_orders *orders, char out[64])
{
    *out = '\0';
    for (int i = 0; i < LAB_SWITCHES; i++)
        if (lab_orders_is_on(orders, (lab_switch)i))
            strcat(strcat(out, *out ? " " : ""), lab_switch_names[i]);
}

char *lab_page_live(const lab_premises *p)
{
    lab_totals totals = lab_orders_totals(p->orders);
    char note[256], on[64], trouble[32] = "", *rows = make_rows(p->journal), *page;
    lab_tally t = {0};
    bool read = lab_shop_tally(p->shop, &t, note);
    uint64_t left = t.left > 0 ? (uint64_t)t.left : 0;

    list_switches(p->orders, on);
    if (!read)
        strcpy(trouble, "The stock cannot be read.");
    page = fill(lab_shop_live_html,
                VALUES({"on", on}, {"left", read ? TEXT(left) : "?"},
                       {"stock", TEXT((uint64_t)t.stock)}, {"ordered", TEXT(totals.ordered)},
                       {"duplicates", TEXT(totals.duplicates)}, {"stopped", TEXT(totals.stopped)},
                       {"alarm", totals.duplicates > 0 ? "alarm" : ""},
                       {"permille", TEXT(t.stock > 0 ? left * 1000 / (uint64_t)t.stock : 0)},
                       {"trouble", trouble}, {"rows", rows ? rows : ""}));
    free(rows);
    return page;
}

/* ---- Whole pages ----------------------------------------------------------------------------- */

/* Takes the card. */
static char *make_page(const lab_premises *p, const char *title, char *card)
{
    const lab_strategy *s = lab_shop_strategy(p->shop);
    char *live = lab_page_live(p), *page = NULL, note[256];
    const char *on[LAB_SWITCHES];
    lab_tally t = {0};

    lab_shop_tally(p->shop, &t, note);
    for (int i = 0; i < LAB_SWITCHES; i++)
        on[i] = lab_orders_is_on(p->orders, (lab_switch)i) ? "checked" : "";
    if (card && live)
        page = fill(lab_shop_page_html,
                    VALUES({"title", title}, {"strategy", s->name}, {"row", s->id},
                           {"about", s->title}, {"card", card}, {"live", live},
                           {"stock", TEXT((uint64_t)t.stock)}, {"button", on[LAB_BUTTON]},
                           {"redirect", on[LAB_REDIRECT]}, {"token", on[LAB_TOKEN]},
                           {"once", on[LAB_ONCE]}, {"slow", on[LAB_SLOW]}));
    free(card);
    free(live);
    return page;
}

char *lab_page_form(const lab_premises *p, const lab_form *form, const char *host)
{
    lab_tally t;
    char note[256];
    bool empty = lab_shop_tally(p->shop, &t, note) && t.left <= 0;

    return make_page(
        p, "One enamel mug",
        fill(lab_shop_form_html, VALUES({"token", form->token}, {"key", form->key}, {"host", host},
                                        {"disabled", empty ? "disabled" : ""},
                                        {"label", empty ? "Sold out" : "Order one"})));
}

char *lab_page_order(const lab_premises *p, const lab_order *order, bool posted, bool replayed)
{
    char warning[200] = "", title[32];

    if (order->first)
        snprintf(warning, sizeof warning,
                 "<p class=\"warning\">This is a duplicate. Order %" PRIu64
                 " came from the same form, and both were sold.</p>",
                 order->first);
    else if (replayed)
        strcpy(warning, "<p class=\"note\">You have sent this form before. This is the order of "
                        "the first time; nothing was ordered again.</p>");
    snprintf(title, sizeof title, "Order %" PRIu64, order->number);
    return make_page(
        p, title,
        fill(lab_shop_order_html,
             VALUES({"number", TEXT(order->number)}, {"colour", order->colour},
                    {"time", CLOCK(order->at_ms)}, {"class", order->first ? "again" : ""},
                    {"warning", warning},
                    {"try", posted ? "This page is the answer to your POST. Reload it, and the "
                                     "browser sends the order again."
                                   : "Reload this page, or go back and forward: it comes from a "
                                     "GET, so the browser has no order to send again."})));
}

/* The way on: the order that there is, or the same form with a token that is still good. */
static char *make_action(const lab_reply *v)
{
    static const char show[] =
        "<p><a class=\"button\" href=\"/orders/{{order}}\">Show order {{order}}</a></p>";
    static const char again[] =
        "<form action=\"/buy\" method=\"post\"><input type=\"hidden\" name=\"token\" "
        "value=\"{{token}}\"><input type=\"hidden\" name=\"key\" value=\"{{key}}\">"
        "<input type=\"hidden\" name=\"colour\" value=\"{{colour}}\">"
        "<p><button class=\"buy\">Try again</button></p></form>";

    if (v->order)
        return fill(show, VALUES({"order", TEXT(v->order)}));
    if (v->again)
        return fill(again, VALUES({"token", v->next.token}, {"key", v->next.key},
                                  {"colour", v->next.colour}));
    return strdup("");
}

char *lab_page_reply(const lab_premises *p, const lab_reply *v)
{
    const char *title = v->order                       ? "You have already ordered"
                        : v->fate == LAB_FATE_SOLD_OUT ? "Sold out"
                        : v->fate == LAB_FATE_FAILED   ? "The order failed"
                                                       : "Not ordered";
    const char *more = v->order     ? "This form was sent before: from another tab, by a second "
                                      "click, or by a client that tried again."
                       : v->unknown ? "Do not send it again before you know: look at the stock."
                       : v->again   ? "It is safe to try again: the form keeps its idempotency key."
                                    : "";
    char *action = make_action(v), *page = NULL;

    if (action)
        page = make_page(
            p, title,
            fill(lab_shop_card_html, VALUES({"class", lab_fate_name(v->fate)}, {"title", title},
                                            {"text", v->text}, {"more", more}, {"action", action},
                                            {"back", "Back to the shop, with a new form"})));
    free(action);
    return page;
}

char *lab_page_said(const lab_premises *p, const char *title, const char *text)
{
    return make_page(p, title,
                     fill(lab_shop_card_html,
                          VALUES({"title", title}, {"text", text}, {"back", "Back to the shop"})));
}
