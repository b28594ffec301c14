/* What dibs leaves alone in the program that uses it: how signals are handled, which are blocked, and its
 * table of descriptors, also when opening fails. The libraries of the engines are set up by the first
 * handle: so the program opens nothing before. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nobody listens at port 1. */
static const char *const urls[] = {
    "redis://127.0.0.1:1",
    "rediss://127.0.0.1:1",
    "redlock://127.0.0.1:1,127.0.0.1:1,127.0.0.1:1",
    "postgresql://nobody@127.0.0.1:1/none",
    "postgresql://nobody@localhost:1/none?sslmode=require",
    "mysql://nobody@127.0.0.1:1/none",
    "mysql://nobody@localhost:1/none?tls=required",
    "zookeeper://127.0.0.1:1",
    "etcd://127.0.0.1:1",
    "sqlite:///dev/null/no/such/folder",
    "memory:here",
};

typedef struct traces {
    struct sigaction action[NSIG];
    sigset_t mask;
    int descriptors;
} traces;

static int count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void look(traces *t)
{
    memset(t, 0, sizeof *t);
    for (int i = 1; i < NSIG; i++)
        sigaction(i, NULL, &t->action[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &t->mask);
    t->descriptors = count_descriptors();
}

static void compare(const traces *was, const char *url)
{
    traces is;

    look(&is);
    for (int i = 1; i < NSIG; i++) {
        if (is.action[i].sa_handler != was->action[i].sa_handler)
            fail_msg("%s: signal %d (%s) is handled in another way", url, i, sigabbrev_np(i));
        if (sigismember(&is.mask, i) != sigismember(&was->mask, i))
            fail_msg("%s: signal %d (%s) is blocked, or no longer", url, i, sigabbrev_np(i));
    }
    if (is.descriptors > was->descriptors)
        fail_msg("%s: %d descriptors more", url, is.descriptors - was->descriptors);
}

static void nothing_is_left_behind(void **state)
{
    static traces before;

    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        dibs *d = NULL;
        dibs_error err = {0};
        look(&before);
        if (dibs_open(urls[i], &(dibs_options){.connect_ms = 2000}, &d, &err) == DIBS_OK)
            dibs_close(d);
        compare(&before, urls[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_left_behind)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
