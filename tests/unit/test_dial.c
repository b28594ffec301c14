/* Connecting within a deadline: the task that is left to its thread (net/detached), the look-up of a host name
 * (net/resolve), the address that stays silent (net/dial). */
#define _GNU_SOURCE
#include "core/thread.h"
#include "net/detached.h"
#include "net/dial.h"
#include "net/resolve.h"
#include "support/clock.h"
#include "support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ENOUGH (20 * DIBS__SECOND)

static const dibs__env *const env = &dibs__env_system;
static dibs_error err;

/* ---- A task of its own thread ----------------------------------------------------------------- */

typedef struct task {
    int go; /* an eventfd: it runs until this is rung; -1: not at all */
    int dropped;
} task;

static void run_task(void *arg)
{
    eventfd_t n;

    if (((task *)arg)->go >= 0)
        eventfd_read(((task *)arg)->go, &n);
}

static void drop_task(void *arg)
{
    eventfd_write(((task *)arg)->dropped, 1);
}

static bool is_rung(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    eventfd_t n;

    return poll(&p, 1, (int)(ENOUGH / DIBS__MS)) == 1 && eventfd_read(fd, &n) == 0;
}

static void a_task_in_time_comes_back(void **state)
{
    task t = {.go = -1, .dropped = eventfd(0, EFD_CLOEXEC)};
    int notice = eventfd(0, EFD_CLOEXEC);
    struct pollfd dropped = {t.dropped, POLLIN, 0};
    dibs__detached *a = dibs__detached_start(run_task, drop_task, &t, notice);

    (void)state;
    assert_non_null(a);
    assert_true(is_rung(notice));
    assert_true(dibs__detached_wait(a, env, dibs__after(env, ENOUGH)));
    assert_true(dibs__detached_is_over(a));
    assert_true(dibs__detached_end(a));
    assert_int_equal(poll(&dropped, 1, 0), 0); /* it is ours */
    close(notice);
    close(t.dropped);
}

static void a_late_task_is_dropped_by_its_thread(void **state)
{
    task t = {.go = eventfd(0, EFD_CLOEXEC), .dropped = eventfd(0, EFD_CLOEXEC)};
    dibs__detached *a = dibs__detached_start(run_task, drop_task, &t, -1);

    (void)state;
    assert_non_null(a);
    assert_false(dibs__detached_wait(a, env, dibs__after(env, 10 * DIBS__MS)));
    assert_false(dibs__detached_is_over(a));
    assert_false(dibs__detached_end(a));
    assert_int_equal(eventfd_write(t.go, 1), 0);
    assert_true(is_rung(t.dropped));
    close(t.go);
    close(t.dropped);
}

static void a_task_without_a_notice_is_not_started(void **state)
{
    task t = {.go = -1, .dropped = -1};

    (void)state;
    assert_null(dibs__detached_start(run_task, drop_task, &t, 1 << 20)); /* no such descriptor */
}

/* ---- Names ------------------------------------------------------------------------------------ */

static void a_name_is_looked_up(void **state)
{
    struct addrinfo *list = NULL;

    (void)state;
    assert_int_equal(dibs__resolve(env, "localhost", 80, dibs__after(env, ENOUGH), &list, &err),
                     DIBS_OK);
    assert_non_null(list);
    freeaddrinfo(list);
}

/* An empty label is in no name: it is refused without asking any server. */
static void a_wrong_name_is_named(void **state)
{
    struct addrinfo *list = NULL;

    (void)state;
    assert_int_equal(dibs__resolve(env, "no..host", 80, dibs__after(env, ENOUGH), &list, &err),
                     DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "cannot resolve the host 'no..host'"));
}

/* The answer may be there before anybody looks at the clock; mostly it is not. */
static void nobody_waits_longer_for_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct addrinfo *list = NULL;
        dibs_status status = dibs__resolve(env, "localhost", 80, dibs__now(env) - 1, &list, &err);
        assert_true(status == DIBS_OK || status == DIBS_UNAVAILABLE);
        if (status == DIBS_OK)
            freeaddrinfo(list);
        else
            assert_non_null(strstr(err.message, "'localhost' timed out"));
    }
}

