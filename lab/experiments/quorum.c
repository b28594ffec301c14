/* Redlock as it is published; see the header. */
#include "quorum.h"

#include <stdio.h>
#include <string.h>

static const char release[] = "if redis.call('GET', KEYS[1]) == ARGV[1] then "
                              "return redis.call('DEL', KEYS[1]) end return 0";

void lab_quorum_open(lab_quorum *q, const lab_node *nodes, int count, const char *id)
{
    memset(q, 0, sizeof *q);
    q->count = count;
    snprintf(q->id, sizeof q->id, "%s", id);
    for (int i = 0; i < count; i++)
        if (nodes[i].pid > 0)
            q->node[i] = lab_redis_open(&q->buyer, nodes[i].url);
}

void lab_quorum_close(lab_quorum *q)
{
    for (int i = 0; i < q->count; i++)
        if (q->node[i])
            redisFree(q->node[i]);
}

static int yes(redisContext *r)
{
    redisReply *reply = NULL;
    int voted =
        redisGetReply(r, (void **)&reply) == REDIS_OK && reply && reply->type == REDIS_REPLY_STATUS;

    if (reply)
        freeReplyObject(reply);
    return voted;
}

/* Puts the question on its way. */
static void send_to(redisContext *r, const lab_quorum *q, const char *name, int64_t lease_ms)
{
    int done = 0;

    redisAppendCommand(r, "SET %s %s NX PX %lld", name, q->id, (long long)lease_ms);
    while (!done && redisBufferWrite(r, &done) == REDIS_OK)
        continue;
}

int lab_quorum_ask(lab_quorum *q, const char *name, int64_t lease_ms, bool at_once)
{
    int votes = 0;

    for (int i = 0; at_once && i < q->count; i++)
        if (q->node[i])
            send_to(q->node[i], q, name, lease_ms);
    for (int i = 0; i < q->count; i++) {
        if (!q->node[i])
            continue;
        if (!at_once)
            send_to(q->node[i], q, name, lease_ms);
        votes += yes(q->node[i]);
    }
    return votes;
}

void lab_quorum_release(lab_quorum *q, const char *name)
{
    for (int i = 0; i < q->count; i++)
        if (q->node[i])
            lab_redis(&q->buyer, q->node[i], "EVAL %s 1 %s %s", release, name, q->id);
}
