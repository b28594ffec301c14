/* `dibs once`: run a command once under a key; whoever asks again is told what it said.
 *
 * It goes well: begin says that the key is ours, the command runs under the guardian with its output
 * kept, and its end is written down with output and exit code. Or it was already done: output and
 * exit code come out again. What can go wrong has its exit code: running elsewhere 75, another
 * fingerprint 65, a runner that died 79, the run lost 76, and those of `dibs run`. */
#define _GNU_SOURCE
#include "capture.h"
#include "cli.h"
#include "environment.h"
#include "interrupt.h"
#include "json.h"
#include "keys.h"
#include "options.h"
#include "result.h"
#include "text.h"
#include "wrapper.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_LEASE_MS 30000
#define OUTPUT_MAX       ((size_t)1024 * 1024)
#define AGAIN_MS         200
#define SIGNALS          32 /* a shell reports the end by signal n as 128 + n */

typedef struct once {
    const char *url, *scope, *fingerprint, *owner, *on_crash, *on_fail;
    int64_t keep_ms, wait_ms, lease_ms;
    bool keep_forever, no_replay, json;
    char *key;
    char **command;
    char shown[DIBS_NAME_MAX * 2 + 32]; /* the key, for people */
    sigset_t passed_on, mask;
    dibs *d;
    dibs_once *run;
    cli_capture *capture; /* NULL: the command writes to our own stdout and stderr */
    cli_result result;
} once;

static const char help[] =
    "usage: dibs once [OPTION...] KEY -- COMMAND [ARG...]\n"
    "       dibs once ls|show|forget|resolve ...   (see: dibs once ls --help)\n"
    "Runs COMMAND once per KEY. Later calls replay its output (up to 1 MiB) and exit\n"
    "code. By default only a COMMAND that exits by itself with a non-zero code is run\n"
    "again. An interrupted run (killed, or dibs received TERM, INT, HUP or QUIT) has\n"
    "an unknown outcome and is not repeated.\n\n"
    "  --scope S        namespace of KEY: a tenant, a queue (default: none)\n"
    "  --fingerprint F  identifies the request: KEY with a different F exits with 65\n"
    "  --keep D         keep the result for D (default 24h), or --keep-forever\n"
    "  --wait D         wait up to D for a run in progress (default: exit 75)\n"
    "  --on-crash C     if an earlier run was interrupted: refuse (default, exit 79)\n"
    "                   or rerun (at least once)\n"
    "  --on-fail F      COMMAND exits non-zero: forget (default: next call runs it;\n"
    "                   a failed rerun stays interrupted) or keep (replay it)\n"
    "  --no-replay      do not store or replay output, only skip repeated runs\n"
    "  --lease D        a silent runner is considered dead after D (default 30s)\n"
    "  --owner NAME     name of the runner, shown to operators\n"
    "  --json           {\"key\", \"outcome\", \"code\", \"stdout\", ...} at the end\n"
    "  --url URL        engine, or --url-file FILE (default: see dibs help)\n\n"
    "COMMAND gets DIBS_KEY, DIBS_SCOPE, DIBS_FENCE, and DIBS_AGAIN=1 after a crash.\n"
    "Exit: COMMAND's code, 75 in progress, 65 different fingerprint, 79 interrupted,\n"
    "76 lost, 69 engine unavailable, 64 usage, 126 not executable, 127 not found.\n";

/* ---- Arguments ------------------------------------------------------------------------------- */

static int check_choice(const cli_command *self, const char *option, const char *value,
                        const char *a, const char *b)
{
    if (strcmp(value, a) == 0 || strcmp(value, b) == 0)
        return -1;
    return cli_misused(self, "invalid %s '%s': use %s or %s", option, value, a, b);
}

static int take_words(once *c, const cli_command *self, const cli_words *words)
{
    int count, code = cli_split_command(self, words, "KEY", &count, &c->command);

    if (code >= 0)
        return code;
    if (count > 1)
        return cli_misused(self, "give one KEY, not %d", count);
    c->key = words->word[0];
    if (c->scope[0])
        snprintf(c->shown, sizeof c->shown, "'%s' of scope '%s'", c->key, c->scope);
    else
        snprintf(c->shown, sizeof c->shown, "'%s'", c->key);
    return -1;
}

