/* `dibs fence`: the number to go on from when locks move to another engine. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: dibs fence [--json] [--url URL]\n"
    "Prints an upper bound of all fences that this store has given out so far.\n"
    "To move locks to another engine so that resources accept the new fences, stop\n"
    "every client of the old store, then open the new one with that number:\n\n"
    "  N=$(dibs fence --url redis://old)\n"
    "  dibs ls --url \"etcd://new/folder?fence_above=$N\"\n\n"
    "If the URL already has a ?, write & instead. ZooKeeper and etcd store the number\n"
    "for all clients; on the other engines every client's URL needs it, or its fences\n"
    "follow the clock. See docs/moving.md for all steps.\n\n"
    "  --json     {\"fence\"}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, or 69 if the engine cannot be reached.\n";

static int print_top(dibs *d, bool json)
{
    dibs_error err = {0};
    uint64_t top;
    json_t *o;

    err.status = dibs_fence_top(d, &top, &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    if (!json) {
        printf("%" PRIu64 "\n", top);
        return cli_finish(0);
    }
    o = cli_json_new();
    cli_json_put(o, "fence", json_integer((json_int_t)top));
    return cli_json_print(o, 2);
}

static int start(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    bool json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url), {"json", CLI_FLAG, &json, 0, 0, 0}, {0}};
    dibs *d = NULL;
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0 && words.count > 0)
        code = cli_misused(self, "takes no operands, but got '%s'", words.word[0]);
    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    code = print_top(d, json);
    dibs_close(d);
    return code;
}

const cli_command cli_fence = {"fence", "print the highest fence, to move to another engine", help,
                               start};
