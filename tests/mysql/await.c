/* Waiting for another's run: woken, and how often anybody looks, counted by the server itself. */
#define _GNU_SOURCE
#include "mysql/suite.h"

#include "core/handle.h"

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
    assert_in_range(looked, 2 * (DUPLICATES + 1), (DUPLICATES + 1) * 2 * (seconds + 1));
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

typedef struct sitter {
    pthread_t thread;
    dibs *d;
    const char *key;
    uint64_t version;
    dibs_status status;
    int64_t took; /* ms */
} sitter;

static void *sit(void *arg)
{
    sitter *s = arg;
    int64_t began = clock_ms();

    s->status = s->d->class->cell_wait(s->d->engine, s->key, s->version,
                                       dibs__after(s->d->env, PATIENCE_MS * DIBS__MS), NULL);
    s->took = clock_ms() - began;
    return NULL;
}

static void start_sitting(sitter *s)
{
    pthread_mutex_lock(&s->d->mutex);
    assert_true(dibs__keeper_start(s->d));
    pthread_mutex_unlock(&s->d->mutex);
    assert_int_equal(pthread_create(&s->thread, NULL, sit, s), 0);
}

static uint64_t swap(dibs *d, const char *key, uint64_t version, const char *stamp, bool tell)
{
    dibs__cell_command put = {
        .op = DIBS__CELL_SWAP, .version = version, .data = "x", .size = 1, .stamp = stamp};
    dibs__cell_reply r = {0};
    dibs_error err = {0};

    if (d->class->cell(d->engine, key, &put, tell, dibs__after(d->env, LONG_MS * DIBS__MS), &r,
                       &err) != DIBS_OK)
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
    sitter s = {.d = b, .key = "c:sat"};

    (void)state;
    s.version = swap(a, s.key, 0, "first", false);
    for (int i = 0; i < 40; i++) {
        uint64_t next = s.version;
        start_sitting(&s);
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

/* A refused change is none: nobody is woken for it. */
static void a_refused_change_wakes_nobody(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs__cell_command late = {
        .op = DIBS__CELL_SWAP, .version = 1, .data = "x", .size = 1, .stamp = "late"};
    dibs__cell_reply r = {0};
    sitter s = {.d = b, .key = "c:refused"};
    int64_t killed;

    (void)state;
    s.version = swap(a, s.key, 0, "1", false);
    start_sitting(&s);
    wait_for(marks, 1);
    killed = kills();
    assert_status(a->class->cell(a->engine, s.key, &late, true,
                                 dibs__after(a->env, LONG_MS * DIBS__MS), &r, NULL),
                  DIBS_OK);
    assert_int_equal(r.verdict, DIBS__CELL_CONFLICT);
    free(r.data);
    assert_int_equal(kills(), killed);
    assert_int_equal(marks(), 1);
    swap(a, s.key, s.version, "2", true);
    pthread_join(s.thread, NULL);
    assert_status(s.status, DIBS_OK);
    assert_true(s.took < PATIENCE_MS / 2);
    dibs_close(a);
    dibs_close(b);
}

/* A wait in vain, and the handle's end: its mark goes with it. */
static void a_mark_goes_with_its_handle(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_once *o = begin(a, "vain"), *none = NULL;

    (void)state;
    assert_status(dibs_once_begin(b, "vain", &(dibs_once_options){.wait_ms = 300}, &none, NULL),
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
    CASE(every_change_ends_the_wait),      CASE(a_refused_change_wakes_nobody),
    CASE(a_mark_goes_with_its_handle),
};

CASES(await_cases, all);
