/* `dibs lab`: its verbs, and what they share. */
#ifndef DIBS_LAB_COMMAND_H
#define DIBS_LAB_COMMAND_H

#include "cli/cli.h"
#include "cli/options.h"
#include "finding.h"

#include <jansson.h>

#define LAB_CHOSEN_MAX 128

/* What every verb that runs something takes. */
typedef struct lab_request {
    const char *url[LAB_SERVERS];
    bool with_servers;
    bool json;
    lab_plan plan;
    lab_site site;
    const lab_strategy *chosen[LAB_CHOSEN_MAX];
    size_t chosen_count;
    const lab_experiment *experiments[LAB_CHOSEN_MAX]; /* for hazards and report */
    size_t experiment_count;
} lab_request;

/* The options of a lab_request, for a table; `more` are the verb's own, NULL-terminated. */
#define LAB_OPTIONS_MAX 24
void lab_request_options(lab_request *r, cli_option out[LAB_OPTIONS_MAX], const cli_option *more);
/* Names and rows to strategies, and to experiments if asked for (none given: all). -1 to go on, or an
 * exit code. */
int lab_request_choose(lab_request *r, const cli_command *self, const cli_words *words,
                       bool experiments);
/* Just one strategy: a row may have a scheme on several engines. -1 to go on, or an exit code. */
int lab_request_choose_one(lab_request *r, const cli_command *self, const char *name);
/* Gives `url` (NULL: none) to the server that its scheme names. -1 to go on, or an exit code. */
int lab_request_place_url(lab_request *r, const cli_command *self, const char *url);
/* Fills the site from URLs, or starts private servers. -1 to go on, or an exit code. */
int lab_request_open(lab_request *r);
void lab_request_close(lab_request *r);
/* Are the servers there that it needs? Else says so. */
bool lab_request_can(const lab_request *r, const lab_strategy *s);
bool lab_request_has(const lab_request *r, unsigned needs, const char *name);
bool lab_request_can_try(const lab_request *r, const lab_experiment *e);

/* Was anything run at all? Else says so: nothing seen is no success. */
bool lab_request_done(size_t count);

/* What is going on, for people: a bar on a terminal, a line each when piped, nothing with --json. */
void lab_progress(const lab_request *r, size_t done, size_t of, const char *what);

/* Each prints its lines (not with --json) and adds to the list. False: something was not as promised. */
bool lab_do_runs(lab_request *r, json_t *list);
bool lab_do_hazards(lab_request *r, json_t *list);
bool lab_do_experiments(lab_request *r, json_t *list);

int lab_verb_adapter(const cli_command *self, int argc, char **argv);
int lab_verb_list(const cli_command *self, int argc, char **argv);
int lab_verb_hazards(const cli_command *self, int argc, char **argv);
int lab_verb_report(const cli_command *self, int argc, char **argv);
int lab_verb_shop(const cli_command *self, int argc, char **argv);
int lab_verb_run(const cli_command *self, int argc, char **argv);

json_t *lab_finding_json(const lab_finding *finding);
json_t *lab_result_json(const lab_result *result, const lab_plan *plan);

#endif
