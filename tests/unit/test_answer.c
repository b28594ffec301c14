/* The two sides of an answer (core/answer.h), as they meet in every order: what they share is freed once, by the one who
 * is done with it last; who waits sees what was written before; nobody sleeps past its time. */
#include "core/answer.h"
#include "core/thread.h"
#include "support/test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS  4000
#define ANSWERS 3

typedef struct shared {
    dibs__answer answer;
    atomic_int *freed;
    int written[ANSWERS];
} shared;

typedef struct one {
    shared *s;
    int number;
    long delay; /* ns */
} one;

static void idle(long ns)
{
    struct timespec t = {0, ns};

    if (ns > 0)
        nanosleep(&t, NULL);
}

static void finish(shared *s)
{
    atomic_fetch_add(s->freed, 1);
    free(s);
}

static void *answer_one(void *arg)
{
    one *o = arg;
    shared *s = o->s;

    idle(o->delay);
    s->written[o->number] = o->number + 1;
    if (dibs__answer_give(&s->answer))
        finish(s);
    return NULL;
}

/* True: the answers came in time, and were seen. */
static bool play(unsigned *seed, int64_t patience, atomic_int *freed)
{
    shared *s = calloc(1, sizeof *s);
    one all[ANSWERS];
    pthread_t thread[ANSWERS];
    bool came;

    s->freed = freed;
    for (int i = 0; i < ANSWERS; i++) {
        all[i] = (one){s, i, rand_r(seed) % 60000};
        dibs__answer_expect(&s->answer);
    }
    for (int i = 0; i < ANSWERS; i++)
        assert_true(dibs__thread_start(&thread[i], answer_one, &all[i]));
    came = dibs__answer_wait(&s->answer, &dibs__env_system,
                             dibs__after(&dibs__env_system, rand_r(seed) % patience));
    for (int i = 0; came && i < ANSWERS; i++)
        assert_int_equal(s->written[i], i + 1);
    if (dibs__answer_leave(&s->answer))
        finish(s);
    for (int i = 0; i < ANSWERS; i++)
        pthread_join(thread[i], NULL);
    return came;
}

static void test_both_sides_in_every_order(void **state)
{
    unsigned seed = 1;
    atomic_int freed = 0;
    int came = 0;

    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        came += play(&seed, 400, &freed);
        assert_int_equal(atomic_load(&freed), i + 1);
    }
    assert_in_range(came, ROUNDS / 100, ROUNDS - ROUNDS / 100); /* both happened, and often */
}

static void test_one_that_could_not_be_asked(void **state)
{
    dibs__answer a = {0};

    (void)state;
    dibs__answer_expect(&a);
    dibs__answer_expect(&a);
    dibs__answer_expect_none(&a);
    assert_int_equal(dibs__answer_awaited(&a), 1);
    assert_false(dibs__answer_wait(&a, &dibs__env_system, dibs__now(&dibs__env_system)));
    dibs__answer_expect_none(&a);
    assert_true(dibs__answer_wait(&a, &dibs__env_system, DIBS__NEVER));
    assert_true(dibs__answer_leave(&a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_sides_in_every_order),
        cmocka_unit_test(test_one_that_could_not_be_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
