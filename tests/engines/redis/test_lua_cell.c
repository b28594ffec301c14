/* The cell's machine exists twice: in C, and in Lua for the Redis server. Here both get the same long
 * random sequences of commands in simulated time; every reply must be the same, and so must what a look
 * finds afterwards. And a Lua machine with one line changed must be noticed. */
#define _GNU_SOURCE
#include "support/test.h"

#include "engines/redis/script.h"
#include "lua/twin.h"
#include "support/cells.h"
#include "support/env.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK 64
#define LIFE  400 /* commands to one cell */

typedef struct world {
    redisContext *redis;
    char sha[SHA_SIZE];
    tiny_cell cell;
    cell_author author;
    int64_t now;
    char key[32];
    struct {
        char reply[512], look[512], what[512];
    } expected[CHUNK];
    char difference[4096]; /* "": none */
} world;

/* ---- Answers as text, the same from both ----------------------------------------------------- */

static void add_hex(FILE *f, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        fprintf(f, "%02x", ((const unsigned char *)data)[i]);
}

static void text_of_c(const world *w, dibs__cell_op op, const dibs__cell_answer *a, char *out,
                      size_t size)
{
    const dibs__cell *c = &a->cell;
    FILE *f = fmemopen(out, size, "w");

    fprintf(f, "%d %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64 " ", a->verdict,
            c->version, c->floor, c->number, w->now - c->written,
            c->version && c->expires != INT64_MAX ? c->expires - w->now : 0);
    if (dibs__cell_shows_data(op, a->verdict))
        add_hex(f, c->data, c->size);
    fclose(f);
}

static void text_of_lua(const redisReply *reply, char *out, size_t size)
{
    FILE *f = fmemopen(out, size, "w");
    const char *at = reply->str;

    if (reply->type == REDIS_REPLY_STRING && reply->len >= 44) {
        fprintf(f, "%d ", (int)take_whole(&at, 4));
        fprintf(f, "%" PRId64 " ", (int64_t)take_double(&at));
        fprintf(f, "%" PRIu64 " ", take_whole(&at, 8));
        fprintf(f, "%" PRId64 " ", (int64_t)take_whole(&at, 8));
        fprintf(f, "%" PRId64 " ", (int64_t)take_double(&at));
        fprintf(f, "%" PRId64 " ", (int64_t)take_double(&at));
        add_hex(f, at, reply->len - 44);
    } else {
        fprintf(f, "%s", reply->str ? reply->str : "another shape");
    }
    fclose(f);
}

/* ---- Commands to Lua ------------------------------------------------------------------------- */

static size_t pack(char *out, const dibs__cell_command *c)
{
    bool minus = c->op == DIBS__CELL_TAKE || (c->op == DIBS__CELL_ADD && c->number < 0);
    char *at = add_whole(out, c->op, 4);

    at = add_double(at, c->version == DIBS__CELL_ANY ? -1 : (double)c->version);
    at = add_double(at, (double)c->keep);
    at = add_whole(add_whole(at, c->fence, 8), c->floor, 8);
    at = add_whole(at, minus, 4);
    at = add_whole(at, (uint64_t)(c->number < 0 ? -c->number : c->number), 8);
    return (size_t)(add_whole(add_double(at, (double)c->request_keep), 1, 4) - out);
}

static void append(world *w, const dibs__cell_command *c)
{
    char numbers[80], stamp[DIBS__STAMP_SIZE] = "", micro[24], second[24];
    const char *argv[10] = {
        "EVALSHA", w->sha, "1",   w->key, numbers, stamp, c->request ? c->request : "",
        "",        micro,  second};
    size_t lengths[10] = {7,
                          40,
                          1,
                          strlen(w->key),
                          pack(numbers, c),
                          sizeof stamp,
                          c->request ? strlen(c->request) : 0};

    if (c->stamp)
        snprintf(stamp, sizeof stamp, "%s", c->stamp);
    if (c->size) {
        argv[7] = c->data;
        lengths[7] = c->size;
    }
    lengths[8] = (size_t)snprintf(micro, sizeof micro, "%" PRId64, w->now % 1000000);
    lengths[9] = (size_t)snprintf(second, sizeof second, "%" PRId64, w->now / 1000000);
    redisAppendCommandArgv(w->redis, 10, argv, lengths);
}

/* ---- A run ----------------------------------------------------------------------------------- */

/* The clock goes on, stands still, or goes back: versions must grow all the same. */
static void let_time_pass(world *w)
{
    uint64_t dice = sim_random(&w->author.seed) % 20;

    if (dice > 2)
        w->now += (int64_t)(sim_random(&w->author.seed) % 2000000) + 1;
    else if (dice == 0)
        w->now -= (int64_t)(sim_random(&w->author.seed) % 3000000);
    if (sim_random(&w->author.seed) % 200 == 0)
        w->now += (int64_t)26 * 3600 * 1000000;
}

