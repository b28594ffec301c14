/* The sentences, and the program that runs all tests of the state machine. */
#include "talk.h"

fixture f;

static void note_granted(void *data, const dibs__holder *h, uint64_t floor)
{
    woken *w = &f.woken[f.woken_count++ % 16];

    (void)data;
    snprintf(w->owner, sizeof w->owner, "%s", h->who.owner);
    w->fence = h->fence;
    w->floor = floor;
}

static void note_breaking(void *data, const dibs__holder *h)
{
    (void)data, (void)h;
    f.asked++;
}

dibs__verdict run(const command *c)
{
    dibs__memory_cursor cursor;

    f.woken_count = f.asked = 0;
    assert_true(dibs__memory_begin(&cursor, f.memory, "lock", f.now.wall));
    cursor.granted = note_granted;
    cursor.breaking = note_breaking;
    assert_int_equal(command_run(&dibs__memory_store, &cursor, c, &f.reply), 0);
    dibs__memory_end(&cursor);
    return f.reply.verdict;
}

command say(command_kind kind, const char *who)
{
    command c = {.kind = kind, .now = f.now, .capacity = f.capacity};
    const char *slash = strchr(who, '/');

    c.who.lease = LEASE;
    c.who.weight = f.capacity;
    snprintf(c.who.owner, sizeof c.who.owner, "%.*s", slash ? (int)(slash - who) : 100, who);
    snprintf(c.who.attempt, sizeof c.who.attempt, "%s%s", slash && strchr(slash, '-') ? "" : "h-",
             slash ? slash + 1 : "1");
    return c;
}

dibs__verdict take(const char *who, uint32_t weight, int64_t window)
{
    command c = say(COMMAND_ACQUIRE, who);

    c.who.weight = weight;
    c.window = window;
    return run(&c);
}

dibs__verdict lock(const char *who)
{
    return take(who, f.capacity, WINDOW);
}

dibs__verdict lock_for_at_least(const char *who, int64_t min_hold)
{
    command c = say(COMMAND_ACQUIRE, who);

    c.who.min_hold = min_hold;
    c.window = WINDOW;
    return run(&c);
}

dibs__verdict try(const char *who)
{
    return take(who, f.capacity, 0);
}

dibs__verdict share(const char *who)
{
    return take(who, 1, WINDOW);
}

dibs__verdict keep(const char *who, uint64_t fence)
{
    command c = say(COMMAND_KEEP, who);

    c.fence = fence;
    return run(&c);
}

dibs__verdict release(const char *who, uint64_t fence)
{
    command c = say(COMMAND_RELEASE, who);

    c.fence = fence;
    return run(&c);
}

dibs__verdict cancel(const char *who)
{
    command c = say(COMMAND_CANCEL, who);

    return run(&c);
}

dibs__verdict break_lock(const char *by, bool at_once)
{
    command c = say(COMMAND_BREAK, by);

    c.at_once = at_once;
    return run(&c);
}

dibs__verdict settle(void)
{
    command c = say(COMMAND_SETTLE, "");

    return run(&c);
}

void pass(int64_t us)
{
    f.now.lease += us;
    f.now.wall += us;
}

void assert_woken(const char *a, const char *b)
{
    assert_int_equal(f.woken_count, (a != NULL) + (b != NULL));
    if (a)
        assert_string_equal(f.woken[0].owner, a);
    if (b)
        assert_string_equal(f.woken[1].owner, b);
}

int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
    f.memory = dibs__memory_new();
    f.now = (dibs__time){.lease = 1000 * SEC, .wall = 1700000000 * SEC};
    f.capacity = DIBS__PLAIN;
    return f.memory ? 0 : -1;
}

int setup_slots(void **state)
{
    int failed = setup(state);

    f.capacity = 3;
    return failed;
}

int teardown(void **state)
{
    (void)state;
    dibs__memory_free(f.memory);
    return 0;
}

int main(void)
{
    static const tests_of *const all[] = {&queue_tests, &time_tests, &operator_tests, &store_tests,
                                          &attempt_tests};
    static struct CMUnitTest tests[100];
    size_t n = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t k = 0; k < all[i]->count && n < 100; k++)
            tests[n++] = all[i]->test[k];
    return _cmocka_run_group_tests("state", tests, n, NULL, NULL);
}
