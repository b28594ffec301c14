/* Several locks at once, in a world in which time stands still: which requests go out, in which order and with which
 * lease, and what becomes of those that were obtained when another was not. */
#define _GNU_SOURCE
#include "core/error.h"
#include "support/alloc.h"
#include "support/calls.h"
#include "support/still.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])
#define LEASE       (12 * DIBS__SECOND)
#define MARGIN      (125 * DIBS__MS) /* of that lease */
#define NAMES       3

static dibs *d;
static dibs_error err;
static dibs_grant *got[NAMES + 1];

/* The engine's part: the real one, with delays, and refusals of one name. */
static struct {
    const dibs__engine_class *real;
    char entered[64]; /* the names, in order */
    int64_t lease;    /* of the last request */
    int64_t takes[16];
    int enters, keeps, cancels, releases;
    const char *busy; /* this name is not to be had */
    int times;        /* so often; -1: always */
    dibs_status status;
    dibs__deadline until; /* of the last cancel or keep */
    char ended[64];       /* what was cancelled or released, in order */
    char kept[64];        /* what was renewed, in order */
    const char *loses;    /* when this one is renewed, it is lost */
    bool first_is_kept;   /* by the keeper, when the second is entered */
    bool handed_over;     /* the first was: it has not had a lease of its own yet */
} engine;

static dibs_status enter(dibs__engine *e, const dibs__enter_request *request, dibs__deadline until,
                         dibs__reply *out, dibs_error *error)
{
    int64_t takes = engine.enters < 16 ? engine.takes[engine.enters] : 0;
    dibs_status status;

    for (size_t i = 0; engine.enters == 1 && i < NAMES; i++)
        if (got[i] && (intptr_t)got[i] != -1 && got[i]->state == DIBS__HELD) {
            engine.first_is_kept = got[i]->due.index != 0;
            got[i]->whole &= !engine.handed_over;
        }
    engine.enters++;
    engine.lease = request->who.lease;
    snprintf(engine.entered + strlen(engine.entered),
             sizeof engine.entered - strlen(engine.entered), "%s", request->name);
    if (engine.busy && strcmp(request->name, engine.busy) == 0 && engine.times != 0) {
        engine.times -= engine.times > 0;
        still_pass(takes);
        *out = (dibs__reply){.verdict = DIBS__BUSY};
        return engine.status == DIBS_OK ? DIBS_OK
                                        : dibs__fail(error, engine.status, "as it was told");
    }
    status = engine.real->enter(e, request, until, out, error);
    still_pass(takes);
    return status;
}

static void keep(dibs__engine *e, dibs__claim *const claims[], size_t count, dibs__deadline until)
{
    engine.keeps++;
    engine.until = until;
    snprintf(engine.kept + strlen(engine.kept), sizeof engine.kept - strlen(engine.kept), "%s",
             claims[0]->name);
    engine.real->keep(e, claims, count, until);
    if (engine.loses && strcmp(claims[0]->name, engine.loses) == 0)
        claims[0]->reply = (dibs__reply){.verdict = DIBS__LOST};
}

static void note_end(const char *name)
{
    snprintf(engine.ended + strlen(engine.ended), sizeof engine.ended - strlen(engine.ended), "%s",
             name);
}

static dibs_status cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                          dibs_error *error)
{
    engine.cancels++;
    engine.until = until;
    note_end(claim->name);
    return engine.real->cancel(e, claim, until, error);
}

static dibs_status release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                           dibs__reply *out, dibs_error *error)
{
    engine.releases++;
    note_end(claim->name);
    return engine.real->release(e, claim, until, out, error);
}

static int set_up(void **state)
{
    dibs__engine_class *class;

    still_begin(state);
    d = still_open(&(dibs_options){.lease_ms = LEASE / DIBS__MS, .request_ms = 20000});
    class = (dibs__engine_class *)(uintptr_t)d->class;
    memset(&engine, 0, sizeof engine);
    memset(got, 0xff, sizeof got);
    static dibs__engine_class real;
    real = *class;
    engine.real = &real;
    class->enter = enter;
    class->keep = keep;
    class->cancel = cancel;
    class->release = release;
    return 0;
}

