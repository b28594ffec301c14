/* `dibs lab hazards`: each hazard on each chosen strategy, executed; a line each. */
#include "command.h"

#include "cli/json.h"
#include "finding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const outcome_names[] = {[LAB_NOT_RUN] = "not run",
                                            [LAB_SURVIVED] = "survived",
                                            [LAB_BROKE] = "BROKE",
                                            [LAB_SHOWN] = "shown"};

const char *lab_outcome_name(lab_outcome outcome)
{
    return outcome_names[outcome];
}

json_t *lab_finding_json(const lab_finding *f)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "outcome", lab_outcome_name(f->outcome));
    cli_json_text(o, "text", f->text);
    cli_json_put(o, "at_once", f->at_once < 0 ? json_null() : json_integer(f->at_once));
    cli_json_put(o, "stuck_ms",
                 f->stuck_ms == INT64_MAX ? json_string("for ever")
                 : f->stuck_ms < 0        ? json_null()
                                          : json_integer(f->stuck_ms));
    cli_json_put(o, "oversold", f->oversold < 0 ? json_null() : json_integer(f->oversold));
    cli_json_put(o, "foreign", f->foreign < 0 ? json_null() : json_integer(f->foreign));
    cli_json_text(o, "table", f->table);
    return o;
}

void lab_hazard_run(const lab_hazard *h, const lab_strategy *s, const lab_site *site,
                    lab_finding *out)
{
    *out = (lab_finding){.at_once = -1, .stuck_ms = -1, .oversold = -1, .foreign = -1};
    h->run(s, site, out);
    out->claimed = (s->survives & LAB_SURVIVES(h->kind)) != 0;
}

static void add(json_t *list, const lab_hazard *h, const lab_strategy *s, const lab_finding *f)
{
    json_t *o = lab_finding_json(f);

    cli_json_text(o, "strategy", s->name);
    cli_json_text(o, "id", s->id);
    cli_json_text(o, "hazard", h->name);
    cli_json_put(o, "claimed", json_boolean(f->claimed));
    json_array_append_new(list, o);
}

static bool one(lab_request *r, const lab_strategy *s, const lab_hazard *h, json_t *list)
{
    lab_finding f;
    bool kept;

    if (!h->applies(s))
        return true;
    lab_hazard_run(h, s, &r->site, &f);
    kept = !f.claimed || f.outcome == LAB_SURVIVED;
    if (r->json)
        add(list, h, s, &f);
    else
        printf("%-5s %-24s %-22s %-9s %s%s\n", s->id, s->name, h->name, lab_outcome_name(f.outcome),
               kept ? "" : "CLAIMED OTHERWISE: ", f.text);
    fflush(stdout);
    free(f.table);
    return kept;
}

/* A table's cells under one another. */
static void print_table(const char *table)
{
    for (const char *line = table; line && *line; line = strchr(line, '\n') + 1) {
        printf("      ");
        for (const char *c = line; *c != '\n'; c++)
            if (*c == '\t')
                printf(" | ");
            else
                putchar(*c);
        putchar('\n');
    }
}

void lab_experiment_run(const lab_experiment *e, const lab_site *site, lab_finding *out)
{
    *out = (lab_finding){.at_once = -1, .stuck_ms = -1, .oversold = -1, .foreign = -1};
    e->run(site, out);
}

static void try_one(lab_request *r, const lab_experiment *e, json_t *list)
{
    lab_finding f;
    json_t *o;

    lab_experiment_run(e, &r->site, &f);
    if (r->json) {
        o = lab_finding_json(&f);
        cli_json_text(o, "id", e->id);
        cli_json_text(o, "experiment", e->name);
        cli_json_text(o, "title", e->title);
        json_array_append_new(list, o);
    } else {
        printf("%-5s %-47s %-9s %s\n", e->id, e->name, lab_outcome_name(f.outcome), f.text);
        print_table(f.table);
    }
    fflush(stdout);
    free(f.table);
}

static int run_all(lab_request *r)
{
    json_t *o = cli_json_new(), *list = json_array(), *shown = json_array();
    bool kept = true;

    for (size_t i = 0; i < r->chosen_count; i++) {
        if (!lab_request_can(r, r->chosen[i]))
            continue;
        for (size_t j = 0; lab_hazard_table[j]; j++) {
            lab_progress(r, i, r->chosen_count, r->chosen[i]->name);
            kept &= one(r, r->chosen[i], lab_hazard_table[j], list);
        }
    }
    for (size_t i = 0; i < r->experiment_count; i++)
        if (lab_request_can_try(r, r->experiments[i]))
            try_one(r, r->experiments[i], shown);
    lab_progress(r, r->chosen_count, r->chosen_count, "");
    cli_json_put(o, "hazards", list);
    cli_json_put(o, "experiments", shown);
    if (r->json)
        cli_json_print(o, 2);
    else
        json_decref(o);
    return kept ? 0 : 1;
}

int lab_verb_hazards(const cli_command *self, int argc, char **argv)
{
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    cli_words words;
    int code;

    lab_request_options(&r, options, NULL);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0)
        code = lab_request_choose(&r, self, &words, true);
    if (code < 0)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    code = run_all(&r);
    lab_request_close(&r);
    return cli_finish(code);
}
