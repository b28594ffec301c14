/* `dibs torture`: reads the plan, runs it, lets the checker decide. */
#define _GNU_SOURCE
#include "torture.h"

#include "cli/cli.h"
#include "cli/options.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "usage: dibs torture [--url URL] [--seconds N] [--faults LIST] [--seed S] ...\n"
    "Uses the engine from many processes while faults happen, records everything, and\n"
    "checks the record: was a lock held twice, was work done twice, did calls return\n"
    "in time? Locks, keys and counters named torture-... are left in the store.\n\n"
    "  --seconds N    duration (default 30)\n"
    "  --processes N  workers (default 8)\n"
    "  --locks N      names to lock (default 2)\n"
    "  --lease D      of locks and runs (default 2s)\n"
    "  --seed S       seed of all random choices (default: a new one, printed)\n"
    "  --work LIST    locks,once,tokens,counters (default: what the engine can)\n"
    "  --faults LIST  stop,kill,cut,break,NAME or none (default: all; --no-break)\n"
    "  --fault NAME=COMMAND   adds a fault: runs COMMAND begin, and later COMMAND end\n"
    "  --fault-seconds LO-HI  how long a fault lasts (default 1-4)\n"
    "  --gap LO-HI    seconds between two faults (default 0.5-3)\n"
    "  --adapter CMD  test another lock library through a program (dibs-torture(1))\n"
    "  --history DIR  record here and keep it (default: kept after a failure)\n"
    "  --json         print the report as JSON\n"
    "  --url URL      engine, or --url-file FILE; default: see dibs help\n\n"
    "Exit: 0 passed, 1 violations, 2 no verdict, 69 the engine cannot be reached,\n"
    "71 a fault could not be made.\n";

const char *const torture_work_names[] = {"locks", "once", "tokens", "counters", NULL};

typedef struct request {
    torture_plan plan;
    const char *work, *faults, *lasting, *gap, *history;
    cli_texts declared;
    bool no_break;
} request;

/* ---- Reading the options ---------------------------------------------------------------------- */

/* Takes the next word of a list; false: there is none. */
static bool next_word(const char **list, char out[64])
{
    size_t length = strcspn(*list, ",");

    if (**list == '\0')
        return false;
    snprintf(out, 64, "%.*s", (int)length, *list);
    *list += length;
    *list += **list == ',';
    return true;
}

static unsigned bit_of(const char *const names[], const char *word)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], word) == 0)
            return 1U << i;
    return 0;
}

static int read_work(const cli_command *self, request *r)
{
    const char *list = r->work ? r->work : "locks,once,tokens,counters";
    char word[64];

    while (next_word(&list, word)) {
        unsigned bit = bit_of(torture_work_names, word);
        if (bit == 0)
            return cli_misused(self, "--work: there is no '%s', only locks, once, tokens, counters",
                               word);
        r->plan.work |= bit;
    }
    return r->plan.work ? -1 : cli_misused(self, "--work: the list is empty");
}

static int read_declared(const cli_command *self, request *r)
{
    static char names[TORTURE_DECLARED_MAX][64];

    if (r->declared.count > TORTURE_DECLARED_MAX)
        return cli_misused(self, "--fault: at most %d", TORTURE_DECLARED_MAX);
    for (size_t i = 0; i < r->declared.count; i++) {
        const char *text = r->declared.text[i], *equals = strchr(text, '=');
        size_t length = equals ? (size_t)(equals - text) : 0;
        if (length == 0 || length >= sizeof names[i] || equals[1] == '\0' ||
            strcspn(text, ",") < length)
            return cli_misused(self, "--fault '%s': write NAME=COMMAND", text);
        snprintf(names[i], sizeof names[i], "%.*s", (int)length, text);
        if (bit_of(torture_fault_names, names[i]) || strcmp(names[i], "none") == 0)
            return cli_misused(self, "--fault '%s': that name is taken", names[i]);
        r->plan.declared[i] = (torture_declared){names[i], equals + 1};
    }
    r->plan.declared_count = r->declared.count;
    return -1;
}

