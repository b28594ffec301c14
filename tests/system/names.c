#define _GNU_SOURCE
#include "names.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <string.h>

typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool stopped;
static int waiting, answered;

void names_stop(void)
{
    pthread_mutex_lock(&lock);
    stopped = true;
    pthread_mutex_unlock(&lock);
}

void names_go_on(void)
{
    pthread_mutex_lock(&lock);
    stopped = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

int names_waiting(void)
{
    int n;

    pthread_mutex_lock(&lock);
    n = waiting;
    pthread_mutex_unlock(&lock);
    return n;
}

int names_answered(void)
{
    int n;

    pthread_mutex_lock(&lock);
    n = answered;
    pthread_mutex_unlock(&lock);
    return n;
}

static void stand_still(void)
{
    pthread_mutex_lock(&lock);
    waiting++;
    while (stopped)
        pthread_cond_wait(&changed, &lock);
    waiting--;
    answered++;
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    look_up *next = (look_up *)dlsym(RTLD_NEXT, "getaddrinfo");
    size_t n = node ? strlen(node) : 0;

    if (n > 5 && strcmp(node + n - 5, ".test") == 0 &&
        !(hints && hints->ai_flags & AI_NUMERICHOST)) {
        stand_still();
        node = "127.0.0.1";
    }
    return next(node, service, hints, out);
}
