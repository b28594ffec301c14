/* Cells: each command is one script on one key, sent on the main connection; see lua/cell.lua. A
 * script that the server has forgotten is sent whole, unseen by the caller.
 *
 * Whoever waits for a change leaves a mark beside the cell, and is told through the handle's subscription. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/table.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_KEY_SIZE DIBS__REDIS_CELL_KEY_SIZE
#define ASKED_SIZE    64
#define REPLY_SIZE    44
#define ESCAPED_SIZE  (3 * DIBS__REQUEST_SIZE + 1)
#define SMALL         4096 /* a value that may replace another when the memory is full */
#define MARK_SIZE     64
#define MARK_SPAN     (30 * DIBS__SECOND) /* for longer than the core waits without another look */

/* ---- Numbers as the scripts pack them: big-endian -------------------------------------------- */

static char *add_bytes(char *at, uint64_t value, int count)
{
    for (int i = count - 1; i >= 0; i--)
        *at++ = (char)(value >> (8 * i));
    return at;
}

static char *add_double(char *at, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    return add_bytes(at, bits, 8);
}

static uint64_t read_bytes(const char **at, int count)
{
    uint64_t value = 0;

    for (int i = 0; i < count; i++)
        value = value << 8 | (unsigned char)*(*at)++;
    return value;
}

