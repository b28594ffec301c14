/* R8: R7, and a thread that renews the lock at half of its lease while it is held. It dies with its
 * process, and so does the lock, a lease later.
 *
 * R9 is the same with a bound on the wait: whoever has no patience left goes without. */
#include "hash_lock.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define DEFAULT_WAIT_MS 3000

typedef struct renewer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool stop;
    redisContext *redis;
    lab_seat seat; /* its own: notes of two threads must not meet */
} renewer;

static void *renewer_main(void *data)
{
    renewer *r = data;
    lab_holder *h = r->seat.own;
    struct timespec next;

    pthread_mutex_lock(&r->mutex);
    while (!r->stop) {
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec += (time_t)(h->lease_ms / 2 / 1000);
        next.tv_nsec += (long)(h->lease_ms / 2 % 1000) * 1000000;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        if (pthread_cond_timedwait(&r->over, &r->mutex, &next) != 0 && !r->stop &&
            !lab_hash_renew(&r->seat, r->redis, h->id, h->lease_ms))
            break;
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static bool r8_lock(lab_seat *seat)
{
    renewer *r = lab_holder_of(seat)->more;

    if (!lab_spin(seat, LAB_PAUSE_US, lab_hash_ask))
        return false;
    r->stop = false;
    r->seat = *seat;
    return pthread_create(&r->thread, NULL, renewer_main, r) == 0 || lab_note(seat, "no thread");
}

static bool r8_unlock(lab_seat *seat)
{
    renewer *r = lab_holder_of(seat)->more;

    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_signal(&r->over);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    return lab_hash_give(seat);
}

static bool r9_lock(lab_seat *seat)
{
    if (seat->pace.wait_ms == 0)
        seat->pace.wait_ms = DEFAULT_WAIT_MS;
    return r8_lock(seat);
}

static bool r8_open(lab_seat *seat)
{
    renewer *r = calloc(1, sizeof *r);

    if (!r || !lab_holder_open(seat)) {
        free(r);
        return false;
    }
    lab_holder_of(seat)->more = r;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->over, NULL);
    r->redis = lab_redis_open(seat, seat->site->url[LAB_REDIS]);
    return r->redis != NULL;
}

static void r8_close(lab_seat *seat)
{
    renewer *r = lab_holder_of(seat)->more;

    redisFree(r->redis);
    pthread_cond_destroy(&r->over);
    pthread_mutex_destroy(&r->mutex);
    free(r);
    lab_holder_close(seat);
}

const lab_strategy lab_r8 = {
    .id = "R8",
    .name = "hash-renewed",
    .title = "R7 with a thread that renews at half of the lease",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r8_open,
    .close = r8_close,
    .lock = r8_lock,
    .unlock = r8_unlock,
};

const lab_strategy lab_r9 = {
    .id = "R9",
    .name = "hash-trylock",
    .title = "R8 with a wait of at most 3 s",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r8_open,
    .close = r8_close,
    .lock = r9_lock,
    .unlock = r8_unlock,
};
