/* A lock over the memory store, in simulated time, to talk to in short sentences: lock("a") and
 * what came of it. Who asks is "owner/attempt": "a/2" is the second attempt of handle "h", "a/k-2" that of
 * handle "k"; a missing attempt is the first of "h". */
#ifndef DIBS_TESTS_STATE_TALK_H
#define DIBS_TESTS_STATE_TALK_H

#include "engines/memory/store.h"
#include "support/machine.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#define SEC    ((int64_t)1000000)
#define LEASE  (30 * SEC)
#define WINDOW (6 * SEC)

typedef struct woken {
    char owner[DIBS__OWNER_SIZE];
    uint64_t fence, floor;
} woken;

typedef struct fixture {
    dibs__memory *memory;
    dibs__time now;
    uint32_t capacity;
    dibs__reply reply; /* the last one */
    woken woken[16];   /* by the last command */
    size_t woken_count;
    size_t asked; /* to stop, by the last command */
} fixture;

extern fixture f; /* a plain lock, unless a test made it with setup_slots: three slots */

dibs__verdict lock(const char *who); /* exclusive, in the queue if need be */
dibs__verdict lock_for_at_least(const char *who, int64_t min_hold);
dibs__verdict try(const char *who); /* exclusive, not in the queue */
dibs__verdict share(const char *who);
dibs__verdict take(const char *who, uint32_t weight, int64_t window);
dibs__verdict keep(const char *who, uint64_t fence);
dibs__verdict release(const char *who, uint64_t fence);
dibs__verdict cancel(const char *who);
dibs__verdict break_lock(const char *by, bool at_once);
dibs__verdict settle(void);

/* Any command: what the sentences are made of. */
command say(command_kind kind, const char *who);
dibs__verdict run(const command *c);

void pass(int64_t us); /* both clocks */

/* The last command woke just these, in this order; NULL: none. */
void assert_woken(const char *a, const char *b);

int setup(void **state);
int setup_slots(void **state);
int teardown(void **state);

typedef struct tests_of {
    const struct CMUnitTest *test;
    size_t count;
} tests_of;

extern const tests_of queue_tests, time_tests, operator_tests, store_tests, attempt_tests;

#define TEST(name)       cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SLOTS(name)      cmocka_unit_test_setup_teardown(name, setup_slots, teardown)
#define TESTS(id, array) const tests_of id = {array, sizeof array / sizeof array[0]}

#endif
