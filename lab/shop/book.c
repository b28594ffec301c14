/* The order book; see the header. */
#include "book.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lab_book {
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a form is no longer being sold */
    uint64_t count;       /* of all orders */
    lab_order ring[LAB_BOOK];
    lab_work *work;
};

lab_book *lab_book_open(void)
{
    lab_book *b = calloc(1, sizeof *b);

    if (b) {
        pthread_mutex_init(&b->lock, NULL);
        pthread_cond_init(&b->ended, NULL);
    }
    return b;
}

void lab_book_close(lab_book *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->ended);
    free(b);
}

/* The lock is held. The oldest order with this key: 0, if there is none. */
static uint64_t find_key(const lab_book *b, const char *key)
{
    uint64_t from = b->count > LAB_BOOK ? b->count - LAB_BOOK : 0;

    for (uint64_t i = from; *key && i < b->count; i++)
        if (strcmp(b->ring[i % LAB_BOOK].key, key) == 0)
            return b->ring[i % LAB_BOOK].number;
    return 0;
}

lab_order lab_book_write(lab_book *b, const lab_form *form)
{
    struct timespec now;
    lab_order order = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    order.at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    memcpy(order.key, form->key, sizeof order.key);
    memcpy(order.colour, form->colour, sizeof order.colour);
    pthread_mutex_lock(&b->lock);
    order.first = find_key(b, form->key);
    order.number = b->count + 1;
    b->ring[b->count++ % LAB_BOOK] = order;
    pthread_mutex_unlock(&b->lock);
    return order;
}

lab_order lab_book_find(lab_book *b, uint64_t number)
{
    lab_order found = {0};

    pthread_mutex_lock(&b->lock);
    if (number > 0 && number <= b->count && b->count - number < LAB_BOOK)
        found = b->ring[(number - 1) % LAB_BOOK];
    pthread_mutex_unlock(&b->lock);
    return found;
}

void lab_book_begin(lab_book *b, lab_work *w)
{
    pthread_mutex_lock(&b->lock);
    w->next = b->work;
    b->work = w;
    pthread_mutex_unlock(&b->lock);
}

void lab_book_end(lab_book *b, lab_work *w)
{
    lab_work **at;

    pthread_mutex_lock(&b->lock);
    for (at = &b->work; *at != w; at = &(*at)->next)
        continue;
    *at = w->next;
    pthread_cond_broadcast(&b->ended);
    pthread_mutex_unlock(&b->lock);
}

/* The lock is held. */
static bool is_sold_now(const lab_book *b, const char *key)
{
    for (const lab_work *w = b->work; w; w = w->next)
        if (strcmp(w->key, key) == 0)
            return true;
    return false;
}

uint64_t lab_book_first(lab_book *b, const char *key, int seconds)
{
    struct timespec until;
    uint64_t number;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&b->lock);
    while (*key && is_sold_now(b, key) &&
           pthread_cond_timedwait(&b->ended, &b->lock, &until) != ETIMEDOUT)
        continue;
    number = find_key(b, key);
    pthread_mutex_unlock(&b->lock);
    return number;
}
