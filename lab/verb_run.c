/* `dibs lab run`: the chosen strategies, one after another, a line each. */
#include "command.h"

#include "cli/json.h"

#include <math.h>
#include <stdio.h>

static json_t *number(double n)
{
    return isnan(n) ? json_null() : json_real(n);
}

json_t *lab_result_json(const lab_result *r, const lab_plan *plan)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "id", r->strategy->id);
    cli_json_text(o, "name", r->strategy->name);
    cli_json_text(o, "title", r->strategy->title);
    cli_json_put(o, "product", json_boolean(r->strategy->product));
    cli_json_text(o, "verdict", lab_verdict(r));
    cli_json_text(o, "error", r->error[0] ? r->error : NULL);
    cli_json_text(o, "note", r->note[0] ? r->note : NULL);
    cli_json_put(o, "processes", json_integer(r->processes));
    cli_json_put(o, "threads", json_integer(r->threads));
    cli_json_put(o, "stock", json_integer(plan->stock));
    cli_json_put(o, "asked", json_integer(r->asked));
    cli_json_put(o, "sold", json_integer(r->sold));
    cli_json_put(o, "left", json_integer(r->left));
    cli_json_put(o, "oversold", json_integer(r->oversold));
    cli_json_put(o, "lost", json_integer(r->lost));
    cli_json_put(o, "refused", json_integer(r->refused));
    cli_json_put(o, "failed", json_integer(r->failed));
    cli_json_put(o, "stuck", json_boolean(r->cut));
    cli_json_put(o, "seconds", json_real(r->seconds));
    cli_json_put(o, "per_second", number(r->seconds > 0 ? (double)r->asked / r->seconds : NAN));
    cli_json_put(o, "p50_us", number(r->p50_us));
    cli_json_put(o, "p99_us", number(r->p99_us));
    cli_json_put(o, "tries_per_sale", number(r->tries_per_sale));
    cli_json_put(o, "requests_per_sale", number(r->requests_per_sale));
    cli_json_put(o, "most", json_integer(r->most));
    cli_json_put(o, "least", json_integer(r->least));
    return o;
}

static void print_heading(void)
{
    printf("%-5s %-24s %-14s %6s %6s %8s %8s %9s %9s %6s %6s\n", "ROW", "STRATEGY", "VERDICT",
           "SOLD", "LEFT", "OVERSOLD", "PER SEC", "P50 us", "P99 us", "TRIES", "REQS");
    fflush(stdout); /* in a pipe, too: the servers are up, the first run begins */
}

static const char *shown(char out[16], double n)
{
    if (isnan(n))
        snprintf(out, 16, "-");
    else
        snprintf(out, 16, "%.1f", n);
    return out;
}

static void print_line(const lab_result *r)
{
    char tries[16], requests[16];

    printf("%-5s %-24s %-14s ", r->strategy->id, r->strategy->name, lab_verdict(r));
    if (r->error[0])
        printf("%s\n", r->error);
    else
        printf("%6lld %6lld %8lld %8.0f %9.0f %9.0f %6s %6s\n", (long long)r->sold,
               (long long)r->left, (long long)r->oversold,
               r->seconds > 0 ? (double)r->asked / r->seconds : 0, r->p50_us, r->p99_us,
               shown(tries, r->tries_per_sale), shown(requests, r->requests_per_sale));
    if (!r->error[0] && r->note[0])
        printf("      %s\n", r->note);
    fflush(stdout);
}

bool lab_do_runs(lab_request *r, json_t *list)
{
    bool fine = true;

    if (!r->json)
        print_heading();
    for (size_t i = 0; i < r->chosen_count; i++) {
        lab_result result;
        if (!lab_request_can(r, r->chosen[i]))
            continue;
        lab_progress(r, i, r->chosen_count, r->chosen[i]->name);
        lab_run(r->chosen[i], &r->site, &r->plan, &result);
        fine &= lab_as_promised(&result, &r->plan);
        json_array_append_new(list, lab_result_json(&result, &r->plan));
        if (!r->json)
            print_line(&result);
    }
    lab_progress(r, r->chosen_count, r->chosen_count, "");
    return fine;
}

int lab_verb_run(const cli_command *self, int argc, char **argv)
{
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    json_t *o, *runs = json_array();
    cli_words words;
    bool fine;
    int code;

    lab_request_options(&r, options, NULL);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0)
        code = lab_request_choose(&r, self, &words, false);
    if (code < 0)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    fine = lab_do_runs(&r, runs) && lab_request_done(json_array_size(runs));
    lab_request_close(&r);
    o = cli_json_new();
    cli_json_put(o, "runs", runs);
    if (r.json)
        cli_json_print(o, 2);
    else
        json_decref(o);
    return cli_finish(fine ? 0 : 1);
}