static int read_arguments(once *c, const cli_command *self, int argc, char **argv)
{
    const cli_option options[] = {
        CLI_URL_OPTIONS(&c->url),
        {"scope", CLI_TEXT, &c->scope, 0, 0, 0},
        {"fingerprint", CLI_TEXT, &c->fingerprint, 0, 0, 0},
        {"keep", CLI_SPAN, &c->keep_ms, 1, CLI_SPAN_MAX, 0},
        {"keep-forever", CLI_FLAG, &c->keep_forever, 0, 0, 0},
        {"wait", CLI_SPAN, &c->wait_ms, 0, CLI_SPAN_MAX, 0},
        {"on-crash", CLI_TEXT, &c->on_crash, 0, 0, 0},
        {"on-fail", CLI_TEXT, &c->on_fail, 0, 0, 0},
        {"no-replay", CLI_FLAG, &c->no_replay, 0, 0, 0},
        {"lease", CLI_SPAN, &c->lease_ms, CLI_LEASE_MIN, CLI_LEASE_MAX, 0},
        {"owner", CLI_TEXT, &c->owner, 0, 0, 0},
        {"json", CLI_FLAG, &c->json, 0, 0, 0},
        {0},
    };
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0 && c->keep_forever && c->keep_ms)
        code = cli_misused(self, "--keep and --keep-forever exclude each other");
    if (code < 0 && c->fingerprint && c->fingerprint[0] == '\0')
        code = cli_misused(self, "--fingerprint is empty");
    if (code < 0)
        code = check_choice(self, "--on-crash", c->on_crash, "refuse", "rerun");
    if (code < 0)
        code = check_choice(self, "--on-fail", c->on_fail, "forget", "keep");
    return code < 0 ? take_words(c, self, &words) : code;
}

/* ---- Telling --------------------------------------------------------------------------------- */

/* From now on a signal ends us as it ends any program: what had to be written down is. */
static void let_signals_through(const once *c)
{
    pthread_sigmask(SIG_UNBLOCK, &c->passed_on, NULL);
}

/* `code` -1: there is none. The command's output is in `c->result` if there is any. */
static void print_json(const once *c, const char *outcome, int code)
{
    static const char *const kinds[] = {"kept", "too long", "not kept"};
    json_t *o = cli_json_new();
    dibs_party runner = {0};
    bool kept = code >= 0 && c->result.kind == CLI_OUTPUT_KEPT;
    uint64_t fence = dibs_once_fence(c->run);

    dibs_once_runner(c->run, &runner, sizeof runner);
    cli_json_text(o, "scope", c->scope);
    cli_json_text(o, "key", c->key);
    cli_json_text(o, "outcome", outcome);
    cli_json_put(o, "code", code < 0 ? json_null() : json_integer(code));
    cli_json_put(o, "fence", fence ? json_integer((json_int_t)fence) : json_null());
    cli_json_text(o, "output", code < 0 ? NULL : kinds[c->result.kind]);
    cli_json_bytes(o, "stdout", kept ? c->result.data[0] : NULL, c->result.size[0]);
    cli_json_bytes(o, "stderr", kept ? c->result.data[1] : NULL, c->result.size[1]);
    cli_json_put(o, "runner", runner.owner ? cli_json_runner(&runner) : json_null());
    cli_json_print(o, 2);
}

