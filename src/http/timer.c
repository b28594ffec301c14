/* Timers of the loop: a binary heap, the next one first. */
#include "inner.h"

#include <stdlib.h>
#include <time.h>

int64_t http__now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t http_now_ms(void)
{
    return http__now_us() / 1000;
}

static void put(http__timers *all, size_t at, http_timer *timer)
{
    all->heap[at] = timer;
    timer->place = at;
}

static void rise(http__timers *all, size_t at, http_timer *timer)
{
    for (; at > 1 && all->heap[at / 2]->at_ms > timer->at_ms; at /= 2)
        put(all, at, all->heap[at / 2]);
    put(all, at, timer);
}

static void sink(http__timers *all, size_t at, http_timer *timer)
{
    for (size_t child; (child = at * 2) <= all->count; at = child) {
        if (child < all->count && all->heap[child + 1]->at_ms < all->heap[child]->at_ms)
            child++;
        if (all->heap[child]->at_ms >= timer->at_ms)
            break;
        put(all, at, all->heap[child]);
    }
    put(all, at, timer);
}

void http_timer_stop(http_server *s, http_timer *timer)
{
    http__timers *all = http__timers_of(s);
    size_t at = timer->place;
    http_timer *last;

    if (at == 0)
        return;
    timer->place = 0;
    last = all->heap[all->count--];
    if (last == timer)
        return;
    if (at > 1 && all->heap[at / 2]->at_ms > last->at_ms)
        rise(all, at, last);
    else
        sink(all, at, last);
}

/* Out of memory ends the server: a wait that nobody ends would hold a lock. */
static void reserve(http__timers *all)
{
    if (all->count + 1 < all->room)
        return;
    all->room = all->room ? all->room * 2 : 64;
    all->heap = realloc(all->heap, all->room * sizeof(http_timer *));
    if (!all->heap)
        abort();
}

void http_timer_set(http_server *s, http_timer *timer, int64_t in_ms,
                    void (*fire)(http_timer *timer))
{
    http__timers *all = http__timers_of(s);

    http_timer_stop(s, timer);
    reserve(all);
    timer->at_ms = http_now_ms() + in_ms;
    timer->fire = fire;
    rise(all, ++all->count, timer);
}

int64_t http__timers_run(http_server *s)
{
    http__timers *all = http__timers_of(s);
    int64_t now = http_now_ms();

    while (all->count > 0 && all->heap[1]->at_ms <= now) {
        http_timer *timer = all->heap[1];
        http_timer_stop(s, timer);
        timer->fire(timer);
    }
    return all->count > 0 ? all->heap[1]->at_ms - now : -1;
}
