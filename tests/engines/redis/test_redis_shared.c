/* The connections of one Redis handle, shared by its threads: impatient callers beside patient ones, a
 * server that stops for a while, all connections cut at once, and requests that arrive after the handle has given
 * their connection up. After every fault the same handle must work. */
#define _GNU_SOURCE
#include "support/test.h"

#include "support/calls.h"
#include "support/clock.h"
#include "support/proxy.h"
#include "support/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOON_MS 10000 /* what happens "at once" happens within this, on the slowest machine */

static server s;
static proxy *p;
static dibs *far, *near; /* far: through the proxy */
static char far_url[64];
static atomic_int warnings;

static int set_up(void **state)
{
    (void)state;
    memset(&s, 0, sizeof s);
    p = NULL;
    far = near = NULL;
    atomic_store(&warnings, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dibs_close(far);
    dibs_close(near);
    if (p)
        proxy_stop(p);
    server_stop(&s);
    return 0;
}

static void note_warning(void *data, dibs_log_level level, const char *message)
{
    (void)data;
    if (level == DIBS_LOG_WARNING &&
        (strstr(message, "client|kill") || strstr(message, "subscribe")))
        atomic_fetch_add(&warnings, 1);
}

/* A server, a proxy before it, a handle through the proxy and one straight to the server. */
static void need(int64_t request_ms)
{
    server_need(&s, NULL);
    p = proxy_start(s.port);
    assert_non_null(p);
    snprintf(far_url, sizeof far_url, "redis://127.0.0.1:%d", proxy_port(p));
    near = expect_open(s.url, NULL);
    far = expect_open(far_url, &(dibs_options){.request_ms = request_ms, .log = note_warning});
}

/* The handle works: within SOON_MS, asked again and again. */
static bool works(void *ctx)
{
    dibs *d = ctx;
    dibs_grant *g = NULL;

    if (dibs_counter_add(d, "works", 1, NULL, NULL, NULL) != DIBS_OK ||
        dibs_lock(d, "works", &(dibs_lock_options){.wait_ms = 1000}, &g, NULL) != DIBS_OK)
        return false;
    return unlock(g) == DIBS_OK;
}

static void expect_works(dibs *d)
{
    dibs_error err = {0};

    if (wait_until(works, d, SOON_MS))
        return;
    dibs_counter_add(d, "works", 1, NULL, NULL, &err);
    fail_msg("the handle does not work any more: %s", err.message);
}

/* ---- The role of the driver ------------------------------------------------------------------ */

static void count_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    (void)status, (void)err;
    if (g)
        unlock(g);
    ++*(int *)data;
}

static void impatient_requests_do_not_wedge_the_handle(void **state)
{
    enum { TICKETS = 600 };
    dibs_grant *g;
    int reported = 0;

    (void)state;
    need(0);
    g = expect_lock(far, "held", NULL);
    for (int i = 0; i < TICKETS; i++) {
        dibs_lock_options o = {.wait_ms = 1};
        start_lock(near, i % 2 ? "held" : "free", &o, count_outcome, &reported, NULL, NULL);
        take_all(near);
    }
    for (int64_t end = clock_ms() + SOON_MS; reported < TICKETS && clock_ms() < end; sleep_ms(1))
        take_all(near);
    assert_int_equal(reported, TICKETS);
    expect_works(near);
    assert_true(dibs_grant_held(g));
    unlock(g);
}

typedef struct worker {
    pthread_t thread;
    dibs *d;
    int number;
    atomic_bool *over;
    bool worked; /* afterwards */
} worker;

static void *run_worker(void *arg)
{
    worker *w = arg;
    char name[32];

    snprintf(name, sizeof name, "of %d", w->number);
    while (!atomic_load(w->over)) {
        dibs_grant *g = NULL;
        dibs_lock_options o = {.wait_ms = w->number % 3 == 0 ? 1 : 300};
        dibs_counter_add(w->d, name, 1, NULL, NULL, NULL);
        if (dibs_lock(w->d, w->number % 2 ? "shared" : name, &o, &g, NULL) == DIBS_OK)
            unlock(g);
    }
    w->worked = wait_until(works, w->d, SOON_MS);
    return NULL;
}

/* Threads work on `d` while `disturb` runs; afterwards every call of every thread works. */
static void disturb_workers(dibs *d, int count, void (*disturb)(void))
{
    worker w[12];
    atomic_bool over = false;

    for (int i = 0; i < count; i++) {
        w[i] = (worker){.d = d, .number = i, .over = &over};
        assert_int_equal(pthread_create(&w[i].thread, NULL, run_worker, &w[i]), 0);
    }
    disturb();
    atomic_store(&over, true);
    for (int i = 0; i < count; i++)
        pthread_join(w[i].thread, NULL);
    for (int i = 0; i < count; i++)
        assert_true(w[i].worked);
    expect_works(d);
}

