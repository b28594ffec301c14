/* The Redis engine on a bad network: the exchange is cut at every byte of request and reply,
 * dripped, delayed, left half-open. Whatever happens, asking again settles it: never granted twice,
 * never leaked. */
#include "support/calls.h"
#include "support/test.h"

#include "engines/redis/redis.h"
#include "fixture.h"
#include "support/clock.h"
#include "support/proxy.h"
#include "support/server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define ME    "me"
#define OTHER "other"

/* A server, a proxy before it, an engine through the proxy and one straight to the server. */
typedef struct scene {
    server server;
    proxy *proxy;
    fixture near, far; /* far: through the proxy */
    char near_url[64], far_url[64];
} scene;

static int set_up(void **state)
{
    static scene s;
    dibs_error err = {0};

    memset(&s, 0, sizeof s);
    *state = &s;
    if (!server_available() && !server_required())
        return 0;
    assert_int_equal(server_start(&s.server, NULL), 0);
    s.proxy = proxy_start(s.server.port);
    assert_non_null(s.proxy);
    snprintf(s.near_url, sizeof s.near_url, "redis://127.0.0.1:%d", s.server.port);
    snprintf(s.far_url, sizeof s.far_url, "redis://127.0.0.1:%d", proxy_port(s.proxy));
    assert_int_equal(fixture_open(&s.near, s.near_url, "aaaaaaaaaaaaaaaa", 5000, &err), DIBS_OK);
    assert_int_equal(fixture_open(&s.far, s.far_url, "bbbbbbbbbbbbbbbb", 2000, &err), DIBS_OK);
    return 0;
}

static int tear_down(void **state)
{
    scene *s = *state;

    if (s->proxy) {
        fixture_close(&s->far);
        fixture_close(&s->near);
        proxy_stop(s->proxy);
    }
    server_stop(&s->server);
    return 0;
}

static scene *scene_of(void **state)
{
    scene *s = *state;

    if (!s->proxy)
        skip();
    return s;
}

static void free_lock(scene *s, const char *name)
{
    dibs__reply reply;

    s->near.engine->class->break_lock(s->near.engine, name, "the test", true,
                                      fixture_until(&s->near), &reply, NULL);
    fixture_cancel(&s->far, name, ME, 1, NULL);
}

/* The far engine works again, on a new connection if need be, and no rule is left. */
static void heal(scene *s)
{
    size_t holders, waiters;
    uint64_t fence;

    proxy_heal(s->proxy);
    for (int i = 0; i < 3; i++)
        fixture_look(&s->far, "heal", &holders, &waiters, &fence);
}

/* ---- Cut at every byte ----------------------------------------------------------------------- */

typedef dibs_status (*operation)(scene *s, const char *name, uint64_t fence, dibs__reply *out,
                                 dibs_error *err);

static dibs_status do_enter(scene *s, const char *name, uint64_t fence, dibs__reply *out,
                            dibs_error *err)
{
    (void)fence;
    return fixture_enter(&s->far, name, ME, 1, 5000, out, err);
}

static dibs_status do_release(scene *s, const char *name, uint64_t fence, dibs__reply *out,
                              dibs_error *err)
{
    (void)fence;
    return fixture_release(&s->far, name, ME, 1, out, err);
}

static dibs_status do_keep(scene *s, const char *name, uint64_t fence, dibs__reply *out,
                           dibs_error *err)
{
    (void)err;
    return fixture_keep(&s->far, name, ME, 1, fence, out);
}

static dibs_status do_cancel(scene *s, const char *name, uint64_t fence, dibs__reply *out,
                             dibs_error *err)
{
    (void)fence;
    memset(out, 0, sizeof *out);
    out->verdict = DIBS__RELEASED;
    return fixture_cancel(&s->far, name, ME, 1, err);
}

typedef struct sweep {
    const char *what;
    operation run;
    bool held;   /* by ME, before */
    bool in_way; /* held by OTHER, before */
} sweep;

static uint64_t prepare(scene *s, const sweep *w, const char *name)
{
    dibs__reply reply = {0};

    if (w->in_way)
        assert_int_equal(fixture_enter(&s->near, name, OTHER, 1, 0, &reply, NULL), DIBS_OK);
    if (w->in_way && w->run == do_cancel)
        assert_int_equal(fixture_enter(&s->far, name, ME, 1, 5000, &reply, NULL), DIBS_OK);
    if (w->held) {
        assert_int_equal(fixture_enter(&s->far, name, ME, 1, 0, &reply, NULL), DIBS_OK);
        assert_int_equal(reply.verdict, DIBS__GRANTED);
        return reply.fence;
    }
    return 0;
}

