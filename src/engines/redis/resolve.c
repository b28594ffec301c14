/* A numeric address is answered at once. A name is looked up by a thread of its own, which nobody
 * waits for longer than the deadline: the question is shared, and whoever is last frees it. */
#define _GNU_SOURCE
#include "engines/redis/resolve.h"

#include "core/error.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct question {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int users;
    bool done;
    int result; /* of getaddrinfo */
    struct addrinfo *addresses;
    char port[8];
    char host[];
} question;

static int look_up(const char *host, const char *port, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};

    return getaddrinfo(host, port, &hints, out);
}

static void question_leave(question *q)
{
    bool last;

    pthread_mutex_lock(&q->lock);
    last = --q->users == 0;
    pthread_mutex_unlock(&q->lock);
    if (!last)
        return;
    if (q->addresses)
        freeaddrinfo(q->addresses);
    pthread_cond_destroy(&q->answered);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void *answer(void *arg)
{
    question *q = arg;
    struct addrinfo *found = NULL;
    int result = look_up(q->host, q->port, 0, &found);

    pthread_mutex_lock(&q->lock);
    q->result = result;
    q->addresses = result == 0 ? found : NULL;
    q->done = true;
    pthread_cond_signal(&q->answered);
    pthread_mutex_unlock(&q->lock);
    question_leave(q);
    return NULL;
}

/* Threads of ours take no signals, and nobody joins this one. */
static int start_thread(question *q)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int failed = pthread_attr_init(&attributes);

    if (failed)
        return failed;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, answer, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

static question *question_new(const char *host, const char *port)
{
    question *q = calloc(1, sizeof *q + strlen(host) + 1);
    pthread_condattr_t monotonic;

    if (!q)
        return NULL;
    strcpy(q->host, host);
    snprintf(q->port, sizeof q->port, "%s", port);
    q->users = 2;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return q;
}

/* true: answered in time. */
static bool wait_for_answer(question *q, const dibs__env *env, dibs__deadline until)
{
    bool done;

    pthread_mutex_lock(&q->lock);
    while (!q->done && dibs__now(env) < until) {
        int64_t left = until - dibs__now(env);
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        left = (left < DIBS__SECOND ? left : DIBS__SECOND) * 1000 + t.tv_nsec;
        t.tv_sec += left / 1000000000;
        t.tv_nsec = left % 1000000000;
        pthread_cond_timedwait(&q->answered, &q->lock, &t);
    }
    done = q->done;
    pthread_mutex_unlock(&q->lock);
    return done;
}

static dibs_status tell(int result, const char *host, dibs_error *err)
{
    if (result == EAI_MEMORY)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "cannot find the host '%.200s': %s; check the name in the URL", host,
                      gai_strerror(result));
}

dibs_status dibs__resolve(const dibs__env *env, const char *host, int port, dibs__deadline until,
                          struct addrinfo **out, dibs_error *err)
{
    char number[8];
    question *q;
    dibs_status status = DIBS_OK;

    snprintf(number, sizeof number, "%u", (unsigned)port & 0xffffu);
    if (look_up(host, number, AI_NUMERICHOST, out) == 0)
        return DIBS_OK;
    q = question_new(host, number);
    if (!q)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (start_thread(q) != 0) {
        question_leave(q);
        question_leave(q);
        return dibs__fail(err, DIBS_UNAVAILABLE, "no thread for looking up the host '%.200s'",
                          host);
    }
    if (!wait_for_answer(q, env, until)) {
        status =
            dibs__fail(err, DIBS_UNAVAILABLE, "looking up the host '%.200s' took too long", host);
    } else if (q->result != 0) {
        status = tell(q->result, host, err);
    } else {
        *out = q->addresses;
        q->addresses = NULL;
    }
    question_leave(q);
    return status;
}
