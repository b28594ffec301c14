/* `dibs break`: an operator takes a lock from whoever holds it. */
#include "cli.h"
#include "json.h"
#include "options.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static const char help[] =
    "usage: dibs break [--now] [--wait D] [--by WHO] [--json] [--url URL] NAME\n"
    "Takes the lock NAME from its holder. The holder is notified within about a\n"
    "second (Redlock: after a third of its lease). This command returns when the\n"
    "holder has released the lock or its lease has expired.\n\n"
    "  --now      release the lock at once; the old holder may still be running, and\n"
    "             only a resource that checks the fence is protected from it\n"
    "  --wait D   stop waiting after D (exit 75); the lock is still being broken\n"
    "  --by WHO   recorded with the lock (default: user@host)\n"
    "  --json     {\"name\", \"broken\", \"by\", \"fence\"}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0 the old holder is gone, 75 not yet, 1 no such lock, or not used for a\n"
    "day.\n";

static uint64_t fence_of(dibs *d, const char *name)
{
    dibs_lock_report *report = NULL;
    uint64_t fence = 0;

    if (dibs_lock_inspect(d, name, &report, NULL) == DIBS_OK)
        fence = dibs_lock_report_at(report, 0)->fence;
    dibs_lock_report_free(report);
    return fence;
}

static int report_json(dibs *d, const char *name, const char *by, bool broken)
{
    json_t *o = cli_json_new();
    uint64_t fence = fence_of(d, name);

    cli_json_text(o, "name", name);
    cli_json_put(o, "broken", json_boolean(broken));
    cli_json_text(o, "by", by);
    cli_json_put(o, "fence", fence ? json_integer((json_int_t)fence) : json_null());
    return cli_json_print(o, 2);
}

static void report_text(dibs *d, const char *name)
{
    char shown[CLI_SHOWN_SIZE];

    cli_escape(shown, sizeof shown, name);
    printf("%s: broken, the fence is now %" PRIu64 "\n", shown, fence_of(d, name));
}

static int break_lock(dibs *d, const char *name, const char *by, bool now, int64_t wait_ms,
                      bool json)
{
    dibs_error err = {0};
    int code = 0;

    err.status = dibs_lock_break(
        d, name, &(dibs_lock_break_options){.by = by, .now = now, .wait_ms = wait_ms}, &err);
    if (err.status != DIBS_OK)
        code = cli_failed(&err);
    if (json && (err.status == DIBS_OK || err.status == DIBS_BUSY || err.status == DIBS_NOT_FOUND))
        report_json(d, name, by, err.status == DIBS_OK);
    else if (err.status == DIBS_OK)
        report_text(d, name);
    return cli_finish(code);
}

static int start(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL, *by = NULL;
    char me[DIBS_OWNER_MAX + 1];
    bool now = false, json = false;
    int64_t wait_ms = 0;
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"now", CLI_FLAG, &now, 0, 0, 0},
                                  {"wait", CLI_SPAN, &wait_ms, 1, CLI_SPAN_MAX, 0},
                                  {"by", CLI_TEXT, &by, 0, 0, 0},
                                  {"json", CLI_FLAG, &json, 0, 0, 0},
                                  {0}};
    dibs *d = NULL;
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0)
        code = cli_need_name(self, &words);
    if (code < 0 && by && by[0] == '\0')
        code = cli_misused(self, "--by is empty");
    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    code = break_lock(d, words.word[0], by ? by : cli_operator(me), now, wait_ms, json);
    dibs_close(d);
    return code;
}

const cli_command cli_break = {"break", "take a lock from its holder", help, start};
