/* The n-th allocation fails, the n-th system call fails, once or for ever, for every n of every public call: a
 * status each time, within the bound that dibs.h names; the same call then works again on the same handle, its
 * locks are free, and nothing is left open or allocated when the handle is closed.
 *
 *     test_sweep ENGINE [PATTERN]
 *
 * The steps between one n and the next grow, and each n gets one of the errors that its call can return.
 * $DIBS_TEST_EVERY tries every n with every error, as ./dev soak does. */
#define _GNU_SOURCE
#include "support/alloc.h"
#include "support/calls.h"
#include "support/clock.h"
#include "support/syscalls.h"
#include "support/test.h"
#include "sweep/scenes.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_MS  2000
#define RECOVER_MS  10000
#define CASES_MAX   96
#define DESCRIPTION 600
#define SETTLED_MS  3000
#define AGAIN       4 /* sweeps of a scene: what a library keeps is kept once, a leak grows with each */

static scratch_store here;
static dibs *witness; /* beside it all */
static bool every;

/* ---- Faults ----------------------------------------------------------------------------------- */

typedef struct fault {
    const char *name;
    void (*arm)(long n, bool for_ever, int variant);
    bool (*heal)(void);
    int variants;
} fault;

static void arm_alloc(long n, bool for_ever, int variant)
{
    (void)variant;
    alloc_fail(n, for_ever);
}

static const fault faults[] = {
    {"allocation", arm_alloc, alloc_heal, 1},
    {"system call", syscall_fail, syscall_heal, SYSCALL_VARIANTS},
};

/* ---- What is left ----------------------------------------------------------------------------- */

typedef struct holdings {
    long allocations, descriptors, threads;
} holdings;