/* The names are letters; "" is NULL's place. */
static dibs_status lock_all(const char *letters, const dibs_lock_options *o)
{
    static char texts[NAMES + 1][2];
    const char *names[NAMES + 1];
    size_t count = strlen(letters);
    dibs_status status;

    for (size_t i = 0; i < count; i++) {
        texts[i][0] = letters[i];
        names[i] = letters[i] == '-' ? NULL : texts[i];
    }
    memset(&err, 0, sizeof err);
    engine.enters = engine.keeps = engine.cancels = engine.releases = 0;
    engine.entered[0] = engine.ended[0] = engine.kept[0] = '\0';
    memset(got, 0xff, sizeof got);
    status = dibs_lock_many(d, names, count, o, got, &err);
    assert_int_equal((intptr_t)got[count], -1); /* what is behind the caller's array */
    return status;
}

static void unlock_all(size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_status(unlock(got[i]), DIBS_OK);
}

static void expect_none(size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_null(got[i]);
    assert_int_equal(d->stats.held, 0);
    assert_int_equal(d->users, 0);
}

static const dibs_lock_options now_or_never = {.wait_ms = DIBS_NO_WAIT};

/* ---- Asking ----------------------------------------------------------------------------------- */

static void names_are_asked_for_in_order_and_once(void **state)
{
    static const struct {
        const char *names, *asked;
    } rows[] = {{"a", "a"},     {"ab", "ab"},  {"ba", "ab"},
                {"cab", "abc"}, {"bab", "ab"}, {"aaa", "a"}};

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        size_t count = strlen(rows[i / 2].names);
        dibs_lock_options o = {.wait_ms = DIBS_NO_WAIT, .not_reentrant = i % 2};
        assert_status(lock_all(rows[i / 2].names, &o), DIBS_OK);
        assert_string_equal(engine.entered, rows[i / 2].asked);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(got[k]->name[0], rows[i / 2].names[k]);
            assert_true(dibs_grant_held(got[k]) && got[k]->delivered);
        }
        unlock_all(count);
        assert_int_equal(strlen(engine.ended),
                         strlen(rows[i / 2].asked)); /* not before the last level */
        assert_int_equal(engine.keeps, 0);
        assert_int_equal(d->stats.held, 0);
    }
}

static void wrong_requests_ask_nobody(void **state)
{
    (void)state;
    assert_status(dibs_lock_many(d, NULL, 0, NULL, got, &err), DIBS_INVALID);
    assert_string_equal(err.message, "no names given");
    assert_status(lock_all("a-", NULL), DIBS_INVALID);
    expect_none(2);
    assert_status(lock_all("ab", &(dibs_lock_options){.lease_ms = -1}), DIBS_INVALID);
    expect_none(2);
    d->closing = true;
    assert_status(lock_all("ab", NULL), DIBS_CANCELLED);
    d->closing = false;
    expect_none(2);
    assert_int_equal(engine.enters, 0);
}

/* While the others are waited for, each is kept by a lease, and nothing of its own terms counts. */
static void terms_begin_when_all_are_there(void **state)
{
    static const struct {
        dibs_lock_options o;
        int64_t asked, max_hold;
        bool renewed;
    } rows[] = {
        {{.wait_ms = DIBS_NO_WAIT}, LEASE, 0, true},
        {{.wait_ms = DIBS_NO_WAIT, .lease_ms = 6000}, 6 * DIBS__SECOND, 0, true},
        {{.wait_ms = DIBS_NO_WAIT, .no_renew = true}, LEASE, 0, false},
        {{.wait_ms = DIBS_NO_WAIT, .max_hold_ms = 60000}, LEASE, 60 * DIBS__SECOND, true},
        {{.wait_ms = DIBS_NO_WAIT, .max_hold_ms = 12001}, LEASE, 12001 * DIBS__MS, true},
        {{.wait_ms = DIBS_NO_WAIT, .max_hold_ms = 4000}, 4 * DIBS__SECOND, 4 * DIBS__SECOND, true},
        {{.wait_ms = DIBS_NO_WAIT, .max_hold_ms = 5000, .lease_ms = 6000},
         5 * DIBS__SECOND,
         5 * DIBS__SECOND,
         true},
        {{.wait_ms = DIBS_NO_WAIT, .max_hold_ms = DIBS_FOREVER}, LEASE, 0, true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        engine.takes[1] = DIBS__SECOND;
        print_message("# row %zu\n", i);
        assert_status(lock_all("ab", &rows[i].o), DIBS_OK);
        assert_int_equal(engine.lease, rows[i].asked);
        assert_true(engine.first_is_kept);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(got[k]->max_until,
                             rows[i].max_hold ? still_now() + rows[i].max_hold : DIBS__NEVER);
            assert_int_equal(got[k]->due.index != 0, rows[i].renewed);
            assert_int_equal(got[k]->since, still_now());
        }
        unlock_all(2);
    }
}

