/* An idempotent consumer of a Redis stream, with redelivery.
 *
 * A consumer group hands an entry to one consumer at a time, and again to another when the first does
 * not acknowledge it: at least once. Here two things stand against doubled effects. `once` keeps two
 * consumers from working on one entry at the same time, and a later one from doing it again. And the
 * effect itself carries the entry's id (a counter's request): if a consumer dies between effect and
 * finish, the next one runs again, and its effect counts as the one it is.
 *
 * Tells a story: six orders, of which the first consumer handles two, dies at the third before it
 * could say so, and never sees the rest. Usage: stream HOST PORT */
#include <dibs.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUP "shop"

static redisContext *redis;
static dibs *d;
static char stream[64], total[80];

/* Sends a command; true if it was no error. */
static bool say(const char *format, const char *a, const char *b)
{
    redisReply *r = redisCommand(redis, format, a, b);
    bool good = r && r->type != REDIS_REPLY_ERROR;

    if (!good)
        fprintf(stderr, "%s\n", r ? r->str : redis->errstr);
    freeReplyObject(r);
    return good;
}

/* The work behind an entry, in a consumer that may be about to die. */
static dibs_status handle(const char *id, int64_t pieces, bool dies, dibs_error *err)
{
    dibs_once_options o = {
        .scope = stream, .lease_ms = 500, .on_crash = DIBS_CRASH_RERUN, .wait_ms = 10000};
    dibs_once *run = NULL;
    dibs_status status = dibs_once_begin(d, id, &o, &run, err);

    if (status == DIBS_OK) {
        bool rerun = dibs_once_again(run);
        status =
            dibs_counter_add(d, total, pieces, &(dibs_counter_options){.request = id}, NULL, err);
        printf("%s: %s%s\n", id, status == DIBS_ALREADY ? "was counted" : "counted",
               rerun ? ", by a runner that died" : "");
        if (status == DIBS_ALREADY)
            status = DIBS_OK;
        if (dies) /* as a crash would: nobody says how far it came */
            dibs_once_abandon(run, NULL);
        else if (status == DIBS_OK)
            status = dibs_once_finish(run, NULL, 0, 0, err);
    }
    dibs_once_free(run);
    return status == DIBS_ALREADY ? DIBS_OK : status;
}

/* Entries in the form {id, {"pieces", n}}. Returns how many were handled; -1: an error. */
static int handle_all(const redisReply *entries, int dies_at)
{
    for (size_t i = 0; i < entries->elements; i++) {
        const redisReply *entry = entries->element[i];
        const char *id = entry->element[0]->str;
        bool dies = (int)i == dies_at;
        dibs_error err = {0};
        if (handle(id, atoll(entry->element[1]->element[1]->str), dies, &err) != DIBS_OK) {
            fprintf(stderr, "%s: %s\n", id, err.message);
            return -1;
        }
        if (dies)
            return (int)i;
        if (!say("XACK %s " GROUP " %s", stream, id))
            return -1;
    }
    return (int)entries->elements;
}

/* What nobody has had yet. */
static int consume(const char *consumer, int dies_at)
{
    redisReply *r = redisCommand(redis, "XREADGROUP GROUP " GROUP " %s COUNT 100 STREAMS %s >",
                                 consumer, stream);
    int handled = 0;

    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 1)
        handled = handle_all(r->element[0]->element[1], dies_at);
    freeReplyObject(r);
    return handled;
}

/* What others had and did not acknowledge. (A real consumer gives them some time: here 0 ms.) */
static int take_over(const char *consumer)
{
    redisReply *r =
        redisCommand(redis, "XAUTOCLAIM %s " GROUP " %s 0 0-0 COUNT 100", stream, consumer);
    int handled = -1;

    if (r && r->type == REDIS_REPLY_ARRAY && r->elements >= 2)
        handled = handle_all(r->element[1], -1);
    freeReplyObject(r);
    return handled;
}

static bool story(void)
{
    dibs_error err = {0};
    int64_t sold = 0;
    int first, second;

    if (!say("XGROUP CREATE %s " GROUP " 0 MKSTREAM", stream, ""))
        return false;
    for (int i = 1; i <= 6; i++) {
        char pieces[8];
        snprintf(pieces, sizeof pieces, "%d", i);
        if (!say("XADD %s * pieces %s", stream, pieces))
            return false;
    }
    first = consume("first", 2);
    second = take_over("second");
    if (first < 0 || second < 0 || dibs_counter_get(d, total, &sold, &err) != DIBS_OK)
        return fprintf(stderr, "%s\n", err.message), false;
    printf("%d by the first, %d by the second, %lld pieces in all\n", first, second,
           (long long)sold);
    return first == 2 && second == 4 && sold == 21;
}

int main(int argc, char **argv)
{
    char url[128];
    dibs_error err = {0};
    bool good;

    redis = argc == 3 ? redisConnect(argv[1], atoi(argv[2])) : NULL;
    if (!redis || redis->err) {
        fprintf(stderr, "usage: stream HOST PORT\n%s\n", redis ? redis->errstr : "");
        return 64;
    }
    snprintf(url, sizeof url, "redis://%.80s:%s", argv[1], argv[2]);
    if (dibs_open(url, NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dibs_status_exit_code(err.status);
    }
    /* A stream of its own each time, so that the story can be told again. */
    snprintf(stream, sizeof stream, "orders:%lld", (long long)time(NULL));
    snprintf(total, sizeof total, "sold:%s", stream);
    good = story();
    say("DEL %s%s", stream, "");
    dibs_close(d);
    redisFree(redis);
    return good ? 0 : 1;
}
