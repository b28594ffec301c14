/* `dibs run`: take the locks, run a command under them, give them back.
 *
 * The wait is here, the time with the command in wrapper.c. What can go wrong has its exit code:
 * usage 64, no engine 69, not obtained 75, lost 76, not executable 126, not found 127, and 128 + n
 * for signal n. */
#define _GNU_SOURCE
#include "cli.h"
#include "environment.h"
#include "interrupt.h"
#include "nested.h"
#include "options.h"
#include "text.h"
#include "wrapper.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LEASE_MS 30000 /* of the library */

typedef struct run {
    const char *url, *owner;
    int64_t wait_ms, lease_ms, min_hold_ms, max_hold_ms, slots, weight, busy_code;
    bool no_wait, shared;
    char **names;
    int count;
    char **command;
    sigset_t passed_on, mask;
    dibs *d;
    dibs_grant **grants;
    cli_schedule latest; /* by --max-hold */
} run;

static const char help[] =
    "usage: dibs run [OPTION...] NAME... -- COMMAND [ARG...]\n"
    "Waits for the lock NAME (several: all or none), then runs COMMAND under it.\n\n"
    "  --wait D        wait at most D, for example 500ms, 5s or 1h (default: forever)\n"
    "  --no-wait       do not wait\n"
    "  --lease D       if this client goes silent, the lock is released after D\n"
    "                  (default 30s; zookeeper, etcd: the session in the URL)\n"
    "  --shared        shared lock: excludes exclusive holders only\n"
    "  --slots N       semaphore with N slots; --weight K takes K of them (default 1)\n"
    "  --min-hold D    hold the lock for at least D, even if COMMAND is faster\n"
    "  --max-hold D    end COMMAND when it has held the lock for D: SIGTERM D/20\n"
    "                  before that (at most 5s), then SIGKILL; exit code 76\n"
    "  --owner NAME    hold the lock as NAME; a second run with the same owner asks\n"
    "                  the first one to stop, and starts when it has ended\n"
    "  -E CODE         exit code if the lock was not obtained (default 75)\n"
    "  --url URL       engine, or --url-file FILE (default: see dibs help)\n\n"
    "COMMAND gets DIBS_NAME, DIBS_OWNER and DIBS_FENCE (the fencing token: pass it to\n"
    "the resource you write to). If the lock is lost, or dibs is killed or stopped,\n"
    "COMMAND and all its child processes are ended before another client gets the\n"
    "lock.\n\n"
    "Exit: COMMAND's code (128+n: ended by signal n), 75 not obtained, 76 lost,\n"
    "69 engine unavailable, 64 usage, 126 not executable, 127 not found.\n";

/* ---- Arguments ------------------------------------------------------------------------------- */

static int read_arguments(run *r, const cli_command *self, int argc, char **argv)
{
    const cli_option options[] = {
        CLI_URL_OPTIONS(&r->url),
        {"wait", CLI_SPAN, &r->wait_ms, 0, CLI_SPAN_MAX, 0},
        {"no-wait", CLI_FLAG, &r->no_wait, 0, 0, 0},
        {"lease", CLI_SPAN, &r->lease_ms, CLI_LEASE_MIN, CLI_LEASE_MAX, 0},
        {"shared", CLI_FLAG, &r->shared, 0, 0, 0},
        {"slots", CLI_NUMBER, &r->slots, 1, UINT32_MAX, 0},
        {"weight", CLI_NUMBER, &r->weight, 1, UINT32_MAX, 0},
        {"min-hold", CLI_SPAN, &r->min_hold_ms, 1, CLI_LEASE_MAX, 0},
        {"max-hold", CLI_SPAN, &r->max_hold_ms, CLI_LEASE_MIN, CLI_SPAN_MAX, 0},
        {"owner", CLI_TEXT, &r->owner, 0, 0, 0},
        {"exit-code", CLI_NUMBER, &r->busy_code, 0, 255, 'E'},
        {0},
    };
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0 && r->no_wait && r->wait_ms >= 0)
        code = cli_misused(self, "--wait and --no-wait exclude each other");
    if (code < 0 && r->weight > 0 && r->slots == 0)
        code = cli_misused(self, "--weight needs --slots");
    if (code < 0)
        code = cli_split_command(self, &words, "lock NAME", &r->count, &r->command);
    r->names = words.word;
    return code;
}

/* ---- Taking the locks ------------------------------------------------------------------------ */

