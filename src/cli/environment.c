/* The environment of a command under locks; see the header. */
#define _GNU_SOURCE
#include "environment.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const variables[3] = {"DIBS_NAME", "DIBS_FENCE", "DIBS_OWNER"};

static void put_value(FILE *f, size_t variable, const dibs_grant *g)
{
    if (variable == 0)
        fputs(dibs_name(g), f);
    else if (variable == 1)
        fprintf(f, "%" PRIu64, dibs_fence(g));
    else
        fputs(dibs_owner(g), f);
}

/* "VARIABLE=value…"; NULL: out of memory. All grants have the same owner: it is given once. */
static char *make_entry(size_t variable, dibs_grant *const grants[], int count)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (!f)
        return NULL;
    fprintf(f, "%s=", variables[variable]);
    for (int i = 0; i < (variable == 2 ? 1 : count); i++) {
        if (i > 0)
            fputc(variable == 0 ? '\n' : ' ', f);
        put_value(f, variable, grants[i]);
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

static bool is_ours(const char *entry)
{
    for (size_t i = 0; i < 3; i++) {
        size_t length = strlen(variables[i]);
        if (strncmp(entry, variables[i], length) == 0 && entry[length] == '=')
            return true;
    }
    return false;
}

bool cli_environment_make(cli_environment *e, dibs_grant *const grants[], int count)
{
    size_t inherited = 0, used = 0;

    memset(e, 0, sizeof *e);
    while (environ[inherited])
        inherited++;
    e->list = calloc(inherited + 4, sizeof *e->list);
    if (!e->list)
        return false;
    for (size_t i = 0; i < inherited; i++)
        if (!is_ours(environ[i]))
            e->list[used++] = environ[i];
    for (size_t i = 0; i < 3; i++) {
        e->ours[i] = e->list[used++] = make_entry(i, grants, count);
        if (!e->ours[i])
            return false;
    }
    return true;
}

void cli_environment_free(cli_environment *e)
{
    for (size_t i = 0; i < 3; i++)
        free(e->ours[i]);
    free(e->list);
}
