/* Lining up; see the header. That somebody has come is not guessed from the time: the product shows who
 * is in the queue, and a scheme that polls has come when it was refused for the first time. */
#include "queue_up.h"

#include "dibs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COME_US (10 * 1000000)
#define WORK_US 5000 /* each one's stay in the lock */

typedef struct hall {
    atomic_int served;
    atomic_llong first_us; /* when the first one was in */
} hall;

typedef struct waiter {
    lab_buyer buyer;
    hall *h;
    pthread_t thread;
    bool seated, started, got;
    atomic_bool refused;
    int rank; /* in the order of service */
} waiter;

static void note_refusal(lab_buyer *buyer, const char *name)
{
    waiter *w = buyer->point_data;

    if (strcmp(name, "after a refusal") == 0)
        atomic_store(&w->refused, true);
}

static void *waiter_main(void *data)
{
    waiter *w = data;
    const lab_strategy *s = w->buyer.strategy;

    w->got = s->lock(&w->buyer);
    if (!w->got)
        return NULL;
    w->rank = atomic_fetch_add(&w->h->served, 1);
    if (w->rank == 0)
        atomic_store(&w->h->first_us, lab_now_us());
    usleep(WORK_US);
    s->unlock(&w->buyer);
    return NULL;
}

/* So many stand in the product's queue. */
static size_t count_waiters(dibs *d, const char *resource)
{
    dibs_lock_report *report = NULL;
    size_t count = 0;

    if (dibs_lock_inspect(d, resource, &report, NULL) == DIBS_OK)
        count = dibs_lock_report_at(report, 0)->waiter_count;
    dibs_lock_report_free(report);
    return count;
}

static bool has_come(waiter *w, int number)
{
    for (int64_t until = lab_now_us() + COME_US; lab_now_us() < until; usleep(2000))
        if (w->buyer.strategy->product
                ? count_waiters(w->buyer.shared, w->buyer.resource) >= (size_t)number + 1
                : atomic_load(&w->refused))
            return true;
    return false;
}

/* One after another; true: all have come. */
static bool let_come(waiter *w, int count)
{
    for (int i = 0; i < count; i++) {
        w[i].started = pthread_create(&w[i].thread, NULL, waiter_main, &w[i]) == 0;
        if (!w[i].started || !has_come(&w[i], i))
            return false;
    }
    return true;
}

static void add_up(waiter *w, lab_queue *out)
{
    for (int i = 0; i < out->waiters; i++) {
        out->tries += w[i].buyer.tries;
        if (w[i].got)
            out->order[w[i].rank] = i + 1;
    }
    for (int i = 0; i < out->waiters; i++)
        for (int j = i + 1; j < out->waiters; j++)
            if (w[j].got && (!w[i].got || w[j].rank < w[i].rank)) {
                out->overtaken++;
                break;
            }
}

/* The holder's buyer is the last of `w`. */
static void hold_and_release(waiter *w, int count, int64_t hold_ms, lab_queue *out)
{
    lab_buyer *holder = &w[count].buyer;
    int64_t begin = lab_now_us(), released;
    bool came;

    if (!holder->strategy->lock(holder)) {
        snprintf(out->note, sizeof out->note, "the holder did not get it: %.200s", holder->note);
        return;
    }
    came = let_come(w, count);
    usleep((useconds_t)(hold_ms * 1000));
    released = lab_now_us();
    out->held_us = released - begin;
    holder->strategy->unlock(holder);
    for (int i = 0; i < count; i++)
        if (w[i].started)
            pthread_join(w[i].thread, NULL);
    if (!came) {
        snprintf(out->note, sizeof out->note, "a waiter never came: %.200s", w[0].buyer.note);
        return;
    }
    out->late_us = atomic_load(&w->h->first_us) - released;
    out->overtaken = 0;
    add_up(w, out);
}

static bool buyer_all(waiter *w, int count, const lab_strategy *s, const lab_site *site,
                      const char *resource, hall *h)
{
    lab_buyer process = {.strategy = s, .site = site, .resource = resource};

    if (s->open_process && !s->open_process(&process))
        return lab_note(&w[0].buyer, "%s", process.note);
    for (int i = 0; i < count; i++) {
        w[i] = (waiter){.h = h,
                        .buyer = {.strategy = s,
                                  .site = site,
                                  .thread = i,
                                  .resource = resource,
                                  .shared = process.shared,
                                  .pace = {.wait_ms = 30000},
                                  .point = note_refusal}};
        w[i].buyer.point_data = &w[i];
        w[i].seated = lab_buyer_open(&w[i].buyer);
        if (!w[i].seated)
            return lab_note(&w[0].buyer, "%s", w[i].buyer.note);
    }
    return true;
}

void lab_queue_up(const lab_strategy *s, const lab_site *site, const char *resource, int waiters,
                  int64_t hold_ms, lab_queue *out)
{
    waiter w[LAB_QUEUE_MAX + 1] = {0};
    hall h = {0};

    *out = (lab_queue){.waiters = waiters, .overtaken = -1};
    if (buyer_all(w, waiters + 1, s, site, resource, &h))
        hold_and_release(w, waiters, hold_ms, out);
    else
        snprintf(out->note, sizeof out->note, "%s", w[0].buyer.note);
    for (int i = 0; i <= waiters; i++)
        if (w[i].seated)
            lab_buyer_close(&w[i].buyer);
    if (w[0].buyer.shared && s->close_process)
        s->close_process(&w[0].buyer);
}