/* ---- All or nothing ---------------------------------------------------------------------------- */

static void what_was_obtained_is_given_back(void **state)
{
    static const dibs_status statuses[] = {DIBS_OK, DIBS_DENIED};

    (void)state;
    for (int i = 0; i < 2; i++) {
        engine.busy = "c";
        engine.times = -1;
        engine.status = statuses[i];
        assert_status(lock_all("cab", &now_or_never), i ? DIBS_DENIED : DIBS_BUSY);
        assert_string_equal(engine.entered, "abc");
        print_message("# %s\n", engine.ended);
        assert_string_equal(engine.ended + strlen(engine.ended) - 2,
                            "ba"); /* before them, what the engine may have of `c` */
        assert_int_equal(engine.releases, 0);
        assert_int_equal(engine.until, still_now() + DIBS__GRACE);
        expect_none(3);
        engine.busy = NULL;
        assert_status(lock_all("ab", &now_or_never), DIBS_OK);
        unlock_all(2);
    }
}

/* One that was had before stays; its level goes. */
static void what_was_held_before_stays(void **state)
{
    dibs_grant *outer = expect_lock(d, "a", NULL);

    (void)state;
    engine.busy = "b";
    engine.times = -1;
    assert_status(lock_all("ab", &now_or_never), DIBS_BUSY);
    assert_null(got[0]);
    assert_true(dibs_grant_held(outer));
    assert_int_equal(outer->depth, 1);
    assert_string_equal(engine.ended, "");
    assert_status(unlock(outer), DIBS_OK);
    assert_string_equal(engine.ended, "a");
}

/* ---- Renewed before they are delivered ---------------------------------------------------------- */

/* The first is old when the last one is there; how much must be left of it. */
static void what_has_little_left_is_renewed(void **state)
{
    static const struct {
        dibs_lock_options o;
        int64_t left; /* of the first, when the last one is there */
        bool renewed;
    } rows[] = {
        /* a half of the window */
        {{.wait_ms = DIBS_NO_WAIT}, 3 * DIBS__SECOND, false},
        {{.wait_ms = DIBS_NO_WAIT}, 3 * DIBS__SECOND - 1, true},
        /* of a shorter lease, a half of that */
        {{.wait_ms = DIBS_NO_WAIT, .lease_ms = 4000}, 2 * DIBS__SECOND, false},
        {{.wait_ms = DIBS_NO_WAIT, .lease_ms = 4000}, 2 * DIBS__SECOND - 1, true},
        /* two thirds of a lease that nobody renews any more */
        {{.wait_ms = DIBS_NO_WAIT, .no_renew = true}, 8 * DIBS__SECOND, false},
        {{.wait_ms = DIBS_NO_WAIT, .no_renew = true}, 8 * DIBS__SECOND - 1, true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t lease = rows[i].o.lease_ms ? rows[i].o.lease_ms * DIBS__MS : LEASE;
        int64_t margin = lease / 100 + 5 * DIBS__MS;
        engine.takes[1] = lease - margin - rows[i].left;
        print_message("# row %zu\n", i);
        assert_status(lock_all("ab", &rows[i].o), DIBS_OK);
        assert_int_equal(engine.keeps > 0, rows[i].renewed);
        if (rows[i].renewed)
            assert_int_equal(engine.until, still_now() + d->request_span);
        unlock_all(2);
    }
}

/* The renewal has the caller's patience, and no more than a request. */
static void a_renewal_keeps_to_the_callers_patience(void **state)
{
    int64_t began = still_now();

    (void)state;
    engine.takes[1] = LEASE - MARGIN - DIBS__SECOND;
    assert_status(lock_all("ab", &(dibs_lock_options){.wait_ms = 14000}), DIBS_OK);
    assert_string_equal(engine.kept, "ab");
    assert_int_equal(engine.until, began + 14 * DIBS__SECOND + DIBS__GRACE);
    unlock_all(2);
}

/* What was handed over gets its own lease with the first renewal, which the keeper makes. */
static void a_hand_over_is_not_renewed_early(void **state)
{
    (void)state;
    engine.handed_over = true;
    engine.takes[1] = LEASE - MARGIN - 5 * DIBS__SECOND;
    assert_status(lock_all("ab", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT, .no_renew = true}),
                  DIBS_OK);
    assert_string_equal(engine.kept, "b");
    unlock_all(2);
}

