#define _GNU_SOURCE
#include "work.h"
#include "support/calls.h"

#include "support/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS    4
#define LONG_MS    10000
#define OPEN_EVERY 100
#define PASSES     4096

typedef struct worker {
    pthread_t thread;
    const work *w;
    long first, failed;
} worker;

/* ---- One cycle -------------------------------------------------------------------------------- */

static const dibs_lock_options patient = {.wait_ms = LONG_MS};

static const char *name_of(char out[32], const char *kind, long i)
{
    snprintf(out, 32, "%s-%ld", kind, i);
    return out;
}

static dibs_status use_lock(dibs *d, long i, dibs_error *err)
{
    char name[32];
    dibs_grant *g = NULL;
    dibs_status status = dibs_lock(d, name_of(name, "lock", i % NAMES), &patient, &g, err);

    return status == DIBS_OK ? unlock(g) : status;
}

static dibs_status use_many(dibs *d, long i, dibs_error *err)
{
    char name[3][32];
    const char *const names[] = {name_of(name[0], "lock", i % NAMES),
                                 name_of(name[1], "lock", (i + 1) % NAMES),
                                 name_of(name[2], "lock", (i + 2) % NAMES)};
    dibs_grant *g[3] = {0};
    dibs_status status = dibs_lock_many(d, names, 3, &patient, g, err), ended = status;

    for (int k = 0; k < 3 && status == DIBS_OK; k++)
        ended = unlock(g[k]) == DIBS_OK ? ended : DIBS_LOST;
    return ended;
}

typedef struct outcome {
    atomic_bool settled;
    dibs_status status;
} outcome;

/* On whichever thread takes it. */
static void done(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    outcome *o = data;

    (void)err;
    o->status = status == DIBS_OK ? unlock(g) : status;
    atomic_store(&o->settled, true);
}

static dibs_status use_request(dibs *d, long i, dibs_error *err)
{
    char name[32];
    outcome o = {0};
    dibs_status status =
        start_lock(d, name_of(name, "lock", i % NAMES), &patient, done, &o, NULL, err);

    while (status == DIBS_OK && !atomic_load(&o.settled)) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, 10);
        take_all(d);
    }
    return status == DIBS_OK ? o.status : status;
}

static dibs_status use_once(dibs *d, long i, dibs_error *err)
{
    char key[32];
    dibs_once_options options = {.keep_ms = KEEP_MS};
    dibs_once *o = NULL;
    dibs_status status = dibs_once_begin(d, name_of(key, "once", i), &options, &o, err);

    if (status == DIBS_OK)
        status = dibs_once_step(o, "step", "data", 4, err);
    if (status == DIBS_OK)
        status = dibs_once_finish(o, "result", 6, 0, err);
    dibs_once_free(o);
    return status;
}

static dibs_status use_token(dibs *d, long i, dibs_error *err)
{
    dibs_token_options options = {.ttl_ms = KEEP_MS};
    char token[DIBS_TOKEN_SIZE];
    dibs_status status = dibs_token_issue(d, &options, token, err);

    (void)i;
    return status == DIBS_OK ? dibs_token_redeem(d, token, NULL, err) : status;
}

static dibs_status use_counter(dibs *d, long i, dibs_error *err)
{
    char name[32], request[32];
    dibs_counter_options options = {.request = name_of(request, "request", i), .keep_ms = KEEP_MS};

    return dibs_counter_add(d, name_of(name, "counter", i % NAMES), 1, &options, NULL, err);
}

static dibs_status use_cell(dibs *d, long i, dibs_error *err)
{
    char name[32];
    dibs_cell_options options = {.keep_ms = KEEP_MS};

    return dibs_cell_swap(d, name_of(name, "cell", i), 0, "value", 5, &options, NULL, err);
}

typedef dibs_status (*use_fn)(dibs *d, long i, dibs_error *err);
static const use_fn uses[] = {use_lock,  use_many,    use_request, use_once,
                              use_token, use_counter, use_cell};
#define LOCK_USES 3 /* the first ones */
#define ALL_USES  (long)(sizeof uses / sizeof uses[0])

static dibs_status open_and_use(const char *url, long i, dibs_error *err)
{
    dibs *d = NULL;
    dibs_status status = dibs_open(url, NULL, &d, err);

    if (status == DIBS_OK)
        status = use_lock(d, i, err);
    dibs_close(d);
    return status;
}

static dibs_status cycle(const work *w, long i, dibs_error *err)
{
    if (i % OPEN_EVERY == 0)
        return open_and_use(w->url, i, err);
    return uses[i % (w->cells ? ALL_USES : LOCK_USES)](w->d, i, err);
}

/* ---- Many ------------------------------------------------------------------------------------- */

static void *run_share(void *data)
{
    worker *me = data;

    for (long i = 0; i < me->w->cycles / THREADS; i++) {
        dibs_error err = {0};
        dibs_status status = cycle(me->w, me->first + i, &err);
        if (status != DIBS_OK && me->failed++ == 0)
            printf("# cycle %ld: %s: %s\n", me->first + i, dibs_status_name(status), err.message);
    }
    return NULL;
}

/* Names of a second call are other ones. */
long work_run(const work *w)
{
    static long next;
    worker workers[THREADS];
    long failed = 0;

    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.w = w, .first = next};
        next += w->cycles / THREADS;
        if (pthread_create(&workers[i].thread, NULL, run_share, &workers[i]) != 0)
            return w->cycles;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        failed += workers[i].failed;
    }
    return failed;
}

void work_idle(const work *w)
{
    dibs_error err;

    open_and_use(w->url, 0, &err);
    for (long i = 0; i < NAMES; i++) {
        use_lock(w->d, i, &err);
        if (w->cells)
            dibs_counter_add(w->d, "idle", 1, NULL, NULL, &err);
    }
    for (long i = 0; w->in_passing && i < PASSES; i++)
        dibs_counter_get(w->d, "idle", &(int64_t){0}, &err);
}

static int64_t until_it_works(const work *w, long i)
{
    int64_t start = clock_ms();

    while (clock_ms() - start < LONG_MS) {
        dibs_error err;
        if (use_lock(w->d, i, &err) == DIBS_OK &&
            (!w->cells || dibs_counter_set(w->d, "reconnected", i, NULL, &err) == DIBS_OK))
            return clock_ms() - start;
        sleep_ms(1);
    }
    return -1;
}

int64_t work_reconnect(const work *w, proxy *const proxies[], int proxy_count, long count)
{
    int64_t longest = 0;

    for (long i = 0; i < count; i++) {
        int64_t took;
        for (int k = 0; k < proxy_count; k++)
            proxy_reset_all(proxies[k]);
        took = until_it_works(w, i);
        if (took < 0)
            return -1;
        longest = took > longest ? took : longest;
    }
    return longest;
}
