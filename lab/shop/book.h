/* The order book: who ordered with which form, and which forms are being sold at the moment. In memory; the last LAB_BOOK
 * orders are kept, and numbers go on. */
#ifndef DIBS_LAB_SHOP_BOOK_H
#define DIBS_LAB_SHOP_BOOK_H

#include "dibs.h"

#include <stdint.h>

#define LAB_BOOK     1000
#define LAB_KEY_SIZE 65 /* of an idempotency key, with its NUL */

typedef struct lab_form {
    char token[DIBS_TOKEN_SIZE];
    char key[LAB_KEY_SIZE];
    char colour[8];
} lab_form;

typedef struct lab_order {
    uint64_t number; /* 0: none */
    int64_t at_ms;
    char key[LAB_KEY_SIZE];
    char colour[8];
    uint64_t first; /* the number of the first order of the same form, if this is a duplicate */
} lab_order;

typedef struct lab_book lab_book;

/* A form that is being sold. */
typedef struct lab_work {
    struct lab_work *next;
    const char *key;
} lab_work;

lab_book *lab_book_open(void); /* NULL: out of memory */
void lab_book_close(lab_book *b);

lab_order lab_book_write(lab_book *b, const lab_form *form);
/* One order; its number is 0 if there is none, or it is no longer kept. */
lab_order lab_book_find(lab_book *b, uint64_t number);

/* `w` is the caller's until it has ended. */
void lab_book_begin(lab_book *b, lab_work *w);
void lab_book_end(lab_book *b, lab_work *w);
/* The number of the first order with this key; waits up to `seconds` while one is being sold. 0: none. */
uint64_t lab_book_first(lab_book *b, const char *key, int seconds);

#endif
