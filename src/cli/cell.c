/* `dibs cell`: values with a version, changed only if they are still what was read. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: dibs cell get [--fence F] [--json] [--url URL] NAME\n"
    "       dibs cell put [OPTION...] NAME [VALUE]\n"
    "       dibs cell delete [--if V] [--fence F] [--json] [--url URL] NAME\n"
    "A value of up to 1 MiB with a version, which grows with every change of NAME.\n\n"
    "  get        prints the value and nothing else\n"
    "  put        writes VALUE (or standard input) and prints the new version\n"
    "  delete     removes the cell\n\n"
    "  --if V     only if the version is still V; 0: only if the cell does not exist\n"
    "  --keep D   the value expires after D, for example 7d (default: never)\n"
    "  --fence F  the $DIBS_FENCE of a lock: rejected (76) if a newer fence was seen.\n"
    "             For a read-modify-write, give it to the get as well\n"
    "  --json     {\"name\", \"version\", \"left_ms\", \"value\"} after get,\n"
    "             {\"name\", \"changed\", \"version\"} after put and delete\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, 1 no such cell or a different version, 76 the fence is too old.\n";

typedef enum verb { GET, PUT, DELETE } verb;

static const cli_verb verbs[] = {{"get", "NAME"}, {"put", "NAME [VALUE]"}, {"delete", "NAME"}, {0}};

typedef struct cell {
    verb what;
    const char *name;
    int64_t version, fence; /* version -1: whatever it is */
    const char *value;
    size_t size;
    char *read; /* the value, when it came from stdin */
    dibs_cell_options options;
    bool json;
} cell;

/* ---- get ------------------------------------------------------------------------------------- */

/* `value` NULL: there is none. */
static void print_json(const cell *c, const dibs_value *value)
{
    json_t *o = cli_json_new();
    bool ends = value && value->left_ms != DIBS_FOREVER;

    cli_json_text(o, "name", c->name);
    cli_json_put(o, "version", value ? json_integer((json_int_t)value->version) : json_null());
    cli_json_put(o, "left_ms", ends ? json_integer(value->left_ms) : json_null());
    cli_json_bytes(o, "value", value ? value->data : NULL, value ? value->size : 0);
    cli_json_print(o, 2);
}

static int get(dibs *d, const cell *c)
{
    dibs_error err = {0};
    dibs_value value = {0};

    if (c->fence)
        err.status = dibs_cell_pass(d, c->name, &(dibs_cell_options){.fence = (uint64_t)c->fence},
                                    &value, &err);
    else
        err.status = dibs_cell_read(d, c->name, &value, &err);
    if (err.status == DIBS_OK && value.version == 0) {
        err.status = DIBS_NOT_FOUND;
        snprintf(err.message, sizeof err.message, "'%.200s': no such cell", c->name);
    }
    if (c->json && (err.status == DIBS_OK || err.status == DIBS_NOT_FOUND))
        print_json(c, err.status == DIBS_OK ? &value : NULL);
    else if (err.status == DIBS_OK)
        fwrite(value.data, 1, value.size, stdout);
    dibs_value_free(&value);
    return err.status == DIBS_OK ? 0 : cli_failed(&err);
}

/* ---- put and delete -------------------------------------------------------------------------- */

/* Whatever is there or not: between the two attempts it may come and go. */
static dibs_status put_anyhow(dibs *d, const cell *c, dibs_value *now, dibs_error *err)
{
    uint64_t version = DIBS_ANY_VERSION;
    dibs_status status;

    for (;;) {
        dibs_value_free(now);
        status = dibs_cell_swap(d, c->name, version, c->value, c->size, &c->options, now, err);
        if (status != DIBS_CONFLICT && status != DIBS_NOT_FOUND)
            return status;
        version = version == 0 ? DIBS_ANY_VERSION : 0;
    }
}

static int change(dibs *d, const cell *c)
{
    uint64_t version = c->version < 0 ? DIBS_ANY_VERSION : (uint64_t)c->version;
    dibs_error err = {0};
    dibs_value now = {0};
    json_t *o;
    int code = 0;

    if (c->what == DELETE)
        err.status = dibs_cell_delete(d, c->name, version, &c->options, &err);
    else if (c->version < 0)
        err.status = put_anyhow(d, c, &now, &err);
    else
        err.status =
            dibs_cell_swap(d, c->name, version, c->value, c->size, &c->options, &now, &err);
    if (err.status != DIBS_OK)
        code = cli_failed(&err);
    if (c->json && (code == 0 || err.status == DIBS_CONFLICT || err.status == DIBS_NOT_FOUND)) {
        o = cli_json_new();
        cli_json_text(o, "name", c->name);
        cli_json_put(o, "changed", json_boolean(code == 0));
        cli_json_put(o, "version",
                     now.version ? json_integer((json_int_t)now.version) : json_null());
        cli_json_print(o, 2);
    } else if (code == 0 && c->what == PUT) {
        printf("%" PRIu64 "\n", now.version);
    }
    dibs_value_free(&now);
    return code;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* All of stdin, but no more than one byte too many: the library names the limit. */
static int read_stdin(cell *c)
{
    c->value = c->read = malloc(DIBS_VALUE_MAX + 1);
    if (!c->read) {
        cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
        return dibs_status_exit_code(DIBS_NO_MEMORY);
    }
    if (isatty(STDIN_FILENO))
        cli_say("reading the value from the terminal; end it with Ctrl-D");
    c->size = fread(c->read, 1, DIBS_VALUE_MAX + 1, stdin);
    if (!ferror(stdin))
        return -1;
    cli_say("cannot read the value from standard input: %s", strerror(errno));
    return CLI_EXIT_OUTPUT;
}

static int take_operands(cell *c, const cli_words *words)
{
    c->name = words->word[1];
    c->options.fence = (uint64_t)c->fence;
    if (c->what != PUT)
        return -1;
    if (words->count < 3)
        return read_stdin(c);
    c->value = words->word[2];
    c->size = strlen(c->value);
    return -1;
}

static int read_arguments(cell *c, const cli_command *self, int argc, char **argv, const char **url)
{
    const unsigned changing = 1U << PUT | 1U << DELETE;
    const cli_option options[] = {CLI_URL_OPTIONS(url),
                                  {"if", CLI_NUMBER, &c->version, 0, INT64_MAX, 0},
                                  {"keep", CLI_SPAN, &c->options.keep_ms, 1, CLI_SPAN_MAX, 0},
                                  {"fence", CLI_NUMBER, &c->fence, 1, INT64_MAX, 0},
                                  {"json", CLI_FLAG, &c->json, 0, 0, 0},
                                  {0}};
    cli_words words;
    int what, code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    what = cli_find_verb(self, verbs,
                         (cli_only[]){{"--if", c->version >= 0, changing},
                                      {"--keep", c->options.keep_ms != 0, 1U << PUT},
                                      {0}},
                         &words);
    if (what < 0)
        return CLI_EXIT_USAGE;
    c->what = (verb)what;
    if (c->what == DELETE && c->version == 0)
        return cli_misused(self, "delete --if 0: version 0 means that there is no cell to delete");
    return take_operands(c, &words);
}

static int start(const cli_command *self, int argc, char **argv)
{
    cell c = {.version = -1};
    const char *url = NULL;
    dibs *d = NULL;
    int code = read_arguments(&c, self, argc, argv, &url);

    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (d)
        code = cli_finish(c.what == GET ? get(d, &c) : change(d, &c));
    dibs_close(d);
    free(c.read);
    return code;
}

const cli_command cli_cell = {"cell", "values with compare-and-swap", help, start};