/* The status of begin that means: not now, or not like this. */
static int refuse(const once *c, const dibs_error *err)
{
    char since[32], left[24];
    dibs_party p = {0};

    dibs_once_runner(c->run, &p, sizeof p);
    cli_format_time(since, p.since_ms);
    if (err->status == DIBS_RUNNING)
        cli_say("%s is in progress: run by %s (host %s, pid %" PRId64 ") since %s, lease left %s",
                c->shown, p.owner, p.host, p.pid, since, cli_format_span(left, p.left_ms));
    else if (err->status == DIBS_CRASHED)
        cli_say("%s: an earlier run by %s (host %s, pid %" PRId64 ", started %s) was interrupted; "
                "its outcome is unknown; --on-crash rerun runs it again",
                c->shown, p.owner, p.host, p.pid, since);
    else if (err->status == DIBS_MISMATCH)
        cli_say("%s was used with a different fingerprint: use another key for another request",
                c->shown);
    else
        cli_failed(err);
    if (c->json)
        print_json(c,
                   err->status == DIBS_RUNNING    ? "running"
                   : err->status == DIBS_CRASHED  ? "crashed"
                   : err->status == DIBS_MISMATCH ? "mismatch"
                                                  : "expired",
                   -1);
    return dibs_status_exit_code(err->status);
}

/* What could not be written is said, and is our exit code; that nobody reads it is the reader's own
 * business. */
static int code_of_run(int failure, int code)
{
    if (failure == 0 || failure == EPIPE)
        return code;
    cli_say("cannot write the output: %s", strerror(failure));
    return CLI_EXIT_OUTPUT;
}

/* How much the engine of this run keeps. */
static size_t output_most(const once *c)
{
    dibs_engine_info info;

    info = *dibs_engine_of(c->d);
    return info.value_max < OUTPUT_MAX ? info.value_max : OUTPUT_MAX;
}

static void say_not_kept(const once *c)
{
    size_t most = output_most(c);

    if (c->result.kind != CLI_OUTPUT_TOO_LONG)
        cli_say("%s is already done; its output was not stored (--no-replay)", c->shown);
    else if (most == OUTPUT_MAX)
        cli_say("%s is already done; its output was too long to be stored (1 MiB at most)",
                c->shown);
    else
        cli_say("%s is already done; its output was too long to be stored (%s: %zu bytes at "
                "most)",
                c->shown, dibs_engine_name(c->d), most);
}

static int replay(once *c)
{
    int code = dibs_once_code(c->run) & 255, failure = 0, failure_2 = 0;
    size_t size = 0;
    const void *bytes = dibs_once_result(c->run, &size);

    let_signals_through(c);
    if (!cli_result_decode(bytes, size, &c->result)) {
        cli_say("%s was done by a newer version of dibs; this one cannot read its result",
                c->shown);
        return dibs_status_exit_code(DIBS_ENGINE_FAILED);
    }
    if (c->json) {
        print_json(c, "replayed", code);
        return cli_finish(code);
    }
    if (c->no_replay)
        return code;
    if (c->result.kind != CLI_OUTPUT_KEPT) {
        say_not_kept(c);
        return code;
    }
    failure = cli_write_all(STDOUT_FILENO, c->result.data[0], c->result.size[0]);
    failure_2 = cli_write_all(STDERR_FILENO, c->result.data[1], c->result.size[1]);
    return code_of_run(failure ? failure : failure_2, code);
}

/* ---- Beginning ------------------------------------------------------------------------------- */

/* -1 to go on, or the exit code. */
static int obtain(void *data)
{
    once *c = data;
    const dibs_once_options options = {
        .scope = c->scope,
        .fingerprint = c->fingerprint,
        .fingerprint_size = c->fingerprint ? strlen(c->fingerprint) : 0,
        .lease_ms = c->lease_ms,
        .keep_ms = c->keep_forever ? DIBS_FOREVER : c->keep_ms,
        .wait_ms = c->wait_ms == 0 ? DIBS_NO_WAIT : c->wait_ms,
        .on_crash = strcmp(c->on_crash, "rerun") == 0 ? DIBS_CRASH_RERUN : DIBS_CRASH_REFUSE,
        .owner = c->owner,
    };
    dibs_error err = {0};

    err.status = dibs_once_begin(c->d, c->key, &options, &c->run, &err);
    switch (err.status) {
    case DIBS_OK:
        return -1;
    case DIBS_ALREADY:
        return replay(c);
    case DIBS_RUNNING:
    case DIBS_CRASHED:
    case DIBS_MISMATCH:
    case DIBS_EXPIRED:
        return refuse(c, &err);
    case DIBS_CANCELLED: /* by a signal, which says enough */
        return CLI_EXIT_NOT_OBTAINED;
    default:
        return cli_failed(&err);
    }
}

