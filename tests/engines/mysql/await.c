/* Waiting for another's run: woken, and how often anybody looks, counted by the server itself. */
#define _GNU_SOURCE
#include "suite.h"

#include "core/handle.h"
#include "support/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DUPLICATES  8
#define WATCHED_MS  2500
#define PATIENCE_MS 60000 /* of those who must not need it */

static int64_t status_of(const char *variable)
{
    return ask(&the_server,
               "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
               "WHERE VARIABLE_NAME = '%s'",
               variable);
}

/* How often anybody has begun a run, looked at one, or left a mark: nothing else is an INSERT …
 * SELECT. */
static int64_t looks(void)
{
    return status_of("COM_INSERT_SELECT");
}

static int64_t kills(void)
{
    return status_of("COM_KILL");
}

static int64_t marks(void)
{
    return ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_wake WHERE wake LIKE 'c:%%'");
}

/* Marks and what became of them. */
static int64_t left_behind(void)
{
    return ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_wake "
                            "WHERE wake LIKE 'c:%%' OR text LIKE 'c:%%'");
}

/* Handles whose sleeping session is asleep. */
static int64_t sleepers(void)
{
    return ask(&the_server, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "
                            "WHERE INFO LIKE 'SELECT IF(GET_LOCK%%' AND STATE = 'User lock'");
}

static int64_t sessions(void)
{
    return ask(&the_server, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "
                            "WHERE USER = 'app'");
}

static void wait_for(int64_t (*what)(void), int64_t count)
{
    int64_t end = clock_ms() + LONG_MS;

    while (what() != count) {
        assert_true(clock_ms() < end);
        sleep_ms(10);
    }
}

/* ---- Duplicates of a run --------------------------------------------------------------------- */

typedef struct duplicate {
    pthread_t thread;
    dibs *d;
    const char *key;
    dibs_status status;
    char result[16];
} duplicate;

static void *run_duplicate(void *arg)
{
    duplicate *u = arg;
    dibs_once_options o = {.wait_ms = PATIENCE_MS};
    dibs_once *once = NULL;
    const void *result;
    size_t size = 0;

    u->status = dibs_once_begin(u->d, u->key, &o, &once, NULL);
    if (u->status == DIBS_ALREADY && (result = dibs_once_result(once, &size)) && size < 16)
        memcpy(u->result, result, size);
    dibs_once_free(once);
    return NULL;
}

static dibs_once *begin(dibs *d, const char *key)
{
    dibs_error err = {0};
    dibs_once *o = NULL;

    if (dibs_once_begin(d, key, NULL, &o, &err) != DIBS_OK)
        fail_msg("%s: %s", key, err.message);
    return o;
}

static void start(duplicate *u, dibs *d, const char *key)
{
    *u = (duplicate){.d = d, .key = key};
    assert_int_equal(pthread_create(&u->thread, NULL, run_duplicate, u), 0);
}

