/* Commands as the scripts of locks read them: see lock.h. */
#define _GNU_SOURCE
#include "lock.h"

#include "twin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void words_add(words *ws, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ws->length[ws->count] = (size_t)vsnprintf(ws->data[ws->count], WORD_SIZE, format, args);
    va_end(args);
    ws->count++;
}

/* The word that is being made, and ending it. */
static char *begin(words *ws)
{
    return ws->data[ws->count];
}

static void end(words *ws, const char *at)
{
    ws->length[ws->count] = (size_t)(at - ws->data[ws->count]);
    ws->count++;
}

/* The asker in the form in which it is stored: see lua/head.lua. */
static void add_who(words *ws, const dibs__asker *who)
{
    char *at = begin(ws);

    at += sprintf(at, "%s%c%s%c%" PRId64 " %s%c%s", who->owner, 0, who->attempt, 0, who->pid,
                  who->host, 0, who->wake) +
          1;
    end(ws, add_double(add_whole(at, who->weight, 4), (double)who->lease));
}

static void add_numbers(words *ws, const command *c)
{
    char *at = add_double(begin(ws), (double)c->who.lease);

    at = add_double(at, (double)c->who.min_hold);
    at = add_double(at, (double)c->window);
    at = add_whole(at, c->capacity, 4);
    end(ws, add_whole(at, c->who.weight == c->capacity, 4));
}

static void add_name(words *ws, const command *c)
{
    char *at = add_double(begin(ws), (double)c->fence);

    end(ws, at + sprintf(at, "%s%c%s", c->who.owner, 0, c->who.attempt) + 1);
}

void words_add_command(words *ws, const command *c)
{
    switch (c->kind) {
    case COMMAND_ACQUIRE:
        add_numbers(ws, c);
        add_who(ws, &c->who);
        break;
    case COMMAND_BREAK:
        words_add(ws, "%s", c->who.owner);
        words_add(ws, "%d", c->at_once);
        break;
    case COMMAND_SETTLE:
        words_add(ws, "1");
        words_add(ws, "1");
        break;
    default:
        add_name(ws, c);
        if (c->kind == COMMAND_KEEP)
            words_add(ws, "%" PRId64, c->who.lease);
    }
}

void words_send(words *ws, redisContext *redis, const char *sha, const char *key, int64_t now)
{
    const char *argv[WORDS + 4] = {"EVALSHA", sha, "1", key};
    size_t lengths[WORDS + 4] = {7, 40, 1, strlen(key)};

    words_add(ws, "%" PRId64, now % 1000000);
    words_add(ws, "%" PRId64, now / 1000000);
    for (size_t i = 0; i < ws->count; i++) {
        argv[4 + i] = ws->data[i];
        lengths[4 + i] = ws->length[i];
    }
    redisAppendCommandArgv(redis, (int)(4 + ws->count), argv, lengths);
}