/* ---- Addresses -------------------------------------------------------------------------------- */

typedef struct listener {
    int fd;
    struct sockaddr_in at;
} listener;

static listener listen_with(int backlog)
{
    listener l = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                  .at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    socklen_t size = sizeof l.at;

    assert_int_equal(bind(l.fd, (struct sockaddr *)&l.at, size), 0);
    assert_int_equal(getsockname(l.fd, (struct sockaddr *)&l.at, &size), 0);
    if (backlog >= 0)
        assert_int_equal(listen(l.fd, backlog), 0);
    return l;
}

static int dial(const listener *l, int stop_fd, int64_t span)
{
    return dibs__dial_address(env, (const struct sockaddr *)&l->at, sizeof l->at, stop_fd,
                              dibs__after(env, span));
}

static void a_listener_is_reached(void **state)
{
    listener l = listen_with(8);
    int fd = -1;

    (void)state;
    assert_int_equal(
        dibs__dial(env, "127.0.0.1", ntohs(l.at.sin_port), -1, dibs__after(env, ENOUGH), &fd, &err),
        DIBS_OK);
    assert_true(fd >= 0);
    close(fd);
    close(l.fd);
}

static void nobody_there_is_said(void **state)
{
    listener l = listen_with(-1);
    int fd = 0;

    (void)state;
    assert_int_equal(
        dibs__dial(env, "127.0.0.1", ntohs(l.at.sin_port), -1, dibs__after(env, ENOUGH), &fd, &err),
        DIBS_UNAVAILABLE);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "is the server running there?"));
    assert_int_equal(dibs__dial(env, "no..host", 80, -1, dibs__after(env, ENOUGH), &fd, &err),
                     DIBS_UNAVAILABLE);
    close(l.fd);
}

/* A listener whose queue is full answers no more, like a host that is switched off. */
static listener silent(int queued[], int count)
{
    listener l = listen_with(0);

    for (int i = 0; i < count; i++) {
        queued[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(queued[i], (struct sockaddr *)&l.at, sizeof l.at);
    }
    return l;
}

static void a_silent_address_is_given_up(void **state)
{
    int queued[4], stop = eventfd(1, EFD_CLOEXEC), fd = 0;
    listener l = silent(queued, 4);
    int64_t start = clock_ms();

    (void)state;
    assert_int_equal(dial(&l, -1, 50 * DIBS__MS), -1);
    assert_int_equal(errno, ETIMEDOUT);
    assert_int_equal(dial(&l, stop, ENOUGH), -1);
    assert_int_equal(errno, ECANCELED);
    assert_int_equal(dibs__dial(env, "127.0.0.1", ntohs(l.at.sin_port), stop,
                                dibs__after(env, ENOUGH), &fd, &err),
                     DIBS_UNAVAILABLE);
    assert_true(clock_ms() - start < ENOUGH / DIBS__MS);
    for (int i = 0; i < 4; i++)
        close(queued[i]);
    close(stop);
    close(l.fd);
}

static void an_unknown_kind_of_address_is_refused(void **state)
{
    struct sockaddr odd = {.sa_family = AF_MAX};

    (void)state;
    assert_int_equal(dibs__dial_address(env, &odd, sizeof odd, -1, dibs__after(env, ENOUGH)), -1);
    assert_int_equal(errno, EAFNOSUPPORT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_in_time_comes_back),
        cmocka_unit_test(a_late_task_is_dropped_by_its_thread),
        cmocka_unit_test(a_task_without_a_notice_is_not_started),
        cmocka_unit_test(a_name_is_looked_up),
        cmocka_unit_test(a_wrong_name_is_named),
        cmocka_unit_test(nobody_waits_longer_for_a_name),
        cmocka_unit_test(a_listener_is_reached),
        cmocka_unit_test(nobody_there_is_said),
        cmocka_unit_test(a_silent_address_is_given_up),
        cmocka_unit_test(an_unknown_kind_of_address_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
