/* `dibs schema`: the SQL that an administrator runs where the account itself may not make tables. */
#include "cli.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "usage: dibs schema [--url URL]\n"
    "Prints the SQL that creates the tables of the engine. Does not connect. If the\n"
    "account may create tables, this is not needed: they are created on first use.\n"
    "Otherwise an administrator runs the SQL in the database:\n\n"
    "  dibs schema --url postgresql://host/app | psql -h host -U postgres app\n"
    "  dibs schema --url mysql://host/app | mariadb -h host -u root app\n\n"
    "  --url URL  engine, with the table_prefix that clients will use, or\n"
    "             --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, or 64 for an engine without such tables.\n";

static int start(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    const cli_option options[] = {CLI_URL_OPTIONS(&url), {0}};
    dibs_error err = {0};
    char *text = NULL;
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "takes no operands, but got '%s'", words.word[0]);
    err.status = dibs_schema(url, &text, &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    fputs(text, stdout);
    free(text);
    return cli_finish(0);
}

const cli_command cli_schema = {"schema", "print the SQL that creates an engine's tables", help,
                                start};
