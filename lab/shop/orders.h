/* Orders that come from the shop's form, behind guards that can be switched off.
 *
 *   the button is dead after the first click       in the browser; the server only says whether it shall be
 *   POST is answered with 303                      done by http.c: the reply's status says so
 *   a one-time token                               dibs_token_*: issued with the form, redeemed before anything is ordered
 *   an idempotency key                             dibs_once_*: each key is ordered once, a repetition is replayed
 *
 * Tokens and keys are kept on the server that keeps the stock. The book and the log are this process's own. */
#ifndef DIBS_LAB_SHOP_ORDERS_H
#define DIBS_LAB_SHOP_ORDERS_H

#include "book.h"
#include "journal.h"
#include "shop.h"

typedef enum lab_switch {
    LAB_BUTTON,
    LAB_REDIRECT,
    LAB_TOKEN,
    LAB_ONCE,
    LAB_SLOW, /* no guard: an order takes a second, so that people have time to click twice */
    LAB_SWITCHES
} lab_switch;

extern const char *const lab_switch_names[LAB_SWITCHES]; /* "button", … */

/* What the shop says to one form. */
typedef struct lab_reply {
    lab_fate fate;
    unsigned status; /* of HTTP: 303 or 200 sold or replayed */
    uint64_t
        order; /* sold or replayed: this one; refused: what was ordered with the form, 0: nothing known */
    bool unknown; /* failed, and it may have been sold */
    bool again;   /* the caller may send `next` */
    lab_form next;
    char text[200]; /* one line for people */
} lab_reply;

typedef struct lab_totals {
    uint64_t ordered, duplicates, stopped; /* stopped: refused or replayed */
} lab_totals;

typedef struct lab_orders lab_orders;

/* The shop, the book and the journal are borrowed. NULL: `why`. */
lab_orders *lab_orders_open(lab_shop *shop, const char *url, lab_book *book, lab_journal *journal,
                            char why[256]);
void lab_orders_close(lab_orders *o); /* NULL is allowed */

bool lab_orders_is_on(lab_orders *o, lab_switch which);
void lab_orders_turn(lab_orders *o, lab_switch which, bool on);

/* A form with a new token and a new key. False: `why`. */
bool lab_orders_form(lab_orders *o, lab_form *out, char why[200]);
/* Takes one, and writes what became of it into the journal. From any thread. */
void lab_orders_submit(lab_orders *o, const lab_form *form, lab_reply *out);
lab_totals lab_orders_totals(lab_orders *o);
void lab_orders_reset(lab_orders *o); /* the totals */

#endif