static void step(world *w, int i)
{
    static const dibs__cell_command look = {.op = DIBS__CELL_READ};
    dibs__cell_answer answer;
    cell_order order;
    bool again;

    let_time_pass(w);
    cell_author_next(&w->author, &w->cell, &order, &again);
    cell_describe(&order.command, w->expected[i].what, sizeof w->expected[i].what);
    append(w, &order.command);
    tiny_cell_run(&w->cell, (dibs__time){w->now, w->now}, &order.command, &answer);
    text_of_c(w, order.command.op, &answer, w->expected[i].reply, sizeof w->expected[i].reply);
    append(w, &look);
    tiny_cell_run(&w->cell, (dibs__time){w->now, w->now}, &look, &answer);
    text_of_c(w, DIBS__CELL_READ, &answer, w->expected[i].look, sizeof w->expected[i].look);
}

static void compare_one(world *w, int i, const char *about, const char *c)
{
    void *reply = NULL;
    char lua[512];

    assert_int_equal(redisGetReply(w->redis, &reply), REDIS_OK);
    text_of_lua(reply, lua, sizeof lua);
    freeReplyObject(reply);
    if (strcmp(c, lua) != 0 && !w->difference[0])
        snprintf(w->difference, sizeof w->difference, "%s: %s\n#   C:   %s\n#   Lua: %s",
                 w->expected[i].what, about, c, lua);
}

static void load_script(world *w, const change *wrong)
{
    /* The server's own clock, by which it drops what has ended, runs slowly beside the simulated one. */
    static const change clocks[] = {{"math.ceil(till / 1000)", "math.ceil(till)"},
                                    {"math.ceil(request_keep / 1000)", "math.ceil(request_keep)"}};
    char *text = script_with_clock(DIBS__SCRIPT_CELL);
    int changes = 0;

    for (int i = 0; i < 2; i++)
        text = changed(text, &clocks[i], &changes);
    assert_int_equal(changes, 2);
    if (wrong)
        text = changed(text, wrong, &changes);
    if (wrong && changes == 2)
        fail_msg("there is no such line: %s", wrong->from);
    script_load(w->redis, text, w->sha);
}

static void begin(world *w, const server *s, uint64_t seed, const change *wrong)
{
    memset(w, 0, sizeof *w);
    w->author = (cell_author){.seed = seed, .moment = 3000000};
    w->now = 1700000000000000;
    w->redis = redisConnect("127.0.0.1", s->port);
    freeReplyObject(redisCommand(w->redis, "FLUSHALL"));
    load_script(w, wrong);
}

static void run_chunk(world *w)
{
    for (int i = 0; i < CHUNK; i++)
        step(w, i);
    for (int i = 0; i < CHUNK; i++) {
        compare_one(w, i, "reply", w->expected[i].reply);
        compare_one(w, i, "what is there", w->expected[i].look);
    }
}

static int run(const server *s, uint64_t seed, int commands, const change *wrong,
               const char **difference)
{
    static world w;
    int done = 0;

    begin(&w, s, seed, wrong);
    for (int number = 0; done < commands && !w.difference[0]; number++) {
        memset(&w.cell, 0, sizeof w.cell);
        snprintf(w.key, sizeof w.key, "test:{%d}:c", number);
        w.author.counts = number % 2;
        for (int life = 0; life < LIFE && !w.difference[0]; life += CHUNK) {
            run_chunk(&w);
            done += CHUNK;
        }
    }
    redisFree(w.redis);
    *difference = w.difference;
    return done;
}

static void same_as_c(void **state)
{
    (void)state;
    expect_same(run, 100000);
}

static void one_changed_line_is_noticed(void **state)
{
    static const change wrong[] = {
        {"version < now and now or version + 1", "now"},
        {"(expires == 0 or expires > now)", "true"},
        {"a_hi == b_hi and a_lo < b_lo", "false"},
        {"a_hi < b_hi or", ""},
        {"wanted >= 0 and wanted ~= version", "wanted ~= version"},
        {"wanted == 0 and op == 1 and 0 or 2", "0"},
        {"if there and stamp == ARGV[2] then", "if false then"},
        {"if kind >= 2 and stamp == ARGV[2] then", "if false then"},
        {"elseif there and stamp == ARGV[2] then", "elseif false then"},
        {"return now > version and (floor == 0", "return (floor == 0"},
        {"now - 86400000000 > floor and now", "now"},
        {"and now - 86400000000 > written", ""},
        {"floor_hi, floor_lo, written = up_hi, up_lo, now", "floor_hi, floor_lo = up_hi, up_lo"},
        {"if not there or keep > 0 then", "if keep > 0 then"},
        {"op == 6 and not there", "false"},
        {"new_lo < 0", "false"},
        {"new_lo >= 4294967296", "false"},
        {"new_hi >= 2147483648", "false"},
        {"if till == 0 or till > now then", "if true then"},
        {"(kind == 1) ~= (op >= 4)", "false"},
        {"up_hi, up_lo = fence_hi, fence_lo", ""},
        {"hi, lo, expires = true, 0, 0, 0, ends_after(keep)",
         "expires = true, 0, ends_after(keep)"},
    };

    (void)state;
    expect_noticed(run, 60000, wrong, sizeof wrong / sizeof wrong[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_c),
        cmocka_unit_test(one_changed_line_is_noticed),
    };

    return cmocka_run_group_tests_name("lua_cell", tests, NULL, NULL);
}
