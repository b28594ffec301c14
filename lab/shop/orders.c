/* Orders behind guards; see the header. A form goes through the token, then through the key, then to the counter:
 *
 *   token   missing: 403. Not good any more: 409, and the order that was made with the form, if there is one
 *   key     missing or malformed: 400. Done before: replayed. In progress for too long, or with an unknown outcome: 409.
 *           With other contents: 422
 *   sale    sold: the key is finished. Sold out, or no lock in time: the key is undone, nothing has happened. Failed in the
 *           middle: abandoned, and repetitions are told that the outcome is unknown. If the token was redeemed for nothing, the
 *           answer has a new one. */
#define _GNU_SOURCE
#include "orders.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define TOKEN_MS    (2 * 3600 * 1000)
#define DUPLICATE_S 10 /* how long a repetition waits for the first one */
#define SLOW_MS     1000

const char *const lab_switch_names[LAB_SWITCHES] = {"button", "redirect", "token", "once", "slow"};

struct lab_orders {
    lab_shop *shop;
    lab_book *book;
    lab_journal *journal;
    dibs *dibs;
    char scope[48];       /* of tokens and keys: this run of the shop */
    pthread_mutex_t lock; /* all below */
    bool on[LAB_SWITCHES];
    lab_totals totals;
};

/* ---- Opening --------------------------------------------------------------------------------- */