/* One of an outer level has its own terms. */
static void what_was_held_before_keeps_its_terms(void **state)
{
    dibs_grant *outer = expect_lock(d, "a", &(dibs_lock_options){.no_renew = true});
    int64_t since = outer->since;

    (void)state;
    engine.takes[0] = LEASE - MARGIN - DIBS__SECOND;
    still_pass(DIBS__SECOND / 2);
    assert_status(lock_all("ab", &now_or_never), DIBS_OK);
    assert_string_equal(engine.kept, "b");
    assert_int_equal(outer->depth, 2);
    assert_int_equal(outer->due.index, 0);
    assert_int_equal(outer->since, since);
    unlock_all(2);
    assert_status(unlock(outer), DIBS_OK);
}

/* ---- Lost meanwhile ----------------------------------------------------------------------------- */

/* The first is over when the last one is there: all are given back, and asked for again while the caller waits. */
static void what_was_lost_is_asked_for_again(void **state)
{
    static const struct {
        int64_t wait_ms;
        dibs_status status;
        const char *asked;
    } rows[] = {
        {DIBS_NO_WAIT, DIBS_BUSY, "ab"},
        {DIBS_FOREVER, DIBS_OK, "abab"},
        {60000, DIBS_OK, "abab"},
        {11875, DIBS_BUSY, "ab"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs_outcome out;
        engine.takes[0] = DIBS__SECOND;
        engine.takes[1] = LEASE - MARGIN - DIBS__SECOND;
        print_message("# row %zu\n", i);
        assert_status(lock_all("ab", &(dibs_lock_options){.wait_ms = rows[i].wait_ms}),
                      rows[i].status);
        assert_string_equal(engine.entered, rows[i].asked);
        assert_false(dibs_take(d, &out)); /* nobody is told of it */
        if (rows[i].status == DIBS_OK) {
            unlock_all(2);
        } else {
            assert_string_equal(engine.ended, "ba"); /* cancelled at once: nobody has had them */
            assert_int_equal(engine.cancels, 2);
            assert_non_null(strstr(err.message, "'a' was lost while the others were waited for"));
            expect_none(2);
        }
    }
}

static void what_was_held_before_and_is_lost_ends_it(void **state)
{
    dibs_grant *outer = expect_lock(d, "a", NULL);

    (void)state;
    engine.takes[1] = LEASE - MARGIN - DIBS__SECOND;
    still_pass(DIBS__SECOND);
    assert_status(lock_all("abc", &(dibs_lock_options){.wait_ms = DIBS_FOREVER}), DIBS_LOST);
    assert_string_equal(engine.entered, "bc");
    assert_string_equal(err.message,
                        "'a' was lost while the others were waited for: its lease expired");
    expect_none(3);
    assert_status(unlock(outer), DIBS_LOST);
}

/* A renewal that finds one lost is the same, whichever it is. */
static void a_renewal_that_comes_too_late_begins_again(void **state)
{
    static const char *const names[] = {"a", "b"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        engine.takes[1] = LEASE - MARGIN - DIBS__SECOND;
        engine.loses = names[i];
        assert_status(lock_all("ab", &now_or_never), DIBS_BUSY);
        assert_string_equal(engine.kept, "ab");
        assert_non_null(strstr(err.message, i ? "'b' was lost" : "'a' was lost"));
        assert_int_equal(engine.releases, 0); /* they were nobody's yet */
        expect_none(2);
    }
}

/* ---- No memory ------------------------------------------------------------------------------- */

static void a_failed_allocation_is_a_status(void **state)
{
    bool failed = true;

    (void)state;
    for (long n = 1; failed; n++) {
        dibs_status status;
        alloc_fail(n, false);
        status = lock_all("cab", &now_or_never);
        failed = alloc_heal();
        if (status == DIBS_OK) {
            unlock_all(3);
        } else {
            assert_status(status, DIBS_NO_MEMORY);
            assert_non_null(strstr(err.message, "memory"));
            expect_none(3);
        }
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, still_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(names_are_asked_for_in_order_and_once),
        CASE(wrong_requests_ask_nobody),
        CASE(terms_begin_when_all_are_there),
        CASE(what_was_obtained_is_given_back),
        CASE(what_was_held_before_stays),
        CASE(what_has_little_left_is_renewed),
        CASE(a_renewal_keeps_to_the_callers_patience),
        CASE(a_hand_over_is_not_renewed_early),
        CASE(what_was_held_before_keeps_its_terms),
        CASE(what_was_lost_is_asked_for_again),
        CASE(what_was_held_before_and_is_lost_ends_it),
        CASE(a_renewal_that_comes_too_late_begins_again),
        CASE(a_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("many", tests, NULL, NULL);
}