/* What must be after the same was asked again. */
static void check_settled(scene *s, const sweep *w, const char *name, uint64_t fence,
                          const dibs__reply *first, bool answered)
{
    dibs__reply again = {0};
    size_t holders = 9, waiters = 9;
    uint64_t now = 0;

    assert_int_equal(w->run(s, name, fence, &again, NULL), DIBS_OK);
    assert_true(fixture_look(&s->near, name, &holders, &waiters, &now));
    if (w->run == do_enter && w->in_way) {
        assert_int_equal(again.verdict, DIBS__QUEUED);
        assert_int_equal(waiters, 1);
    } else if (w->run == do_enter) {
        assert_int_equal(again.verdict, DIBS__GRANTED);
        assert_int_equal(again.fence, now);
        assert_true(!answered || again.fence == first->fence);
    } else if (w->run == do_release) {
        assert_true(again.verdict == DIBS__RELEASED || again.verdict == DIBS__LOST);
    } else if (w->run == do_keep) {
        assert_int_equal(again.verdict, DIBS__GRANTED);
        assert_int_equal(again.fence, fence);
    }
    assert_int_equal(holders, w->run == do_release ? 0 : 1 - (w->run == do_cancel && !w->in_way));
    assert_int_equal(waiters, w->run == do_enter && w->in_way);
}

