/* The lock's state machine exists twice: in C, and in Lua for the Redis server. Here both get the
 * same long random sequences of commands in simulated time; every reply, every wake-up and the
 * whole state after each command must be the same. And a Lua machine with one line changed must be
 * noticed. */
#define _GNU_SOURCE
#include "support/test.h"

#include "engines/redis/script.h"
#include "support/env.h"
#include "support/machine.h"
#include "support/server.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define OWNERS    5
#define CHUNK     64   /* commands sent ahead */
#define LOCK_LIFE 1500 /* commands to one lock */
#define PUSHES    16
#define PREFIX    "test"
#define KEY       PREFIX ":{lock %%7B%d}"

typedef struct change {
    const char *from, *to;
} change;

/* What a command must have done: told by the C machine before the Lua machine is heard. */
typedef struct expectation {
    dibs__reply reply;
    command_kind kind;
    int64_t lease; /* that was asked for */
    char *state;
    int pushes;
    char push[PUSHES][64]; /* taken from lists */
    int messages;
    char message[PUSHES][160]; /* published */
    char what[320];            /* for people */
} expectation;

typedef struct world {
    redisContext *redis, *subscriber;
    char sha[DIBS__REDIS_SCRIPTS][41]; /* those of locks */
    tiny lock;
    char key[64];
    int64_t now;
    uint64_t seed;
    uint32_t capacity;
    bool breaks;         /* a lock that was broken once has a record of another form for ever */
    int attempt[OWNERS]; /* the last one made */
    expectation expected[CHUNK];
    char difference[8192]; /* "": none */
} world;

static uint64_t chance(world *w, uint64_t below)
{
    return sim_random(&w->seed) % below;
}

/* ---- State as text, the same from both ------------------------------------------------------- */

static void add_asker(FILE *f, const dibs__asker *who)
{
    fprintf(f, "|%" PRId64 "|%s|%s|%" PRId64 " %s|%s|%u|%" PRId64 "]", who->min_hold, who->owner,
            who->attempt, who->pid, who->host, who->wake, who->weight, who->lease);
}