static void say_waiting(void *data, dibs *d)
{
    const once *c = data;

    (void)d;
    cli_say("waiting for a run of %s in progress; Ctrl-C stops waiting", c->shown);
}

/* ---- Ending ---------------------------------------------------------------------------------- */

/* Nothing has happened: the key is as it was before. If that cannot be told, our lease ends. */
static void forget(once *c)
{
    dibs_once_undo(c->run, NULL);
}

/* Without an answer it is told again while the run is ours. */
static dibs_status write_down(once *c, int code, dibs_error *err)
{
    bool keep = strcmp(c->on_fail, "keep") == 0;
    size_t size = 0;
    void *bytes = cli_result_encode(&c->result, &size);

    if (!bytes) {
        err->message[0] = '\0';
        return DIBS_NO_MEMORY;
    }
    for (;;) {
        err->status = code == 0 ? dibs_once_finish(c->run, bytes, size, code, err)
                      : keep    ? dibs_once_fail(c->run, bytes, size, code, err)
                                : dibs_once_undo(c->run, err);
        if ((err->status != DIBS_UNAVAILABLE && err->status != DIBS_UNKNOWN) ||
            !dibs_once_held(c->run))
            break;
        poll(NULL, 0, AGAIN_MS);
    }
    free(bytes);
    return err->status;
}

/* An engine may take less than we keep, or there is no memory for a copy: then without output. */
static dibs_status write_outcome(once *c, int code, dibs_error *err)
{
    dibs_status status = write_down(c, code, err);

    if ((status != DIBS_INVALID && status != DIBS_NO_MEMORY) || c->result.kind != CLI_OUTPUT_KEPT)
        return status;
    c->result = (cli_result){.kind = CLI_OUTPUT_TOO_LONG};
    return write_down(c, code, err);
}

static int say_lost(once *c, const cli_outcome *out)
{
    cli_say("lost %s: its lease could not be renewed in time, or another has taken over; '%s' %s",
            c->shown, c->command[0], out->started ? "was ended" : "was not run");
    if (out->started)
        dibs_once_abandon(c->run, NULL);
    else
        forget(c);
    if (c->json)
        print_json(c, "lost", -1);
    return CLI_EXIT_LOST;
}

/* A signal ended the command, or a part of it: shells report that as 128 + n. Or we were told to end,
 * and passed that on. Many programs then exit with 0, or with 1, wherever they are: it says nothing. */
static bool is_cut_short(const cli_outcome *out)
{
    int code = cli_exit_code_of(out->status);

    return out->cut_off || out->stopped || !WIFEXITED(out->status) ||
           (code > CLI_EXIT_SIGNAL && code < CLI_EXIT_SIGNAL + SIGNALS);
}

/* The outcome is unknown, and no failure: whoever asks next is told that its runner died. -1: exit as
 * the command did. */
static int say_crashed(once *c, const cli_outcome *out)
{
    dibs_error err = {0};

    cli_say("%s: '%s' was %s; its outcome is unknown; --on-crash rerun runs it again", c->shown,
            c->command[0], out->stopped ? "interrupted" : "killed by a signal");
    if (dibs_once_abandon(c->run, &err) != DIBS_OK)
        cli_say("%s: this could not be stored; other clients see it when the lease expires: %s",
                c->shown, err.message);
    if (c->json)
        print_json(c, "crashed", -1);
    if (out->cut_off)
        return dibs_status_exit_code(DIBS_CRASHED);
    return cli_exit_code_of(out->status) ? -1 : CLI_EXIT_SIGNAL + out->stopped;
}