static void finish_and_join(dibs_once *o, duplicate *u, int count)
{
    assert_status(dibs_once_finish(o, "paid", 4, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    for (int i = 0; i < count; i++) {
        pthread_join(u[i].thread, NULL);
        assert_status(u[i].status, DIBS_ALREADY);
        assert_string_equal(u[i].result, "paid");
    }
}

/* Eight of one handle and one of another: one sleeping session each; a look and a mark each, and
 * again every second, the core's bound for wake-ups that are lost. Without waiting it would be
 * fourteen looks each in this time. */
static void duplicates_wait_without_looking(void **state)
{
    dibs *a = open_app(), *b = open_app(), *c = open_app();
    dibs_once *o = begin(a, "watched");
    int64_t began, looked, killed, seconds;
    duplicate u[DUPLICATES + 1];

    (void)state;
    wait_for(sleepers, 0);
    began = clock_ms();
    looked = looks();
    for (int i = 0; i <= DUPLICATES; i++)
        start(&u[i], i < DUPLICATES ? b : c, "watched");
    wait_for(sleepers, 2);
    wait_for(marks, 2);
    sleep_ms(WATCHED_MS);
    looked = looks() - looked;
    seconds = (clock_ms() - began) / 1000 + 1;
    print_message("# %d duplicates: %d looks in %d s, %d sessions in three handles\n",
                  DUPLICATES + 1, (int)looked, (int)seconds, (int)sessions());
    assert_in_range(looked, 2 * (DUPLICATES + 1), (DUPLICATES + 1) * 2 * (seconds + 2));
    killed = kills();
    finish_and_join(o, u, DUPLICATES + 1);
    assert_in_range(kills() - killed, 1, 2); /* one a handle, if it is not just looking */
    dibs_close(a);
    dibs_close(b);
    dibs_close(c);
    assert_int_equal(left_behind(), 0);
}

/* The mark is gone when the run ends: the waiter's own look finds the result. */
static void a_lost_wake_up_costs_one_look(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_once *o = begin(a, "lost");
    int64_t killed = kills(), looked = looks(), began = clock_ms();
    duplicate u;

    (void)state;
    start(&u, b, "lost");
    wait_for(marks, 1);
    ask(&the_server, "DELETE FROM dibs.dibs_wake WHERE wake LIKE 'c:%%'");
    finish_and_join(o, &u, 1);
    looked = looks() - looked;
    print_message("# %d looks, %d kills, after %d ms\n", (int)looked, (int)(kills() - killed),
                  (int)(clock_ms() - began));
    assert_in_range(looked, 3, 2 * ((clock_ms() - began) / 1000 + 2));
    dibs_close(a);
    dibs_close(b);
}

/* ---- One wait that nothing but a wake-up ends ------------------------------------------------ */

typedef struct cell_waiter {
    pthread_t thread;
    dibs *d;
    const char *key;
    uint64_t version;
    int64_t patience; /* ms */
    dibs_status status;
    int64_t took; /* ms */
} cell_waiter;

static void *sit(void *arg)
{
    cell_waiter *s = arg;
    int64_t began = clock_ms();

    dibs__begin_call(s->d);
    s->status = dibs__cell_wait(s->d, s->key, s->version,
                                dibs__after(s->d->env, s->patience * DIBS__MS), NULL);
    dibs__end_call(s->d);
    s->took = clock_ms() - began;
    return NULL;
}

static void start_waiting(cell_waiter *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, sit, s), 0);
}