static int by_fence(const void *a, const void *b)
{
    const dibs__holder *x = a, *y = b;

    return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static int by_place(const void *a, const void *b)
{
    const dibs__waiter *x = a, *y = b;

    return x->place < y->place ? -1 : x->place > y->place;
}

static char *state_of_c(tiny t)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const dibs__record *r = &t.record;

    qsort(t.holder, t.holders, sizeof t.holder[0], by_fence);
    qsort(t.waiter, t.waiters, sizeof t.waiter[0], by_place);
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

static char *state_of_lua(const redisReply *reply)
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

/* ---- Commands by chance ---------------------------------------------------------------------- */

static void choose_attempt(world *w, int owner, bool fresh, char *out, size_t size)
{
    int n;

    if (fresh)
        w->attempt[owner]++;
    n = w->attempt[owner];
    if (!fresh && n > 0 && chance(w, 6) == 0)
        n--; /* one that is dead, or was never used */
    snprintf(out, size, "h%d-%d", owner % 2, owner * 100000 + n);
}

static void choose_asker(world *w, command *c)
{
    dibs__asker *who = &c->who;
    int owner = (int)chance(w, OWNERS);

    snprintf(who->owner, sizeof who->owner, "owner\n%d", owner);
    choose_attempt(w, owner, c->kind == COMMAND_ACQUIRE && chance(w, 3) > 0, who->attempt,
                   sizeof who->attempt);
    snprintf(who->host, sizeof who->host, "host %d", owner);
    who->pid = 1000 + owner;
    strcpy(who->wake, chance(w, 2) ? "L" : "P");
    who->lease = (int64_t)(1 + chance(w, 40)) * 50000;
    who->min_hold = chance(w, 6) == 0 ? (int64_t)chance(w, 10) * 50000 : 0;
    if (c->capacity == DIBS__PLAIN)
        who->weight = chance(w, 3) == 0 ? 1 : DIBS__PLAIN;
    else
        who->weight = 1 + (uint32_t)chance(w, c->capacity);
}

static uint64_t choose_fence(world *w, const char *owner)
{
    for (size_t i = 0; i < w->lock.holders && chance(w, 8) > 0; i++)
        if (strcmp(w->lock.holder[i].who.owner, owner) == 0)
            return w->lock.holder[i].fence;
    return chance(w, 2) ? 0 : w->lock.record.fence - chance(w, 3);
}

static void choose_command(world *w, command *c)
{
    static const command_kind kinds[] = {
        COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_ACQUIRE,
        COMMAND_KEEP,    COMMAND_KEEP,    COMMAND_RELEASE, COMMAND_RELEASE,
        COMMAND_RELEASE, COMMAND_CANCEL,  COMMAND_SETTLE,
    };

    memset(c, 0, sizeof *c);
    c->kind = kinds[chance(w, sizeof kinds / sizeof kinds[0])];
    if (w->breaks && chance(w, 40) == 0)
        c->kind = COMMAND_BREAK;
    w->now +=
        (int64_t)chance(w, chance(w, 8) == 0 ? 1500000 : 30000) - (chance(w, 50) == 0 ? 200000 : 0);
    c->now = (dibs__time){w->now, w->now};
    c->capacity = chance(w, 30) == 0 ? 1 + (uint32_t)chance(w, 5) : w->capacity;
    choose_asker(w, c);
    c->window = chance(w, 4) == 0 ? 0 : (int64_t)(1 + chance(w, 30)) * 50000;
    c->fence = choose_fence(w, c->who.owner);
    c->at_once = chance(w, 2);
}

/* ---- To the server --------------------------------------------------------------------------- */

#define TEXT  256
#define WORDS 12

typedef struct words {
    size_t count;
    char data[WORDS][TEXT];
    size_t length[WORDS];
} words;

static void put(words *ws, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ws->length[ws->count] = (size_t)vsnprintf(ws->data[ws->count], TEXT, format, args);
    va_end(args);
    ws->count++;
}

/* Big-endian, as the scripts' struct.unpack reads it. */
static size_t add_whole(char *at, uint64_t value, int count)
{
    for (int i = count - 1; i >= 0; i--)
        *at++ = (char)(value >> (8 * i));
    return (size_t)count;
}

static size_t add_double(char *at, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    return add_whole(at, bits, 8);
}

/* The asker in the form in which it is stored: see lua/head.lua. */
static void put_who(words *ws, const dibs__asker *who)
{
    char *at = ws->data[ws->count];
    size_t n = (size_t)sprintf(at, "%s%c%s%c%" PRId64 " %s%c%s", who->owner, 0, who->attempt, 0,
                               who->pid, who->host, 0, who->wake) +
               1;

    n += add_whole(at + n, who->weight, 4);
    n += add_double(at + n, (double)who->lease);
    ws->length[ws->count++] = n;
}

static void put_numbers(words *ws, const command *c, bool push)
{
    char *at = ws->data[ws->count];
    size_t n = add_double(at, (double)c->who.lease);

    n += add_double(at + n, (double)c->who.min_hold);
    n += add_double(at + n, (double)c->window);
    n += add_whole(at + n, c->capacity, 4);
    n += add_whole(at + n, (c->who.weight == c->capacity ? 1 : 0) + (push ? 2 : 0), 4);
    ws->length[ws->count++] = n;
}

static void put_name(words *ws, const command *c)
{
    char *at = ws->data[ws->count];
    size_t n = add_double(at, (double)c->fence);

    n += (size_t)sprintf(at + n, "%s%c%s", c->who.owner, 0, c->who.attempt) + 1;
    ws->length[ws->count++] = n;
}

static void put_command(words *ws, const command *c, bool push)
{
    switch (c->kind) {
    case COMMAND_ACQUIRE:
        put_numbers(ws, c, push);
        put_who(ws, &c->who);
        break;
    case COMMAND_BREAK:
        put(ws, "%s", c->who.owner);
        put(ws, "%d", c->at_once);
        break;
    case COMMAND_SETTLE:
        put(ws, "1");
        put(ws, "1");
        break;
    default:
        put_name(ws, c);
        if (c->kind == COMMAND_KEEP)
            put(ws, "%" PRId64, c->who.lease);
    }
}

static void append_script(world *w, int script, words *ws)
{
    const char *argv[WORDS + 4] = {"EVALSHA", w->sha[script], "1", w->key};
    size_t lengths[WORDS + 4] = {7, 40, 1, strlen(w->key)};

    put(ws, "%" PRId64, w->now % 1000000);
    put(ws, "%" PRId64, w->now / 1000000);
    for (size_t i = 0; i < ws->count; i++) {
        argv[4 + i] = ws->data[i];
        lengths[4 + i] = ws->length[i];
    }
    redisAppendCommandArgv(w->redis, (int)(4 + ws->count), argv, lengths);
}

static void append_look(world *w)
{
    words ws = {0};

    put(&ws, "0");
    put(&ws, "1");
    append_script(w, DIBS__SCRIPT_LOOK, &ws);
}

/* ---- What the wake-ups must be --------------------------------------------------------------- */

static void expect_push(world *w, expectation *x, const char *attempt, const char *message)
{
    redisAppendCommand(w->redis, "LPOP %s:w:%s", w->key, attempt);
    snprintf(x->push[x->pushes++], sizeof x->push[0], "%s", message);
}

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
    char text[64];

    if (!who)
        who = find_woken(&w->lock, fence, &floor);
    assert_non_null(who);
    snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64, fence, floor);
    if (who->wake[0] == 'L')
        expect_push(w, x, who->attempt, text);
    else
        snprintf(x->message[x->messages++], sizeof x->message[0], "%s %s", who->attempt, text);
}

