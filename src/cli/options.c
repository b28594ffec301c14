/* The option parser; see the header. */
#include "options.h"
#include "text.h"

#include "core/span.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int take_span(const cli_command *command, const cli_option *option, const char *shown,
                     const char *value)
{
    int64_t ms = dibs__span_parse(value);
    char low[32], high[32];

    if (ms < 0)
        return cli_misused(command,
                           "invalid duration %s '%s': write for example 500ms, 5s, 1h30m or 7d",
                           shown, value);
    if (ms < option->low || ms > option->high)
        return cli_misused(command, "%s '%s' is out of range: %s to %s", shown, value,
                           dibs__span_write(low, option->low),
                           dibs__span_write(high, option->high));
    *(int64_t *)option->to = ms;
    return -1;
}

bool cli_parse_number(const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (!is_digit(text[text[0] == '-']) || *end || errno || n < low || n > high)
        return false;
    *out = n;
    return true;
}

static int take_number(const cli_command *command, const cli_option *option, const char *shown,
                       const char *value)
{
    if (!cli_parse_number(value, option->low, option->high, option->to))
        return cli_misused(command,
                           "invalid %s '%s': give a whole number from %" PRId64 " to %" PRId64,
                           shown, value, option->low, option->high);
    return -1;
}

/* A copy that lives as long as the process. */
static const char *keep(const char *text)
{
    static struct kept {
        struct kept *next;
        char text[];
    } * all;
    size_t size = strlen(text) + 1;
    struct kept *one = malloc(sizeof *one + size);

    if (!one) {
        cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
        exit(dibs_status_exit_code(DIBS_NO_MEMORY));
    }
    memcpy(one->text, text, size);
    one->next = all;
    all = one;
    return one->text;
}

/* Every user of the machine may read our arguments (ps): a login in them is overwritten. */
static int take_url(const cli_option *option, char *value)
{
    char *from = value + strcspn(value, ":");

    *(const char **)option->to = keep(value);
    from += *from == ':';
    from += strspn(from, "/");
    cli_hide_login(from, strlen(from));
    return -1;
}

static int take_url_file(const cli_option *option, const char *path)
{
    dibs_error err = {0};
    char *url;

    if (dibs_url_read(path, &url, &err) != DIBS_OK)
        return cli_failed(&err);
    *(const char **)option->to = keep(url);
    free(url);
    return -1;
}

static int take_texts(cli_texts *to, const char *value)
{
    if (to->count < sizeof to->text / sizeof to->text[0])
        to->text[to->count] = value;
    to->count++;
    return -1;
}

static int take_value(const cli_command *command, const cli_option *option, const char *shown,
                      char *value)
{
    if (option->kind == CLI_URL)
        return take_url(option, value);
    if (option->kind == CLI_URL_FILE)
        return take_url_file(option, value);
    if (option->kind == CLI_SPAN)
        return take_span(command, option, shown, value);
    if (option->kind == CLI_NUMBER)
        return take_number(command, option, shown, value);
    if (option->kind == CLI_TEXTS)
        return take_texts(option->to, value);
    *(const char **)option->to = value;
    return -1;
}

/* `word` is "--name", "--name=value", "-l" or "-lvalue": which option, and where its value starts.
 */
