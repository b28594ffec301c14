/* Findings: how a hazard or an experiment is run, and how its outcome is written down. */
#include "finding.h"

#include "cli/json.h"
#include "command.h"

#include <stdio.h>

static const char *const outcome_names[] = {[LAB_NOT_RUN] = "not run",
                                            [LAB_SURVIVED] = "survived",
                                            [LAB_BROKE] = "BROKE",
                                            [LAB_SHOWN] = "shown",
                                            [LAB_NOT_APPLICABLE] = "not applicable"};

const char *lab_outcome_name(lab_outcome outcome)
{
    return outcome_names[outcome];
}

bool lab_claim_holds(const lab_finding *f)
{
    return !f->claimed || f->outcome == LAB_SURVIVED;
}

static const lab_finding nothing_yet = {
    .at_once = -1, .stuck_ms = -1, .oversold = -1, .foreign = -1};

void lab_hazard_run(const lab_hazard *h, const lab_strategy *s, const lab_site *site,
                    lab_finding *out)
{
    const char *why_not = h->why_not(s);

    *out = nothing_yet;
    if (why_not) {
        out->outcome = LAB_NOT_APPLICABLE;
        snprintf(out->text, sizeof out->text, "%s", why_not);
        return;
    }
    h->run(s, site, out);
    out->claimed = (s->survives & LAB_SURVIVES(h->kind)) != 0;
}

void lab_experiment_run(const lab_experiment *e, const lab_site *site, lab_finding *out)
{
    *out = nothing_yet;
    e->run(site, out);
    /* It brings its own servers: where they are not installed, nothing was promised. */
    out->claimed = e->promised && out->outcome != LAB_NOT_RUN;
}

static json_t *known(int64_t n)
{
    return n < 0 ? json_null() : n == INT64_MAX ? json_string("for ever") : json_integer(n);
}

json_t *lab_finding_json(const lab_finding *f)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "outcome", lab_outcome_name(f->outcome));
    cli_json_text(o, "text", f->text);
    cli_json_put(o, "at_once", known(f->at_once));
    cli_json_put(o, "stuck_ms", known(f->stuck_ms));
    cli_json_put(o, "oversold", known(f->oversold));
    cli_json_put(o, "foreign", known(f->foreign));
    cli_json_text(o, "table", f->table);
    return o;
}