static void expect_breaking(world *w, expectation *x)
{
    const dibs__holder *oldest = &w->lock.holder[0];

    for (size_t i = 1; i < w->lock.holders; i++)
        if (w->lock.holder[i].fence < oldest->fence)
            oldest = &w->lock.holder[i];
    snprintf(x->message[x->messages++], sizeof x->message[0], "%s", oldest->who.attempt);
}

static bool waits_on_list(const tiny *t, const dibs__asker *who)
{
    for (size_t i = 0; i < t->waiters; i++)
        if (strcmp(t->waiter[i].who.owner, who->owner) == 0 &&
            strcmp(t->waiter[i].who.attempt, who->attempt) == 0)
            return t->waiter[i].who.wake[0] == 'L';
    return false;
}

/* ---- One command to both --------------------------------------------------------------------- */

static const int script_of[] = {
    [COMMAND_ACQUIRE] = DIBS__SCRIPT_ENTER,   [COMMAND_KEEP] = DIBS__SCRIPT_KEEP,
    [COMMAND_RELEASE] = DIBS__SCRIPT_RELEASE, [COMMAND_CANCEL] = DIBS__SCRIPT_CANCEL,
    [COMMAND_BREAK] = DIBS__SCRIPT_BREAK,     [COMMAND_SETTLE] = DIBS__SCRIPT_LOOK,
};

