/* The lock's state machine exists twice: in C, and in Lua for the Redis server. Here both get the
 * same long random sequences of commands in simulated time; every reply, every wake-up and the
 * whole state after each command must be the same. And a Lua machine with one line changed must be
 * noticed. */
#define _GNU_SOURCE
#include "support/test.h"

#include "engines/redis/script.h"
#include "lua/lock.h"
#include "lua/twin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define CHUNK     64   /* commands sent ahead */
#define LOCK_LIFE 1500 /* commands to one lock */
#define MESSAGES  16
#define PREFIX    "test"
#define KEY       PREFIX ":{lock %%7B%d}"

/* What a command must have done: told by the C machine before the Lua machine is heard. */
typedef struct expectation {
    dibs__reply reply;
    command_kind kind;
    int64_t lease; /* that was asked for */
    char *state;
    bool busy;         /* held or waited for: then it is in the set that a listing reads */
    char in_way[1024]; /* those whose leases end first: any of them may be named */
    int messages;
    char message[MESSAGES][160]; /* published */
    char what[320];              /* for people */
} expectation;

typedef struct world {
    redisContext *redis, *subscriber;
    char sha[DIBS__REDIS_SCRIPTS][SHA_SIZE]; /* those of locks */
    tiny lock;
    char key[64];
    lock_author author;
    expectation expected[CHUNK];
    char difference[8192]; /* "": none */
} world;

/* ---- What the wake-ups must be --------------------------------------------------------------- */

/* Who got this fence, and the lowest fence beside it. NULL: not in this state. */
static const dibs__asker *find_woken(const tiny *t, uint64_t fence, uint64_t *floor)
{
    const dibs__asker *who = NULL;

    *floor = fence;
    for (size_t i = 0; i < t->holders; i++) {
        const dibs__holder *h = &t->holder[i];
        *floor = h->fence < *floor ? h->fence : *floor;
        who = h->fence == fence ? &h->who : who;
    }
    return who;
}

/* A hand-over happens when time passes, before the command looks, or by what the command does. */
static void expect_woken(world *w, expectation *x, const tiny *settled, uint64_t fence)
{
    uint64_t floor;
    const dibs__asker *who = find_woken(settled, fence, &floor);

    if (!who)
        who = find_woken(&w->lock, fence, &floor);
    assert_non_null(who);
    snprintf(x->message[x->messages++], sizeof x->message[0], "%s %" PRIu64 " %" PRIu64,
             who->attempt, fence, floor);
}

/* ---- One command to both --------------------------------------------------------------------- */

static const int script_of[] = {
    [COMMAND_ACQUIRE] = DIBS__SCRIPT_ENTER,   [COMMAND_KEEP] = DIBS__SCRIPT_KEEP,
    [COMMAND_RELEASE] = DIBS__SCRIPT_RELEASE, [COMMAND_CANCEL] = DIBS__SCRIPT_CANCEL,
    [COMMAND_BREAK] = DIBS__SCRIPT_BREAK,     [COMMAND_SETTLE] = DIBS__SCRIPT_INSPECT,
};

static void append_look(world *w)
{
    words ws = {0};

    words_add(&ws, "0");
    words_add(&ws, "1");
    words_send(&ws, w->redis, w->sha[DIBS__SCRIPT_INSPECT], w->key, w->author.now);
}

/* As the reply names one: what is left of its lease, fence, owner, info. */
static void expect_in_way(const world *w, expectation *x, int64_t now)
{
    int64_t first = INT64_MAX;
    size_t n = 0;

    if (x->kind == COMMAND_BREAK ||
        (x->reply.verdict != DIBS__BUSY && x->reply.verdict != DIBS__QUEUED))
        return;
    for (size_t i = 0; i < w->lock.holders; i++)
        first = w->lock.holder[i].expires < first ? w->lock.holder[i].expires : first;
    for (size_t i = 0; i < w->lock.holders; i++) {
        const dibs__holder *h = &w->lock.holder[i];
        if (h->expires == first && n < sizeof x->in_way)
            n += (size_t)snprintf(x->in_way + n, sizeof x->in_way - n,
                                  "<%" PRId64 " %" PRIu64 " %s %" PRId64 " %s>", first - now,
                                  h->fence, h->who.owner, h->who.pid, h->who.host);
    }
}

