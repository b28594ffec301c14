/* The commands: each is one script on one key, sent on the main connection. A script that the server has forgotten is
 * sent whole, unseen by the caller. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 2
#define WHO_SIZE  (DIBS__OWNER_SIZE + DIBS__ATTEMPT_SIZE + DIBS__HOST_SIZE + 64)
#define KEEP_MAX  256 /* in one write */

/* What to enter with, beside who: lease, min_hold, window, capacity, and 1 for all of it. */
#define NUMBERS_SIZE 32

/* An argument of a script: bytes, or else a number. */
typedef struct word {
    const char *data;
    size_t length;
    int64_t number;
} word;

typedef struct question {
    dibs__redis_script script;
    unsigned bucket;
    char key[DIBS__REDIS_KEY_SIZE];
    char numbers[NUMBERS_SIZE];
    char who[WHO_SIZE];
    int64_t lease;  /* asked for */
    bool must_last; /* it counts only when replicas have it, where the guard says so */
    bool wakes;     /* another client, probably */
    size_t count;
    word words[WORDS_MAX];
} question;

/* ---- Questions and answers ------------------------------------------------------------------- */

static void write_question(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const question *q = what;

    dibs__redis_begin_lock(n, q->script, whole, q->key, q->count, out);
    for (size_t i = 0; i < q->count; i++) {
        if (q->words[i].data)
            dibs__resp_word(out, q->words[i].data, q->words[i].length);
        else
            dibs__resp_number(out, q->words[i].number);
    }
    dibs__guard_write(n, out);
}

/* A number alone: the fence of a grant with its whole lease and nobody beside it; 0: released. */
static dibs_status read_short(int64_t number, int64_t lease, dibs__reply *out)
{
    out->verdict = number > 0 ? DIBS__GRANTED : DIBS__RELEASED;
    if (number > 0) {
        out->fence = out->floor = (uint64_t)number;
        out->remaining = lease;
    }
    return DIBS_OK;
}

/* The server answers, and refuses: a try need not ask again. */
static dibs_status refused(const redisReply *reply, dibs__reply *out, dibs_error *err)
{
    *out = (dibs__reply){.remaining = 1};
    return dibs__redis_refusal(reply, err);
}

uint64_t dibs__redis_read_double(const char *at)
{
    uint64_t bits = 0;
    double number;

    for (int i = 0; i < 8; i++)
        bits = bits << 8 | (unsigned char)at[i];
    memcpy(&number, &bits, sizeof number);
    return number >= 0 && number < 0x1p63 ? (uint64_t)number : 0;
}

bool dibs__redis_is_fence(int64_t fence, int64_t floor)
{
    return fence > 0 && floor >= 0 && floor <= fence;
}

/* One text of those behind the numbers; NULL: there is none. */
static const char *read_text(const char **at, const char *end)
{
    const char *text = *at, *nul = text < end ? memchr(text, '\0', (size_t)(end - text)) : NULL;

    *at = nul ? nul + 1 : end;
    return nul ? text : NULL;
}

/* See lua/head.lua. false: it is something else. */
static bool read_in_way(const redisReply *reply, dibs__in_way *out)
{
    const char *at, *end = reply->str + reply->len, *owner, *info, *host;

    if (reply->len < 16)
        return false;
    at = reply->str + 16;
    owner = read_text(&at, end);
    read_text(&at, end);
    info = read_text(&at, end);
    host = info ? strchr(info, ' ') : NULL;
    if (!host || strlen(owner) >= sizeof out->owner || strlen(host + 1) >= sizeof out->host)
        return false;
    out->left = (int64_t)dibs__redis_read_double(reply->str);
    out->fence = dibs__redis_read_double(reply->str + 8);
    out->pid = strtoll(info, NULL, 10);
    strcpy(out->owner, owner);
    strcpy(out->host, host + 1);
    return true;
}

#define NUMBERS 5 /* of a reply; behind them: who is in the way */