static void pause_server(void)
{
    sleep_ms(50);
    server_pause(&s);
    sleep_ms(1200);
    server_continue(&s);
}

static void a_paused_server_does_not_wedge_the_handle(void **state)
{
    (void)state;
    need(500);
    disturb_workers(far, 12, pause_server);
}

static void cut_all(void)
{
    for (int i = 0; i < 40; i++) {
        proxy_drop_all(p, false);
        sleep_ms(10);
    }
}

static void all_connections_cut_again_and_again(void **state)
{
    (void)state;
    need(500);
    disturb_workers(far, 1, cut_all);
    disturb_workers(far, 12, cut_all);
}

/* ---- Impatient callers beside patient ones --------------------------------------------------- */

typedef struct impatient {
    pthread_t thread;
    atomic_bool over;
} impatient;

static void *run_impatient(void *arg)
{
    impatient *x = arg;

    for (int i = 0; !atomic_load(&x->over); i++) {
        dibs_grant *g = NULL;
        char name[32];
        snprintf(name, sizeof name, "short %d", i % 7);
        if (dibs_lock(far, name, &(dibs_lock_options){.wait_ms = 1 + i % 12}, &g, NULL) == DIBS_OK)
            unlock(g);
    }
    return NULL;
}

static void short_waits_do_not_cut_the_connection_of_others(void **state)
{
    enum { ADDS = 200 };
    impatient x = {.over = false};
    proxy_counts counts;
    int failed = 0;

    (void)state;
    need(0);
    expect_works(far);
    proxy_delay(p, PROXY_DOWN, 8);
    proxy_reset_counts(p);
    assert_int_equal(pthread_create(&x.thread, NULL, run_impatient, &x), 0);
    for (int i = 0; i < ADDS; i++)
        failed += dibs_counter_add(far, "n", 1, NULL, NULL, NULL) != DIBS_OK;
    atomic_store(&x.over, true);
    pthread_join(x.thread, NULL);
    proxy_read(p, &counts);
    print_message("# %d of %d failed\n", failed, ADDS);
    assert_int_equal(failed, 0);
}

/* ---- Late requests --------------------------------------------------------------------------- */

static int64_t open_links(void)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.open;
}

static bool is_alone(void *ctx)
{
    return open_links() <= *(int64_t *)ctx;
}

/* What goes up from now on arrives much later, or not at all if its connection ends before. */
static void hold_back(void)
{
    proxy_delay(p, PROXY_UP, 2500);
}

/* The connections that were given up are gone: what they carried has arrived, or never will. `left` are in use. */
static void let_it_arrive(int64_t left)
{
    assert_true(wait_until(is_alone, &left, SOON_MS));
}

static void a_late_counter_set_changes_nothing(void **state)
{
    int64_t value = 0;

    (void)state;
    need(300);
    assert_status(dibs_counter_set(far, "n", 7, NULL, NULL), DIBS_OK);
    hold_back();
    assert_status(dibs_counter_set(far, "n", 1, NULL, NULL), DIBS_UNKNOWN);
    proxy_heal(p);
    assert_status(dibs_counter_set(far, "n", 2, NULL, NULL), DIBS_OK);
    let_it_arrive(1);
    assert_status(dibs_counter_get(near, "n", &value, NULL), DIBS_OK);
    assert_int_equal(value, 2);
}

static void a_late_lock_attempt_changes_nothing(void **state)
{
    dibs_lock_options once = {.wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = NULL, *none = NULL;

    (void)state;
    need(300);
    expect_works(far);
    hold_back();
    assert_int_not_equal(dibs_lock(far, "x", &once, &g, NULL), DIBS_OK);
    proxy_heal(p);
    g = expect_lock(far, "x", &(dibs_lock_options){.wait_ms = SOON_MS});
    let_it_arrive(1);
    assert_status(dibs_lock(near, "x", &once, &none, NULL), DIBS_BUSY);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    assert_true(dibs_grant_held(g));
    assert_int_equal(holders_of(near, "x"), 1);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(holders_of(near, "x"), 0);
}

/* The attempt is withdrawn by the keeper. What it asked for must not be granted to nobody afterwards. */
static void a_late_lock_attempt_holds_nothing(void **state)
{
    dibs_grant *g = NULL;

    (void)state;
    need(300);
    expect_works(far);
    hold_back();
    assert_int_not_equal(
        dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL), DIBS_OK);
    proxy_heal(p);
    expect_works(far);
    let_it_arrive(1);
    assert_int_equal(holders_of(near, "x"), 0);
}

