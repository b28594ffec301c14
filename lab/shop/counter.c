/* The counter; see the header. Buyers lie in a pile: a thread that takes an order takes the topmost and puts it
 * back. There are as many as there are threads that serve, so that nobody waits for one. */
#include "shop.h"

#include "cli/json.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 10000 /* a buyer behind a dead holder is told so in the end */

struct lab_shop {
    pthread_mutex_t lock;       /* the pile and the tally */
    pthread_mutex_t stock_lock; /* the books' own buyer */
    lab_buyer *buyers;
    lab_buyer **pile;
    size_t count, free;
    lab_buyer books;
    bool process; /* open_process was done */
    lab_tally tally;
};

/* ---- Opening --------------------------------------------------------------------------------- */

static bool open_books(lab_shop *shop, const lab_strategy *s, const lab_site *site, int64_t stock)
{
    shop->books = (lab_buyer){.strategy = s, .site = site, .resource = "goods:1", .thread = -1};
    shop->tally.stock = stock;
    if (!lab_stock_open(&shop->books) || !lab_stock_set(&shop->books, stock))
        return false;
    if (s->open_process && !s->open_process(&shop->books))
        return false;
    shop->process = true;
    return true;
}

static bool open_buyers(lab_shop *shop, size_t clerks, char why[256])
{
    shop->buyers = calloc(clerks, sizeof *shop->buyers);
    shop->pile = calloc(clerks, sizeof *shop->pile);
    if (!shop->buyers || !shop->pile) {
        snprintf(why, 256, "out of memory");
        return false;
    }
    for (; shop->count < clerks; shop->count++) {
        lab_buyer *buyer = &shop->buyers[shop->count];
        *buyer = shop->books;
        buyer->stock = NULL;
        buyer->thread = (int)shop->count;
        buyer->pace.wait_ms = PATIENCE_MS;
        if (!lab_buyer_open(buyer)) {
            snprintf(why, 256, "clerk %zu of %zu: %.200s", shop->count + 1, clerks, buyer->note);
            return false;
        }
        shop->pile[shop->free++] = buyer;
    }
    return true;
}

lab_shop *lab_shop_open(const lab_strategy *strategy, const lab_site *site, int64_t clerks,
                        int64_t stock, char why[256])
{
    lab_shop *shop = calloc(1, sizeof *shop);

    if (!shop) {
        snprintf(why, 256, "out of memory");
        return NULL;
    }
    pthread_mutex_init(&shop->lock, NULL);
    pthread_mutex_init(&shop->stock_lock, NULL);
    if (!open_books(shop, strategy, site, stock))
        snprintf(why, 256, "%s", shop->books.note);
    else if (open_buyers(shop, (size_t)clerks, why))
        return shop;
    lab_shop_close(shop);
    return NULL;
}

void lab_shop_close(lab_shop *shop)
{
    if (!shop)
        return;
    for (size_t i = 0; i < shop->count; i++)
        lab_buyer_close(&shop->buyers[i]);
    if (shop->process && shop->books.strategy->close_process)
        shop->books.strategy->close_process(&shop->books);
    lab_stock_close(&shop->books);
    pthread_mutex_destroy(&shop->lock);
    pthread_mutex_destroy(&shop->stock_lock);
    free(shop->buyers);
    free(shop->pile);
    free(shop);
}

const lab_strategy *lab_shop_strategy(const lab_shop *shop)
{
    return shop->books.strategy;
}

/* ---- Trade ----------------------------------------------------------------------------------- */

static lab_buyer *take_buyer(lab_shop *shop)
{
    lab_buyer *buyer;

    pthread_mutex_lock(&shop->lock);
    buyer = shop->free ? shop->pile[--shop->free] : NULL;
    pthread_mutex_unlock(&shop->lock);
    return buyer;
}

static void put_back(lab_shop *shop, lab_buyer *buyer, lab_sale sale)
{
    pthread_mutex_lock(&shop->lock);
    shop->pile[shop->free++] = buyer;
    shop->tally.sold += sale == LAB_SOLD;
    shop->tally.sold_out += sale == LAB_SOLD_OUT;
    shop->tally.failed += sale == LAB_FAILED || sale == LAB_REFUSED;
    pthread_mutex_unlock(&shop->lock);
}

lab_sale lab_shop_order(lab_shop *shop, char note[256])
{
    lab_buyer *buyer = take_buyer(shop);
    lab_sale sale;

    if (!buyer) {
        snprintf(note, 256, "more orders at once than there are clerks");
        return LAB_FAILED;
    }
    sale = lab_buy(buyer);
    snprintf(note, 256, "%s", sale == LAB_REFUSED ? "not obtained in time" : buyer->note);
    put_back(shop, buyer, sale);
    return sale;
}

bool lab_shop_tally(lab_shop *shop, lab_tally *out, char note[256])
{
    int64_t left = 0, known;
    bool read;

    pthread_mutex_lock(&shop->stock_lock);
    read = lab_stock_read(&shop->books, &left);
    snprintf(note, 256, "%s", shop->books.note);
    pthread_mutex_unlock(&shop->stock_lock);
    pthread_mutex_lock(&shop->lock);
    *out = shop->tally;
    pthread_mutex_unlock(&shop->lock);
    known = out->stock - left;
    out->left = left;
    out->oversold = out->sold > known ? out->sold - known : 0;
    return read;
}

json_t *lab_shop_json(const lab_shop *shop, const lab_tally *t)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "strategy", shop->books.strategy->name);
    cli_json_put(o, "stock", json_integer(t->stock));
    cli_json_put(o, "left", json_integer(t->left));
    cli_json_put(o, "sold", json_integer(t->sold));
    cli_json_put(o, "sold_out", json_integer(t->sold_out));
    cli_json_put(o, "failed", json_integer(t->failed));
    cli_json_put(o, "oversold", json_integer(t->oversold));
    return o;
}

bool lab_shop_reset(lab_shop *shop, int64_t stock, char note[256])
{
    bool set;

    pthread_mutex_lock(&shop->stock_lock);
    set = lab_stock_set(&shop->books, stock);
    snprintf(note, 256, "%s", shop->books.note);
    pthread_mutex_unlock(&shop->stock_lock);
    if (!set)
        return false;
    pthread_mutex_lock(&shop->lock);
    shop->tally = (lab_tally){.stock = stock};
    pthread_mutex_unlock(&shop->lock);
    return true;
}