/* false: the C machine has no room for what would come of it; nothing was done. */
static bool step(world *w, expectation *x)
{
    words ws = {0};
    command c;
    tiny before = w->lock, settled = w->lock; /* by when the command looks */
    dibs__reply ignored;
    bool push, cancelled;

    memset(x, 0, sizeof *x);
    choose_command(w, &c);
    push = c.kind == COMMAND_ACQUIRE && c.who.wake[0] == 'L' && chance(w, 3) == 0;
    assert_int_equal(tiny_run(&w->lock, &c, &x->reply), 0);
    if (w->lock.overflow) {
        w->lock = before;
        return false;
    }
    x->kind = c.kind;
    x->lease = c.who.lease;
    snprintf(x->what, sizeof x->what, "kind %d by %s %s at %" PRId64, c.kind, c.who.owner,
             c.who.attempt, w->now);
    put_command(&ws, &c, push);
    append_script(w, script_of[c.kind], &ws);
    tiny_run(&settled, &(command){.kind = COMMAND_SETTLE, .now = c.now}, &ignored);
    cancelled = c.kind == COMMAND_CANCEL && waits_on_list(&settled, &c.who);
    for (size_t i = 0; i < w->lock.woken_count; i++)
        expect_woken(w, x, &settled, w->lock.woken[i]);
    if (c.kind == COMMAND_BREAK && x->reply.verdict == DIBS__BUSY)
        expect_breaking(w, x);
    if (cancelled || (push && x->reply.verdict != DIBS__QUEUED))
        expect_push(w, x, c.who.attempt, "-");
    append_look(w);
    x->state = state_of_c(w->lock);
    return true;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void differ(world *w, const expectation *x, const char *about, const char *c,
                   const char *lua)
{
    if (!w->difference[0])
        snprintf(w->difference, sizeof w->difference, "%s: %s\n  C:   %s\n  Lua: %s", x->what,
                 about, c, lua);
}

static redisReply *next_reply(redisContext *redis)
{
    void *reply = NULL;

    assert_int_equal(redisGetReply(redis, &reply), REDIS_OK);
    return reply;
}

static void compare_reply(world *w, const expectation *x, const redisReply *reply)
{
    char c[256], lua[1024];
    long long v[5] = {0};
    bool whole = reply->type == REDIS_REPLY_INTEGER && reply->integer > 0;

    if (x->kind == COMMAND_SETTLE) /* the look that lets time pass gives no verdict */
        return;
    snprintf(c, sizeof c, "%d %" PRIu64 " %" PRIu64 " %" PRId64 " %u", x->reply.verdict,
             x->reply.fence, x->reply.floor, x->reply.remaining, x->reply.capacity);
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements && i < 5; i++)
        v[i] = reply->element[i]->integer;
    if (whole) { /* the short form of a grant */
        v[1] = v[2] = reply->integer;
        v[3] = x->lease;
    } else if (reply->type == REDIS_REPLY_INTEGER) {
        v[0] = reply->integer == 0 ? DIBS__RELEASED : DIBS__QUEUED;
    }
    snprintf(lua, sizeof lua, "%lld %lld %lld %lld %lld", v[0], v[1], v[2], v[3], v[4]);
    if (reply->type == REDIS_REPLY_ERROR)
        snprintf(lua, sizeof lua, "%s", reply->str);
    if (strcmp(c, lua) != 0)
        differ(w, x, "reply", c, lua);
}

static void compare_text(world *w, const expectation *x, const char *about, const char *c,
                         const redisReply *reply)
{
    const char *lua = reply->str ? reply->str : "(none)";

    if (strcmp(c, lua) != 0)
        differ(w, x, about, c, lua);
}

static uint64_t read_double(const char *at)
{
    uint64_t bits = 0;
    double number;

    for (int i = 0; i < 8; i++)
        bits = bits << 8 | (unsigned char)at[i];
    memcpy(&number, &bits, sizeof number);
    return (uint64_t)number;
}

