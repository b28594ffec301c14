/* The lab's own judgement: the checker, and what becomes of schemes that promise what they do not keep. The
 * schemes here are made up and sell from a real SQLite file, with real processes; nothing else is needed. */
#include "lab/command.h"
#include "lab/raw.h"
#include "support/scratch.h"
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static scratch place;
static lab_request request;

/* ---- Schemes --------------------------------------------------------------------------------- */

/* As D0, with time enough between reading and writing that two surely meet. */
static lab_sale buy_without_a_lock(lab_buyer *buyer)
{
    buyer->pace.work_us = 5000;
    return lab_sell(buyer);
}

static char *lock_path(lab_buyer *buyer, char out[600])
{
    char name[128];

    snprintf(name, sizeof name, "lock-%s", buyer->resource);
    return scratch_file(&place, name, out, 600);
}

/* A lock that works and never ends by itself: a file that must not be there. */
static bool file_lock(lab_buyer *buyer)
{
    int64_t until = lab_until(buyer);
    char path[600];

    do {
        int fd = open(lock_path(buyer, path), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0)
            return close(fd) == 0;
        usleep(1000);
    } while (lab_now_us() < until);
    return false;
}

static bool file_unlock(lab_buyer *buyer)
{
    char path[600];

    return unlink(lock_path(buyer, path)) == 0;
}

#define ON_SQLITE .id = "T", .title = "made up", .needs = LAB_NEED(LAB_SQLITE), .stock = LAB_SQLITE

static const lab_strategy says_correct = {ON_SQLITE, .name = "says-correct",
                                          .buy = buy_without_a_lock};
static const lab_strategy admits_it = {ON_SQLITE, .name = "admits-it", .oversells = true,
                                       .buy = buy_without_a_lock};
static const lab_strategy says_two_processes = {ON_SQLITE, .name = "says-two-processes",
                                                .survives = LAB_SURVIVES(LAB_TWO_PROCESSES),
                                                .buy = buy_without_a_lock};
static const lab_strategy file = {ON_SQLITE, .name = "file", .lock = file_lock,
                                  .unlock = file_unlock};
static const lab_strategy accused = {ON_SQLITE, .name = "accused", .oversells = true,
                                     .lock = file_lock, .unlock = file_unlock};
static const lab_strategy says_survives = {ON_SQLITE, .name = "says-survives",
                                           .survives = LAB_SURVIVES(LAB_HOLDER_KILLED),
                                           .lock = file_lock, .unlock = file_unlock};

/* ---- Runs ------------------------------------------------------------------------------------ */

static bool run_one(const lab_strategy *s, const char **verdict, int64_t *oversold)
{
    static char word[32];
    json_t *list = json_array(), *one;
    bool fine;

    request.chosen[0] = s;
    request.chosen_count = 1;
    fine = lab_do_runs(&request, list);
    one = json_array_get(list, 0);
    assert_non_null(one);
    snprintf(word, sizeof word, "%s", json_string_value(json_object_get(one, "verdict")));
    *verdict = word;
    *oversold = json_integer_value(json_object_get(one, "oversold"));
    json_decref(list);
    return fine;
}

static void selling_twice_is_seen(void **state)
{
    const char *verdict;
    int64_t oversold;

    (void)state;
    assert_true(run_one(&admits_it, &verdict, &oversold));
    assert_string_equal(verdict, "oversold");
    assert_true(oversold > 0);
    assert_false(run_one(&says_correct, &verdict, &oversold));
    assert_true(oversold > 0);
}

static void a_lock_is_no_false_alarm(void **state)
{
    const char *verdict;
    int64_t oversold;

    (void)state;
    assert_true(run_one(&file, &verdict, &oversold));
    assert_string_equal(verdict, "correct");
    assert_int_equal(oversold, 0);
    assert_false(
        run_one(&accused, &verdict, &oversold)); /* said to be broken, and was not caught */
}

/* ---- Claims ---------------------------------------------------------------------------------- */