static const cli_option *find_option(const cli_option *options, char *word, char **value)
{
    size_t length = strcspn(word, "=");

    *value = NULL;
    for (const cli_option *o = options; o->name; o++) {
        if (word[1] != '-') {
            if (o->letter == 0 || o->letter != word[1])
                continue;
            *value = word[2] ? word + 2 : NULL;
            return o;
        }
        if (length - 2 == strlen(o->name) && strncmp(word + 2, o->name, length - 2) == 0) {
            *value = word[length] == '=' ? word + length + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

/* Takes the option at argv[*at]; moves `*at` past what it took. */
static int take_option(const cli_command *command, const cli_option *options, int argc, char **argv,
                       int *at)
{
    char *word = argv[(*at)++], *value;
    const cli_option *option = find_option(options, word, &value);
    char shown[64];

    if (!option)
        return cli_misused(command, "unknown option '%.*s'",
                           word[1] == '-' ? (int)strcspn(word, "=") : 2, word);
    if (word[1] == '-')
        snprintf(shown, sizeof shown, "--%s", option->name);
    else
        snprintf(shown, sizeof shown, "-%c", option->letter);
    if (option->kind == CLI_FLAG) {
        if (value)
            return cli_misused(command, "%s takes no value", shown);
        *(bool *)option->to = true;
        return -1;
    }
    if (!value && *at == argc)
        return cli_misused(command, "%s needs a value", shown);
    return take_value(command, option, shown, value ? value : argv[(*at)++]);
}

/* "-5" where the table says that there are such operands. */
static bool is_minus(const cli_option *options, const char *word)
{
    for (; options->name; options++)
        if (options->kind == CLI_MINUS)
            return is_digit(word[1]);
    return false;
}

int cli_parse(const cli_command *command, const cli_option *options, int argc, char **argv,
              cli_words *out)
{
    int code;

    *out = (cli_words){argv, 0, -1};
    for (int i = 0; i < argc;) {
        if (out->split >= 0 || argv[i][0] != '-' || argv[i][1] == '\0' ||
            is_minus(options, argv[i])) {
            argv[out->count++] = argv[i++];
        } else if (strcmp(argv[i], "--") == 0) {
            out->split = out->count;
            i++;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(command->help, stdout);
            return cli_finish(0);
        } else {
            code = take_option(command, options, argc, argv, &i);
            if (code >= 0)
                return code;
        }
    }
    return -1;
}

bool cli_move_options(int argc, char **argv)
{
    char *word;
    int i = 0;

    while (i < argc && argv[i][0] == '-')
        i += strcmp(argv[i], "--url") == 0 || strcmp(argv[i], "--url-file") == 0 ? 2 : 1;
    if (i >= argc)
        return false;
    word = argv[i];
    memmove(argv + 1, argv, (size_t)i * sizeof *argv);
    argv[0] = word;
    return true;
}

int cli_need_name(const cli_command *command, const cli_words *words)
{
    if (words->count == 0)
        return cli_misused(command, "no lock NAME given");
    if (words->count > 1)
        return cli_misused(command, "give one lock NAME, not %d", words->count);
    return -1;
}

int cli_split_command(const cli_command *command, const cli_words *words, const char *what,
                      int *count, char ***argv)
{
    int split = words->split, from = split;

    for (int i = 1; split == 0 && i < words->count; i++)
        if (strcmp(words->word[i], "--") == 0) {
            split = i;
            from = i + 1;
        }
    if (split < 0)
        return cli_misused(command, "no '--' between the %s and COMMAND", what);
    if (split == 0)
        return cli_misused(command, "no %s before '--'", what);
    if (from >= words->count)
        return cli_misused(command, "no COMMAND after '--'");
    *count = split;
    *argv = words->word + from;
    (*argv)[words->count - from] = NULL;
    return -1;
}

/* ---- Commands with several forms ------------------------------------------------------------- */

/* How many operands "NAME [N]" has, and how many of them there must be. */
static void count_operands(const char *operands, int *least, int *most)
{
    *least = *most = 0;
    for (const char *at = operands; *at; at += strcspn(at, " "), at += *at == ' ') {
        *most += 1;
        *least += *at != '[';
    }
}

static int check_verb(const cli_command *command, const cli_verb *verb, unsigned bit,
                      const cli_only *only, const cli_words *words)
{
    int least, most, got = words->count - 1;

    count_operands(verb->operands, &least, &most);
    if (got < least || got > most)
        return cli_misused(command, "%s takes %s, but got %d operand%s", verb->name,
                           verb->operands[0] ? verb->operands : "no operands", got,
                           got == 1 ? "" : "s");
    for (; only->option; only++)
        if (only->given && !(only->verbs & bit))
            return cli_misused(command, "%s does not accept %s", verb->name, only->option);
    return -1;
}

static int complain_of_verb(const cli_command *command, const cli_verb *verbs, const char *word)
{
    char list[128] = "";
    size_t used = 0;

    for (size_t i = 0; verbs[i].name && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0              ? ""
                                 : verbs[i + 1].name ? ", "
                                                     : " or ",
                                 verbs[i].name);
    if (!word)
        return cli_misused(command, "give a subcommand: %s", list);
    return cli_misused(command, "unknown subcommand '%s': use %s", word, list);
}

int cli_find_verb(const cli_command *command, const cli_verb *verbs, const cli_only *only,
                  const cli_words *words)
{
    const char *word = words->count > 0 ? words->word[0] : NULL;

    for (int i = 0; word && verbs[i].name; i++)
        if (strcmp(verbs[i].name, word) == 0)
            return check_verb(command, &verbs[i], 1U << i, only, words) < 0 ? i : -1;
    complain_of_verb(command, verbs, word);
    return -1;
}