/* What was pushed: fence and floor, or a word. */
static void compare_push(world *w, const expectation *x, const char *c, const redisReply *reply)
{
    char lua[64];

    if (!reply->str || reply->len != 16) {
        compare_text(w, x, "push", c, reply);
        return;
    }
    snprintf(lua, sizeof lua, "%" PRIu64 " %" PRIu64, read_double(reply->str),
             read_double(reply->str + 8));
    if (strcmp(c, lua) != 0)
        differ(w, x, "push", c, lua);
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
    for (int i = 0; i < x->pushes; i++) {
        reply = next_reply(w->redis);
        compare_push(w, x, x->push[i], reply);
        freeReplyObject(reply);
    }
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

static char *replaced(char *text, const char *from, const char *to, int *count)
{
    char *at = strstr(text, from), *out;

    if (!at)
        return text;
    (*count)++;
    assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    free(text);
    return out;
}

static void load_scripts(world *w, const change *wrong)
{
    static const int scripts[] = {DIBS__SCRIPT_ENTER,  DIBS__SCRIPT_KEEP,  DIBS__SCRIPT_RELEASE,
                                  DIBS__SCRIPT_CANCEL, DIBS__SCRIPT_BREAK, DIBS__SCRIPT_LOOK};
    const size_t count = sizeof scripts / sizeof scripts[0];
    int clocks = 0, changes = 0;

    for (size_t at = 0; at < count; at++) {
        int i = scripts[at];
        char *text = replaced(strdup(dibs__redis_lua[i]), "redis.call('TIME')",
                              "{table.remove(ARGV), table.remove(ARGV)}", &clocks);
        if (wrong)
            text = replaced(text, wrong->from, wrong->to, &changes);
        redisReply *reply = redisCommand(w->redis, "SCRIPT LOAD %s", text);
        assert_int_equal(reply->type, REDIS_REPLY_STRING);
        snprintf(w->sha[i], sizeof w->sha[i], "%s", reply->str);
        freeReplyObject(reply);
        free(text);
    }
    assert_int_equal(clocks, count);
    assert_true(!wrong || changes > 0);
}

static void new_lock(world *w, int number)
{
    static const uint32_t capacities[] = {DIBS__PLAIN, DIBS__PLAIN, 2, 3, 5};

    memset(&w->lock, 0, sizeof w->lock);
    snprintf(w->key, sizeof w->key, KEY, number);
    w->capacity = capacities[chance(w, sizeof capacities / sizeof capacities[0])];
    w->breaks = chance(w, 3) == 0;
}

/* Runs so many commands, or until the two differ; `w->difference` says how. */
static int run(world *w, server *s, uint64_t seed, int commands, const change *wrong)
{
    int done = 0;

    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->now = 1700000000000000;
    w->redis = redisConnect("127.0.0.1", s->port);
    w->subscriber = redisConnect("127.0.0.1", s->port);
    redisSetTimeout(w->subscriber, (struct timeval){2, 0});
    freeReplyObject(redisCommand(w->redis, "FLUSHALL"));
    freeReplyObject(redisCommand(w->subscriber, "PSUBSCRIBE *"));
    load_scripts(w, wrong);
    for (int number = 0; done < commands && !w->difference[0]; number++) {
        new_lock(w, number);
        for (int life = 0; life < LOCK_LIFE && !w->difference[0];) {
            int n = 0;
            while (n < CHUNK && step(w, &w->expected[n]))
                n++;
            for (int i = 0; i < n; i++)
                compare(w, &w->expected[i]);
            life += n;
            done += n;
            if (n == 0)
                break;
        }
        if (!w->difference[0])
            compare_leftovers(w);
    }
    redisFree(w->redis);
    redisFree(w->subscriber);
    return done;
}

static void same_as_c(void **state)
{
    static world w;
    const char *given = getenv("DIBS_TEST_SEED");
    const char *count = getenv("DIBS_TEST_COMMANDS");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    server s;
    int done;

    (void)state;
    server_need(&s, NULL);
    done = run(&w, &s, seed, count ? atoi(count) : 250000, NULL);
    printf("# %d commands compared, seed %" PRIu64 "\n", done, seed);
    if (w.difference[0])
        printf("# %s\n", w.difference);
    server_stop(&s);
    assert_string_equal(w.difference, "");
}

static void one_changed_line_is_noticed(void **state)
{
    static const change wrong[] = {
        {"lock[2] + w[10] <= lock[1]", "lock[2] + w[10] < lock[1]"},
        {"while h and h[3] <= now do", "while h and h[3] < now - 100000 do"},
        {"who[1], who[2] = there[1], there[2]", "who[1], who[2] = there[1], now"},
        {"last_fence < now and now or last_fence + 1", "now"},
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
        {"call('HSETNX', line, 'o' .. owner, place) == 1", "true"},
        {"(mark == 0x64696248 or head_ends > now)", "true"},
        {"if alive > lease then", "if alive < lease then"},
        {"string.sub(head, 41)", "string.sub(stored, 77)"},
        {"if alive > now and weight == capacity", "if weight == capacity"},
        {"(not second or next_alive > now)", "true"},
        {"next_alive, second and", "now + 9000000, second and"},
        {"lock[1] = 0", ""},
        {"push(w, '-', '1')", ""},
        {"publish(h, h[7])", ""},
    };
    static world w;
    server s;

    (void)state;
    server_need(&s, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int done = run(&w, &s, 7, 200000, &wrong[i]);
        if (!w.difference[0])
            printf("# not noticed in %d commands: %s\n", done, wrong[i].from);
        assert_string_not_equal(w.difference, "");
    }
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_c),
        cmocka_unit_test(one_changed_line_is_noticed),
    };

    return cmocka_run_group_tests_name("lua", tests, NULL, NULL);
}
