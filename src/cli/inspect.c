/* `dibs ls` and `dibs show`: what the engine knows, for people and as JSON. */
#include "cli.h"
#include "json.h"
#include "options.h"
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>

static const char ls_help[] =
    "usage: dibs ls [--all] [--names] [--json] [--url URL] [PREFIX]\n"
    "Lists the locks that are held or waited for, and whose names start with PREFIX.\n\n"
    "  --all      also list idle locks: kept for a day, on ZooKeeper for about a\n"
    "             minute, on etcd not at all (except semaphores)\n"
    "  --names    print only the names, one per line\n"
    "  --json     {\"locks\": [{\"name\", \"slots\", \"used\", \"fence\", \"holders\",\n"
    "             \"waiter_count\", ...}]}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Control and invisible characters, bytes that are not UTF-8 and backslashes in a\n"
    "name are shown as \\n, \\t, \\xNN, \\\\. In JSON, name_hex has the bytes of a name\n"
    "that is not UTF-8.\n";

static const char show_help[] =
    "usage: dibs show [--json] [--url URL] NAME\n"
    "Shows one lock: its holders, since when they hold it, their fences and remaining\n"
    "leases, and the waiters in queue order. Some engines add notes, such as the\n"
    "state of each node.\n\n"
    "  --json     {\"name\", \"slots\", \"used\", \"fence\", \"holders\", \"waiters\",\n"
    "             \"notes\", ...}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, or 1 if there is no such lock (fence: null), or it was not used for a\n"
    "day (ZooKeeper: about a minute; etcd: it is not in use).\n";

/* ---- ls -------------------------------------------------------------------------------------- */

static void print_names(const dibs_lock_report *report)
{
    char shown[CLI_SHOWN_SIZE];

    for (size_t i = 0; i < dibs_lock_report_count(report); i++) {
        cli_escape(shown, sizeof shown, dibs_lock_report_at(report, i)->name);
        puts(shown);
    }
}

static int run_ls(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    bool all = false, names = false, json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"all", CLI_FLAG, &all, 0, 0, 'a'},
                                  {"names", CLI_FLAG, &names, 0, 0, 0},
                                  {"json", CLI_FLAG, &json, 0, 0, 0},
                                  {0}};
    dibs *d = NULL;
    dibs_lock_report *report = NULL;
    dibs_error err = {0};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0 && words.count > 1)
        code = cli_misused(self, "give at most one PREFIX, not %d", words.count);
    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    err.status = dibs_lock_list(d, words.count ? words.word[0] : NULL,
                                &(dibs_lock_list_options){.idle = all}, &report, &err);
    if (err.status != DIBS_OK)
        code = cli_failed(&err);
    else if (json)
        code = cli_json_print(cli_json_list(report), 2);
    else if (names)
        print_names(report);
    else
        cli_table_print(stdout, report, 0, 0);
    dibs_lock_report_free(report);
    dibs_close(d);
    return cli_finish(code);
}

/* ---- show ------------------------------------------------------------------------------------ */

static void print_party(const dibs_party *p, bool holder)
{
    char owner[CLI_SHOWN_SIZE], host[CLI_SHOWN_SIZE], since[32], left[24];

    cli_escape(owner, sizeof owner, p->owner);
    cli_escape(host, sizeof host, p->host);
    printf("  %s (host %s, pid %" PRId64 ") since %s, %s %s", owner, host, p->pid,
           cli_format_time(since, p->since_ms),
           !holder       ? "counts as alive for"
           : p->released ? "released, stays taken for"
                         : "lease left",
           cli_format_span(left, p->left_ms));
    if (holder)
        printf(", fence %" PRIu64, p->fence);
    printf("%s", p->shared ? ", shared" : "");
    if (p->weight > 1)
        printf(", weight %" PRIu32, p->weight);
    puts(p->breaking ? ", asked to give it back" : "");
}

static void print_lock(const dibs_lock_info *lock)
{
    char name[CLI_SHOWN_SIZE], by[CLI_SHOWN_SIZE], at[32];

    cli_escape(name, sizeof name, lock->name);
    printf("%s\n", name);
    if (lock->slots)
        printf("slots:   %" PRIu32 " of %" PRIu32 " taken\n", lock->used, lock->slots);
    printf("fence:   %" PRIu64 " (the highest given out)\n", lock->fence);
    if (lock->broken_by) {
        cli_escape(by, sizeof by, lock->broken_by);
        printf("broken:  by %s at %s\n", by, cli_format_time(at, lock->broken_at_ms));
    }
    printf("holders: %zu\n", lock->holder_count);
    for (size_t i = 0; i < lock->holder_count; i++)
        print_party(lock->holders[i], true);
    printf("waiters: %zu\n", lock->waiter_count);
    for (size_t i = 0; lock->waiters && i < lock->waiter_count; i++)
        print_party(lock->waiters[i], false);
    for (size_t i = 0; i < lock->note_count; i++) {
        char note[CLI_SHOWN_SIZE];
        cli_escape(note, sizeof note, lock->notes[i]);
        printf("note:    %s\n", note);
    }
}

static int run_show(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    bool json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url), {"json", CLI_FLAG, &json, 0, 0, 0}, {0}};
    dibs *d = NULL;
    dibs_lock_report *report = NULL;
    dibs_error err = {0};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0)
        code = cli_need_name(self, &words);
    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    err.status = dibs_lock_inspect(d, words.word[0], &report, &err);
    if (err.status != DIBS_OK)
        code = cli_failed(&err);
    if (json && err.status == DIBS_NOT_FOUND)
        cli_json_print(cli_json_lock(&(dibs_lock_info){.name = words.word[0]}, true), 2);
    else if (json && err.status == DIBS_OK)
        cli_json_print(cli_json_lock(dibs_lock_report_at(report, 0), true), 2);
    else if (err.status == DIBS_OK)
        print_lock(dibs_lock_report_at(report, 0));
    dibs_lock_report_free(report);
    dibs_close(d);
    return cli_finish(code);
}

const cli_command cli_ls = {"ls", "list locks", ls_help, run_ls};
const cli_command cli_show = {"show", "show one lock: its holders and waiters", show_help,
                              run_show};
