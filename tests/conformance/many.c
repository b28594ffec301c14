/* Several locks at once. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <string.h>

static void all_are_taken(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *names[3] = {fresh("z"), fresh("a"), fresh("m")};
    dibs_grant *g[3] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, NULL, g, NULL), DIBS_OK);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(dibs_grant_name(g[i]), names[i]);
        assert_status(try_lock(b, names[i]), DIBS_BUSY);
    }
    for (int i = 0; i < 3; i++)
        assert_status(unlock(g[i]), DIBS_OK);
}

static void all_or_nothing(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *names[3] = {fresh("a"), fresh("b"), fresh("c")};
    dibs_grant *g[3] = {NULL}, *h = take(b, names[1], NULL);
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, &(dibs_lock_options){.wait_ms = 150}, g, NULL),
                  DIBS_BUSY);
    assert_in_range(clock_ms() - start, 149, SOON_MS);
    for (int i = 0; i < 3; i++)
        assert_null(g[i]);
    assert_status(try_lock(b, names[0]), DIBS_OK);
    assert_status(try_lock(b, names[2]), DIBS_OK);
    wait_for_queue(b, names[1], 0);
    unlock(h);
}

static void a_name_given_twice_is_one_grant(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("twice"), *names[3] = {name, fresh("a"), name};
    dibs_grant *g[3] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, NULL, g, NULL), DIBS_OK);
    assert_ptr_equal(g[0], g[2]);
    assert_status(unlock(g[0]), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_status(unlock(g[2]), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
    assert_status(unlock(g[1]), DIBS_OK);
}

static bool can_be_asked_for(const dibs_lock_options *o)
{
    return !(o->portable && the.can.lease_of_handle) && (o->slots < 2 || the.can.slots) &&
           (!o->shared || the.can.shared);
}

/* Also where each call is its own owner, so that a second one would wait for the first. */
static void a_name_given_twice_is_one_grant_of_any_kind(void **state)
{
    const dibs_lock_options kinds[] = {
        {.not_reentrant = true},     {.portable = true}, {.slots = 2, .weight = 2},
        {.slots = 3, .weight = 2},   {.slots = 2},       {.shared = true, .not_reentrant = true},
        {.owner = "the same owner"},
    };
    dibs *a = open_handle(), *b = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *name = fresh("twice"), *names[4] = {name, fresh("a"), name, name};
        dibs_lock_options o = kinds[i];
        dibs_grant *g[4] = {NULL};
        dibs_error err = {0};
        if (!can_be_asked_for(&o))
            continue;
        o.wait_ms = SOON_MS;
        if (dibs_lock_many(a, names, 4, &o, g, &err) != DIBS_OK)
            fail_msg("kind %zu: %s", i, err.message);
        assert_true(g[0] == g[2] && g[0] == g[3] && g[0] != g[1]);
        assert_int_equal(holders_of(b, name), 1);
        assert_status(unlock(g[0]), DIBS_OK);
        assert_status(unlock(g[2]), DIBS_OK);
        assert_true(dibs_grant_held(g[3]));
        assert_status(unlock(g[3]), DIBS_OK);
        assert_status(unlock(take(b, name, &o)), DIBS_OK);
        assert_status(unlock(g[1]), DIBS_OK);
    }
}

static void bad_names_take_nothing(void **state)
{
    dibs *d = open_handle(), *b = open_handle();
    const char *good = fresh("good"), *names[2] = {good, ""};
    dibs_grant *g[2] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(d, names, 2, NULL, g, NULL), DIBS_INVALID);
    assert_status(dibs_lock_many(d, names, 0, NULL, g, NULL), DIBS_INVALID);
    assert_status(try_lock(b, good), DIBS_OK);
}

typedef struct pair {
    dibs *d;
    const char *names[2];
    int rounds;
    int bad;
} pair;

static void *take_pairs(void *arg)
{
    pair *p = arg;

    for (int i = 0; i < p->rounds; i++) {
        dibs_grant *g[2];
        if (dibs_lock_many(p->d, p->names, 2, &(dibs_lock_options){.wait_ms = LONG_MS}, g, NULL) !=
            DIBS_OK) {
            p->bad++;
            continue;
        }
        p->bad += unlock(g[0]) != DIBS_OK;
        p->bad += unlock(g[1]) != DIBS_OK;
    }
    return NULL;
}

/* Given as (y, x), they are taken as (x, y): whoever waits for the first has none of the others. */
static void taken_in_sorted_order(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *x = fresh("x"), *y = fresh("y");
    dibs_grant *g = take(a, x, NULL);
    pair p = {.d = b, .names = {y, x}, .rounds = 1};
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, take_pairs, &p), 0);
    wait_for_queue(a, x, 1);
    assert_status(try_lock(a, y), DIBS_OK);
    unlock(g);
    pthread_join(t, NULL);
    assert_int_equal(p.bad, 0);
}

