/* R10: our model of Redisson's published scheme: the hash of R7; one subscription for each process, whose
 * messages wake one waiting thread of each process, in no order; a watchdog at a third of the lease. A
 * lease given by hand switches the watchdog off. Release by a stranger is an error. redisson.h says what
 * is modelled and what is not.
 *
 * redisson-fenced is RFencedLock: each grant also counts a token up, and here the books check it, as they
 * check the product's. Redisson's fair lock (a queue in Redis, a channel for each waiter) is not modelled. */
#include "fenced.h"
#include "redisson.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

#define PROCESSES 5

typedef struct redisson_buyer {
    lab_redisson_thread thread;
    lab_fenced *books; /* redisson-fenced only */
} redisson_buyer;

static bool open_client(lab_buyer *buyer)
{
    buyer->shared = lab_redisson_new(buyer, buyer->site->url[LAB_REDIS]);
    return buyer->shared != NULL;
}

static void close_client(lab_buyer *buyer)
{
    lab_redisson_free(buyer->shared);
}

static bool open_buyer(lab_buyer *buyer)
{
    redisson_buyer *b = calloc(1, sizeof *b);

    if (!b || !lab_holder_open(buyer)) {
        free(b);
        return false;
    }
    b->thread.client = buyer->shared;
    b->thread.redis = lab_holder_of(buyer)->redis;
    memcpy(b->thread.id, lab_holder_of(buyer)->id, sizeof b->thread.id);
    lab_holder_of(buyer)->more = b;
    return true;
}

static void close_buyer(lab_buyer *buyer)
{
    redisson_buyer *b = lab_holder_of(buyer)->more;

    if (b->books)
        lab_fenced_close(b->books);
    free(b);
    lab_holder_close(buyer);
}

static bool open_fenced(lab_buyer *buyer)
{
    redisson_buyer *b;

    if (!open_buyer(buyer))
        return false;
    b = lab_holder_of(buyer)->more;
    b->books = lab_fenced_open(buyer);
    if (b->books)
        return true;
    close_buyer(buyer);
    return false;
}

static bool take(lab_buyer *buyer, bool watchdog, bool fenced)
{
    lab_holder *h = lab_holder_of(buyer);
    redisson_buyer *b = h->more;
    const lab_redisson_wish wish = {.lease_ms = h->lease_ms,
                                    .until_us = lab_until(buyer),
                                    .watchdog = watchdog,
                                    .fenced = fenced};

    return lab_redisson_lock(buyer, &b->thread, &wish) == 1;
}

static bool take_watched(lab_buyer *buyer)
{
    return take(buyer, true, false);
}

static bool take_for_a_lease(lab_buyer *buyer)
{
    return take(buyer, false, false);
}

static bool take_fenced(lab_buyer *buyer)
{
    return take(buyer, true, true);
}

static lab_sale sell_fenced(lab_buyer *buyer)
{
    redisson_buyer *b = lab_holder_of(buyer)->more;

    return lab_fenced_sell(buyer, b->books, b->thread.token);
}

static uint64_t fence_of(lab_buyer *buyer)
{
    redisson_buyer *b = lab_holder_of(buyer)->more;

    return b->thread.token;
}

static bool give(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    redisson_buyer *b = h->more;

    lab_redisson_unlock_send(&b->thread, h->lease_ms);
    return lab_redisson_unlock_hear(buyer, &b->thread);
}

#define REDISSON(word, text, ...)                                                                 \
    {                                                                                             \
        .id = "R10", .name = word, .title = text, .stock = LAB_REDIS,                             \
        .needs = LAB_NEED(LAB_REDIS), .open_process = open_client, .close_process = close_client, \
        .close = close_buyer, .unlock = give, __VA_ARGS__                                         \
    }

const lab_strategy lab_r10 = REDISSON("redisson", "our model of Redisson's published scheme",
                                      .open = open_buyer, .lock = take_watched);
const lab_strategy lab_r10_processes =
    REDISSON("redisson-processes", "the same, buyers in 5 processes instead of 1",
             .open = open_buyer, .lock = take_watched, .processes = PROCESSES);
const lab_strategy lab_r10_lease =
    REDISSON("redisson-lease", "the same with an explicit lease: no watchdog", .open = open_buyer,
             .lock = take_for_a_lease, .explicit_lease = true);
const lab_strategy lab_r10_fenced =
    REDISSON("redisson-fenced", "our model of RFencedLock, its token checked by the stock",
             .open = open_fenced, .lock = take_fenced, .sell = sell_fenced, .fence = fence_of);
