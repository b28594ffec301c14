/* The renewing thread; see the header. */
#include "renewer.h"

#include "hash_lock.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct lab_renewer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool stop;
    int part;
    int levels; /* how often its holder has it: the last one out stops it */
    redisContext *redis;
    lab_buyer buyer; /* its own copy: notes of two threads must not meet */
};

static struct timespec in_ms(int64_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static void *renewer_main(void *data)
{
    lab_renewer *r = data;
    lab_holder *h = r->buyer.own;

    pthread_mutex_lock(&r->mutex);
    while (!r->stop) {
        struct timespec next = in_ms(h->lease_ms / r->part);
        if (pthread_cond_timedwait(&r->over, &r->mutex, &next) != 0 && !r->stop &&
            !lab_hash_renew(&r->buyer, r->redis, h->id, h->lease_ms))
            break;
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

lab_renewer *lab_renewer_new(lab_buyer *buyer, int part)
{
    lab_renewer *r = calloc(1, sizeof *r);

    if (!r) {
        lab_note(buyer, "out of memory");
        return NULL;
    }
    r->part = part;
    r->redis = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    if (!r->redis) {
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->over, NULL);
    return r;
}

void lab_renewer_free(lab_renewer *r)
{
    if (!r)
        return;
    redisFree(r->redis);
    pthread_cond_destroy(&r->over);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

bool lab_renewer_start(lab_renewer *r, lab_buyer *buyer)
{
    if (r->levels++ > 0)
        return true;
    r->stop = false;
    r->buyer = *buyer;
    return pthread_create(&r->thread, NULL, renewer_main, r) == 0 || lab_note(buyer, "no thread");
}

void lab_renewer_stop(lab_renewer *r)
{
    if (r->levels == 0 || --r->levels > 0)
        return;
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_signal(&r->over);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
}