/* Declared faults are on unless a list leaves them out. */
static int read_faults(const cli_command *self, request *r)
{
    torture_plan *p = &r->plan;
    const char *list = r->faults;
    bool on[TORTURE_DECLARED_MAX] = {false};
    size_t kept = 0;
    char word[64];

    if (!list) {
        p->faults = TORTURE_STOP | TORTURE_KILL | TORTURE_CUT | (r->no_break ? 0 : TORTURE_BREAK);
        return -1;
    }
    while (next_word(&list, word)) {
        size_t i = 0;
        while (i < p->declared_count && strcmp(p->declared[i].name, word) != 0)
            i++;
        if (i < p->declared_count)
            on[i] = true;
        else if (bit_of(torture_fault_names, word) == 0 && strcmp(word, "none") != 0)
            return cli_misused(self,
                               "--faults: there is no '%s', only stop, kill, cut, break, none "
                               "and what --fault declares",
                               word);
        p->faults |= bit_of(torture_fault_names, word);
    }
    for (size_t i = 0; i < p->declared_count; i++)
        if (on[i])
            p->declared[kept++] = p->declared[i];
    p->declared_count = kept;
    return -1;
}

static int read_range(const cli_command *self, const char *name, const char *text, double low,
                      double high, torture_range *out)
{
    char *end = NULL;

    if (text) {
        low = high = strtod(text, &end);
        if (end != text && *end == '-') {
            text = end + 1;
            high = strtod(text, &end);
        }
        if (end == text || *end || !(low >= 0) || !(high >= low) || high > 3600)
            return cli_misused(self, "%s: write LO-HI in seconds, for example 0.5-3", name);
    }
    out->low = (int64_t)(low * 1e9);
    out->high = (int64_t)(high * 1e9);
    return -1;
}

/* An embedded store has no connections to cut. */
static int drop_cut(const cli_command *self, request *r)
{
    if (strcmp(r->plan.engine, "sqlite") != 0 || !(r->plan.faults & TORTURE_CUT))
        return -1;
    if (r->faults)
        return cli_misused(self, "--faults: sqlite: has no connections to cut");
    r->plan.faults &= ~(unsigned)TORTURE_CUT;
    return -1;
}

/* At least one fault must fit between the calm second and the calm part at the end. */
static int check_length(const cli_command *self, const torture_plan *p)
{
    int64_t calm = 2 * p->lease_ms > 4000 ? 2 * p->lease_ms : 4000;
    int64_t longest = p->faults & TORTURE_STOP ? p->lease_ms * 2 : 500;
    int64_t declared = p->declared_count ? p->lasting.high / TORTURE_MS : 0;
    bool faults = p->faults || p->declared_count;
    int64_t least =
        (calm + 2999 + (faults ? 1000 + (longest > declared ? longest : declared) : 0)) / 1000;

    if (p->seconds < least)
        return cli_misused(self,
                           "--seconds %d is too short for these faults and this lease: at "
                           "least %d",
                           (int)p->seconds, (int)least);
    return -1;
}

static int read_plan(const cli_command *self, request *r)
{
    torture_plan *p = &r->plan;
    int code = read_work(self, r);

    if (code < 0)
        code = read_declared(self, r);
    if (code < 0)
        code = read_faults(self, r);
    if (code < 0)
        code = read_range(self, "--fault-seconds", r->lasting, 1, 4, &p->lasting);
    if (code < 0)
        code = read_range(self, "--gap", r->gap, 0.5, 3, &p->gap);
    if (code < 0 && p->adapter && !(p->work & TORTURE_LOCKS))
        code = cli_misused(self, "--adapter knows locks only");
    return code;
}

/* ---- The folder ------------------------------------------------------------------------------- */