static void a_late_begin_changes_nothing(void **state)
{
    dibs_once *run = NULL;

    (void)state;
    need(300);
    expect_works(far);
    hold_back();
    assert_int_not_equal(dibs_once_begin(far, "key", NULL, &run, NULL), DIBS_OK);
    proxy_heal(p);
    expect_works(far);
    let_it_arrive(1);
    assert_status(dibs_once_begin(near, "key", NULL, &run, NULL), DIBS_OK);
    assert_status(dibs_once_finish(run, "done", 4, 0, NULL), DIBS_OK);
}

static bool has_spoken(void *ctx)
{
    proxy_counts counts;

    (void)ctx;
    proxy_read(p, &counts);
    return counts.turns > 0;
}

static void *wait_for_x(void *ctx)
{
    (void)ctx;
    dibs_grant *g = NULL;
    dibs_status status = dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = 600}, &g, NULL);

    return (void *)(intptr_t)(status == DIBS_OK);
}

/* A thread that waits has a connection of its own. It is given up while the shared one goes on, on which the attempt
 * is withdrawn at once. */
static void a_late_waiter_is_not_queued(void **state)
{
    dibs_grant *g, *none = NULL;
    void *granted = NULL;
    pthread_t thread;

    (void)state;
    need(300);
    g = expect_lock(near, "x", NULL);
    for (int i = 0; i < 2; i++) /* the second time it is asked for on a connection of its own */
        assert_status(dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = 100}, &none, NULL),
                      DIBS_BUSY);
    hold_back();
    proxy_reset_counts(p);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_x, NULL), 0);
    assert_true(wait_until(has_spoken, NULL, SOON_MS));
    proxy_heal(p);
    pthread_join(thread, &granted);
    assert_null(granted);
    expect_works(far);
    dibs_close(far);
    far = NULL;
    let_it_arrive(0);
    assert_int_equal(waiters_of(near, "x"), 0);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(holders_of(near, "x"), 0);
}

typedef struct patient {
    dibs_grant *grant;
    atomic_bool through;
} patient;

static void *wait_patiently(void *ctx)
{
    patient *w = ctx;

    dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = 60000, .lease_ms = 1000}, &w->grant, NULL);
    atomic_store(&w->through, true);
    return NULL;
}

static bool is_queued(void *ctx)
{
    (void)ctx;
    return waiters_of(near, "x") == 1;
}

static bool is_free(void *ctx)
{
    (void)ctx;
    return holders_of(near, "x") == 0;
}

/* The answer to `enter` is lost; the entry is handed the lock, nobody hears of it, and its time is over; another
 * gets the lock. Then the waiter asks again under the same attempt and finds what was said to the first entry. */
static void an_old_hand_over_is_not_believed(void **state)
{
    patient w = {0};
    dibs_grant *g;
    pthread_t thread;
    uint64_t fence;

    (void)state;
    need(300);
    g = expect_lock(near, "x", NULL);
    proxy_freeze(p, PROXY_DOWN);
    assert_int_equal(pthread_create(&thread, NULL, wait_patiently, &w), 0);
    assert_true(wait_until(is_queued, NULL, SOON_MS));
    proxy_drop_all(p, true);
    assert_status(unlock(g), DIBS_OK);
    assert_true(wait_until(is_free, NULL, SOON_MS));
    g = expect_lock(near, "x", &(dibs_lock_options){.lease_ms = 60000});
    fence = dibs_grant_fence(g);
    proxy_heal(p);
    assert_true(wait_until(is_queued, NULL, SOON_MS));
    sleep_ms(700); /* what it was told is there, and is read at once */
    assert_false(atomic_load(&w.through));
    assert_status(unlock(g), DIBS_OK);
    pthread_join(thread, NULL);
    assert_non_null(w.grant);
    assert_true(dibs_grant_fence(w.grant) > fence);
    assert_status(unlock(w.grant), DIBS_OK);
}

static void *keep_busy(void *ctx)
{
    (void)ctx;
    server_command(&s, "EVAL \"while true do end\" 0", NULL, 0);
    return NULL;
}

static bool is_busy(void *ctx)
{
    char reply[64] = "";

    (void)ctx;
    return server_command(&s, "PING", reply, sizeof reply) == 0 && strncmp(reply, "-BUSY", 5) == 0;
}

/* Somebody's script makes the server refuse everything for a while, the end of a connection too: it is asked for
 * again. */
