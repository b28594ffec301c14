/* See twin.h. */
#define _GNU_SOURCE
#include "twin.h"

#include "engines/redis/script.h"
#include "support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Numbers --------------------------------------------------------------------------------- */

char *add_whole(char *at, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        *at++ = (char)(value >> (8 * i));
    return at;
}

char *add_double(char *at, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    return add_whole(at, bits, 8);
}

uint64_t take_whole(const char **at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value = value << 8 | (unsigned char)*(*at)++;
    return value;
}

double take_double(const char **at)
{
    uint64_t bits = take_whole(at, 8);
    double number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

/* ---- Scripts --------------------------------------------------------------------------------- */

char *changed(char *text, const change *c, int *count)
{
    char *at = strstr(text, c->from), *out;

    if (!at)
        return text;
    (*count)++;
    assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, c->to, at + strlen(c->from)) >
                0);
    free(text);
    return out;
}

/* The script goes by the clock that it is given; the server drops keys by its own, which on a busy machine
 * may be faster. */
char *script_with_clock(int script)
{
    static const change clock = {"redis.call('TIME')", "{table.remove(ARGV), table.remove(ARGV)}"};
    static const change endless[] = {{"'PEXPIRE'", "'TOUCH'"},
                                     {"'PX', string.format('%.0f', ms)", "'KEEPTTL'"}};
    int count = 0;
    char *text = changed(strdup(dibs__redis_lua[script]), &clock, &count);

    assert_int_equal(count, 1);
    for (size_t i = 0; i < sizeof endless / sizeof endless[0]; i++)
        do {
            count = 0;
            text = changed(text, &endless[i], &count);
        } while (count > 0);
    return text;
}

void script_load(redisContext *redis, char *text, char sha[SHA_SIZE])
{
    redisReply *reply = redisCommand(redis, "SCRIPT LOAD %s", text);

    assert_int_equal(reply->type, REDIS_REPLY_STRING);
    snprintf(sha, SHA_SIZE, "%s", reply->str);
    freeReplyObject(reply);
    free(text);
}

#define SEEDS 8 /* what few sequences show needs more than one start */

/* ---- Runs ------------------------------------------------------------------------------------ */

void expect_same(twin_run *run, int commands)
{
    const char *given = getenv("DIBS_TEST_SEED"), *count = getenv("DIBS_TEST_COMMANDS");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    const char *difference;
    server s;
    int done;

    server_need(&s, NULL);
    done = run(&s, seed, count ? atoi(count) : commands, NULL, &difference);
    printf("# %d commands compared, seed %" PRIu64 "\n", done, seed);
    if (difference[0])
        printf("# %s\n", difference);
    server_stop(&s);
    assert_string_equal(difference, "");
}

void expect_noticed(twin_run *run, int commands, const change wrong[], size_t count)
{
    const char *difference;
    server s;

    server_need(&s, NULL);
    for (size_t i = 0; i < count; i++) {
        int done = 0;
        difference = "";
        for (uint64_t seed = 7; seed < 7 + SEEDS && !difference[0]; seed++)
            done += run(&s, seed, commands, &wrong[i], &difference);
        if (!difference[0])
            printf("# not noticed in %d commands: %s\n", done, wrong[i].from);
        if (done > commands)
            printf("# noticed after %d commands: %s\n", done, wrong[i].from);
        assert_string_not_equal(difference, "");
    }
    server_stop(&s);
}