/* False: nobody does (any more), or the engine does not tell. */
static bool say_who_holds(run *r, const char *name, const char *in_time)
{
    char since[32], left[24];
    dibs_lock_report *report = NULL;
    const dibs_lock_info *lock;
    const dibs_party *p = NULL;

    if (dibs_lock_inspect(r->d, name, &report, NULL) != DIBS_OK)
        return false;
    lock = dibs_lock_report_at(report, 0);
    if (lock && lock->holder_count > 0) {
        p = lock->holders[0];
        cli_say("'%s' not obtained%s: held by %s (host %s, pid %" PRId64
                ") since %s, %s %s%s; %zu waiting",
                name, in_time, p->owner, p->host, p->pid, cli_format_time(since, p->since_ms),
                p->released ? "released, but kept by --min-hold for" : "lease left",
                cli_format_span(left, p->left_ms), lock->holder_count > 1 ? ", and by others" : "",
                lock->waiter_count);
    }
    dibs_lock_report_free(report);
    return p != NULL;
}

/* Our place in the queue of `lock`, from 1 on; 0: we are not in it. */
static size_t place_of(const dibs_lock_info *lock)
{
    char host[256] = "";

    gethostname(host, sizeof host - 1);
    for (size_t i = 0; lock->waiters && i < lock->waiter_count; i++)
        if (lock->waiters[i]->pid == getpid() && strcmp(lock->waiters[i]->host, host) == 0)
            return i + 1;
    return 0;
}

/* Several locks are taken one after the other: the one that is waited for has us in its queue. Where an
 * engine has no queue, it is one that others hold. */
static void say_waiting(void *data, dibs *d)
{
    const run *r = data;
    char since[32], place[64] = "";
    dibs_engine_info engine;
    dibs_lock_report *report;
    bool said = false;

    engine = *dibs_engine_of(d);
    for (int i = 0; i < r->count && !said; i++) {
        report = NULL;
        if (dibs_lock_inspect(d, r->names[i], &report, NULL) != DIBS_OK)
            continue;
        const dibs_lock_info *lock = dibs_lock_report_at(report, 0);
        const dibs_party *p = lock->holder_count ? lock->holders[0] : NULL;
        size_t n = place_of(lock);
        said = p && p->pid != getpid() && (n > 0 || !engine.first_come);
        if (n > 0)
            snprintf(place, sizeof place, ", position %zu of %zu in the queue", n,
                     lock->waiter_count);
        if (said)
            cli_say(
                "waiting for '%s': held by %s (host %s, pid %" PRId64 ") since %s%s; Ctrl-C stops "
                "waiting",
                r->names[i], p->owner, p->host, p->pid, cli_format_time(since, p->since_ms), place);
        dibs_lock_report_free(report);
    }
}

static int not_obtained(run *r, const dibs_error *err)
{
    char span[24], in_time[40] = "";
    bool said = false;

    if (r->wait_ms > 0)
        snprintf(in_time, sizeof in_time, " within %s", cli_format_span(span, r->wait_ms));
    for (int i = 0; i < r->count; i++)
        said |= say_who_holds(r, r->names[i], in_time);
    if (!said)
        cli_failed(err);
    return (int)r->busy_code;
}

/* How long the engine may keep the lock: beyond --max-hold, so that the command has all of that and
 * is gone long before another can get the lock. */
static int64_t longest_hold_ms(const run *r)
{
    int64_t more = r->max_hold_ms / 4;

    return r->max_hold_ms + (more < 6000 ? more : 6000);
}

/* Where it is the handle's, the engine knows it better. */
static void find_lease(run *r)
{
    dibs_engine_info engine;

    engine = *dibs_engine_of(r->d);
    if (engine.lease_ms)
        r->lease_ms = engine.lease_ms;
    else if (r->lease_ms == 0)
        r->lease_ms = DEFAULT_LEASE_MS;
    if (r->max_hold_ms && r->lease_ms > longest_hold_ms(r))
        r->lease_ms = longest_hold_ms(r);
}

/* -1 to go on, or the exit code. */
static int obtain(void *data)
{
    run *r = data;
    dibs_lock_options options = {
        .wait_ms = r->no_wait || r->wait_ms == 0 ? DIBS_NO_WAIT
                   : r->wait_ms < 0              ? 0
                                                 : r->wait_ms,
        .max_hold_ms = longest_hold_ms(r),
        .min_hold_ms = r->min_hold_ms,
        .shared = r->shared,
        .slots = (uint32_t)r->slots,
        .weight = (uint32_t)r->weight,
        .owner = r->owner,
    };
    dibs_error err = {0};

    find_lease(r);
    options.lease_ms = r->lease_ms;
    for (int i = 0, code; i < r->count && options.wait_ms != DIBS_NO_WAIT; i++)
        if ((code = cli_nested_check(r->d, r->names[i], &options)) >= 0)
            return code;
    err.status = dibs_lock_many(r->d, (const char *const *)r->names, (size_t)r->count, &options,
                                r->grants, &err);
    if (err.status == DIBS_OK)
        return -1;
    if (err.status == DIBS_CANCELLED) /* by a signal, which says enough */
        return CLI_EXIT_NOT_OBTAINED;
    return err.status == DIBS_BUSY ? not_obtained(r, &err) : cli_failed(&err);
}

