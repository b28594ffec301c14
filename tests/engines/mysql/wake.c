/* Wake-ups, and what they cost: counted by the server itself. */
#define _GNU_SOURCE
#include "suite.h"

#include "support/helper.h"
#include "support/proxy.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITERS 100

/* Statements that clients have sent, the asking included. */
static int64_t statements(void)
{
    return ask(&the_server, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
                            "WHERE VARIABLE_NAME = 'QUESTIONS'");
}

static void a_pair_is_two_round_trips(void **state)
{
    char url[128];
    proxy_counts counts;
    int64_t before;
    proxy *p;
    dibs *d;

    (void)state;
    need_server();
    p = proxy_start(the_server.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs", proxy_port(p));
    d = open_url(url);
    unlock(take(d, "pair", 0)); /* makes the row, prepares the statements */
    unlock(take(d, "pair", 0));
    proxy_reset_counts(p);
    before = statements();
    for (int i = 0; i < 50; i++)
        unlock(take(d, "pair", 0));
    proxy_read(p, &counts);
    /* Two statements a pair as they are sent; the server counts EXECUTE and what it executes. */
    print_message("# 50 pairs: %d round trips, %d statements by the server's count\n",
                  (int)counts.turns, (int)(statements() - before - 1));
    assert_in_range(counts.turns, 98, 101);
    dibs_close(d);
    proxy_stop(p);
}

/* The lock that `g` of `a` is, to `b` and back, so many times. Says how many were quick: a lost
 * wake-up is found by a keep-alive, two seconds after entering. A busy machine may delay some. */
static int hand_over(dibs *a, dibs *b, dibs_grant *g, int rounds)
{
    int64_t slowest = 0, before = 0;
    int quick = 0;
    char name[64];
    waiter w;

    snprintf(name, sizeof name, "%s", dibs_grant_name(g));
    for (int i = 0; i < rounds; i++) {
        int64_t begin;
        waiter_start(&w, i % 2 ? a : b, name, 0, true);
        wait_for_waiters(i % 2 ? b : a, name, 1);
        if (i == 2)
            before = statements();
        begin = clock_ms();
        assert_status(unlock(g), DIBS_OK);
        waiter_join(&w);
        g = w.g;
        quick += w.at - begin < 1000;
        if (w.at - begin > slowest)
            slowest = w.at - begin;
    }
    unlock(g);
    print_message("# %d hand-overs, slowest %d ms\n", rounds, (int)slowest);
    print_message("# %.1f statements each, with entering and the looks of this test\n",
                  (double)(statements() - before) / (rounds - 2));
    return quick;
}

/* From handle to handle and back, with one sleeping connection each. */
static void a_hand_over_wakes_at_once(void **state)
{
    dibs *a = open_app(), *b = open_app();

    (void)state;
    assert_in_range(hand_over(a, b, take(a, "pingpong", 0), 40), 30, 40);
    dibs_close(a);
    dibs_close(b);
}

/* Who hands over expects to wake whom it woke the last time, its own handle or another. Once the handles know that
 * there is a queue, every hand-over is one message. */
static void each_hand_over_wakes_its_handle(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs *next[] = {a, a, b, a, b, b, a};
    dibs_grant *g = take(a, "turns", 0);
    waiter w[sizeof next / sizeof next[0]];
    int64_t begin;

    (void)state;
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        waiter_start(&w[i], next[i], "turns", 0, true);
        wait_for_waiters(a, "turns", i + 1);
    }
    sleep_ms(300);
    begin = clock_ms();
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        assert_status(unlock(g), DIBS_OK);
        waiter_join(&w[i]);
        g = w[i].g;
    }
    print_message("# %d ms\n", (int)(clock_ms() - begin));
    assert_true(clock_ms() - begin < 1800); /* one that is missed costs up to two seconds */
    unlock(g);
    dibs_close(a);
    dibs_close(b);
}

