/* The shop: one strategy behind a counter with as many clerks as the HTTP server has threads, for load
 * generators as in tutorials (JMeter, wrk), and for people with a browser.
 *
 *   counter.c  the counter: buyers, what was sold and what the books say
 *   orders.c   orders from the form, behind guards that can be switched off
 *   book.c     which orders were made; journal.c: the log of what came in
 *   http.c     the server; form.c reads bodies, routes.c answers, pages.c and fill.c make pages of the templates beside them
 *   verb.c     `dibs lab shop`: opens it, waits for a signal, closes it */
#ifndef DIBS_LAB_SHOP_H
#define DIBS_LAB_SHOP_H

#include "lab/lab.h"

#include <jansson.h>

typedef struct lab_shop lab_shop;

typedef struct lab_tally {
    int64_t stock; /* at the beginning, or since the last reset */
    int64_t left;  /* what the books say */
    int64_t sold, sold_out, failed;
    int64_t oversold; /* sold, and the books do not know. Right only while nobody is buying */
} lab_tally;

/* Opens the strategy with `clerks` buyers and fills the shelf. NULL: `why`. The strategy and the site
 * are borrowed until lab_shop_close. */
lab_shop *lab_shop_open(const lab_strategy *strategy, const lab_site *site, int64_t clerks,
                        int64_t stock, char why[256]);
void lab_shop_close(lab_shop *shop); /* NULL is allowed. Nobody may be buying any more */

const lab_strategy *lab_shop_strategy(const lab_shop *shop);

/* One piece, from any thread; never more at once than there are clerks. `note`: why it failed. */
lab_sale lab_shop_order(lab_shop *shop, char note[256]);
/* False: the books cannot be read (`note`). */
bool lab_shop_tally(lab_shop *shop, lab_tally *out, char note[256]);
json_t *lab_shop_json(const lab_shop *shop, const lab_tally *tally);
/* Fills the shelf again and forgets what was sold: for the time between two rounds. */
bool lab_shop_reset(lab_shop *shop, int64_t stock, char note[256]);

/* ---- Over HTTP ------------------------------------------------------------------------------- */

typedef struct lab_shop_http lab_shop_http;

/* A socket on 127.0.0.1; *port 0: a free one, which is told. -1: `why`. */
int lab_shop_http_listen(int64_t *port, char why[256]);
/* Serves what comes to that socket, which is taken, in any case. `url`: where tokens and keys are kept. NULL: `why`. */
lab_shop_http *lab_shop_http_start(lab_shop *shop, const char *url, int64_t clerks, int socket,
                                   char why[256]);
void lab_shop_http_stop(lab_shop_http *http); /* waits for orders that are being served */

#endif