static bool face_hazards(const lab_strategy *s, size_t *count)
{
    json_t *list = json_array();
    bool kept;

    request.chosen[0] = s;
    request.chosen_count = 1;
    kept = lab_do_hazards(&request, list);
    *count = 0; /* those that can happen to it */
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *outcome = json_object_get(json_array_get(list, i), "outcome");
        *count += strcmp(json_string_value(outcome), "not applicable") != 0;
    }
    json_decref(list);
    return kept;
}

static void a_false_claim_fails_the_run(void **state)
{
    size_t count;

    (void)state;
    assert_true(face_hazards(&admits_it, &count)); /* it breaks, and never said otherwise */
    assert_int_equal(count, 1);
    assert_false(face_hazards(&says_two_processes, &count));
    assert_int_equal(count, 1);
}

static lab_outcome comes_to; /* the made-up experiment */

static void made_up(const lab_site *site, lab_finding *out)
{
    (void)site;
    out->outcome = comes_to;
}

static bool experiment(bool promised, lab_outcome outcome)
{
    const lab_experiment e = {
        .id = "T", .name = "made-up", .title = "made up", .run = made_up, .promised = promised};
    json_t *list = json_array();
    bool kept;

    comes_to = outcome;
    request.experiments[0] = &e;
    request.experiment_count = 1;
    kept = lab_do_experiments(&request, list);
    assert_int_equal(json_array_size(list), 1);
    json_decref(list);
    request.experiment_count = 0;
    return kept;
}

static void a_broken_promise_fails_the_run(void **state)
{
    (void)state;
    assert_true(experiment(true, LAB_SURVIVED));
    assert_false(experiment(true, LAB_BROKE));
    assert_true(experiment(true, LAB_NOT_RUN)); /* its servers are not on this machine */
    assert_true(experiment(false, LAB_BROKE));  /* what others do is shown, not promised */
}

static const lab_hazard *hazard_of(lab_hazard_kind kind)
{
    for (size_t i = 0; lab_hazard_table[i]; i++)
        if (lab_hazard_table[i]->kind == kind)
            return lab_hazard_table[i];
    return NULL;
}

static void a_dead_holder_is_seen(void **state)
{
    lab_finding f;

    (void)state;
    lab_hazard_run(hazard_of(LAB_HOLDER_KILLED), &says_survives, &request.site, &f);
    assert_int_equal(f.outcome, LAB_BROKE);
    assert_true(f.stuck_ms == INT64_MAX && f.claimed);
    assert_false(lab_claim_holds(&f));
    f.claimed = false;
    assert_true(lab_claim_holds(&f));
    f = (lab_finding){.outcome = LAB_NOT_RUN, .claimed = true};
    assert_false(lab_claim_holds(&f)); /* not shown is not kept */
}

/* What cannot happen to a scheme is not called survived; it says why. */
static const char *why_not(const char *strategy, lab_hazard_kind kind)
{
    const lab_strategy *s = lab_find(strategy, NULL);

    assert_non_null(s);
    return hazard_of(kind)->why_not(s);
}

static void what_cannot_happen_is_not_survived(void **state)
{
    const lab_site nowhere = {0};
    lab_finding f;

    (void)state;
    lab_hazard_run(hazard_of(LAB_HOLDER_KILLED), &admits_it, &nowhere, &f);
    assert_int_equal(f.outcome, LAB_NOT_APPLICABLE);
    assert_true(strstr(f.text, "no lock") && !f.claimed && lab_claim_holds(&f));
    assert_non_null(strstr(why_not("setnx-sleep", LAB_KILLED_BEFORE_EXPIRE), "no EXPIRE"));
    assert_null(why_not("set-nx-px", LAB_KILLED_BEFORE_EXPIRE));
    assert_non_null(strstr(why_not("dibs-redis", LAB_KILLED_BEFORE_EXPIRE), "one step"));
    assert_non_null(strstr(why_not("redisson", LAB_WRONG_CLOCK), "clock"));
    assert_null(why_not("getset", LAB_WRONG_CLOCK));
    assert_non_null(why_not("dibs-sqlite", LAB_REPLY_LOST));
    /* Five nodes have a network; that the lab's proxy cannot stand before them is its own fault. */
    assert_null(why_not("dibs-redlock", LAB_REPLY_LOST));
    lab_hazard_run(hazard_of(LAB_REPLY_LOST), lab_find("dibs-redlock", NULL), &nowhere, &f);
    assert_int_equal(f.outcome, LAB_NOT_RUN);
    assert_true(strstr(f.text, "proxy") && !f.claimed);
}

