/* R8, the other way: a service of its own renews the locks of others. It is told when a lock is taken
 * and when it is given back; when the holder dies, nobody tells it, and it renews for ever.
 *
 * The service here is a process beside the holder's. It ends when it is told to, or after a while that
 * is longer than any hazard looks. */
#define _GNU_SOURCE
#include "hash_lock.h"
#include "strategies.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ETERNITY_US (15 * 1000000LL)

typedef struct order {
    bool renew; /* else: it was given back */
    int64_t lease_ms;
    char id[64];
} order;

typedef struct service {
    pid_t pid;
    int orders; /* written by the holder */
} service;

static void service_main(lab_buyer *buyer, int orders)
{
    redisContext *redis = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    int64_t end = lab_now_us() + ETERNITY_US;
    struct pollfd p = {.fd = orders, .events = POLLIN};
    order o = {0};

    while (redis && lab_now_us() < end) {
        int got = poll(&p, 1, o.renew ? (int)(o.lease_ms / 2) : 100);
        bool late = got == 0; /* half of the lease has passed since the last order or renewal */
        if (got > 0 && read(orders, &o, sizeof o) != sizeof o) {
            if (!o.renew)
                break; /* the holder went home, with nothing left behind */
            p.fd = -1; /* the holder is dead, but who is to know? */
            late = true;
        }
        if (late && o.renew && !lab_hash_renew(buyer, redis, o.id, o.lease_ms))
            o.renew = false;
    }
    _exit(0);
}

static bool service_open(lab_buyer *buyer)
{
    service *s = calloc(1, sizeof *s);
    int pipes[2];

    if (!s || !lab_holder_open(buyer) || pipe2(pipes, O_CLOEXEC) != 0) {
        free(s);
        return lab_note(buyer, "no service");
    }
    s->pid = fork();
    if (s->pid == 0) {
        close(pipes[1]);
        signal(SIGINT, SIG_IGN);
        service_main(buyer, pipes[0]);
    }
    close(pipes[0]);
    s->orders = pipes[1];
    lab_holder_of(buyer)->more = s;
    return s->pid > 0 || lab_note(buyer, "no service");
}

static void service_close(lab_buyer *buyer)
{
    service *s = lab_holder_of(buyer)->more;

    close(s->orders);
    waitpid(s->pid, NULL, 0);
    free(s);
    lab_holder_close(buyer);
}

static bool ask(lab_buyer *buyer, bool renew)
{
    lab_holder *h = lab_holder_of(buyer);
    service *s = h->more;
    order o = {.renew = renew, .lease_ms = h->lease_ms};

    memcpy(o.id, h->id, sizeof o.id);
    return write(s->orders, &o, sizeof o) == sizeof o || lab_note(buyer, "the service is gone");
}

static bool service_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, lab_hash_ask) && ask(buyer, true);
}

static bool service_unlock(lab_buyer *buyer)
{
    return ask(buyer, false) && lab_hash_give(buyer);
}

const lab_strategy lab_r8_service = {
    .id = "R8",
    .name = "hash-service",
    .title = "R7 renewed by a separate service",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .renewed_outside = true,
    .open = service_open,
    .close = service_close,
    .lock = service_lock,
    .unlock = service_unlock,
};
