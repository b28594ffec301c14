/* One small option parser for all subcommands: a table says which options there are and where their
 * values go. Options may stand before, between and after the operands; `--` ends them. */
#ifndef DIBS_CLI_OPTIONS_H
#define DIBS_CLI_OPTIONS_H

#include "cli.h"

typedef enum cli_kind {
    CLI_FLAG,     /* to: bool */
    CLI_TEXT,     /* to: const char * */
    CLI_TEXTS,    /* to: cli_texts; may be given several times */
    CLI_SPAN,     /* to: int64_t, milliseconds; low and high too */
    CLI_NUMBER,   /* to: int64_t */
    CLI_MINUS,    /* no option: words like -5 are operands */
    CLI_URL,      /* to: const char *; a login in the argument is overwritten */
    CLI_URL_FILE, /* the same, read from a file */
} cli_kind;

typedef struct cli_texts {
    const char *text[32];
    size_t count; /* more than there is room for: those are dropped */
} cli_texts;

typedef struct cli_option {
    const char *name; /* "wait" is --wait; NULL ends the table */
    cli_kind kind;
    void *to; /* left alone when the option is absent */
    int64_t low, high;
    char letter; /* 'E' is -E; 0: none */
} cli_option;

#define CLI_URL_OPTIONS(to)                     \
    {"url", CLI_URL, (to), 0, 0, 0},            \
    {                                           \
        "url-file", CLI_URL_FILE, (to), 0, 0, 0 \
    }
#define CLI_SPAN_MAX  ((int64_t)1000 * 3600 * 24 * 365)
#define CLI_LEASE_MIN 10 /* of the library */
#define CLI_LEASE_MAX ((int64_t)1000 * 3600 * 24)

/* What is left when the options are taken. */
typedef struct cli_words {
    char **word;
    int count;
    int split; /* how many came before `--`; -1: there was none */
} cli_words;

/* Returns -1 to go on, or the exit code: 0 after --help, CLI_EXIT_USAGE after a complaint. Reorders
 * argv. */
int cli_parse(const cli_command *command, const cli_option *options, int argc, char **argv,
              cli_words *out);

/* Moves options before the first word behind it. Of them only --url and --url-file may have their value in
 * the next word. False: there is no word after them, and nothing was moved. */
bool cli_move_options(int argc, char **argv);

/* Just one word, the lock's NAME? -1 to go on, or CLI_EXIT_USAGE after a complaint. */
int cli_need_name(const cli_command *command, const cli_words *words);

/* WORD… -- COMMAND…; a word that starts with a dash is given as -- WORD… -- COMMAND…. How many words
 * there are before COMMAND, which ends in NULL; `what` ("lock NAME") is what they are called. -1 to
 * go on, or CLI_EXIT_USAGE after a complaint. */
int cli_split_command(const cli_command *command, const cli_words *words, const char *what,
                      int *count, char ***argv);

/* A whole number from `low` to `high`; false: it is none. */
bool cli_parse_number(const char *text, int64_t low, int64_t high, int64_t *out);

/* What a command with several forms (`dibs counter take`) does. */
typedef struct cli_verb {
    const char *name;
    const char *operands; /* "NAME [N]": those in brackets may be left out */
} cli_verb;

/* An option that only some of the verbs know, and whether it was given. */
typedef struct cli_only {
    const char *option; /* "--ttl" */
    bool given;
    unsigned verbs; /* bit i: the i-th knows it */
} cli_only;

/* Which of `verbs` (ended by a NULL) the first word names; the words after it fit, and no option was
 * given that it does not know (`only` ends with a NULL option). -1 after a complaint. */
int cli_find_verb(const cli_command *command, const cli_verb *verbs, const cli_only *only,
                  const cli_words *words);

#endif