static void opposite_orders_do_not_deadlock(void **state)
{
    const char *a = fresh("x"), *b = fresh("y");
    pair p[4];
    pthread_t t[4];
    dibs *d = open_handle(), *e = open_handle();

    (void)state;
    for (int i = 0; i < 4; i++) {
        p[i] = (pair){i < 2 ? d : e, {i % 2 ? a : b, i % 2 ? b : a}, 50, 0};
        assert_int_equal(pthread_create(&t[i], NULL, take_pairs, &p[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(p[i].bad, 0);
}

/* ---- What happens until the last one is obtained --------------------------------------------- */

/* A thread that wants two locks, the second of which is held. */
typedef struct taker {
    pthread_t thread;
    dibs *d;
    const char *names[2];
    dibs_lock_options options;
    dibs_status status;
    dibs_error err;
    dibs_grant *g[2];
    int64_t left[2]; /* when it had come back */
    bool held[2];
} taker;

static void *take_two(void *arg)
{
    taker *t = arg;

    t->status = dibs_lock_many(t->d, t->names, 2, &t->options, t->g, &t->err);
    for (int i = 0; t->status == DIBS_OK && i < 2; i++) {
        t->left[i] = dibs_grant_remaining_ms(t->g[i]);
        t->held[i] = dibs_grant_held(t->g[i]);
    }
    return NULL;
}

/* Returns when it has the first and waits for the second. */
static void start_taker(taker *t, dibs *d, dibs *onlooker, const dibs_lock_options *options)
{
    *t = (taker){.d = d, .names = {t->names[0], t->names[1]}, .options = *options};
    assert_int_equal(pthread_create(&t->thread, NULL, take_two, t), 0);
    wait_for_queue(onlooker, t->names[1], 1);
}

static void unlock_taken(taker *t)
{
    for (int i = 0; i < 2; i++)
        assert_status(unlock(t->g[i]), DIBS_OK);
}

static void min_hold_counts_for_a_success_only(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *names[2] = {fresh("a"), fresh("b")};
    dibs_grant *g[2] = {NULL}, *h = take(b, names[1], NULL);
    dibs_lock_options o = {.wait_ms = DIBS_NO_WAIT, .min_hold_ms = LONG_MS, .lease_ms = SESSION_MS};

    (void)state;
    assert_status(dibs_lock_many(a, names, 2, &o, g, NULL), DIBS_BUSY);
    assert_status(try_lock(b, names[0]), DIBS_OK);
    unlock(h);
}

#define PAST_MS 600 /* a lease that the wait outlives */

/* The wait for the second is longer than the lease, or max_hold, of the first. */
static void return_held(const dibs_lock_options *options)
{
    dibs *a = open_handle(), *b = open_handle();
    static taker t; /* its thread may outlive a case that fails */
    const char *second = fresh("b");
    dibs_grant *h = take(b, second, NULL);
    static loss_note note;
    dibs_lock_options o = *options;

    note.count = 0;
    t.names[0] = fresh("a");
    t.names[1] = second;
    o.on_lost = note_loss;
    o.data = &note;
    start_taker(&t, a, b, &o);
    sleep_ms(PAST_MS + PAST_MS / 2);
    unlock(h);
    pthread_join(t.thread, NULL);
    assert_status(t.status, DIBS_OK);
    for (int i = 0; i < 2; i++)
        if (!t.held[i] || t.left[i] < PAST_MS / 4)
            fail_msg("%s: %s, %lld ms are left", t.names[i], t.held[i] ? "held" : "not held",
                     (long long)t.left[i]);
    assert_int_equal(atomic_load(&note.count), 0);
    assert_true(loss_within(&note, PAST_MS + SOON_MS)); /* it counts from now on */
    for (int i = 0; i < 2; i++)
        unlock(t.g[i]);
}

static void what_is_returned_is_held(void **state)
{
    (void)state;
    return_held(&(dibs_lock_options){.lease_ms = PAST_MS, .no_renew = true});
    return_held(&(dibs_lock_options){.max_hold_ms = PAST_MS});
}

static bool has_lost_one(void *d)
{
    dibs_stats s;

    dibs_stats_read(d, &s, sizeof s);
    return s.losses[DIBS_LOSS_BROKEN] + s.losses[DIBS_LOSS_GONE] > 0;
}

/* Its first lock is taken from it while it waits: it is not told, because it has nothing yet. */
static void a_loss_on_the_way_is_made_good(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    static taker t; /* its thread may outlive a case that fails */
    const char *second = fresh("b");
    dibs_grant *h = take(b, second, NULL);
    static loss_note note;

    (void)state;
    t.names[0] = fresh("a");
    t.names[1] = second;
    start_taker(&t, a, b,
                &(dibs_lock_options){.lease_ms = KEPT_MS, .on_lost = note_loss, .data = &note});
    assert_status(dibs_lock_break(
                      b, t.names[0],
                      &(dibs_lock_break_options){.by = "operator", .now = true, .wait_ms = SOON_MS},
                      NULL),
                  DIBS_OK);
    unlock(take(b, t.names[0], NULL));
    assert_true(wait_until(has_lost_one, a, SOON_MS));
    unlock(h);
    pthread_join(t.thread, NULL);
    assert_status(t.status, DIBS_OK);
    assert_true(t.held[0] && t.held[1]);
    assert_status(try_lock(b, t.names[0]), DIBS_BUSY);
    assert_int_equal(atomic_load(&note.count), 0);
    unlock_taken(&t);
}

static const struct CMUnitTest tests[] = {
    CASE(all_are_taken),
    CASE(all_or_nothing),
    CASE(a_name_given_twice_is_one_grant),
    CASE(a_name_given_twice_is_one_grant_of_any_kind),
    CASE(bad_names_take_nothing),
    CASE(taken_in_sorted_order),
    CASE(opposite_orders_do_not_deadlock),
    CASE(min_hold_counts_for_a_success_only),
    CASE(what_is_returned_is_held),
    CASE(a_loss_on_the_way_is_made_good),
};
CASES(many_cases, tests);