static void differ(world *w, const expectation *x, const char *about, const char *c,
                   const char *lua)
{
    if (!w->difference[0])
        snprintf(w->difference, sizeof w->difference, "%s: %s\n#   C:   %s\n#   Lua: %s", x->what,
                 about, c, lua);
}

/* What the C machine itself named must be one of them. */
static void check_in_way(world *w, const expectation *x)
{
    const dibs__in_way *i = &x->reply.in_way;
    char text[512] = "";

    if (i->fence)
        snprintf(text, sizeof text, "<%" PRId64 " %" PRIu64 " %s %" PRId64 " %s>", i->left,
                 i->fence, i->owner, i->pid, i->host);
    if (!text[0] != !x->in_way[0] || !strstr(x->in_way, text))
        differ(w, x, "who is in the way", x->in_way, text);
}

/* false: the C machine has no room for what would come of it; nothing was done. */
static bool step(world *w, expectation *x)
{
    words ws = {0};
    command c;
    tiny before = w->lock, settled = w->lock; /* by when the command looks */
    dibs__reply ignored;

    memset(x, 0, sizeof *x);
    author_next(&w->author, &w->lock, &c);
    assert_int_equal(tiny_run(&w->lock, &c, &x->reply), 0);
    if (w->lock.overflow) {
        w->lock = before;
        return false;
    }
    x->kind = c.kind;
    x->lease = c.who.lease;
    snprintf(x->what, sizeof x->what, "kind %d by %s %s at %" PRId64, c.kind, c.who.owner,
             c.who.attempt, w->author.now);
    words_add_command(&ws, &c);
    words_send(&ws, w->redis, w->sha[script_of[c.kind]], w->key, w->author.now);
    tiny_run(&settled, &(command){.kind = COMMAND_SETTLE, .now = c.now}, &ignored);
    for (size_t i = 0, k = 0; i <= w->lock.woken_count; i++) {
        for (; k < w->lock.asked_count && w->lock.asked_after[k] == i; k++)
            snprintf(x->message[x->messages++], sizeof x->message[0], "%s", w->lock.asked[k]);
        if (i < w->lock.woken_count)
            expect_woken(w, x, &settled, w->lock.woken[i]);
    }
    redisAppendCommand(w->redis, "SISMEMBER %s:busy %s", PREFIX, w->key);
    append_look(w);
    x->busy = w->lock.holders + w->lock.waiters > 0;
    x->state = state_of_c(w->lock);
    expect_in_way(w, x, c.now.lease);
    check_in_way(w, x);
    return true;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static redisReply *next_reply(redisContext *redis)
{
    void *reply = NULL;

    assert_int_equal(redisGetReply(redis, &reply), REDIS_OK);
    return reply;
}

static void read_in_way(const redisReply *reply, char *out, size_t size)
{
    const char *at = reply ? reply->str : NULL, *owner, *info;
    double left;

    out[0] = '\0';
    if (!reply || reply->type != REDIS_REPLY_STRING || reply->len < 19)
        return;
    left = take_double(&at);
    owner = at + 8;
    info = owner + strlen(owner) + 1;
    info += strlen(info) + 1; /* behind the attempt */
    snprintf(out, size, "<%.0f %.0f %s %s>", left, take_double(&at), owner, info);
}

static void compare_reply(world *w, const expectation *x, const redisReply *reply)
{
    char c[256], lua[1024];
    const redisReply *in_way = reply->type == REDIS_REPLY_STRING ? reply : NULL;
    long long v[5] = {0};
    bool whole = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;

    if (x->kind == COMMAND_SETTLE) /* the look that lets time pass gives no verdict */
        return;
    snprintf(c, sizeof c, "%d %" PRIu64 " %" PRIu64 " %" PRId64 " %u", x->reply.verdict,
             x->reply.fence, x->reply.floor, x->reply.remaining, x->reply.capacity);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && i < 5; i++)
        v[i] = reply->element[i]->integer;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 5)
        in_way = reply->element[5];
    if (reply->type == REDIS_REPLY_STRING) { /* the short form of a place in the queue */
        v[0] = DIBS__QUEUED;
    } else if (whole) { /* the short form of a grant */
        v[1] = v[2] = reply->integer;
        v[3] = x->lease;
    } else if (reply->type == REDIS_REPLY_INTEGER) {
        v[0] = DIBS__RELEASED;
    }
    snprintf(lua, sizeof lua, "%lld %lld %lld %lld %lld", v[0], v[1], v[2], v[3], v[4]);
    if (reply->type == REDIS_REPLY_ERROR)
        snprintf(lua, sizeof lua, "%s", reply->str);
    if (strcmp(c, lua) != 0)
        differ(w, x, "reply", c, lua);
    read_in_way(in_way, lua, sizeof lua);
    if (!lua[0] != !x->in_way[0] || !strstr(x->in_way, lua))
        differ(w, x, "who is in the way", x->in_way, lua);
}

