/* `dibs lab list`: what there is to run. */
#include "command.h"

#include "cli/json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Named on the command line as strategies are, by `hazards` and `report`. */
static json_t *experiments(void)
{
    json_t *list = json_array();

    for (size_t i = 0; lab_experiments[i]; i++) {
        json_t *one = cli_json_new();
        cli_json_text(one, "id", lab_experiments[i]->id);
        cli_json_text(one, "name", lab_experiments[i]->name);
        cli_json_text(one, "title", lab_experiments[i]->title);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *as_json(void)
{
    json_t *o = cli_json_new(), *list = json_array();

    for (size_t i = 0; lab_strategies[i]; i++) {
        const lab_strategy *s = lab_strategies[i];
        json_t *one = cli_json_new(), *needs = json_array();
        cli_json_text(one, "id", s->id);
        cli_json_text(one, "name", s->name);
        cli_json_text(one, "title", s->title);
        for (int j = 0; j < LAB_SERVERS; j++)
            if ((s->needs | LAB_NEED(s->stock)) & LAB_NEED(j))
                json_array_append_new(needs, json_string(lab_server_name((lab_server)j)));
        cli_json_put(one, "needs", needs);
        cli_json_put(one, "product", json_boolean(s->product));
        json_array_append_new(list, one);
    }
    cli_json_put(o, "strategies", list);
    cli_json_put(o, "experiments", experiments());
    return o;
}

int lab_verb_list(const cli_command *self, int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"json", CLI_FLAG, &json, 0, 0, 0}, {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "list takes no operands, but got '%s'", words.word[0]);
    if (json)
        return cli_json_print(as_json(), 2);
    if (isatty(1))
        printf("%-5s %-24s %s\n", "ROW", "STRATEGY", "WHAT IT IS");
    for (size_t i = 0; lab_strategies[i]; i++)
        printf("%-5s %-24s %s\n", lab_strategies[i]->id, lab_strategies[i]->name,
               lab_strategies[i]->title);
    return cli_finish(0);
}
