/* The environment of a command; see the header. */
#define _GNU_SOURCE
#include "environment.h"
#include "nested.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum variable { NAME, SCOPE, KEY, FENCE, OWNER, AGAIN, HELD } variable;

static const char *const variables[CLI_VARIABLES] = {
    "DIBS_NAME", "DIBS_SCOPE", "DIBS_KEY", "DIBS_FENCE", "DIBS_OWNER", "DIBS_AGAIN", "DIBS_HELD"};

static bool is_ours(const char *entry)
{
    for (size_t i = 0; i < CLI_VARIABLES; i++) {
        size_t length = strlen(variables[i]);
        if (strncmp(entry, variables[i], length) == 0 && entry[length] == '=')
            return true;
    }
    return false;
}

/* What is inherited, with room for ours. */
static bool inherit(cli_environment *e)
{
    size_t inherited = 0;

    memset(e, 0, sizeof *e);
    while (environ[inherited])
        inherited++;
    e->list = calloc(inherited + CLI_VARIABLES + 1, sizeof *e->list);
    if (!e->list)
        return false;
    for (size_t i = 0; i < inherited; i++)
        if (!is_ours(environ[i]))
            e->list[e->used++] = environ[i];
    return true;
}

/* Takes "VARIABLE=value"; NULL: there was no memory for it. */
static bool add(cli_environment *e, variable which, char *entry)
{
    e->ours[which] = e->list[e->used] = entry;
    e->used += entry != NULL;
    return entry != NULL;
}

static bool add_text(cli_environment *e, variable which, const char *value)
{
    char *entry = NULL;

    return add(e, which, asprintf(&entry, "%s=%s", variables[which], value) < 0 ? NULL : entry);
}

/* Names or fences of all grants in one entry. */
static bool add_list(cli_environment *e, variable which, dibs_grant *const grants[], int count)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (!f)
        return false;
    fprintf(f, "%s=", variables[which]);
    for (int i = 0; i < count; i++) {
        if (i > 0)
            fputc(which == NAME ? '\n' : ' ', f);
        if (which == NAME)
            fputs(dibs_grant_name(grants[i]), f);
        else
            fprintf(f, "%" PRIu64, dibs_grant_fence(grants[i]));
    }
    if (fclose(f) == 0)
        return add(e, which, text);
    free(text);
    return false;
}

/* All grants have the same owner: it is given once. */
bool cli_environment_of_locks(cli_environment *e, dibs_grant *const grants[], int count)
{
    return inherit(e) && add_list(e, NAME, grants, count) && add_list(e, FENCE, grants, count) &&
           add_text(e, OWNER, dibs_grant_owner(grants[0])) &&
           add(e, HELD, cli_nested_entry(grants, count));
}

bool cli_environment_of_once(cli_environment *e, const char *scope, const char *key,
                             const dibs_once *o)
{
    const char *held = getenv(variables[HELD]);
    dibs_party runner = {0};
    char fence[24];

    dibs_once_runner(o, &runner, sizeof runner);
    snprintf(fence, sizeof fence, "%" PRIu64, dibs_once_fence(o));
    return inherit(e) && (!held || add_text(e, HELD, held)) && add_text(e, SCOPE, scope) &&
           add_text(e, KEY, key) && add_text(e, FENCE, fence) && add_text(e, OWNER, runner.owner) &&
           (!dibs_once_again(o) || add_text(e, AGAIN, "1"));
}

void cli_environment_free(cli_environment *e)
{
    for (size_t i = 0; i < CLI_VARIABLES; i++)
        free(e->ours[i]);
    free(e->list);
}
