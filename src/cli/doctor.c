/* `dibs doctor`: what on the user's own server endangers locks, and what to do about it. */
#include "cli.h"
#include "json.h"
#include "options.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>

enum { EXIT_WARNING = 1, EXIT_DANGER = 2, EXIT_UNSEEN = 3 };

static const char help[] =
    "usage: dibs doctor [--lease D] [--quiet] [--json] [--url URL]\n"
    "Checks the server (or the file) at URL for anything that makes locks unsafe:\n"
    "settings, permissions, topology, clocks, latency. Prints one line per finding:\n"
    "what was found, why it matters, what to do. Changes nothing and needs no more\n"
    "permissions than the other commands.\n\n"
    "  danger     two clients can hold a lock at once, or no lock can be taken\n"
    "  warning    the same after a rarer fault, or reduced availability\n"
    "  note       for information\n"
    "  unseen     could not be checked, with the reason\n\n"
    "  --lease D  lease to compare the latency with (default: a lock's default)\n"
    "  --quiet    print only dangers and warnings, and no summary\n"
    "  --json     {\"engine\", \"findings\": [{\"severity\", \"id\", \"what\", \"why\",\n"
    "             \"advice\"}], \"latency\", ...}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0 no findings (notes do not count), 1 warnings, 2 dangers, 3 no findings\n"
    "but something could not be checked, 69 the server cannot be reached.\n";

static size_t count_of(const dibs_findings *f, dibs_severity severity)
{
    size_t n = 0;

    for (size_t i = 0; i < dibs_findings_count(f); i++)
        n += dibs_findings_at(f, i)->severity == severity;
    return n;
}

static int exit_code(const dibs_findings *f)
{
    return count_of(f, DIBS_SEVERITY_DANGER)    ? EXIT_DANGER
           : count_of(f, DIBS_SEVERITY_WARNING) ? EXIT_WARNING
           : count_of(f, DIBS_SEVERITY_UNSEEN)  ? EXIT_UNSEEN
                                                : 0;
}

/* ---- For people ------------------------------------------------------------------------------ */

static void print_finding(const dibs_finding *f)
{
    printf("%-7s  %s: ", dibs_severity_name(f->severity), f->id);
    cli_print_line(stdout, f->what);
    if (f->why[0])
        printf(". Why: ");
    cli_print_line(stdout, f->why);
    if (f->advice[0])
        printf(". Do: ");
    cli_print_line(stdout, f->advice);
    putchar('\n');
}

static void print_latency(const dibs_latency *l)
{
    char lease[24];

    if (l->exchanges == 0)
        return;
    printf("; a round trip takes %.2f ms (p50), %.2f ms (p99 of %zu), the lease is %s",
           (double)l->p50_us / 1000, (double)l->p99_us / 1000, l->exchanges,
           cli_format_span(lease, l->lease_ms));
}

static void print_text(const dibs_findings *f, bool quiet)
{
    static const dibs_severity order[] = {DIBS_SEVERITY_DANGER, DIBS_SEVERITY_WARNING,
                                          DIBS_SEVERITY_NOTE, DIBS_SEVERITY_UNSEEN};

    for (size_t i = 0; i < dibs_findings_count(f); i++)
        if (!quiet || dibs_findings_at(f, i)->severity >= DIBS_SEVERITY_WARNING)
            print_finding(dibs_findings_at(f, i));
    if (quiet)
        return;
    printf("%s: ", dibs_findings_engine(f));
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        printf("%s%s %zu", i ? ", " : "", dibs_severity_name(order[i]), count_of(f, order[i]));
    print_latency(dibs_findings_latency(f));
    putchar('\n');
}

/* ---- For programs ---------------------------------------------------------------------------- */

static json_t *latency_json(const dibs_latency *l)
{
    json_t *o = cli_json_new();

    cli_json_integer(o, "exchanges", (int64_t)l->exchanges);
    cli_json_integer(o, "p50_us", l->p50_us);
    cli_json_integer(o, "p99_us", l->p99_us);
    cli_json_integer(o, "max_us", l->max_us);
    cli_json_integer(o, "lease_ms", l->lease_ms);
    return o;
}

static json_t *as_json(const dibs_findings *f)
{
    json_t *o = cli_json_new(), *list = json_array();

    cli_json_text(o, "engine", dibs_findings_engine(f));
    for (size_t i = 0; i < dibs_findings_count(f); i++) {
        const dibs_finding *at = dibs_findings_at(f, i);
        json_t *one = cli_json_new();
        cli_json_text(one, "severity", dibs_severity_name(at->severity));
        cli_json_text(one, "id", at->id);
        cli_json_text(one, "what", at->what);
        cli_json_text(one, "why", at->why);
        cli_json_text(one, "advice", at->advice);
        json_array_append_new(list, one);
    }
    cli_json_put(o, "findings", list);
    cli_json_put(o, "latency", latency_json(dibs_findings_latency(f)));
    cli_json_integer(o, "exit", exit_code(f));
    return o;
}

static int start(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    bool json = false, quiet = false;
    dibs_options how = {0};
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"lease", CLI_SPAN, &how.lease_ms, 10, 86400000, 0},
                                  {"quiet", CLI_FLAG, &quiet, 0, 0, 'q'},
                                  {"json", CLI_FLAG, &json, 0, 0, 0},
                                  {0}};
    dibs_findings *found = NULL;
    dibs_error err = {0};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "takes no operands, but got '%s'", words.word[0]);
    err.status = dibs_examine(url, &how, &found, &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    code = exit_code(found);
    if (json && cli_json_print(as_json(found), 2) != 0)
        code = CLI_EXIT_OUTPUT;
    else if (!json)
        print_text(found, quiet);
    dibs_findings_free(found);
    return code == CLI_EXIT_OUTPUT ? code : cli_finish(code);
}

const cli_command cli_doctor = {"doctor", "check whether a server is safe for locks", help, start};