static bool make_random(char *out, size_t bytes)
{
    unsigned char raw[16];

    if (getrandom(raw, bytes, 0) != (ssize_t)bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
    return true;
}

lab_orders *lab_orders_open(lab_shop *shop, const char *url, lab_book *book, lab_journal *journal,
                            char why[256])
{
    lab_orders *o = calloc(1, sizeof *o);
    char run[2 * 8 + 1] = "";
    dibs_error err = {.message = "out of memory"};

    if (o && make_random(run, 8) && dibs_open(url, NULL, &o->dibs, &err) == DIBS_OK) {
        o->shop = shop;
        o->book = book;
        o->journal = journal;
        snprintf(o->scope, sizeof o->scope, "lab-shop-%s", run);
        pthread_mutex_init(&o->lock, NULL);
        for (int i = 0; i < LAB_SWITCHES; i++)
            o->on[i] = true;
        return o;
    }
    snprintf(why, 256, "the orders: %.200s", err.message);
    free(o);
    return NULL;
}

void lab_orders_close(lab_orders *o)
{
    if (!o)
        return;
    dibs_close(o->dibs);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* ---- Switches and totals --------------------------------------------------------------------- */

bool lab_orders_is_on(lab_orders *o, lab_switch which)
{
    bool on;

    pthread_mutex_lock(&o->lock);
    on = o->on[which];
    pthread_mutex_unlock(&o->lock);
    return on;
}

void lab_orders_turn(lab_orders *o, lab_switch which, bool on)
{
    pthread_mutex_lock(&o->lock);
    o->on[which] = on;
    pthread_mutex_unlock(&o->lock);
}

lab_totals lab_orders_totals(lab_orders *o)
{
    lab_totals t;

    pthread_mutex_lock(&o->lock);
    t = o->totals;
    pthread_mutex_unlock(&o->lock);
    return t;
}

void lab_orders_reset(lab_orders *o)
{
    pthread_mutex_lock(&o->lock);
    o->totals = (lab_totals){0};
    pthread_mutex_unlock(&o->lock);
}

/* ---- Replies --------------------------------------------------------------------------------- */

static void say(lab_reply *v, lab_fate fate, unsigned status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void say(lab_reply *v, lab_fate fate, unsigned status, const char *format, ...)
{
    va_list list;

    v->fate = fate;
    v->status = status;
    va_start(list, format);
    vsnprintf(v->text, sizeof v->text, format, list);
    va_end(list);
}

static void say_sold(lab_reply *v, const lab_order *order)
{
    v->order = order->number;
    if (order->first)
        say(v, LAB_FATE_AGAIN, 200,
            "Order %" PRIu64 " is a duplicate: order %" PRIu64
            " came from the same form. Neither token nor key was checked.",
            order->number, order->first);
    else if (!*order->key)
        say(v, LAB_FATE_SOLD, 200,
            "Order %" PRIu64 ". It has no key: nobody can tell whether it is a duplicate.",
            order->number);
    else
        say(v, LAB_FATE_SOLD, 200, "Order %" PRIu64 ".", order->number);
}

static void say_replayed(lab_reply *v, const dibs_once *once)
{
    size_t size = 0;
    const char *number = dibs_once_result(once, &size);

    v->order = number ? strtoull(number, NULL, 10) : 0;
    say(v, LAB_FATE_REPLAYED, 200,
        "Answered with order %" PRIu64 " again: the idempotency key was used for it.", v->order);
}

/* ---- The sale -------------------------------------------------------------------------------- */

/* Nothing was ordered, and the token may be spent: a new one, for the same key. */
static void give_again(lab_orders *o, const lab_form *form, lab_reply *v)
{
    dibs_token_options options = {.scope = o->scope, .ttl_ms = TOKEN_MS};
    dibs_error err;
    dibs_status status;

    v->next = *form;
    if (!*form->token) {
        v->again = true;
        return;
    }
    status = dibs_token_reissue(o->dibs, form->token, &options, v->next.token, &err);
    if (status == DIBS_REFUSED) /* it was not redeemed, and is still good */
        memcpy(v->next.token, form->token, sizeof v->next.token);
    v->again = status == DIBS_OK || status == DIBS_REFUSED;
}

/* At the counter. */
static lab_sale sell(lab_orders *o, const lab_form *form, lab_reply *v)
{
    char note[256];
    lab_order order;
    lab_sale sale;

    if (lab_orders_is_on(o, LAB_SLOW))
        nanosleep(&(struct timespec){SLOW_MS / 1000, SLOW_MS % 1000 * 1000000}, NULL);
    sale = lab_shop_order(o->shop, note);
    switch (sale) {
    case LAB_SOLD:
        order = lab_book_write(o->book, form);
        say_sold(v, &order);
        return sale;
    case LAB_SOLD_OUT:
        say(v, LAB_FATE_SOLD_OUT, 409, "Nothing is left. Nothing was ordered.");
        return sale;
    case LAB_REFUSED:
        say(v, LAB_FATE_FAILED, 503, "The lock was not obtained in time. Nothing was ordered.");
        return sale;
    default:
        v->unknown = true;
        say(v, LAB_FATE_FAILED, 503, "The sale failed, and its outcome is unknown: %.140s", note);
        return sale;
    }
}

static void sell_once(lab_orders *o, const lab_form *form, dibs_once *once, lab_reply *v)
{
    char number[24];
    dibs_error err;
    lab_sale sale = sell(o, form, v);

    if (sale == LAB_SOLD) {
        snprintf(number, sizeof number, "%" PRIu64, v->order);
        dibs_once_finish(once, number, strlen(number) + 1, 0,
                         &err); /* else: freed below, unknown */
    } else if (sale == LAB_FAILED) {
        dibs_once_abandon(once, &err);
    } else {
        dibs_once_undo(once, &err);
    }
}

static void buy_once(lab_orders *o, const lab_form *form, lab_reply *v)
{
    dibs_once_options options = {.scope = o->scope,
                                 .fingerprint = form->colour,
                                 .fingerprint_size = strlen(form->colour),
                                 .wait_ms = DUPLICATE_S * 1000};
    dibs_once *once = NULL;
    dibs_error err;

    switch (dibs_once_begin(o->dibs, form->key, &options, &once, &err)) {
    case DIBS_OK:
        sell_once(o, form, once, v);
        break;
    case DIBS_ALREADY:
        say_replayed(v, once);
        break;
    case DIBS_MISMATCH:
        say(v, LAB_FATE_REFUSED, 422,
            "The idempotency key was used for an order of another colour. Nothing was ordered.");
        break;
    case DIBS_RUNNING:
        say(v, LAB_FATE_REFUSED, 409, "An order with this idempotency key is still in progress.");
        break;
    case DIBS_CRASHED:
        say(v, LAB_FATE_REFUSED, 409,
            "An earlier order with this idempotency key was interrupted; its outcome is unknown.");
        break;
    default:
        say(v, LAB_FATE_FAILED, 503, "Nothing was ordered: %.170s", err.message);
    }
    dibs_once_free(once);
}

/* ---- The form -------------------------------------------------------------------------------- */

/* Without using anything up. */
static bool is_whole(lab_orders *o, const lab_form *form, lab_reply *v)
{
    if (lab_orders_is_on(o, LAB_ONCE) && !*form->key)
        say(v, LAB_FATE_REFUSED, 400, "The request has no idempotency key. Nothing was ordered.");
    else if (lab_orders_is_on(o, LAB_TOKEN) && !*form->token)
        say(v, LAB_FATE_REFUSED, 403, "The request has no token. Nothing was ordered.");
    else
        return true;
    return false;
}

static bool pass_token(lab_orders *o, const lab_form *form, lab_reply *v)
{
    dibs_error err;
    dibs_status status =
        dibs_token_redeem(o->dibs, form->token, &(dibs_token_options){.scope = o->scope}, &err);

    if (status == DIBS_OK)
        return true;
    if (status == DIBS_REFUSED)
        say(v, LAB_FATE_REFUSED, 409,
            "The one-time token was used before, has expired or was never issued. Nothing was "
            "ordered.");
    else
        say(v, LAB_FATE_FAILED, 503, "Nothing was ordered: %.170s", err.message);
    return false;
}

/* A token is refused while the first request that has it is still at work, too: then the order is waited for. */
static void name_first(lab_orders *o, const lab_form *form, lab_reply *v)
{
    v->order = lab_book_first(o->book, form->key, DUPLICATE_S);
    if (v->order)
        say(v, LAB_FATE_REFUSED, 409,
            "The one-time token was used for order %" PRIu64 ". Nothing was ordered again.",
            v->order);
}

bool lab_orders_form(lab_orders *o, lab_form *out, char why[200])
{
    dibs_token_options options = {.scope = o->scope, .ttl_ms = TOKEN_MS};
    dibs_error err = {.message = "no random numbers"};

    *out = (lab_form){.colour = "blue"};
    if (make_random(out->key, 16) &&
        dibs_token_issue(o->dibs, &options, out->token, &err) == DIBS_OK)
        return true;
    snprintf(why, 200, "%.190s", err.message);
    return false;
}

/* The request is in the log as soon as it is there. */
static uint64_t write_arrival(lab_orders *o, const lab_form *form)
{
    lab_entry e = {.request = "POST /buy", .fate = LAB_FATE_BUSY};

    snprintf(e.token, sizeof e.token, "%.6s", form->token);
    snprintf(e.key, sizeof e.key, "%.6s", form->key);
    return lab_journal_add(o->journal, &e);
}

static void write_reply(lab_orders *o, uint64_t number, const lab_reply *v)
{
    lab_entry e = {.fate = v->fate, .status = v->status};

    snprintf(e.text, sizeof e.text, "%s", v->text);
    lab_journal_settle(o->journal, number, &e);
    pthread_mutex_lock(&o->lock);
    o->totals.ordered += v->fate == LAB_FATE_SOLD || v->fate == LAB_FATE_AGAIN;
    o->totals.duplicates += v->fate == LAB_FATE_AGAIN;
    o->totals.stopped += v->fate == LAB_FATE_REPLAYED || v->fate == LAB_FATE_REFUSED;
    pthread_mutex_unlock(&o->lock);
}

void lab_orders_submit(lab_orders *o, const lab_form *form, lab_reply *out)
{
    uint64_t number = write_arrival(o, form);
    lab_work w = {.key = form->key};
    bool refused = false;

    *out = (lab_reply){0};
    if (is_whole(o, form, out)) {
        lab_book_begin(o->book, &w);
        if (lab_orders_is_on(o, LAB_TOKEN) && !pass_token(o, form, out))
            refused = out->fate == LAB_FATE_REFUSED;
        else if (lab_orders_is_on(o, LAB_ONCE))
            buy_once(o, form, out);
        else
            sell(o, form, out);
        lab_book_end(o->book, &w);
    }
    if (refused)
        name_first(o, form, out);
    if (out->fate == LAB_FATE_FAILED && !out->unknown)
        give_again(o, form, out);
    if (out->status == 200 && lab_orders_is_on(o, LAB_REDIRECT))
        out->status = 303;
    write_reply(o, number, out);
}