/* Asked again with the same stamp until it is answered. */
static uint64_t swap(dibs *d, const char *key, uint64_t version, const char *stamp, bool notify)
{
    dibs__cell_command put = {
        .op = DIBS__CELL_SWAP, .version = version, .data = "x", .size = 1, .stamp = stamp};
    dibs__cell_reply r = {0};
    dibs_error err = {0};
    dibs_status status;

    do
        status = d->class->cell(d->engine, key, &put, notify,
                                dibs__after(d->env, LONG_MS * DIBS__MS), &r, &err);
    while (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    if (status != DIBS_OK)
        fail_msg("%s: %s", key, err.message);
    assert_int_equal(r.verdict, DIBS__CELL_DONE);
    free(r.data);
    return r.version;
}

/* Again and again, the change at another moment each time: before the session has connected,
 * between two of its rounds, while it sleeps. Every second time a change comes first that nobody
 * is told of. */
static void every_change_ends_the_wait(void **state)
{
    dibs *a = open_app(), *b = open_app();
    char stamp[16];
    int64_t slowest = 0;
    cell_waiter s = {.d = b, .key = "c:sat", .patience = PATIENCE_MS};

    (void)state;
    s.version = swap(a, s.key, 0, "first", false);
    for (int i = 0; i < 40; i++) {
        uint64_t next = s.version;
        start_waiting(&s);
        if (i % 4 != 0)
            wait_for(marks, 1);
        if (i % 4 == 3)
            wait_for(sleepers, 1);
        snprintf(stamp, sizeof stamp, "%d-quiet", i);
        if (i % 2 != 0)
            next = swap(a, s.key, next, stamp, false);
        snprintf(stamp, sizeof stamp, "%d", i);
        next = swap(a, s.key, next, stamp, true);
        pthread_join(s.thread, NULL);
        assert_status(s.status, DIBS_OK);
        if (s.took > slowest)
            slowest = s.took;
        s.version = next;
        wait_for(marks, 0);
    }
    print_message("# 40 waits, the longest %d ms\n", (int)slowest);
    assert_true(slowest < PATIENCE_MS / 2);
    dibs_close(a);
    dibs_close(b);
    assert_int_equal(left_behind(), 0);
}

#define CUT_WAIT_MS 2000 /* if nobody tells */

/* One wait and one change. The mark may be that of an earlier round, too: it goes with this one. */
static void wait_and_swap(cell_waiter *s, dibs *changer, proxy *p, proxy_way way, int64_t at)
{
    static int number;
    int64_t end = clock_ms() + LONG_MS;
    char stamp[16];

    start_waiting(s);
    while (ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_wake WHERE wake LIKE 'c:%%:%llu'",
               (unsigned long long)s->version) == 0)
        assert_true(clock_ms() < end);
    if (at >= 0)
        proxy_cut(p, way, at, at % 2 != 0);
    snprintf(stamp, sizeof stamp, "cut-%d", number++);
    s->version = swap(changer, s->key, s->version, stamp, true);
    proxy_heal(p);
    pthread_join(s->thread, NULL);
    assert_status(s->status, DIBS_OK);
}

/* The change, or what is told after it, is cut: it is done once, and nobody waits beyond his time. */
static void a_change_may_be_cut_anywhere(void **state)
{
    static const int step[] = {[PROXY_UP] = 97, [PROXY_DOWN] = 167};
    dibs *b = open_app(), *a;
    cell_waiter s = {.d = b, .key = "c:severed", .patience = CUT_WAIT_MS};
    proxy_counts counts;
    char url[128];
    proxy *p;

    (void)state;
    p = proxy_start(the_server.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs", proxy_port(p));
    a = open_url(url);
    s.version = swap(a, s.key, 0, "first", false);
    for (int i = 0; i < 3; i++) { /* the last without preparing anything */
        proxy_reset_counts(p);
        wait_and_swap(&s, a, p, PROXY_UP, -1);
        proxy_read(p, &counts);
    }
    for (int way = 0; way < 2; way++)
        for (int64_t at = 0; at <= counts.bytes[way]; at += step[way])
            wait_and_swap(&s, a, p, (proxy_way)way, at);
    print_message("# %d bytes up, %d down\n", (int)counts.bytes[PROXY_UP],
                  (int)counts.bytes[PROXY_DOWN]);
    dibs_close(a);
    dibs_close(b);
    assert_int_equal(left_behind(), 0);
    proxy_stop(p);
}

/* A wait in vain, and the handle's end: its mark goes with it. */
static void a_mark_goes_with_its_handle(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_once *o = begin(a, "vain"), *none = NULL;

    (void)state;
    assert_status(dibs_once_begin(b, "vain", &(dibs_once_options){.wait_ms = 1500}, &none, NULL),
                  DIBS_RUNNING);
    dibs_once_free(none);
    assert_int_equal(marks(), 1);
    dibs_close(b);
    assert_int_equal(marks(), 0);
    assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    dibs_close(a);
}

static const struct CMUnitTest all[] = {
    CASE(duplicates_wait_without_looking), CASE(a_lost_wake_up_costs_one_look),
    CASE(every_change_ends_the_wait),      CASE(a_change_may_be_cut_anywhere),
    CASE(a_mark_goes_with_its_handle),
};

CASES(await_cases, all);