static void a_refused_end_is_asked_for_again(void **state)
{
    dibs_grant *g, *none = NULL;
    void *granted = NULL;
    pthread_t thread, script;

    (void)state;
    need(300);
    assert_int_equal(server_command(&s, "CONFIG SET lua-time-limit 10", NULL, 0), 0);
    g = expect_lock(near, "x", &(dibs_lock_options){.lease_ms = 60000});
    for (int i = 0; i < 2; i++) /* the second time it is asked for on a connection of its own */
        assert_status(dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = 100}, &none, NULL),
                      DIBS_BUSY);
    hold_back();
    proxy_reset_counts(p);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_x, NULL), 0);
    assert_true(wait_until(has_spoken, NULL, SOON_MS));
    proxy_heal(p);
    assert_int_equal(pthread_create(&script, NULL, keep_busy, NULL), 0);
    assert_true(wait_until(is_busy, NULL, SOON_MS));
    pthread_join(thread, &granted);
    assert_null(granted);
    assert_status(dibs_counter_add(far, "n", 1, NULL, NULL, NULL), DIBS_UNAVAILABLE);
    assert_int_equal(server_command(&s, "SCRIPT KILL", NULL, 0), 0);
    pthread_join(script, NULL);
    expect_works(far);
    dibs_close(far);
    far = NULL;
    let_it_arrive(0);
    assert_int_equal(waiters_of(near, "x"), 0);
    assert_status(unlock(g), DIBS_OK);
}

/* ---- A crowd --------------------------------------------------------------------------------- */

enum { CROWD = 1000, FEW = 2 }; /* connections: one for commands, one subscription */

static void *wait_long(void *ctx)
{
    dibs_grant *g = NULL;
    dibs_lock_options o = {.wait_ms = 12 * SOON_MS};

    (void)ctx;
    if (dibs_lock(far, "x", &o, &g, NULL) != DIBS_OK)
        return NULL;
    unlock(g);
    return far;
}

static bool all_wait(void *ctx)
{
    (void)ctx;
    return waiters_of(near, "x") == CROWD;
}

static bool two_wait(void *ctx)
{
    (void)ctx;
    return waiters_of(near, "x") == 2;
}

static bool are_few(void *ctx)
{
    (void)ctx;
    return open_links() == FEW;
}

/* However many threads wait, also after all connections were cut; and each of them gets its turn. */
static void a_thousand_threads_wait_on_two_connections(void **state)
{
    pthread_t *thread = calloc(CROWD, sizeof *thread);
    pthread_attr_t small;
    dibs_grant *g;

    (void)state;
    assert_non_null(thread);
    need(0);
    g = expect_lock(near, "x", &(dibs_lock_options){.lease_ms = 60000});
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(pthread_create(&thread[i], &small, wait_long, NULL), 0);
    pthread_attr_destroy(&small);
    assert_true(wait_until(all_wait, NULL, 3 * SOON_MS));
    assert_int_equal(open_links(), FEW);
    proxy_drop_all(p, false);
    assert_true(wait_until(are_few, NULL, SOON_MS));
    assert_status(unlock(g), DIBS_OK);
    for (int i = 0; i < CROWD; i++) {
        void *had = NULL;
        pthread_join(thread[i], &had);
        assert_non_null(had);
    }
    assert_int_equal(open_links(), FEW);
    free(thread);
}

/* A user who may not use the channel is told so once, and finds out by asking. */
static void without_the_channel_it_asks_and_warns_once(void **state)
{
    pthread_t thread[2];
    dibs_grant *g;

    (void)state;
    need(0);
    server_command(&s, "ACL SETUSER deaf on >word ~dibs:* resetchannels +@all", NULL, 0);
    dibs_close(far);
    snprintf(far_url, sizeof far_url, "redis://deaf:word@127.0.0.1:%d", s.port);
    far = expect_open(far_url, &(dibs_options){.log = note_warning});
    g = expect_lock(near, "x", &(dibs_lock_options){.lease_ms = 60000});
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, wait_long, NULL), 0);
    assert_true(wait_until(two_wait, NULL, SOON_MS));
    assert_status(unlock(g), DIBS_OK);
    for (int i = 0; i < 2; i++) {
        void *had = NULL;
        pthread_join(thread[i], &had);
        assert_non_null(had);
    }
    assert_int_equal(atomic_load(&warnings), 1);
}

static void *wait_a_little(void *ctx)
{
    dibs_grant *none = NULL;

    (void)ctx;
    return (void *)(intptr_t)dibs_lock(far, "x", &(dibs_lock_options){.wait_ms = 400}, &none, NULL);
}

