/* `dibs lab hazards`: each hazard on each chosen strategy, executed, a line each; then the experiments.
 *
 * Hazards mostly wait for something to happen: strategies take their turns side by side, each in a
 * process of its own, which writes its findings into memory that all share. */
#define _GNU_SOURCE
#include "cli/json.h"
#include "command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 4

typedef lab_finding findings[LAB_HAZARDS]; /* of one strategy, by the hazard's place in the table */

/* ---- Hazards --------------------------------------------------------------------------------- */

static void face_all(const lab_request *r, const lab_strategy *s, lab_finding *out)
{
    for (size_t j = 0; lab_hazard_table[j]; j++)
        lab_hazard_run(lab_hazard_table[j], s, &r->site, &out[j]);
}

static pid_t face_apart(const lab_request *r, const lab_strategy *s, lab_finding *out)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    if (getppid() == parent)
        face_all(r, s, out);
    _exit(0);
}

static bool show(const lab_request *r, const lab_strategy *s, const lab_finding *all, json_t *list)
{
    bool kept = true;

    for (size_t j = 0; lab_hazard_table[j]; j++) {
        const lab_hazard *h = lab_hazard_table[j];
        const lab_finding *f = &all[j];
        bool ok = lab_claim_holds(f);
        json_t *o;
        o = lab_finding_json(f);
        cli_json_text(o, "strategy", s->name);
        cli_json_text(o, "id", s->id);
        cli_json_text(o, "hazard", h->name);
        cli_json_text(o, "title", h->title);
        cli_json_put(o, "claimed", json_boolean(f->claimed));
        json_array_append_new(list, o);
        if (!r->json && f->outcome != LAB_NOT_APPLICABLE)
            printf("%-5s %-26s %-22s %-9s %s%s\n", s->id, s->name, h->name,
                   lab_outcome_name(f->outcome), ok ? "" : "CLAIMED OTHERWISE: ", f->text);
        kept &= ok;
    }
    fflush(stdout);
    return kept;
}

/* A row that only spreads the same lock's buyers over more processes is left to the runs. */
bool lab_do_hazards(lab_request *r, json_t *list)
{
    size_t count = r->chosen_count, size = (count + 1) * sizeof(findings), begun = 0;
    findings *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[LAB_CHOSEN_MAX] = {0};
    bool kept = true;

    if (all == MAP_FAILED)
        return false;
    for (size_t i = 0; i < count; i++) {
        for (; begun < count && begun < i + AT_ONCE; begun++)
            if (!r->chosen[begun]->processes && lab_request_can(r, r->chosen[begun]))
                pids[begun] = face_apart(r, r->chosen[begun], all[begun]);
        lab_progress(r, i, count, r->chosen[i]->name);
        if (pids[i] <= 0)
            continue;
        waitpid(pids[i], NULL, 0);
        kept &= show(r, r->chosen[i], all[i], list);
    }
    lab_progress(r, count, count, "");
    munmap(all, size);
    return kept;
}

/* ---- Experiments ----------------------------------------------------------------------------- */

/* A table's cells beside one another. */
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

static bool try_one(lab_request *r, const lab_experiment *e, json_t *list)
{
    lab_finding f;
    json_t *o;

    lab_experiment_run(e, &r->site, &f);
    o = lab_finding_json(&f);
    cli_json_text(o, "id", e->id);
    cli_json_text(o, "experiment", e->name);
    cli_json_put(o, "claimed", json_boolean(f.claimed));
    cli_json_text(o, "title", e->title);
    json_array_append_new(list, o);
    if (!r->json) {
        printf("%-5s %-49s %-9s %s%s\n", e->id, e->name, lab_outcome_name(f.outcome),
               lab_claim_holds(&f) ? "" : "CLAIMED OTHERWISE: ", f.text);
        print_table(f.table);
        fflush(stdout);
    }
    free(f.table);
    return lab_claim_holds(&f);
}

bool lab_do_experiments(lab_request *r, json_t *list)
{
    bool kept = true;

    for (size_t i = 0; i < r->experiment_count; i++) {
        lab_progress(r, i, r->experiment_count, r->experiments[i]->name);
        if (lab_request_can_try(r, r->experiments[i]))
            kept &= try_one(r, r->experiments[i], list);
    }
    lab_progress(r, r->experiment_count, r->experiment_count, "");
    return kept;
}

/* ---- The verb -------------------------------------------------------------------------------- */

int lab_verb_hazards(const cli_command *self, int argc, char **argv)
{
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    json_t *o, *hazards = json_array(), *experiments = json_array();
    cli_words words;
    bool kept;
    int code;

    lab_request_options(&r, options, NULL);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0)
        code = lab_request_choose(&r, self, &words, true);
    if (code < 0)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    kept = lab_do_hazards(&r, hazards);
    kept &= lab_do_experiments(&r, experiments);
    kept &= lab_request_done(json_array_size(hazards) + json_array_size(experiments));
    lab_request_close(&r);
    o = cli_json_new();
    cli_json_put(o, "hazards", hazards);
    cli_json_put(o, "experiments", experiments);
    if (r.json)
        cli_json_print(o, 2);
    else
        json_decref(o);
    return cli_finish(kept ? 0 : 1);
}