/* An empty folder to write into; `made`: it is a new one of ours. */
static int make_folder(const char *given, char out[4096])
{
    const char *base = getenv("TMPDIR");
    struct dirent *e;
    DIR *dir;
    int n = 0;

    if (!given) {
        snprintf(out, 4096, "%s/dibs-torture-XXXXXX", base && base[0] ? base : "/tmp");
        if (mkdtemp(out))
            return -1;
        cli_say("cannot make a folder for the history: %s: %s", out, strerror(errno));
        return CLI_EXIT_OUTPUT;
    }
    snprintf(out, 4096, "%s", given);
    if (mkdir(given, 0777) != 0 && errno != EEXIST) {
        cli_say("cannot make the folder %s: %s", given, strerror(errno));
        return CLI_EXIT_OUTPUT;
    }
    dir = opendir(given);
    while (dir && (e = readdir(dir)))
        n += e->d_name[0] != '.';
    if (!dir || n > 0)
        cli_say("--history %s: %s", given, dir ? "the folder is not empty" : strerror(errno));
    if (dir)
        closedir(dir);
    return dir && n == 0 ? -1 : CLI_EXIT_USAGE;
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *e;

    while (dir && (e = readdir(dir)))
        unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(folder);
}

/* ---- The command ------------------------------------------------------------------------------ */

static int run(request *r)
{
    torture_plan *p = &r->plan;
    char folder[4096];
    int code = make_folder(r->history, folder), verdict;
    bool whole;

    if (code >= 0)
        return code;
    snprintf(p->prefix, sizeof p->prefix, "torture-%lld-%llx", (long long)p->seed,
             (unsigned long long)torture_now());
    if (!p->json)
        fprintf(stderr, "seed %lld, %s, %d processes, %d seconds\n", (long long)p->seed, p->engine,
                (int)p->processes, (int)p->seconds);
    code = torture_run(p, folder);
    whole = code < 0 || code == 1;
    if (whole) {
        verdict = torture_check(folder, p->json);
        code = verdict != 0 ? verdict : code < 0 ? 0 : code;
    }
    if (r->history || (whole ? code != 0 : code == CLI_EXIT_SYSTEM))
        fprintf(stderr, "the history is in %s\n", folder);
    else
        remove_folder(folder);
    return cli_finish(code);
}

static int start(const cli_command *self, int argc, char **argv)
{
    request r = {.plan = {.seconds = 30, .processes = 8, .locks = 2, .lease_ms = 2000}};
    torture_plan *p = &r.plan;
    const cli_option options[] = {
        CLI_URL_OPTIONS(&p->url),
        {"seconds", CLI_NUMBER, &p->seconds, 1, 86400, 0},
        {"processes", CLI_NUMBER, &p->processes, 1, TORTURE_PROCESSES_MAX, 0},
        {"locks", CLI_NUMBER, &p->locks, 1, TORTURE_LOCKS_MAX, 0},
        {"lease", CLI_SPAN, &p->lease_ms, 100, 600000, 0},
        {"seed", CLI_NUMBER, &p->seed, 0, INT64_MAX, 0},
        {"work", CLI_TEXT, &r.work, 0, 0, 0},
        {"faults", CLI_TEXT, &r.faults, 0, 0, 0},
        {"fault", CLI_TEXTS, &r.declared, 0, 0, 0},
        {"fault-seconds", CLI_TEXT, &r.lasting, 0, 0, 0},
        {"gap", CLI_TEXT, &r.gap, 0, 0, 0},
        {"no-break", CLI_FLAG, &r.no_break, 0, 0, 0},
        {"adapter", CLI_TEXT, &p->adapter, 0, 0, 0},
        {"history", CLI_TEXT, &r.history, 0, 0, 0},
        {"json", CLI_FLAG, &p->json, 0, 0, 0},
        {0}};
    cli_words words;
    int code;

    if (getrandom(&p->seed, sizeof p->seed, 0) != (ssize_t)sizeof p->seed)
        p->seed = torture_now();
    p->seed &= 0xffffffff; /* short enough to type */
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0 && words.count > 0)
        code = cli_misused(self, "takes no operands, but got '%s'", words.word[0]);
    if (code < 0)
        code = read_plan(self, &r);
    if (code < 0)
        code = torture_probe(p);
    if (code < 0)
        code = drop_cut(self, &r);
    if (code < 0)
        code = check_length(self, p);
    return code < 0 ? run(&r) : code;
}

const cli_command cli_torture = {"torture", "use an engine under faults, and check every promise",
                                 help, start};
