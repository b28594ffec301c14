/* usage: stepper URL: does what the lines of its input say, one call each, and answers with a line:
 * the status, and a number or a text if there is one. So a test can count what one call costs. */
#include "dibs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs *d;
static dibs_once *once;
static dibs_grant *held;
static dibs_error err;

static dibs_status count(char **word, int words, int64_t *value)
{
    dibs_counter_options o = {.request = words > 3 ? word[3] : NULL};
    int64_t n = words > 2 ? atoll(word[2]) : 0;

    if (strcmp(word[0], "set") == 0)
        return dibs_counter_set(d, word[1], *value = n, &o, &err);
    if (strcmp(word[0], "add") == 0)
        return dibs_counter_add(d, word[1], n, &o, value, &err);
    if (strcmp(word[0], "take") == 0)
        return dibs_counter_take(d, word[1], n, &o, value, &err);
    return dibs_counter_get(d, word[1], value, &err);
}

static dibs_status cell(char **word, int words, int64_t *value)
{
    uint64_t version = words > 2 ? strtoull(word[2], NULL, 10) : 0;
    dibs_value v = {0};
    dibs_cell_options o = {0};
    dibs_status status;

    if (strcmp(word[0], "swap") == 0 && words > 4)
        o.fence = strtoull(word[4], NULL, 10);
    else if (strcmp(word[0], "delete") == 0 && words > 3)
        o.fence = strtoull(word[3], NULL, 10);
    if (strcmp(word[0], "swap") == 0)
        status = dibs_cell_swap(d, word[1], version, word[3], strlen(word[3]), &o, &v, &err);
    else if (strcmp(word[0], "delete") == 0)
        status = dibs_cell_delete(d, word[1], version, &o, &err);
    else if (strcmp(word[0], "pass") == 0)
        status = dibs_cell_pass(d, word[1], &(dibs_cell_options){.fence = version}, &v, &err);
    else
        status = dibs_cell_read(d, word[1], &v, &err);
    *value = (int64_t)v.version;
    dibs_value_free(&v);
    return status;
}

static dibs_status work(char **word, int words)
{
    dibs_status status;

    if (strcmp(word[0], "lock") == 0)
        return dibs_lock(d, word[1], NULL, &held, &err);
    if (strcmp(word[0], "unlock") == 0)
        return dibs_unlock(&held, &err);
    if (strcmp(word[0], "begin") == 0) {
        dibs_once_free(once);
        once = NULL;
        return dibs_once_begin(d, word[1], &(dibs_once_options){.wait_ms = DIBS_NO_WAIT}, &once,
                               &err);
    }
    if (!once)
        return DIBS_INVALID;
    if (strcmp(word[0], "step") == 0)
        return dibs_once_step(once, word[1], "x", 1, &err);
    status = strcmp(word[0], "fail") == 0
                 ? dibs_once_undo(once, &err)
                 : dibs_once_finish(once, word[1], words > 1 ? strlen(word[1]) : 0, 0, &err);
    return status;
}

static void step(char **word, int words)
{
    static const char *const counts[] = {"set", "add", "take", "get"};
    static const char *const values[] = {"swap", "delete", "read", "pass"};
    char token[DIBS_TOKEN_SIZE] = "";
    int64_t value = 0;
    dibs_status status = DIBS_UNSUPPORTED;

    for (size_t i = 0; i < 4; i++) {
        if (strcmp(word[0], counts[i]) == 0)
            status = count(word, words, &value);
        if (strcmp(word[0], values[i]) == 0)
            status = cell(word, words, &value);
    }
    if (strcmp(word[0], "issue") == 0)
        status = dibs_token_issue(d, NULL, token, &err);
    else if (strcmp(word[0], "redeem") == 0)
        status = dibs_token_redeem(d, word[1], NULL, &err);
    else if (status == DIBS_UNSUPPORTED)
        status = work(word, words);
    if (token[0])
        printf("%s %s\n", dibs_status_name(status), token);
    else
        printf("%s %" PRId64 "\n", dibs_status_name(status), value);
    if (status != DIBS_OK)
        fprintf(stderr, "stepper: %s: %s\n", word[0], err.message);
}

int main(int argc, char **argv)
{
    char line[512];

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || dibs_open(argv[1], NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "stepper URL: %s\n", err.message);
        return 64;
    }
    printf("ready 0\n");
    while (fgets(line, sizeof line, stdin)) {
        char *word[5] = {NULL}, *rest = line;
        int words = 0;
        while (words < 4 && (word[words] = strtok_r(rest, " \n", &rest)) != NULL)
            words++;
        if (words > 0)
            step(word, words);
    }
    dibs_once_free(once);
    dibs_close(d);
    return 0;
}