static void compare_text(world *w, const expectation *x, const char *about, const char *c,
                         const redisReply *reply)
{
    const char *lua = reply->str ? reply->str : "(none)";

    if (strcmp(c, lua) != 0)
        differ(w, x, about, c, lua);
}

static void compare_message(world *w, const expectation *x, const char *c)
{
    void *reply = NULL;

    if (w->difference[0])
        return; /* it may never come */
    if (redisGetReply(w->subscriber, &reply) != REDIS_OK) {
        differ(w, x, "message", c, "(none)");
        return;
    }
    compare_text(w, x, "message", c, ((redisReply *)reply)->element[3]);
    freeReplyObject(reply);
}

static void compare(world *w, expectation *x)
{
    redisReply *reply = next_reply(w->redis);
    char *state;

    compare_reply(w, x, reply);
    freeReplyObject(reply);
    reply = next_reply(w->redis);
    if (reply->integer != x->busy)
        differ(w, x, "set of busy locks", x->busy ? "in it" : "not in it",
               x->busy ? "not in it" : "in it");
    freeReplyObject(reply);
    reply = next_reply(w->redis);
    state = state_of_lua(reply);
    if (strcmp(state, x->state) != 0)
        differ(w, x, "state", x->state, state);
    free(state);
    free(x->state);
    freeReplyObject(reply);
    for (int i = 0; i < x->messages; i++)
        compare_message(w, x, x->message[i]);
}

/* No list is left that nobody was told of. */
static void compare_leftovers(world *w)
{
    expectation x = {.what = "at the end of the lock's life"};
    redisReply *reply = redisCommand(w->redis, "KEYS %s*:w:*", PREFIX);
    char text[64];

    snprintf(text, sizeof text, "%zu lists", reply->elements);
    if (reply->elements > 0)
        differ(w, &x, "lists left over", "0 lists", text);
    freeReplyObject(reply);
}

/* ---- A run ----------------------------------------------------------------------------------- */

static void load_scripts(world *w, const change *wrong)
{
    static const int scripts[] = {DIBS__SCRIPT_ENTER,  DIBS__SCRIPT_KEEP,  DIBS__SCRIPT_RELEASE,
                                  DIBS__SCRIPT_CANCEL, DIBS__SCRIPT_BREAK, DIBS__SCRIPT_INSPECT};
    int changes = 0;

    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        char *text = script_with_clock(scripts[i]);
        if (wrong)
            text = changed(text, wrong, &changes);
        script_load(w->redis, text, w->sha[scripts[i]]);
    }
    if (wrong && changes == 0)
        fail_msg("there is no such line: %s", wrong->from);
}

static void new_lock(world *w, int number)
{
    static const uint32_t capacities[] = {DIBS__PLAIN, DIBS__PLAIN, 2, 3, 5};

    memset(&w->lock, 0, sizeof w->lock);
    snprintf(w->key, sizeof w->key, KEY, number);
    w->author.capacity =
        capacities[author_chance(&w->author, sizeof capacities / sizeof capacities[0])];
    w->author.breaks = author_chance(&w->author, 3) == 0;
}

static void begin(world *w, const server *s, uint64_t seed, const change *wrong)
{
    memset(w, 0, sizeof *w);
    w->author = (lock_author){.seed = seed, .now = 1700000000000000};
    w->redis = redisConnect("127.0.0.1", s->port);
    w->subscriber = redisConnect("127.0.0.1", s->port);
    redisSetTimeout(w->subscriber, (struct timeval){2, 0});
    freeReplyObject(redisCommand(w->redis, "FLUSHALL"));
    freeReplyObject(redisCommand(w->subscriber, "PSUBSCRIBE *"));
    load_scripts(w, wrong);
}