/* The head of the queue is gone, so that the hand-over is not for the one statement. */
static void a_dead_head_is_passed_over(void **state)
{
    dibs *a = open_app(), *b = open_app(), *c = open_app();
    dibs_grant *g = take(a, "dead-head", 0);
    waiter first, second;

    (void)state;
    waiter_start(&first, b, "dead-head", 0, false);
    wait_for_waiters(a, "dead-head", 1);
    waiter_start(&second, c, "dead-head", 0, true);
    wait_for_waiters(a, "dead-head", 2);
    ask(&the_server, "UPDATE dibs.dibs_waiter SET alive_until = 1 WHERE name = 'dead-head' "
                     "ORDER BY place LIMIT 1");
    assert_status(unlock(g), DIBS_OK);
    waiter_join(&second);
    assert_int_equal(
        ask(&the_server, "SELECT MAX(held) FROM dibs.dibs_lock WHERE name = 'dead-head'"),
        second.fence);
    unlock(second.g);
    waiter_join(&first);
    assert_true(first.fence > second.fence);
    assert_int_equal(ask(&the_server,
                         "SELECT COUNT(*) + SUM(l.waiters) FROM dibs.dibs_lock l LEFT JOIN "
                         "dibs.dibs_waiter w USING (name) WHERE l.name = 'dead-head'"),
                     1);
    dibs_close(a);
    dibs_close(b);
    dibs_close(c);
}