/* ---- The checker ----------------------------------------------------------------------------- */

static void verdicts(void **state)
{
    static const struct {
        lab_result result;
        const char *verdict;
        bool correct;
    } cases[] = {
        {{.sold = 10, .left = 0}, "correct", true},
        {{.sold = 10, .left = 3, .oversold = 3}, "oversold", false},
        {{.sold = 10, .oversold = 3, .cut = true}, "oversold", false},
        {{.sold = 10, .lost = 1}, "books wrong", false},
        {{.sold = 10, .left = -1}, "books wrong", false},
        {{.sold = 4, .left = 6, .cut = true, .idle_ms = 20000}, "stuck", false},
        {{.sold = 4, .left = 6, .cut = true, .idle_ms = 20}, "not finished", false},
        {{.sold = 9, .left = 1, .failed = 1}, "errors", false},
        {{.sold = 9, .left = 1, .refused = 1}, "refused buyers", true},
        {{.sold = 9, .left = 0, .refused = 1}, "correct", true},
        {{.error = "no server"}, "not run", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(lab_verdict(&cases[i].result), cases[i].verdict);
        assert_int_equal(lab_is_correct(&cases[i].result), cases[i].correct);
    }
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static void urls(void **state)
{
    lab_buyer buyer = {0};
    lab_url u;

    (void)state;
    assert_true(lab_url_read(&buyer, "redis", "redis://", 6379, &u));
    assert_true(strcmp(u.host, "127.0.0.1") == 0 && u.port == 6379 && !u.user[0] && !u.path[0]);
    assert_true(lab_url_read(&buyer, "redis", "redis://:s%40cret@db1:7000/3?x=y", 6379, &u));
    assert_true(strcmp(u.password, "s@cret") == 0 && !u.user[0] && u.port == 7000);
    assert_true(strcmp(u.host, "db1") == 0 && strcmp(u.path, "3") == 0);
    assert_true(lab_url_read(&buyer, "mysql", "mysql://me:a%3ab:c@[::1]/shop", 3306, &u));
    assert_true(strcmp(u.user, "me") == 0 && strcmp(u.password, "a:b:c") == 0);
    assert_true(strcmp(u.host, "::1") == 0 && u.port == 3306 && strcmp(u.path, "shop") == 0);
    for (const char *const *bad =
             (const char *const[]){"", "secret", "rediss://secret",
                                   "redis://:secret@h:", "redis://:secret@h:x",
                                   "redis://:secret@h:0", "redis://:secret@h:65536", NULL};
         *bad; bad++) {
        assert_false(lab_url_read(&buyer, "redis", *bad, 6379, &u));
        assert_true(buyer.note[0] &&
                    (strncmp(*bad, "redis", 5) != 0 || !strstr(buyer.note, "secret")));
    }
}

static int set_up(void **state)
{
    (void)state;
    if (scratch_make(&place) != 0)
        return -1;
    request.json = true; /* nothing on standard output */
    request.plan =
        (lab_plan){.processes = 2, .threads = 4, .loops = 5, .stock = 40, .limit_ms = 60 * 1000};
    snprintf(request.site.url[LAB_SQLITE], sizeof request.site.url[LAB_SQLITE], "sqlite://%s/db",
             place.path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(&place);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),
        cmocka_unit_test(urls),
        cmocka_unit_test(selling_twice_is_seen),
        cmocka_unit_test(a_lock_is_no_false_alarm),
        cmocka_unit_test(a_false_claim_fails_the_run),
        cmocka_unit_test(a_broken_promise_fails_the_run),
        cmocka_unit_test(a_dead_holder_is_seen),
        cmocka_unit_test(what_cannot_happen_is_not_survived),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