/* ---- From the grant to the exit code --------------------------------------------------------- */

/* Gives every lock back. True: one of them was not ours any more. */
static bool give_back(run *r)
{
    bool lost = false;

    for (int i = r->count - 1; i >= 0; i--) {
        dibs_error err;
        dibs_status status = dibs_unlock(&r->grants[i], &err);
        lost |= status == DIBS_LOST;
        if (status != DIBS_OK && status != DIBS_LOST)
            cli_say("%s", err.message);
    }
    return lost;
}

/* A command that was killed may be gone only when the lease has ended too. */
static bool max_hold_reached(const run *r, const dibs_grant *g)
{
    dibs_loss why = dibs_grant_loss(g);

    return r->max_hold_ms && cli_now() >= r->latest.term_at &&
           (why == DIBS_LOSS_NONE || why == DIBS_LOSS_EXPIRED);
}

static void say_loss(const run *r, const char *so)
{
    const char *why = "its lease could not be renewed in time";
    int which = 0;

    for (int i = r->count - 1; i >= 0; i--)
        if (!dibs_grant_held(r->grants[i])) {
            why = dibs_loss_text(dibs_grant_loss(r->grants[i]));
            which = i;
        }
    if (max_hold_reached(r, r->grants[which]))
        why = "--max-hold was reached";
    cli_say("lost '%s': %s; '%s' %s", r->names[which], why, r->command[0], so);
}

/* The command has been run, or could not be: gives the locks back and decides on the exit code. */
static int settle(run *r, cli_outcome out)
{
    bool gone;

    if (out.lost)
        say_loss(r, out.started ? "was ended" : "was not run");
    gone = give_back(r);
    if (out.failed)
        return out.failed;
    if (gone && !out.lost)
        cli_say("lost '%s' before '%s' exited", r->names[0], r->command[0]);
    if (gone || out.lost)
        return CLI_EXIT_LOST;
    dibs_close(r->d);
    r->d = NULL;
    return cli_exit_as(&out);
}

/* ---- While it runs --------------------------------------------------------------------------- */

static bool all_held(const void *what)
{
    const run *r = what;

    for (int i = 0; i < r->count; i++)
        if (!dibs_grant_held(r->grants[i]))
            return false;
    return true;
}

/* Of the grant that ends first. */
static int64_t remaining(const void *what)
{
    const run *r = what;
    int64_t first = INT64_MAX, left;

    for (int i = 0; i < r->count; i++) {
        left = dibs_grant_remaining_ms(r->grants[i]);
        first = left < first ? left : first;
    }
    return first;
}

static int run_command(run *r)
{
    cli_held held = {r->d, r->lease_ms, all_held, remaining, r, {0, 0}};
    cli_outcome out = {.failed = dibs_status_exit_code(DIBS_NO_MEMORY)};
    cli_environment environment;

    if (r->max_hold_ms)
        r->latest = cli_schedule_within(cli_now(), r->max_hold_ms * 1000);
    held.latest = r->latest;
    if (cli_environment_of_locks(&environment, r->grants, r->count))
        out = cli_wrap(&held, r->command, environment.list, NULL, &r->passed_on, &r->mask);
    else
        cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
    cli_environment_free(&environment);
    return settle(r, out);
}

static int start(const cli_command *self, int argc, char **argv)
{
    run r = {.wait_ms = -1, .busy_code = CLI_EXIT_NOT_OBTAINED};
    int code = read_arguments(&r, self, argc, argv);

    if (code >= 0)
        return code;
    r.grants = calloc((size_t)r.count, sizeof(dibs_grant *));
    if (!r.grants) {
        cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
        return dibs_status_exit_code(DIBS_NO_MEMORY);
    }
    cli_signals_take(&r.passed_on, &r.mask);
    code = cli_enter(r.url, r.lease_ms, &r.passed_on, &r.d, obtain, say_waiting, &r);
    if (code < 0)
        code = run_command(&r);
    dibs_close(r.d);
    free(r.grants);
    return code;
}

const cli_command cli_run = {"run", "run a command under a lock", help, start};