static int settle_end(once *c, const cli_outcome *out)
{
    int code = cli_exit_code_of(out->status);
    dibs_error err = {0};

    err.status = write_outcome(c, code, &err);
    if (err.status == DIBS_LOST)
        cli_say("lost %s before '%s' exited: its result is not stored", c->shown, c->command[0]);
    else if (err.status != DIBS_OK)
        cli_say("'%s' has run for %s, but the result could not be stored: %s", c->command[0],
                c->shown, err.message[0] ? err.message : dibs_status_text(err.status));
    if (c->json)
        print_json(c, err.status == DIBS_LOST ? "lost" : code == 0 ? "done" : "failed", code);
    return err.status == DIBS_OK ? -1 : dibs_status_exit_code(err.status);
}

/* The command has been run, or could not be. -1: exit as it did. */
static int settle(once *c, const cli_outcome *out)
{
    if (out->failed) {
        forget(c);
        return out->failed;
    }
    if (out->lost)
        return say_lost(c, out);
    return is_cut_short(out) ? say_crashed(c, out) : settle_end(c, out);
}

/* ---- While it runs --------------------------------------------------------------------------- */

static bool held(const void *what)
{
    return dibs_once_held(what);
}

static int64_t remaining(const void *what)
{
    return dibs_once_remaining_ms(what);
}

/* A document on stdout leaves stderr for both streams. */
static bool open_capture(once *c)
{
    const int to[2] = {c->json ? STDERR_FILENO : STDOUT_FILENO, STDERR_FILENO};

    c->result.kind = c->no_replay ? CLI_OUTPUT_NOT_ASKED : CLI_OUTPUT_KEPT;
    if (c->no_replay && !c->json)
        return true;
    c->capture = cli_capture_open(to, c->no_replay ? 0 : output_most(c));
    if (!c->capture)
        cli_say("cannot capture the output of '%s': %s", c->command[0], strerror(errno));
    return c->capture != NULL;
}

static void end_capture(once *c)
{
    cli_kept kept;

    if (!c->capture)
        return;
    cli_capture_stop(c->capture, &kept);
    if (c->no_replay)
        return;
    c->result = (cli_result){kept.too_long ? CLI_OUTPUT_TOO_LONG : CLI_OUTPUT_KEPT,
                             {kept.data[0] ? kept.data[0] : "", kept.data[1] ? kept.data[1] : ""},
                             {kept.size[0], kept.size[1]}};
}

static int run_command(once *c)
{
    const cli_held lease = {c->d, c->lease_ms, held, remaining, c->run, {0, 0}};
    cli_outcome out = {.failed = CLI_EXIT_SYSTEM};
    cli_environment environment = {0};
    int code, failure = 0;

    if (!cli_environment_of_once(&environment, c->scope, c->key, c->run))
        cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
    else if (open_capture(c))
        out = cli_wrap(&lease, c->command, environment.list,
                       c->capture ? cli_capture_output(c->capture) : NULL, &c->passed_on, &c->mask);
    cli_environment_free(&environment);
    end_capture(c);
    code = settle(c, &out);
    dibs_once_free(c->run);
    c->run = NULL;
    dibs_close(c->d);
    c->d = NULL;
    let_signals_through(c);
    if (c->capture)
        failure = cli_capture_flush(c->capture);
    return cli_finish(code_of_run(failure, code < 0 ? cli_exit_as(&out) : code));
}

static int start(const cli_command *self, int argc, char **argv)
{
    once c = {.scope = "", .on_crash = "refuse", .on_fail = "forget", .lease_ms = DEFAULT_LEASE_MS};
    int code;

    if (cli_is_keys(argc, argv))
        return cli_keys.run(&cli_keys, argc, argv);
    code = read_arguments(&c, self, argc, argv);
    if (code >= 0)
        return code;
    cli_signals_take(&c.passed_on, &c.mask);
    code = cli_enter(c.url, 0, &c.passed_on, &c.d, obtain, say_waiting, &c);
    if (code < 0)
        code = run_command(&c);
    else if (c.run) /* a signal came with the answer; the engine decides whether it is still ours */
        forget(&c);
    dibs_once_free(c.run);
    dibs_close(c.d);
    cli_capture_free(c.capture);
    return code;
}

const cli_command cli_once = {"once", "run a command once; duplicates get its output", help, start};
