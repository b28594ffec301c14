/* What the shop's pages are made of: the files of this folder, embedded when dibs is built. */
#ifndef DIBS_LAB_SHOP_ASSETS_H
#define DIBS_LAB_SHOP_ASSETS_H

extern const char lab_shop_page_html[];  /* every page */
extern const char lab_shop_form_html[];  /* what it is about: the form, */
extern const char lab_shop_order_html[]; /* an order, */
extern const char lab_shop_card_html[];  /* or anything else that is said */
extern const char lab_shop_live_html[];  /* the stock and the log */
extern const char lab_shop_row_html[];   /* one entry of the log */
extern const char lab_shop_shop_css[];
extern const char lab_shop_shop_js[];

#endif