static void wait_in_vain(int count)
{
    pthread_t thread[8];

    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, wait_a_little, NULL), 0);
    for (int i = 0; i < count; i++) {
        void *status = NULL;
        pthread_join(thread[i], &status);
        assert_int_equal((dibs_status)(intptr_t)status, DIBS_BUSY);
    }
}

/* ---- Without the right, and after a restart -------------------------------------------------- */

/* The server closes what nobody uses: nothing was unanswered there, so there is nothing to end or to warn of. */
static void a_connection_that_was_idle_needs_no_end(void **state)
{
    dibs_grant *g;

    (void)state;
    need(0);
    server_command(&s, "ACL SETUSER bob on >word ~dibs:* &dibs:* +@all -client|kill", NULL, 0);
    dibs_close(far);
    snprintf(far_url, sizeof far_url, "redis://bob:word@127.0.0.1:%d", s.port);
    far = expect_open(far_url, &(dibs_options){.log = note_warning});
    g = expect_lock(near, "x", &(dibs_lock_options){.lease_ms = 60000});
    wait_in_vain(2);
    sleep_ms(150); /* longer than IDLE in pipeline.c */
    server_command(&s, "CLIENT KILL USER bob", NULL, 0);
    wait_in_vain(2);
    expect_works(far);
    assert_int_equal(atomic_load(&warnings), 0);
    assert_status(unlock(g), DIBS_OK);
}

static void without_the_right_to_kill_it_goes_on_and_warns_once(void **state)
{
    (void)state;
    need(0);
    server_command(&s, "ACL SETUSER bob on >word ~dibs:* &dibs:* +@all -client|kill", NULL, 0);
    dibs_close(far);
    snprintf(far_url, sizeof far_url, "redis://bob:word@127.0.0.1:%d", proxy_port(p));
    far = expect_open(far_url, &(dibs_options){.request_ms = 300, .log = note_warning});
    for (int i = 0; i < 3; i++) {
        expect_works(far);
        hold_back();
        assert_status(dibs_counter_set(far, "n", 1, NULL, NULL), DIBS_UNKNOWN);
        proxy_heal(p);
        expect_works(far);
    }
    assert_int_equal(atomic_load(&warnings), 1);
}

static long connected_clients(void)
{
    char reply[4096] = "", *at;

    assert_int_equal(server_command(&s, "INFO clients", reply, sizeof reply), 0);
    at = strstr(reply, "connected_clients:");
    assert_non_null(at);
    return atol(at + strlen("connected_clients:"));
}

/* A server that restarts counts its connections anew: an old number may be somebody else's by then. */
static void after_a_restart_no_stranger_is_ended(void **state)
{
    enum { STRANGERS = 30 };
    proxy *strangers;
    dibs *d[STRANGERS];
    proxy_counts before, after;

    (void)state;
    need(300);
    expect_works(far);
    hold_back();
    assert_status(dibs_counter_set(far, "n", 1, NULL, NULL), DIBS_UNKNOWN);
    proxy_drop_all(p, true);
    server_end(&s, 9);
    assert_int_equal(server_restart(&s), 0);
    strangers = proxy_start(s.port);
    assert_non_null(strangers);
    for (int i = 0; i < STRANGERS; i++) {
        char url[64];
        snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(strangers));
        d[i] = expect_open(url, NULL);
    }
    assert_true(connected_clients() >= STRANGERS);
    proxy_read(strangers, &before);
    proxy_heal(p);
    expect_works(far);
    expect_works(far);
    for (int i = 0; i < STRANGERS; i++)
        assert_status(dibs_counter_add(d[i], "m", 1, NULL, NULL, NULL), DIBS_OK);
    proxy_read(strangers, &after);
    assert_int_equal(after.connections, before.connections);
    for (int i = 0; i < STRANGERS; i++)
        dibs_close(d[i]);
    proxy_stop(strangers);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(impatient_requests_do_not_wedge_the_handle, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_paused_server_does_not_wedge_the_handle, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(all_connections_cut_again_and_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_waits_do_not_cut_the_connection_of_others, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_late_counter_set_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_late_lock_attempt_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_late_lock_attempt_holds_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_late_begin_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_late_waiter_is_not_queued, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_old_hand_over_is_not_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refused_end_is_asked_for_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_thousand_threads_wait_on_two_connections, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(without_the_channel_it_asks_and_warns_once, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_connection_that_was_idle_needs_no_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_the_right_to_kill_it_goes_on_and_warns_once, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(after_a_restart_no_stranger_is_ended, set_up, tear_down),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("redis, shared connections", tests, NULL, NULL);
}