/* Sends some ahead: how many. */
static int run_chunk(world *w)
{
    int n = 0;

    while (n < CHUNK && step(w, &w->expected[n]))
        n++;
    for (int i = 0; i < n; i++)
        compare(w, &w->expected[i]);
    return n;
}

static int run(const server *s, uint64_t seed, int commands, const change *wrong,
               const char **difference)
{
    static world w;
    int done = 0;

    begin(&w, s, seed, wrong);
    for (int number = 0; done < commands && !w.difference[0]; number++) {
        new_lock(&w, number);
        for (int life = 0, n = 1; n > 0 && life < LOCK_LIFE && !w.difference[0]; life += n) {
            n = run_chunk(&w);
            done += n;
        }
        if (!w.difference[0])
            compare_leftovers(&w);
    }
    redisFree(w.redis);
    redisFree(w.subscriber);
    *difference = w.difference;
    return done;
}

static void same_as_c(void **state)
{
    (void)state;
    expect_same(run, 250000);
}

static void one_changed_line_is_noticed(void **state)
{
    static const change wrong[] = {
        {"lock[2] + w[10] <= lock[1]", "lock[2] + w[10] < lock[1]"},
        {"while h and h[3] <= now do", "while h and h[3] < now - 100000 do"},
        {"who[1], who[2] = there[1], there[2]", "who[1], who[2] = there[1], now"},
        {"last_fence < clock and clock or last_fence + 1", "now"},
        {"local mine = find_head()[1] == w[1]", "local mine = find_head()"},
        {"h[4], h[3] = 1, keep_until", "h[4], h[3] = 0, keep_until"},
        {"fence < lock[7] and 4", "fence <= lock[7] and 4"},
        {"call('HDEL', key .. ':q', place_of(w), 'o' .. w[6])",
         "call('HDEL', key .. ':q', 'o' .. w[6])"},
        {"head, head_place = nil, head_place + 1", "head = nil head_place = head_place + 2"},
        {"first and first[3] or 0", "first and first[3] + 100000 or 0"},
        {"return oldest < h[1] and oldest or h[1]", "return h[1]"},
        {"and ends > now and min_hold == 0", "and ends > now"},
        {"if r[7] == 0 and solo", "if solo"},
        {"call('HSETNX', queue, 'o' .. owner, place) == 1", "true"},
        {"(mark == 0x64696248 or head_ends > now)", "true"},
        {"if alive > lease then", "if alive < lease then"},
        {"string.sub(head, 41)", "string.sub(stored, 77)"},
        {"if alive > now and weight == capacity", "if weight == capacity"},
        {"(not second or next_alive > now)", "true"},
        {"next_alive, second and", "now + 9000000, second and"},
        {"lock[1] = 0", ""},
        {"publish(h, h[7])", ""},
        {"tonumber(number, 16) > tonumber(other_number, 16) and 1 or 2", "1"},
        {"kin_of(who[7], there[7]) or 0", "0"},
        {"if not handle or handle ~= other_handle then", "if not handle then"},
        {"and not find_holder(w[6])", ""},
        {"elseif w and w[3] > now then", "elseif w then"},
        {"return {5, 0, 0, h[3] - now}", "return {5}"},
        {"publish(rival, rival[7])", ""},
        {"window == 0 and kin == 1", "window == 0"},
        {"string.sub(stored, 69)", "string.sub(stored, 77)"},
        {"h[3] - now, h[1], h[6], h[7], h[8]", "h[3] - now, h[1], h[7], h[6], h[8]"},
        {"changed, first = true, nil", "changed = true"},
        {"call('SADD', ", "call('EXISTS', "},
        {"call('SREM', ", "call('EXISTS', "},
        {"call(busy and 'SADD' or 'SREM', ", "call('EXISTS', "},
    };

    (void)state;
    expect_noticed(run, 200000, wrong, sizeof wrong / sizeof wrong[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_c),
        cmocka_unit_test(one_changed_line_is_noticed),
    };

    return cmocka_run_group_tests_name("lua", tests, NULL, NULL);
}