static int64_t read_double(const char **at)
{
    uint64_t bits = read_bytes(at, 8);
    double number;

    memcpy(&number, &bits, sizeof number);
    return number > -0x1p62 && number < 0x1p62 ? (int64_t)number : INT64_MAX;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* A size and not a sign: what is taken, or added when it is negative. */
static uint64_t size_of(int64_t number)
{
    return number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
}

static size_t write_numbers(char out[ASKED_SIZE], const dibs__cell_command *c, bool notify)
{
    bool minus = c->op == DIBS__CELL_TAKE || (c->op == DIBS__CELL_ADD && c->number < 0);
    char *at = add_bytes(out, c->op, 4);

    at = add_double(at, c->version == DIBS__CELL_ANY ? -1 : (double)c->version);
    at = add_double(at, (double)c->keep);
    at = add_bytes(at, c->fence, 8);
    at = add_bytes(at, c->floor, 8);
    at = add_bytes(at, minus, 4);
    at = add_bytes(at, size_of(c->number), 8);
    at = add_double(at, (double)c->request_keep);
    return (size_t)(add_bytes(at, notify, 4) - out);
}

/* The name of a request becomes a part of a key: braces would end up where those of a name belong. */
static void escape_request(const char *request, char out[ESCAPED_SIZE])
{
    char *at = out;

    for (; request && *request && at < out + ESCAPED_SIZE - 4; request++) {
        if (strchr("{}%", *request))
            at += sprintf(at, "%%%02X", (unsigned char)*request);
        else
            *at++ = *request;
    }
    *at = '\0';
}

/* What only changes what is there goes on when the memory is full. */
static dibs__redis_script script_of(const dibs__cell_command *c)
{
    bool begins = (c->op == DIBS__CELL_SWAP && (c->version == 0 || c->size > SMALL)) ||
                  c->op == DIBS__CELL_SET || c->request;

    return begins ? DIBS__SCRIPT_CELL : DIBS__SCRIPT_CHANGE;
}

/* "EVALSHA sha keys": the cell, in a cluster also its marks and its request. */
static void begin_cell(dibs__redis_node *n, dibs__redis_script script, const char *key,
                       const char *request, bool whole, size_t words, dibs__bytes *out)
{
    bool cluster = n->r->address.cluster != NULL;
    char more[CELL_KEY_SIZE + ESCAPED_SIZE + 8];
    dibs__script_call call = {script, atomic_load_explicit(&n->flags, memory_order_relaxed), whole,
                              words, cluster ? 1 + (*request != '\0') : 0};

    dibs__script_begin(&n->r->scripts, call, key, out);
    snprintf(more, sizeof more, "%s:w", key);
    if (cluster)
        dibs__resp_text(out, more);
    snprintf(more, sizeof more, "%s:r:%s", key, request);
    if (cluster && *request)
        dibs__resp_text(out, more);
}

unsigned dibs__redis_cell_key(const dibs__redis *r, const char *name, char out[CELL_KEY_SIZE])
{
    unsigned bucket = dibs__redis_lock_key(r, name, out);

    strcat(out, ":c");
    return bucket;
}

void dibs__redis_cell_write(dibs__redis_node *n, const char *key, const dibs__cell_command *c,
                            bool notify, bool whole, dibs__bytes *out)
{
    char numbers[ASKED_SIZE], stamp[DIBS__STAMP_SIZE] = "", request[ESCAPED_SIZE];

    if (c->stamp)
        strncpy(stamp, c->stamp, sizeof stamp - 1);
    escape_request(c->request, request);
    begin_cell(n, script_of(c), key, request, whole, 4, out);
    dibs__resp_word(out, numbers, write_numbers(numbers, c, notify));
    dibs__resp_word(out, stamp, sizeof stamp);
    dibs__resp_text(out, request);
    dibs__resp_word(out, c->op == DIBS__CELL_SWAP && c->size ? c->data : "",
                    c->op == DIBS__CELL_SWAP ? c->size : 0);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static dibs_status read_value(const char *at, size_t size, dibs__cell_reply *out, dibs_error *err)
{
    out->data = malloc(size + 1);
    if (!out->data)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for a value of %zu bytes", size);
    if (size)
        memcpy(out->data, at, size);
    ((char *)out->data)[size] = '\0';
    out->size = size;
    return DIBS_OK;
}

dibs_status dibs__redis_cell_answer(const redisReply *reply, dibs__cell_op op,
                                    dibs__cell_reply *out, dibs_error *err)
{
    const char *at;
    uint64_t verdict;

    if (!reply || reply->type != REDIS_REPLY_STRING || reply->len < REPLY_SIZE)
        return dibs__redis_refusal(reply, err);
    at = reply->str;
    verdict = read_bytes(&at, 4);
    if (verdict > DIBS__CELL_KIND)
        return dibs__redis_refusal(NULL, err);
    memset(out, 0, sizeof *out);
    out->verdict = (dibs__cell_verdict)verdict;
    out->version = (uint64_t)read_double(&at);
    out->floor = read_bytes(&at, 8);
    out->number = (int64_t)read_bytes(&at, 8);
    out->age = read_double(&at);
    out->left = read_double(&at);
    if (out->age < 0) /* the server's clock was set back */
        out->age = 0;
    if (out->left <= 0)
        out->left = out->left == 0 ? INT64_MAX : 0;
    if (!dibs__cell_shows_data(op, out->verdict))
        return DIBS_OK;
    return read_value(at, reply->len - REPLY_SIZE, out, err);
}

/* Done there, and the answer does not fit here: a write may not be called undone. */
static dibs_status in_doubt(dibs_status status, dibs__cell_op op)
{
    return status == DIBS_NO_MEMORY && op != DIBS__CELL_READ ? DIBS_UNKNOWN : status;
}

typedef struct asked {
    char key[CELL_KEY_SIZE];
    const dibs__cell_command *command;
    bool notify;
} asked;

static void write_command(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const asked *a = what;

    dibs__redis_cell_write(n, a->key, a->command, a->notify, whole, out);
}

/* What changed something is done when enough replicas have it; else nobody knows, and the same command with the same
 * stamp may be sent again. */
dibs_status dibs__redis_cell(dibs__engine *e, const char *name, const dibs__cell_command *command,
                             bool notify, dibs__deadline until, dibs__cell_reply *out,
                             dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    asked what = {.command = command, .notify = notify};
    dibs__redis_ask a = {
        .must_last = command->op != DIBS__CELL_READ, .write = write_command, .what = &what};
    dibs_status status;

    a.bucket = dibs__redis_cell_key(r, name, what.key);
    status = dibs__redis_ask_one(r, &a, until, err);
    if (status == DIBS_OK && !a.safe && a.reply->type == REDIS_REPLY_STRING)
        status = dibs__guard_unsafe(r, "it was done", err);
    if (status == DIBS_OK)
        status = in_doubt(dibs__redis_cell_answer(a.reply, command->op, out, err), command->op);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    if (a.reply)
        freeReplyObject(a.reply);
    return status;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

typedef struct marking {
    char key[CELL_KEY_SIZE], mark[MARK_SIZE];
    uint64_t version;
} marking;

static void write_marking(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const marking *m = what;

    begin_cell(n, DIBS__SCRIPT_AWAIT, m->key, "", whole, 3, out);
    dibs__resp_number(out, (int64_t)m->version);
    dibs__resp_number(out, MARK_SPAN / DIBS__MS);
    dibs__resp_text(out, m->mark);
}

static dibs_status set_mark(dibs__redis *r, dibs__redis_ask *a, dibs__deadline until, bool *changed,
                            dibs_error *err)
{
    dibs_status status = dibs__redis_ask_one(r, a, until, err);

    if (status == DIBS_OK && a->reply->type != REDIS_REPLY_INTEGER)
        status = dibs__redis_refusal(a->reply, err);
    *changed = status == DIBS_OK && a->reply->integer != 0;
    if (a->reply)
        freeReplyObject(a->reply);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* The subscription stands before the mark, so that no change can slip through in between. */
dibs_status dibs__redis_watch(dibs__engine *e, const char *name, uint64_t version,
                              dibs__deadline until, void **out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    marking m = {.version = version};
    dibs__redis_ask a = {.write = write_marking, .what = &m};
    bool changed = false;
    dibs_status status = dibs__events_need(r, until, err);

    *out = NULL;
    if (status != DIBS_OK)
        return status;
    a.bucket = dibs__redis_cell_key(r, name, m.key);
    snprintf(m.mark, sizeof m.mark, "%s " DIBS__REDIS_CHANGED "%016" PRIx64, r->id,
             dibs__hash(name));
    status = set_mark(r, &a, until, &changed, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    if (changed)
        e->sink->changed(e->sink, dibs__hash(name));
    return status;
}
