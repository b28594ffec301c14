/* The shop's pages as HTML. All texts are malloc'ed; NULL: out of memory. */
#ifndef DIBS_LAB_SHOP_PAGES_H
#define DIBS_LAB_SHOP_PAGES_H

#include "orders.h"

typedef struct lab_premises {
    lab_shop *shop;
    lab_book *book;
    lab_orders *orders;
    lab_journal *journal;
} lab_premises;

/* The stock and the log, as every page has them: what pages ask for again and again. */
char *lab_page_live(const lab_premises *p);

/* `host` is the shop's own address, for the line that orders without the page. */
char *lab_page_form(const lab_premises *p, const lab_form *form, const char *host);
/* `posted`: the page is the answer to a POST. `replayed`: to a repeated one. */
char *lab_page_order(const lab_premises *p, const lab_order *order, bool posted, bool replayed);
/* What a form came to that was not sold. */
char *lab_page_reply(const lab_premises *p, const lab_reply *v);
char *lab_page_said(const lab_premises *p, const char *title, const char *text);

#endif
