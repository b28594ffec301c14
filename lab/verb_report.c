/* `dibs lab report`: everything, written down three times: report.json, report.md, and report.html, one
 * file that needs no network and draws its own charts from the same figures. */
#define _GNU_SOURCE
#include "cli/json.h"
#include "command.h"
#include "report_html.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *text_of(json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));

    return text ? text : "";
}

static double number_of(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* ---- Markdown -------------------------------------------------------------------------------- */

/* A cell: no bars, no line ends. */
static void put_cell(FILE *to, const char *text)
{
    fputs("| ", to);
    for (; *text; text++)
        if (*text == '|')
            fputs("\\|", to);
        else
            fputc(*text == '\n' ? ' ' : *text, to);
    fputc(' ', to);
}

static void write_runs(FILE *to, json_t *runs)
{
    size_t i;
    json_t *r;

    fputs("| row | strategy | verdict | sold | left | oversold | per second | p50 ms | p99 ms | "
          "tries | "
          "requests |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
          to);
    json_array_foreach(runs, i, r)
    {
        put_cell(to, text_of(r, "id"));
        put_cell(to, text_of(r, "name"));
        put_cell(to, text_of(r, "verdict"));
        fprintf(to, "| %.0f | %.0f | %.0f | %.0f | %.2f | %.2f ", number_of(r, "sold"),
                number_of(r, "left"), number_of(r, "oversold"), number_of(r, "per_second"),
                number_of(r, "p50_us") / 1000, number_of(r, "p99_us") / 1000);
        fprintf(to, json_is_null(json_object_get(r, "tries_per_sale")) ? "| " : "| %.1f ",
                number_of(r, "tries_per_sale"));
        fprintf(to, json_is_null(json_object_get(r, "requests_per_sale")) ? "| |\n" : "| %.1f |\n",
                number_of(r, "requests_per_sale"));
    }
}

/* Is there one before it with the same `key`? */
static bool seen(json_t *list, size_t before, const char *key)
{
    const char *text = text_of(json_array_get(list, before), key);

    for (size_t i = 0; i < before; i++)
        if (strcmp(text_of(json_array_get(list, i), key), text) == 0)
            return true;
    return false;
}

static json_t *hazard_of(json_t *hazards, const char *strategy, const char *hazard)
{
    size_t i;
    json_t *h;

    json_array_foreach(hazards, i, h)
    {
        if (strcmp(text_of(h, "strategy"), strategy) == 0 &&
            strcmp(text_of(h, "hazard"), hazard) == 0)
            return h;
    }
    return NULL;
}

/* One word or two for the matrix. */
static const char *in_short(json_t *h)
{
    const char *outcome = text_of(h, "outcome");

    if (!h)
        return "not run";
    if (strcmp(outcome, "not applicable") == 0)
        return "n/a";
    if (strcmp(outcome, "BROKE") != 0)
        return outcome;
    if (number_of(h, "oversold") > 0)
        return "**oversold**";
    if (strcmp(text_of(h, "stuck_ms"), "for ever") == 0)
        return "**stuck**";
    if (number_of(h, "foreign") > 0)
        return "**deleted another's**";
    if (number_of(h, "at_once") > 1)
        return "**two holders**";
    return number_of(h, "stuck_ms") > 0 ? "**nobody's for a lease**" : "**stuck**";
}

/* Schemes down, hazards across; no cell is empty. */
static void write_matrix(FILE *to, json_t *hazards)
{
    size_t i, j, columns = 0;
    json_t *row, *column;

    fputs(
        "survived: one holder at a time, a correct stock record. **Bold**: what was damaged. n/a: "
        "this "
        "cannot "
        "happen to this scheme, nothing was run; the reasons are below. not run: it could happen, "
        "but the lab did not run it.\n\n| scheme ",
        to);
    json_array_foreach(hazards, j, column)
    {
        if (!seen(hazards, j, "hazard")) {
            put_cell(to, text_of(column, "title"));
            columns++;
        }
    }
    fputs("|\n|---", to);
    for (j = 0; j < columns; j++)
        fputs("|---", to);
    fputs("|\n", to);
    json_array_foreach(hazards, i, row)
    {
        if (seen(hazards, i, "strategy"))
            continue;
        fprintf(to, "| %s %s ", text_of(row, "id"), text_of(row, "strategy"));
        json_array_foreach(hazards, j, column)
        {
            if (!seen(hazards, j, "hazard"))
                put_cell(to, in_short(hazard_of(hazards, text_of(row, "strategy"),
                                                text_of(column, "hazard"))));
        }
        fputs("|\n", to);
    }
}

static bool was_run(json_t *h)
{
    return strcmp(text_of(h, "outcome"), "not applicable") != 0;
}

/* Each reason once, with the schemes that it holds for. */
static void write_reasons(FILE *to, json_t *hazards)
{
    size_t i, j;
    json_t *h, *other;

    fputs("\n### Not applicable, and why\n", to);
    json_array_foreach(hazards, i, h)
    {
        bool again = was_run(h);
        for (j = 0; j < i && !again; j++) {
            other = json_array_get(hazards, j);
            again = strcmp(text_of(other, "hazard"), text_of(h, "hazard")) == 0 &&
                    strcmp(text_of(other, "text"), text_of(h, "text")) == 0;
        }
        if (again)
            continue;
        fprintf(to, "- %s: %s:", text_of(h, "title"), text_of(h, "text"));
        json_array_foreach(hazards, j, other)
        {
            if (strcmp(text_of(other, "hazard"), text_of(h, "hazard")) == 0 &&
                strcmp(text_of(other, "text"), text_of(h, "text")) == 0)
                fprintf(to, " %s", text_of(other, "strategy"));
        }
        fputs("\n", to);
    }
}

static void write_hazards(FILE *to, json_t *hazards)
{
    size_t i;
    json_t *h;

    fputs("| row | strategy | hazard | outcome | what happened |\n|---|---|---|---|---|\n", to);
    json_array_foreach(hazards, i, h)
    {
        if (!was_run(h))
            continue;
        put_cell(to, text_of(h, "id"));
        put_cell(to, text_of(h, "strategy"));
        put_cell(to, text_of(h, "hazard"));
        put_cell(to, text_of(h, "outcome"));
        put_cell(to, text_of(h, "text"));
        fputs("|\n", to);
    }
}

/* "a\tb\nc\td\n" as a table. It may come from a file that somebody has edited. */
static void write_table(FILE *to, const char *table)
{
    size_t columns = 1, size;
    bool heading = true;

    fputc('\n', to);
    for (const char *c = table; *c && *c != '\n'; c++)
        columns += *c == '\t';
    for (const char *line = table; *line; line += size + (line[size] == '\n')) {
        size = strcspn(line, "\n");
        fputs("| ", to);
        for (const char *c = line; c < line + size; c++)
            fputs(*c == '\t' ? " | " : (char[]){*c, 0}, to);
        fputs(" |\n", to);
        for (size_t i = 0; heading && i < columns; i++)
            fputs(i + 1 < columns ? "|---" : "|---|\n", to);
        heading = false;
    }
}

static void write_experiments(FILE *to, json_t *experiments)
{
    size_t i;
    json_t *e;

    json_array_foreach(experiments, i, e)
    {
        fprintf(to, "\n### %s: %s\n%s\n", text_of(e, "id"), text_of(e, "title"),
                text_of(e, "text"));
        if (text_of(e, "table")[0])
            write_table(to, text_of(e, "table"));
    }
}

static void write_markdown(FILE *to, json_t *report)
{
    fprintf(to, "# The lab: which scheme oversells, which gets stuck, which is fast\n\n%s\n\n",
            text_of(report, "about"));
    fputs(
        "R10 and R12a are our models of what Redisson's source publishes, not Redisson itself.\n\n",
        to);
    fputs("## Hazards\n", to);
    write_matrix(to, json_object_get(report, "hazards"));
    fputs("\n## Runs\n", to);
    write_runs(to, json_object_get(report, "runs"));
    fputs("\n## Hazards in detail\n", to);
    write_hazards(to, json_object_get(report, "hazards"));
    write_reasons(to, json_object_get(report, "hazards"));
    fputs("\n## Experiments\n", to);
    write_experiments(to, json_object_get(report, "experiments"));
}

/* ---- HTML ------------------------------------------------------------------------------------ */

/* The page is a template; the figures go where it says so. In a script nothing may look like its end. */
static void write_html(FILE *to, json_t *report)
{
    static const char mark[] = "/*REPORT*/null";
    const char *at = strstr(lab_report_html, mark);
    char *figures = json_dumps(report, JSON_COMPACT | JSON_SORT_KEYS);

    fwrite(lab_report_html, 1, (size_t)(at - lab_report_html), to);
    for (const char *c = figures ? figures : "null"; *c; c++)
        if (*c == '<')
            fputs("\\u003c", to);
        else
            fputc(*c, to);
    fputs(at + strlen(mark), to);
    free(figures);
}

static void write_json(FILE *to, json_t *report)
{
    json_dumpf(report, to, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    fputc('\n', to);
}

/* ---- The verb -------------------------------------------------------------------------------- */

static bool write_file(const char *folder, const char *name, json_t *report,
                       void (*write)(FILE *, json_t *))
{
    char path[4096];
    FILE *to;
    bool written;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    to = fopen(path, "w");
    if (!to) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    write(to, report);
    written = !ferror(to);
    if (fclose(to) != 0 || !written) {
        cli_say("%s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

static json_t *make_report(lab_request *r, bool *fine)
{
    json_t *o = cli_json_new(), *runs = json_array(), *hazards = json_array(),
           *experiments = json_array();
    char about[300], day[32];
    time_t now = time(NULL);
    struct tm t;

    *fine = lab_do_runs(r, runs);
    *fine &= lab_do_hazards(r, hazards);
    *fine &= lab_do_experiments(r, experiments);
    *fine &= lab_request_done(json_array_size(runs) + json_array_size(experiments));
    strftime(day, sizeof day, "%Y-%m-%d", gmtime_r(&now, &t));
    snprintf(about, sizeof about,
             "%lld process x %lld threads x %lld purchases from a stock of %lld; dibs %s, %s, a "
             "machine with %ld processors.",
             (long long)r->plan.processes, (long long)r->plan.threads, (long long)r->plan.loops,
             (long long)r->plan.stock, dibs_version(), day, sysconf(_SC_NPROCESSORS_ONLN));
    cli_json_text(o, "about", about);
    cli_json_put(o, "runs", runs);
    cli_json_put(o, "hazards", hazards);
    cli_json_put(o, "experiments", experiments);
    return o;
}

static bool write_all(const char *folder, json_t *report)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        cli_say("%s: %s", folder, strerror(errno));
        return false;
    }
    return write_file(folder, "report.json", report, write_json) &&
           write_file(folder, "report.md", report, write_markdown) &&
           write_file(folder, "report.html", report, write_html);
}

int lab_verb_report(const cli_command *self, int argc, char **argv)
{
    const char *folder = "dibs-lab", *from = NULL;
    const cli_option more[] = {
        {"out", CLI_TEXT, &folder, 0, 0, 'o'}, {"from", CLI_TEXT, &from, 0, 0, 0}, {0}};
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    json_error_t why;
    json_t *report;
    cli_words words;
    bool fine = true;
    int code;

    lab_request_options(&r, options, more);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0)
        code = lab_request_choose(&r, self, &words, true);
    if (code < 0 && !from)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    report = from ? json_load_file(from, 0, &why) : make_report(&r, &fine);
    if (!from)
        lab_request_close(&r);
    if (!report) {
        cli_say("%s: %s", from, why.text);
        return CLI_EXIT_USAGE;
    }
    if (!write_all(folder, report))
        return CLI_EXIT_OUTPUT;
    if (r.json)
        cli_json_print(json_incref(report), 2);
    else
        printf("%s/report.html, report.md, report.json\n", folder);
    json_decref(report);
    return cli_finish(fine ? 0 : 1);
}
