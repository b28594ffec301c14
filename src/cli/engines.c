/* `dibs engines`: what this build can talk to, and what each engine gives. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <stdio.h>

static const char help[] =
    "usage: dibs engines [--json]\n"
    "Lists all engines and their features. For an engine that is missing in this\n"
    "build it names the package to install before dibs is built again.\n\n"
    "  across processes    locks are visible to other processes\n"
    "  first come          waiters are served in order of arrival\n"
    "  notices death       a killed holder's lock is released at once, not when its\n"
    "                      lease expires\n"
    "  shared, slots       supports shared locks, semaphores\n"
    "  cells               supports cells, counters, once and tokens\n\n"
    "  --json     {\"engines\": [{\"scheme\", \"available\", \"missing\", ...}]}\n"
    "  --url URL  accepted and ignored\n";

static const char *yes_no(bool yes)
{
    return yes ? "yes" : "no";
}

static void print_text(void)
{
    const dibs_engine_info *e;

    printf("%-10s  %-10s  %-16s  %-10s  %-13s  %-6s  %-5s  %s\n", "ENGINE", "AVAILABLE",
           "ACROSS PROCESSES", "FIRST COME", "NOTICES DEATH", "SHARED", "SLOTS", "CELLS");
    for (size_t i = 0; (e = dibs_engine_at(i)); i++) {
        if (e->missing)
            printf("%-10s  %-10s  install %s\n", e->scheme, "no", e->missing);
        else
            printf("%-10s  %-10s  %-16s  %-10s  %-13s  %-6s  %-5s  %s\n", e->scheme, "yes",
                   yes_no(e->across_processes), yes_no(e->first_come), yes_no(e->notices_death),
                   yes_no(e->shared), yes_no(e->slots), yes_no(e->cells));
    }
}

static json_t *as_json(void)
{
    json_t *o = cli_json_new(), *list = json_array(), *one;
    const dibs_engine_info *e;

    for (size_t i = 0; (e = dibs_engine_at(i)); i++) {
        one = cli_json_new();
        cli_json_text(one, "scheme", e->scheme);
        cli_json_put(one, "available", json_boolean(!e->missing));
        cli_json_text(one, "missing", e->missing);
        cli_json_put(one, "across_processes", json_boolean(e->across_processes));
        cli_json_put(one, "first_come", json_boolean(e->first_come));
        cli_json_put(one, "notices_death", json_boolean(e->notices_death));
        cli_json_put(one, "cells", json_boolean(e->cells));
        cli_json_integer(one, "value_max", (int64_t)e->value_max);
        cli_json_put(one, "shared", json_boolean(e->shared));
        cli_json_put(one, "slots", json_boolean(e->slots));
        cli_json_put(one, "lease_of_handle", json_boolean(e->lease_of_handle));
        cli_json_put(one, "fence_of_place", json_boolean(e->fence_of_place));
        cli_json_put(one, "forgets_idle", json_boolean(e->forgets_idle));
        cli_json_put(one, "names_holder", json_boolean(e->names_holder));
        json_array_append_new(list, one);
    }
    cli_json_put(o, "engines", list);
    return o;
}

static int start(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    bool json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url), {"json", CLI_FLAG, &json, 0, 0, 0}, {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "takes no operands, but got '%s'", words.word[0]);
    if (json)
        return cli_json_print(as_json(), 2);
    print_text();
    return cli_finish(0);
}

const cli_command cli_engines = {"engines", "list engines and their features", help, start};