/* One cut; false: there was no byte any more to cut at. */
static bool cut_once(scene *s, const sweep *w, proxy_way way, int k, int number)
{
    dibs__reply reply = {0};
    dibs_error err = {0};
    proxy_counts counts;
    char name[64];
    uint64_t fence;
    dibs_status status;

    snprintf(name, sizeof name, "%s %d", w->what, number);
    fence = prepare(s, w, name);
    proxy_reset_counts(s->proxy);
    proxy_cut(s->proxy, way, k, number % 2);
    status = w->run(s, name, fence, &reply, &err);
    proxy_read(s->proxy, &counts);
    proxy_heal(s->proxy);
    assert_true(status == DIBS_OK || status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    if (status == DIBS_UNAVAILABLE) { /* surely not done */
        size_t holders = 0, waiters = 0;
        uint64_t now = 0;
        fixture_look(&s->near, name, &holders, &waiters, &now);
        assert_true(w->run != do_enter || (!w->in_way ? holders == 0 : waiters == 0));
        assert_true(w->run != do_release || holders == 1);
    }
    heal(s);
    check_settled(s, w, name, fence, &reply, status == DIBS_OK);
    free_lock(s, name);
    return counts.cuts > 0;
}

static void cut_everywhere(scene *s, const sweep *w)
{
    int cuts[2] = {0}, number = 0;

    for (proxy_way way = PROXY_UP; way <= PROXY_DOWN; way++)
        while (cut_once(s, w, way, cuts[way], number++))
            cuts[way]++;
    printf("# %s: cut at %d bytes up, %d down\n", w->what, cuts[PROXY_UP], cuts[PROXY_DOWN]);
    assert_true(cuts[PROXY_UP] > 100 && cuts[PROXY_DOWN] > 3);
}

static void cut_enter(void **state)
{
    cut_everywhere(scene_of(state), &(sweep){.what = "enter", .run = do_enter});
}

static void cut_enter_in_the_queue(void **state)
{
    cut_everywhere(scene_of(state),
                   &(sweep){.what = "enter the queue", .run = do_enter, .in_way = true});
}

static void cut_release(void **state)
{
    cut_everywhere(scene_of(state), &(sweep){.what = "release", .run = do_release, .held = true});
}

static void cut_keep(void **state)
{
    cut_everywhere(scene_of(state), &(sweep){.what = "keep", .run = do_keep, .held = true});
}

static void cut_cancel_of_a_waiter(void **state)
{
    cut_everywhere(scene_of(state), &(sweep){.what = "cancel", .run = do_cancel, .in_way = true});
}

static void cut_cancel_of_a_holder(void **state)
{
    cut_everywhere(scene_of(state),
                   &(sweep){.what = "cancel a grant", .run = do_cancel, .held = true});
}

/* ---- Slow, silent, gone ---------------------------------------------------------------------- */

static void expect_late(scene *s, const char *name)
{
    dibs__reply reply;
    dibs_error err = {0};
    int64_t began = clock_ms(), took;
    dibs_status status;

    s->far.span = 300;
    status = fixture_enter(&s->far, name, ME, 1, 0, &reply, &err);
    took = clock_ms() - began;
    s->far.span = 2000;
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    assert_true(strlen(err.message) > 10);
    assert_in_range(took, 250, 5000); /* a whole answer would take far longer */
    proxy_heal(s->proxy);
    for (int i = 0; i < 3;
         i++) { /* the connection may be gone: it is asked again, as the core would */
        status = fixture_enter(&s->far, name, ME, 1, 0, &reply, &err);
        if (status == DIBS_OK)
            break;
    }
    assert_int_equal(status, DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
}

static void a_dripping_server_does_not_outlive_the_deadline(void **state)
{
    scene *s = scene_of(state);

    proxy_drip(s->proxy, PROXY_DOWN, 1000);
    expect_late(s, "drip down");
    proxy_drip(s->proxy, PROXY_UP, 1000);
    expect_late(s, "drip up");
}

static void half_open_either_way(void **state)
{
    scene *s = scene_of(state);

    proxy_freeze(s->proxy, PROXY_UP);
    expect_late(s, "freeze up");
    proxy_swallow(s->proxy, PROXY_DOWN, 0);
    expect_late(s, "swallow down");
}

static void a_late_reply_is_not_taken_for_another(void **state)
{
    scene *s = scene_of(state);
    dibs__reply first, second;

    proxy_delay(s->proxy, PROXY_DOWN, 1200);
    s->far.span = 600;
    assert_int_equal(fixture_enter(&s->far, "late", ME, 1, 0, &first, NULL), DIBS_UNKNOWN);
    s->far.span = 20000;
    assert_int_equal(fixture_enter(&s->far, "late, other", ME, 1, 0, &first, NULL), DIBS_OK);
    proxy_heal(s->proxy);
    assert_int_equal(fixture_enter(&s->far, "late", ME, 1, 0, &second, NULL), DIBS_OK);
    assert_true(second.fence != first.fence);
    s->far.span = 2000;
}

static bool is_granted(void *p)
{
    return fixture_events(&((scene *)p)->far)->granted > 0;
}

static bool has_looked_again(void *p)
{
    return fixture_events(&((scene *)p)->far)->looks_again > 0;
}

/* The subscription goes with all other connections, and comes back by itself. */
static void a_wait_that_is_cut_looks_again(void **state)
{
    scene *s = scene_of(state);
    dibs__reply reply;

    assert_int_equal(fixture_enter(&s->near, "wait", OTHER, 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&s->far, "wait", ME, 1, 5000, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__QUEUED);
    proxy_drop_all(s->proxy, false);
    s->far.granted = s->far.looks_again = 0;
    heal(s);
    assert_true(wait_until(has_looked_again, s, 10000));
    assert_int_equal(fixture_release(&s->near, "wait", OTHER, 1, &reply, NULL), DIBS_OK);
    assert_true(wait_until(is_granted, s, 5000));
}

/* ---- Late requests --------------------------------------------------------------------------- */

static bool is_delivered(void *p)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.open <= 1; /* the client left it long ago: only what was held back kept it open */
}

static dibs_status try_from(dibs *d, bool shared)
{
    dibs_grant *g = NULL;
    dibs_status status = dibs_lock(
        d, "overtaken", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT, .shared = shared}, &g, NULL);

    if (g)
        unlock(g);
    return status;
}

/* The network holds a request back for longer than its caller waits. The caller asks again and is granted;
 * then the old request arrives. */
static void a_request_that_comes_late(scene *s, bool shared)
{
    proxy *p = proxy_start(s->server.port);
    char url[64];
    dibs *far = NULL, *near = NULL;
    dibs_grant *g = NULL;

    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(p));
    assert_int_equal(dibs_open(url, NULL, &far, NULL), DIBS_OK);
    assert_int_equal(dibs_open(s->near_url, NULL, &near, NULL), DIBS_OK);
    assert_int_equal(try_from(far, shared), DIBS_OK); /* connected, and all scripts are there */
    assert_int_equal(try_from(far, false), DIBS_OK);
    proxy_delay(p, PROXY_UP, 1500);
    assert_int_not_equal(dibs_lock(far, "overtaken",
                                   &(dibs_lock_options){.wait_ms = 100, .shared = shared}, &g,
                                   NULL),
                         DIBS_OK);
    proxy_heal(p);
    assert_int_equal(dibs_lock(far, "overtaken", &(dibs_lock_options){.wait_ms = 20000}, &g, NULL),
                     DIBS_OK);
    assert_true(wait_until(is_delivered, p, 20000));
    assert_int_equal(try_from(near, true), DIBS_BUSY);
    assert_int_equal(try_from(near, false), DIBS_BUSY);
    assert_int_equal(dibs_renew(g, NULL), DIBS_OK);
    sleep_ms(300); /* whatever the keeper still takes back of the old one */
    assert_int_equal(try_from(near, true), DIBS_BUSY);
    assert_int_equal(dibs_renew(g, NULL), DIBS_OK);
    assert_int_equal(unlock(g), DIBS_OK);
    dibs_close(far);
    dibs_close(near);
    proxy_stop(p);
}