dibs_status dibs__redis_read_reply(const redisReply *reply, int64_t lease, dibs__reply *out,
                                   dibs_error *err)
{
    int64_t value[NUMBERS] = {0};

    memset(out, 0, sizeof *out);
    if (reply && reply->type == REDIS_REPLY_INTEGER && reply->integer >= 0)
        return read_short(reply->integer, lease, out);
    if (reply && reply->type == REDIS_REPLY_STRING) {
        out->verdict = DIBS__QUEUED; /* and not at the head of the queue */
        return read_in_way(reply, &out->in_way) ? DIBS_OK : refused(reply, out, err);
    }
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements < 1 ||
        reply->elements > NUMBERS + 1)
        return refused(reply, out, err);
    if (reply->elements > NUMBERS && reply->element[NUMBERS]->type == REDIS_REPLY_STRING)
        read_in_way(reply->element[NUMBERS], &out->in_way);
    for (size_t i = 0; i < reply->elements && i < NUMBERS; i++) {
        if (reply->element[i]->type != REDIS_REPLY_INTEGER)
            return refused(reply, out, err);
        value[i] = reply->element[i]->integer;
    }
    if (value[0] < 0 || value[0] > DIBS__RELEASED || value[3] < 0 ||
        (value[0] == DIBS__GRANTED && !dibs__redis_is_fence(value[1], value[2])))
        return refused(reply, out, err);
    out->verdict = (dibs__verdict)value[0];
    out->fence = (uint64_t)value[1];
    out->floor = (uint64_t)value[2];
    out->remaining = value[3];
    out->capacity = (uint32_t)value[4];
    return DIBS_OK;
}

static dibs_status read_answer(const question *q, const dibs__redis_ask *a, dibs__reply *out,
                               dibs_error *err)
{
    dibs_status status = dibs__redis_read_reply(a->reply, q->lease, out, err);

    return status == DIBS_OK && out->verdict == DIBS__GRANTED && !a->safe
               ? dibs__guard_unsafe(a->node->r, "the lock was granted", err)
               : status;
}

/* One question, one answer. */
static dibs_status ask(dibs__redis *r, const question *q, dibs__deadline until, dibs__reply *out,
                       dibs_error *err)
{
    bool again = true, refused;
    dibs_status status;

    do {
        dibs__redis_ask a = {.bucket = q->bucket,
                             .must_last = q->must_last,
                             .wakes = q->wakes,
                             .write = write_question,
                             .what = q};
        bool first = again;
        status = dibs__redis_ask_one(r, &a, until, err);
        refused = status == DIBS_OK && dibs__guard_refused(a.reply);
        if (refused)
            status = dibs__guard_explain(&a, &again, until, out, err);
        else if (status == DIBS_OK)
            status = read_answer(q, &a, out, err);
        if (a.reply)
            freeReplyObject(a.reply);
        if (!refused || !first || !again)
            break;
        again = false;
    } while (true);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    return status;
}

/* ---- Enter ----------------------------------------------------------------------------------- */

/* Big-endian, as the scripts' struct.unpack reads it. */
static char *add_bytes(char *at, uint64_t value, int count)
{
    for (int i = count - 1; i >= 0; i--)
        *at++ = (char)(value >> (8 * i));
    return at;
}

char *dibs__redis_add_double(char *at, int64_t value)
{
    double number = (double)value;
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    return add_bytes(at, bits, 8);
}

/* "owner\0attempt\0", by which an entry is known. Returns its end. */
static char *write_name(char *at, const char *owner, const char *attempt)
{
    return stpcpy(stpcpy(at, owner) + 1, attempt) + 1;
}

/* Who asks, in the form in which the script stores it: see lua/head.lua. Returns its length. */
static size_t write_who(char out[WHO_SIZE], const dibs__asker *who)
{
    char *at = write_name(out, who->owner, who->attempt);

    at += sprintf(at, "%lld %s", (long long)who->pid, who->host) + 1;
    at = stpcpy(at, "P") + 1;
    at = dibs__redis_add_double(add_bytes(at, who->weight, 4), who->lease);
    return (size_t)(at - out);
}

static word number(int64_t value)
{
    return (word){NULL, 0, value};
}

static word flag(bool set)
{
    return (word){set ? "1" : "0", 1, 0};
}

static void ask_to_enter(const dibs__redis *r, const dibs__enter_request *request, question *q)
{
    const dibs__asker *who = &request->who;
    size_t length = write_who(q->who, who);
    bool all = who->weight == request->capacity;

    q->script = DIBS__SCRIPT_ENTER;
    q->lease = who->lease;
    q->must_last = true;
    q->wakes = false;
    q->bucket = dibs__redis_lock_key(r, request->name, q->key);
    dibs__redis_add_double(q->numbers, who->lease);
    dibs__redis_add_double(q->numbers + 8, who->min_hold);
    dibs__redis_add_double(q->numbers + 16, request->window);
    add_bytes(q->numbers + 24, request->capacity, 4);
    add_bytes(q->numbers + 28, all, 4);
    q->words[0] = (word){q->numbers, NUMBERS_SIZE, 0};
    q->words[1] = (word){q->who, length, 0};
    q->count = 2;
}

/* A waiter must be notified, and so must a holder under an owner's name, which is asked to stop when that owner wants
 * the lock elsewhere. What was published before the subscription stands is lost: then it looks. Without one,
 * keep-alives find what happens, and each try to subscribe again. */