static void waiting_costs_little(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_grant *g = take(a, "crowd", 0);
    waiter w[WAITERS];
    int64_t before, begin;
    double a_second;

    (void)state;
    for (int i = 0; i < WAITERS; i++)
        waiter_start(&w[i], b, "crowd", 0, false);
    wait_for_waiters(a, "crowd", WAITERS);
    sleep_ms(500);
    before = statements();
    begin = clock_ms();
    sleep_ms(6000);
    a_second = 1000.0 * (double)(statements() - before - 1) / (double)(clock_ms() - begin);
    print_message("# %d waiters: %.1f statements a second\n", WAITERS, a_second);
    assert_true(a_second <
                2.6 * WAITERS); /* five a keep-alive, one every two seconds, if none go together */
    before = statements();
    begin = clock_ms();
    unlock(g);
    for (int i = 0; i < WAITERS; i++)
        waiter_join(&w[i]);
    print_message("# %d hand-overs in one handle: %.1f statements each, %.2f ms each\n", WAITERS,
                  (double)(statements() - before - 1) / WAITERS,
                  (double)(clock_ms() - begin) / WAITERS);
    dibs_close(a);
    dibs_close(b);
    assert_int_equal(ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_wake"), 0);
}

/* One account may not kill another's queries: the waiter finds out by itself. */
static void another_account_is_served_too(void **state)
{
    dibs *a = open_app(), *b = open_url(url_of(&the_server, "other", ""));
    dibs_grant *g = take(a, "accounts", 0);
    waiter w;

    (void)state;
    waiter_start(&w, b, "accounts", 0, false);
    wait_for_waiters(a, "accounts", 1);
    sleep_ms(300);
    unlock(g);
    waiter_join(&w);
    dibs_close(a);
    dibs_close(b);
}

/* The session that sleeps; 0: none does. */
static int64_t sleeper(void)
{
    return ask(&the_server, "SELECT MAX(ID) FROM information_schema.PROCESSLIST "
                            "WHERE INFO LIKE 'SELECT IF(GET_LOCK%%' AND STATE = 'User lock'");
}

static int64_t sessions(void)
{
    return ask(&the_server, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "
                            "WHERE USER = 'app'");
}

static void wait_for(int64_t (*what)(void), bool some)
{
    int64_t end = clock_ms() + SOON_MS;

    while ((what() != 0) != some) {
        assert_true(clock_ms() < end);
        sleep_ms(10);
    }
}

static void a_killed_sleeper_comes_back(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_grant *g = take(a, "sleeper", 0);
    int64_t begin;
    waiter w;

    (void)state;
    waiter_start(&w, b, "sleeper", 0, false);
    wait_for_waiters(a, "sleeper", 1);
    wait_for(sleeper, true);
    ask(&the_server, "KILL CONNECTION %d", (int)sleeper());
    sleep_ms(500);
    begin = clock_ms();
    unlock(g);
    waiter_join(&w);
    print_message("# after %d ms\n", (int)(w.at - begin));
    dibs_close(a);
    dibs_close(b);
}

/* The sleeper waits for a user lock of another session of its handle: that one goes. */
static void another_session_takes_the_latch(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_grant *g = take(a, "latch", 0);
    int64_t asked = 20;
    waiter w;

    (void)state;
    waiter_start(&w, b, "latch", 0, false);
    wait_for_waiters(a, "latch", 1);
    wait_for(sleeper, true);
    for (int i = 0; i < 3; i++) {
        int64_t id = ask(&the_server, "SELECT IS_USED_LOCK(CONCAT('dibs:latch:', wake)) FROM "
                                      "dibs.dibs_waiter WHERE name = 'latch'");
        assert_true(id != 0);
        ask(&the_server, "KILL CONNECTION %d", (int)id);
        sleep_ms(300);
        wait_for(sleeper, true);
    }
    for (int i = 0; i < 5 && asked >= 20;
         i++) { /* nobody polls, once all have found their places */
        int64_t before = statements();
        sleep_ms(1000);
        asked = statements() - before;
    }
    assert_true(asked < 20);
    unlock(g);
    waiter_join(&w);
    assert_in_range(hand_over(a, b, take(a, "latch", 0), 6), 4, 6);
    dibs_close(a);
    dibs_close(b);
}

static void nobody_sleeps_on(void **state)
{
    dibs *a, *b;
    dibs_grant *g, *none;
    helper h;

    (void)state;
    need_server();
    wait_for(sessions, false);
    a = open_app();
    b = open_app();
    g = take(a, "left", 0);
    assert_status(dibs_lock(b, "left", &(dibs_lock_options){.wait_ms = 300}, &none, NULL),
                  DIBS_BUSY);
    dibs_close(b);
    assert_int_equal(helper_start(&h, url_of(&the_server, "app", "")), 0);
    helper_say(&h, "lock left 30000 20000 -");
    wait_for_waiters(a, "left", 1);
    wait_for(sleeper, true);
    helper_signal(&h, SIGKILL);
    wait_for(sleeper, false);
    unlock(g);
    dibs_close(a);
    wait_for(sessions, false);
}

#define CROWD   12
#define VISITS  12
#define SLOW_MS 1900 /* the stalls that this is about took two seconds */

static const char *visited;

typedef struct visits {
    int64_t slowest;
    int slow, failed;
} visits;

/* A new handle each time; the time from opening it to a lock. */
static void *visitor(void *notes)
{
    visits *v = notes;

    for (int i = 0; i < VISITS; i++) {
        int64_t begin = clock_ms();
        dibs_grant *g = NULL;
        dibs *d = NULL;
        if (dibs_open(visited, NULL, &d, NULL) != DIBS_OK ||
            dibs_lock(d, "visit", &(dibs_lock_options){.wait_ms = LONG_MS}, &g, NULL) != DIBS_OK)
            v->failed++;
        begin = clock_ms() - begin;
        v->slow += begin > SLOW_MS;
        if (begin > v->slowest)
            v->slowest = begin;
        if (g)
            unlock(g);
        dibs_close(d);
    }
    return NULL;
}

/* Sleepers come, go and are woken all the time: no one's kill waits for another's sleep. */
static void a_coming_and_going_stalls_nobody(void **state)
{
    pthread_t thread[CROWD];
    visits v[CROWD] = {0}, all = {0};
    int64_t begin = clock_ms();

    (void)state;
    need_server();
    visited = url_of(&the_server, "app", "");
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, visitor, &v[i]), 0);
    for (int i = 0; i < CROWD; i++) {
        pthread_join(thread[i], NULL);
        all.slow += v[i].slow;
        all.failed += v[i].failed;
        if (v[i].slowest > all.slowest)
            all.slowest = v[i].slowest;
    }
    print_message("# %d handles, one after another: %d ms, slowest %d ms, %d slow\n",
                  CROWD * VISITS, (int)(clock_ms() - begin), (int)all.slowest, all.slow);
    assert_int_equal(all.failed, 0);
    assert_in_range(all.slow, 0, CROWD); /* one stall of the whole machine meets all of them */
}

static const struct CMUnitTest all[] = {
    CASE(a_pair_is_two_round_trips),
    CASE(a_hand_over_wakes_at_once),
    CASE(each_hand_over_wakes_its_handle),
    CASE(a_dead_head_is_passed_over),
    CASE(waiting_costs_little),
    CASE(another_account_is_served_too),
    CASE(a_killed_sleeper_comes_back),
    CASE(another_session_takes_the_latch),
    CASE(nobody_sleeps_on),
    CASE(a_coming_and_going_stalls_nobody),
};

CASES(wake_cases, all);
