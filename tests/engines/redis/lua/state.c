/* The state of a lock as text, the same from both machines: see lock.h. */
#define _GNU_SOURCE
#include "lock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void add_asker(FILE *f, const dibs__asker *who)
{
    fprintf(f, "|%" PRId64 "|%s|%s|%" PRId64 " %s|%s|%u|%" PRId64 "]", who->min_hold, who->owner,
            who->attempt, who->pid, who->host, who->wake, who->weight, who->lease);
}

char *state_of_c(tiny t)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const dibs__record *r = &t.record;

    tiny_sort(&t);
    if (t.exists) {
        fprintf(f, "%u %u %u %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64, r->capacity, r->used,
                r->holders, r->waiters, r->fence, r->place, r->broken_fence, r->broken_at);
        fprintf(f, " %s", r->broken_by);
        for (size_t i = 0; i < t.holders; i++) {
            const dibs__holder *h = &t.holder[i];
            fprintf(f, " [%" PRIu64 "|%" PRId64 "|%" PRId64 "|%d", h->fence, h->since, h->expires,
                    h->released);
            add_asker(f, &h->who);
        }
        for (size_t i = 0; i < t.waiters; i++) {
            const dibs__waiter *p = &t.waiter[i];
            fprintf(f, " [%" PRIu64 "|%" PRId64 "|%" PRId64 "|%" PRId64, p->place, p->since,
                    p->alive_until, p->window);
            add_asker(f, &p->who);
        }
    }
    fclose(f);
    return text;
}

static int by_number(const void *a, const void *b)
{
    long long x = (*(redisReply *const *)a)->element[0]->integer;
    long long y = (*(redisReply *const *)b)->element[0]->integer;

    return x < y ? -1 : x > y;
}

static void add_values(FILE *f, const redisReply *row, size_t count, const char *between)
{
    for (size_t i = 0; i < count && i < row->elements; i++) {
        fputs(i ? between : "", f);
        if (row->element[i]->type == REDIS_REPLY_INTEGER)
            fprintf(f, "%lld", row->element[i]->integer);
        else
            fputs(row->element[i]->str ? row->element[i]->str : "?", f);
    }
}

char *state_of_lua(const redisReply *reply)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (reply->type == REDIS_REPLY_ERROR)
        fprintf(f, "%s", reply->str);
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 4) {
        add_values(f, reply->element[1], 8, " ");
        fprintf(
            f, " %s",
            reply->element[1]->element[9]->str); /* between them: how long the tables are kept */
        for (size_t list = 2; list < 4; list++) {
            redisReply *entries = reply->element[list];
            if (entries->elements > 1)
                qsort(entries->element, entries->elements, sizeof *entries->element, by_number);
            for (size_t i = 0; i < entries->elements; i++) {
                fputs(" [", f);
                add_values(f, entries->element[i], 11, "|");
                fputs("]", f);
            }
        }
    }
    fclose(f);
    return text;
}
