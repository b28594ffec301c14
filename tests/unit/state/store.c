/* The state machine and its stores: one that fails, and the memory store against an array. */
#include "support/env.h"
#include "talk.h"

/* ---- A store that fails ---------------------------------------------------------------------- */

/* A busy little lock: one was given back and lingers, three share, three wait. */
static void make_busy(tiny *t, int64_t now)
{
    static const struct {
        const char *owner;
        uint32_t weight;
        int64_t min_hold;
    } who[] = {{"l", 1, 100},         {"a", 1, 0}, {"b", 2, 0}, {"m", 1, 100},
               {"x", DIBS__PLAIN, 0}, {"c", 1, 0}, {"d", 1, 0}};
    dibs__reply reply;

    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < 7; i++) {
        command c = {
            .kind = COMMAND_ACQUIRE, .now = {now, now}, .capacity = DIBS__PLAIN, .window = 50};
        snprintf(c.who.owner, sizeof c.who.owner, "%s", who[i].owner);
        snprintf(c.who.attempt, sizeof c.who.attempt, "h-1");
        c.who.weight = who[i].weight;
        c.who.lease = 100;
        c.who.min_hold = who[i].min_hold;
        assert_null(tiny_step(t, &c, &reply));
        c.kind = COMMAND_RELEASE;
        if (i == 0)
            assert_null(tiny_step(t, &c, &reply));
    }
}

/* Each call of the store fails in turn: -1 each time, and the run without a failure works. */
static void fail_every_call(const command *c)
{
    tiny t;
    dibs__reply reply;
    int n = 0, result;

    do {
        make_busy(&t, 1000);
        t.fail_at = ++n;
        result = tiny_run(&t, c, &reply);
        assert_int_equal(result, t.calls >= n ? -1 : 0);
    } while (result < 0);
    assert_true(n > 1);
}

static void a_failing_store_is_reported(void **state)
{
    static const char *const owners[] = {"a", "x", "new", "m", "b"};
    static const int64_t windows[] = {50, 0};
    static const char *const attempts[] = {"h-1", "h-2"};
    static const int64_t times[] = {1000, 1060, 1200};

    (void)state;
    for (int kind = 0; kind < COMMAND_KINDS; kind++)
        for (size_t i = 0; i < 3 * 5 * 2 * 2 * 2; i++) {
            command c = {.kind = (command_kind)kind, .capacity = DIBS__PLAIN};
            c.now.lease = c.now.wall = times[i % 3];
            snprintf(c.who.owner, sizeof c.who.owner, "%s", owners[i / 3 % 5]);
            snprintf(c.who.attempt, sizeof c.who.attempt, "%s", attempts[i / 15 % 2]);
            c.who.weight = i / 30 % 2 ? 1 : DIBS__PLAIN;
            c.who.lease = 100;
            c.at_once = i / 30 % 2;
            c.window = windows[i / 60];
            fail_every_call(&c);
        }
}

/* ---- The memory store against the plain array ------------------------------------------------ */

static command random_command(uint64_t *seed, dibs__time now, uint32_t capacity)
{
    command c = {
        .kind = (command_kind)(sim_random(seed) % COMMAND_KINDS), .now = now, .capacity = capacity};

    if (c.kind == COMMAND_BREAK && sim_random(seed) % 4)
        c.kind = COMMAND_ACQUIRE;
    snprintf(c.who.owner, sizeof c.who.owner, "%c", (char)('a' + sim_random(seed) % 5));
    snprintf(c.who.attempt, sizeof c.who.attempt, "%d", (int)(sim_random(seed) % 2));
    c.who.weight = sim_random(seed) % 3 ? 1 : capacity;
    c.who.lease = (int64_t)(20 + sim_random(seed) % 60);
    c.who.min_hold = sim_random(seed) % 6 ? 0 : 10;
    c.window = sim_random(seed) % 4 ? (int64_t)(5 + sim_random(seed) % 40) : 0;
    c.fence = sim_random(seed) % 100;
    c.at_once = sim_random(seed) % 2;
    return c;
}

static dibs__record saved_record(void)
{
    dibs__memory_cursor cursor;
    dibs__record r;

    memset(&r, 0, sizeof r);
    assert_true(dibs__memory_begin(&cursor, f.memory, "lock", f.now.wall));
    dibs__memory_store.load(&cursor, &r);
    dibs__memory_end(&cursor);
    return r;
}

/* Of two leases that end in the same moment either may be named. */
static void assert_same_reply(const dibs__reply *a, const dibs__reply *b)
{
    assert_memory_equal(a, b, offsetof(dibs__reply, in_way));
    assert_true(a->in_way.left == b->in_way.left);
    assert_true(!a->in_way.fence == !b->in_way.fence);
}

static void the_memory_store_is_the_plain_array(void **state)
{
    uint64_t seed = 20;
    tiny t;

    (void)state;
    memset(&t, 0, sizeof t);
    f.now = (dibs__time){.lease = 1000, .wall = 1000};
    for (int i = 0; i < 100000; i++) {
        dibs__reply theirs;
        command c = random_command(&seed, f.now, 4);
        const char *wrong = tiny_step(&t, &c, &theirs);
        if (wrong)
            fail_msg("%s in round %d", wrong, i);
        run(&c);
        assert_same_reply(&theirs, &f.reply);
        assert_int_equal(f.woken_count, t.woken_count);
        dibs__record r = saved_record();
        assert_memory_equal(&r, &t.record, sizeof r);
        f.now.lease += (int64_t)(sim_random(&seed) % 8);
        f.now.wall += (int64_t)(sim_random(&seed) % 20) - 6;
    }
}

static const struct CMUnitTest tests[] = {
    TEST(a_failing_store_is_reported),
    TEST(the_memory_store_is_the_plain_array),
};
TESTS(store_tests, tests);