static void see_to_wake_up(dibs__redis *r, const char *attempt, uint64_t stood,
                           dibs__deadline until)
{
    if (stood && dibs__events_standing(r) == stood)
        return;
    dibs__events_need(r, until, NULL);
    r->base.sink->check(r->base.sink, attempt);
}

dibs_status dibs__redis_enter(dibs__engine *e, const dibs__enter_request *request,
                              dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    uint64_t stood = dibs__events_standing(r);
    question q;
    dibs_status status = dibs__guard_check_lease(r, request->who.lease, err);

    if (status == DIBS_OK)
        status = dibs__guard_check_lease(r, request->who.min_hold, err);
    if (status != DIBS_OK)
        return status;
    ask_to_enter(r, request, &q);
    status = ask(r, &q, until, out, err);
    if (status == DIBS_OK &&
        (out->verdict == DIBS__QUEUED || (out->verdict == DIBS__GRANTED && request->owner_named)))
        see_to_wake_up(r, request->who.attempt, stood, until);
    return status;
}

/* ---- Release, cancel, break ------------------------------------------------------------------ */

static void ask_about(const dibs__redis *r, dibs__redis_script script, const dibs__claim *claim,
                      question *q)
{
    char *end = write_name(dibs__redis_add_double(q->who, (int64_t)claim->fence), claim->owner,
                           claim->attempt);

    q->script = script;
    q->lease = claim->lease;
    q->must_last = false;
    q->wakes = script == DIBS__SCRIPT_RELEASE && claim->handed_over;
    q->bucket = dibs__redis_lock_key(r, claim->name, q->key);
    q->words[0] = (word){q->who, (size_t)(end - q->who), 0};
    q->words[1] = number(claim->lease);
    q->count = script == DIBS__SCRIPT_KEEP ? 2 : 1;
}

dibs_status dibs__redis_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                dibs__reply *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    question q;

    ask_about(r, DIBS__SCRIPT_RELEASE, claim, &q);
    return ask(r, &q, until, out, err);
}

dibs_status dibs__redis_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__reply reply;
    question q;

    ask_about(r, DIBS__SCRIPT_CANCEL, claim, &q);
    return ask(r, &q, until, &reply, err);
}

dibs_status dibs__redis_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                              dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    question q;

    q.script = DIBS__SCRIPT_BREAK;
    q.lease = 0;
    q.must_last = q.wakes = false;
    q.bucket = dibs__redis_lock_key(r, name, q.key);
    q.words[0] = (word){by, strnlen(by, DIBS__BY_SIZE - 1), 0};
    q.words[1] = flag(at_once);
    q.count = 2;
    return ask(r, &q, until, out, err);
}

/* ---- Keep ------------------------------------------------------------------------------------ */

static void settle_claim(dibs__claim *claim, const redisReply *reply, bool safe)
{
    claim->status = dibs__redis_read_reply(reply, claim->lease, &claim->reply, NULL);
    if (claim->status == DIBS_OK && claim->reply.verdict == DIBS__GRANTED && !safe)
        claim->status = DIBS_UNKNOWN;
}

static void write_keep(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    question q;

    ask_about(n->r, DIBS__SCRIPT_KEEP, what, &q);
    write_question(n, &q, whole, out);
}

/* In one write per server. A keep-alive given twice does no harm. A server that hangs must not cost the locks of the
 * others: they are renewed every third of their lease. */
static void keep_some(dibs__redis *r, dibs__claim *const claims[], size_t count,
                      dibs__deadline until)
{
    dibs__redis_ask asks[KEEP_MAX];
    int64_t patience = DIBS__NEVER;

    for (size_t i = 0; i < count; i++)
        patience = claims[i]->lease / 6 < patience ? claims[i]->lease / 6 : patience;
    for (size_t i = 0; i < count; i++)
        asks[i] = (dibs__redis_ask){.bucket = r->node ? 0 : dibs__cluster_bucket(claims[i]->name),
                                    .must_last = true,
                                    .write = write_keep,
                                    .what = claims[i]};
    dibs__redis_ask_many(r, asks, count, patience, until, NULL);
    for (size_t i = 0; i < count; i++) {
        if (asks[i].reply)
            settle_claim(claims[i], asks[i].reply, asks[i].safe);
        else
            claims[i]->status = asks[i].status;
        if (asks[i].reply)
            freeReplyObject(asks[i].reply);
    }
}

void dibs__redis_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                      dibs__deadline until)
{
    dibs__redis *r = (dibs__redis *)e;

    for (size_t i = 0; i < count; i += KEEP_MAX) {
        size_t n = count - i < KEEP_MAX ? count - i : KEEP_MAX;
        keep_some(r, claims + i, n, until);
    }
}