static long count_entries(const char *folder)
{
    DIR *d = opendir(folder);
    long n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static holdings count_holdings(void)
{
    return (holdings){alloc_balances ? alloc_live() : 0, count_entries("/proc/self/fd"),
                      count_entries("/proc/self/task")};
}

/* libzookeeper loses a call that is out when its connection broke and it is closed, now and then. A leak of ours would
 * be one for each run that is refused, which are more. */
static long lost_by_library(void)
{
    return strcmp(here.engine, "zookeeper") == 0 ? 3 : 0;
}

static bool holds_more(const holdings *before, const holdings *after)
{
    return after->allocations > before->allocations + lost_by_library() ||
           after->descriptors > before->descriptors || after->threads > before->threads;
}

/* A thread that was left behind (net/detached.c) may be on its way out: what it has is no leak. */
static holdings count_until_settled(const holdings *before)
{
    int64_t until = clock_ms() + SETTLED_MS;
    holdings now = count_holdings();

    while (holds_more(before, &now) && clock_ms() < until) {
        sleep_ms(5);
        now = count_holdings();
    }
    return now;
}

/* ---- One failure ------------------------------------------------------------------------------ */

typedef struct sweep {
    const scene *scene;
    const fault *fault;
    stage stage;
    long runs, refused, last;
    int64_t recovery, over; /* the longest */
} sweep;

static void describe(const sweep *w, long n, bool for_ever, int variant, char out[DESCRIPTION])
{
    int error = 0;
    const char *call = syscall_failed(&error);

    snprintf(out, DESCRIPTION, "%s %ld %s, variant %d (%s%s%s), which ended in %.300s",
             w->fault->name, n, for_ever ? "and on" : "alone", variant, w->scene->name,
             w->fault->variants > 1 && call ? "; the last that failed: " : "",
             w->fault->variants > 1 && call ? call : "",
             w->stage.refused ? w->stage.last : "success");
}

static void start_over(stage *s)
{
    s->refused = 0;
    s->wrong[0] = '\0';
    s->longest = 0;
}

/* The same calls on the same handle, without a fault. */
static void recover(sweep *w, const char *after)
{
    int64_t start = clock_ms();

    for (;;) {
        start_over(&w->stage);
        w->scene->play(&w->stage);
        if (w->stage.refused == 0 && !w->stage.wrong[0])
            break;
        if (clock_ms() - start > RECOVER_MS)
            fail_msg("%s: it does not work again: %s", after, w->stage.last);
        sleep_ms(20);
    }
    if (clock_ms() - start > w->recovery)
        w->recovery = clock_ms() - start;
}

/* Who is in the way. */
static void show(const char *name)
{
    dibs_lock_report *r = NULL;
    const dibs_lock_info *l = NULL;

    if (dibs_lock_inspect(witness, name, &r, NULL) == DIBS_OK)
        l = dibs_lock_report_at(r, 0);
    for (size_t i = 0; l && i < l->holder_count; i++)
        print_message("# %s: held by %s, fence %" PRIu64 ", %" PRId64 " ms left\n", name,
                      l->holders[i]->owner, l->holders[i]->fence, l->holders[i]->left_ms);
    for (size_t i = 0; l && i < l->waiter_count; i++)
        print_message("# %s: %s waits, %" PRId64 " ms left\n", name, l->waiters[i]->owner,
                      l->waiters[i]->left_ms);
    dibs_lock_report_free(r);
}

/* What was left behind ends with its lease. */
static void assert_free(const char *after)
{
    dibs_lock_options patient = {.wait_ms = RECOVER_MS};

    for (int i = 0; i < LOCKS; i++) {
        char name[16];
        dibs_grant *g = NULL;
        dibs_error err = {0};
        snprintf(name, sizeof name, "sweep-%d", i);
        if (dibs_lock(witness, name, &patient, &g, &err) != DIBS_OK) {
            show(name);
            fail_msg("%s: %s is not free: %s", after, name, err.message);
        }
        unlock(g);
    }
}

/* False: the scene was over before. */
static bool fail_nth(sweep *w, long n, bool for_ever, int variant)
{
    stage *s = &w->stage;
    char what[DESCRIPTION];
    bool struck;

    start_over(s);
    w->fault->arm(n, for_ever, variant);
    w->scene->play(s);
    struck = w->fault->heal();
    describe(w, n, for_ever, variant, what);
    w->over = s->longest > w->over ? s->longest : w->over;
    if (s->wrong[0])
        fail_msg("%s: %s", what, s->wrong);
    if (s->refused) {
        w->refused++;
        recover(w, what);
        assert_free(what);
    }
    w->runs++;
    w->last = n > w->last ? n : w->last;
    return struck;
}

/* ---- All of them ------------------------------------------------------------------------------ */

static long next(long n, bool for_ever)
{
    if (every)
        return n + 1;
    return for_ever ? n * 6 : n + 1 + n / 2;
}

static void sweep_once(sweep *w)
{
    for (int for_ever = 0; for_ever < (w->scene->slow && !every ? 1 : 2); for_ever++) {
        bool struck = true;
        for (long n = 1; struck; n = next(n, for_ever)) {
            int variants = every && !for_ever ? w->fault->variants : 1;
            struck = false;
            for (int v = 0; v < variants; v++)
                struck |=
                    fail_nth(w, n, for_ever, variants > 1 ? v : (int)(n % w->fault->variants));
        }
    }
}

static void open_stage(sweep *w)
{
    dibs_error err = {0};

    w->stage = (stage){.where = &here};
    w->stage.second = stage_open(&here, w->scene, &err);
    w->stage.d = w->stage.second && !w->scene->apart ? stage_open(&here, w->scene, &err) : NULL;
    if (!w->stage.second || (!w->stage.d && !w->scene->apart))
        fail_msg("%s cannot be opened: %s", here.url, err.message);
    recover(w, "without a fault"); /* what is made at the first call is made now */
}

static void close_stage(sweep *w)
{
    dibs_close(w->stage.d);
    dibs_close(w->stage.second);
    w->stage.d = w->stage.second = NULL;
}

/* Of a case that failed half-way. */
static int end_case(void **state)
{
    sweep *w = *state;

    w->fault->heal();
    close_stage(w);
    return 0;
}

static void run_sweep(void **state)
{
    sweep *w = *state;
    holdings before = {0}, after;
    int times = 0;

    open_stage(w);
    close_stage(w);
    do {
        before = count_holdings();
        open_stage(w);
        sweep_once(w);
        close_stage(w);
        after = count_until_settled(&before);
    } while (holds_more(&before, &after) && ++times < AGAIN);
    print_message("# %s, %s: %ld runs to number %ld, %ld refused; recovered within %" PRId64
                  " ms, at most %" PRId64 " ms beyond a bound\n",
                  w->scene->name, w->fault->name, w->runs, w->last, w->refused, w->recovery,
                  w->over);
    if (times == AGAIN)
        fail_msg("%s, %s: left each time: %ld allocations, %ld descriptors, %ld threads",
                 w->scene->name, w->fault->name, after.allocations - before.allocations,
                 after.descriptors - before.descriptors, after.threads - before.threads);
    assert_true(w->runs > 0);
}

static int sweep_all(void)
{
    static struct CMUnitTest tests[CASES_MAX];
    static sweep sweeps[CASES_MAX];
    static char names[CASES_MAX][80];
    size_t n = 0;

    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++)
        for (const scene *s = scenes; s->name && n < CASES_MAX; s++) {
            if (!scene_fits(s, &here))
                continue;
            sweeps[n] = (sweep){.scene = s, .fault = &faults[f]};
            snprintf(names[n], sizeof names[n], "%s: %s", faults[f].name, s->name);
            tests[n] = (struct CMUnitTest){.name = names[n],
                                           .test_func = run_sweep,
                                           .teardown_func = end_case,
                                           .initial_state = &sweeps[n]};
            n++;
        }
    return _cmocka_run_group_tests(here.engine, tests, n, NULL, NULL);
}

/* libmariadb and libzookeeper do not look at what malloc gives them: there only our own allocations fail. */
static void spare_libraries(void)
{
    alloc_only_ours(strcmp(here.engine, "zookeeper") == 0 || strcmp(here.engine, "mysql") == 0);
}

int main(int argc, char *argv[])
{
    dibs_error err = {0};
    int code;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test_sweep ENGINE [PATTERN]\n");
        return 64;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    signal(SIGPIPE, SIG_DFL); /* the library must not need another's care for it */
    every = getenv("DIBS_TEST_EVERY") != NULL;
    if (scratch_store_for_main(&here, argv[1], SESSION_MS, &code)) {
        spare_libraries();
        code = 1;
        if (dibs_open(here.url, NULL, &witness, &err) == DIBS_OK)
            code = sweep_all() != 0;
        else
            printf("1..1\n# %s\nnot ok 1 - %s\n", err.message, here.engine);
        dibs_close(witness);
    }
    scratch_store_remove(&here);
    return code;
}