static void a_late_request_takes_nothing_over(void **state)
{
    a_request_that_comes_late(scene_of(state), false);
}

static void a_late_shared_request_lets_nobody_in(void **state)
{
    a_request_that_comes_late(scene_of(state), true);
}

static void no_server_is_unavailable_and_then_it_is_back(void **state)
{
    scene *s = scene_of(state);
    dibs__reply reply;
    dibs_error err = {0};

    server_end(&s->server, SIGKILL);
    sleep_ms(150); /* an idle connection is looked at before it is used; else it would be unknown */
    assert_int_equal(fixture_enter(&s->near, "gone", ME, 1, 0, &reply, &err), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "redis at 127.0.0.1"));
    assert_int_equal(server_restart(&s->server), 0);
    assert_int_equal(fixture_enter(&s->near, "gone", ME, 1, 0, &reply, &err), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
}

/* ---- A slow network -------------------------------------------------------------------------- */

#define FAR_MS 60 /* one way */

/* It is made by who enters, within the time of that call; again by the reader, who has other things to do. */
static void a_subscription_far_away(void **state)
{
    scene *s = scene_of(state);
    dibs__reply reply;
    const dibs__redis *r = (dibs__redis *)s->far.engine;
    uint64_t before;
    int64_t since;

    proxy_delay(s->proxy, PROXY_UP, FAR_MS);
    proxy_delay(s->proxy, PROXY_DOWN, FAR_MS);
    assert_status(fixture_enter(&s->near, "far", OTHER, 1, 0, &reply, NULL), DIBS_OK);
    assert_status(fixture_enter(&s->far, "far", ME, 1, 5000, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__QUEUED);
    before = dibs__events_standing(r);
    assert_true(before != 0);
    proxy_drop_all(s->proxy, false);
    for (since = clock_ms(); clock_ms() - since < 20000;) {
        fixture_events(&s->far);
        if (dibs__events_standing(r) > before)
            break;
        sleep_ms(10);
    }
    assert_true(dibs__events_standing(r) > before);
    heal(s);
    free_lock(s, "far");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_enter),
        cmocka_unit_test(cut_enter_in_the_queue),
        cmocka_unit_test(cut_release),
        cmocka_unit_test(cut_keep),
        cmocka_unit_test(cut_cancel_of_a_waiter),
        cmocka_unit_test(cut_cancel_of_a_holder),
        cmocka_unit_test(a_dripping_server_does_not_outlive_the_deadline),
        cmocka_unit_test(half_open_either_way),
        cmocka_unit_test(a_late_reply_is_not_taken_for_another),
        cmocka_unit_test(a_wait_that_is_cut_looks_again),
        cmocka_unit_test(a_late_request_takes_nothing_over),
        cmocka_unit_test(a_late_shared_request_lets_nobody_in),
        cmocka_unit_test(no_server_is_unavailable_and_then_it_is_back),
        cmocka_unit_test(a_subscription_far_away),
    };

    return cmocka_run_group_tests_name("redis faults", tests, set_up, tear_down);
}
