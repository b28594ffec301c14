/* Looking: one lock with its queue, or all whose names start alike. Names are found in the set of busy
 * locks, or all of them with SCAN, and looked at many in one write. Looking lets time pass: a holder whose
 * lease is over goes, and the lock leaves the set if nobody is left. Times come from the server's clock. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/report.h"
#include "engines/redis/error.h"
#include "engines/redis/names.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MAX 128 /* locks in one write */

/* ---- Reading what inspect.lua gives ------------------------------------------------------------- */

static int64_t number_at(const redisReply *row, size_t i)
{
    return i < row->elements && row->element[i]->type == REDIS_REPLY_INTEGER
               ? row->element[i]->integer
               : 0;
}

static void text_at(const redisReply *row, size_t i, char *out, size_t size)
{
    const char *text = i < row->elements && row->element[i]->str ? row->element[i]->str : "";

    snprintf(out, size, "%s", text);
}

static void read_record(const redisReply *row, dibs__record *out)
{
    memset(out, 0, sizeof *out);
    out->capacity = (uint32_t)number_at(row, 0);
    out->used = (uint32_t)number_at(row, 1);
    out->holders = (uint32_t)number_at(row, 2);
    out->waiters = (uint32_t)number_at(row, 3);
    out->fence = (uint64_t)number_at(row, 4);
    out->place = (uint64_t)number_at(row, 5);
    out->broken_fence = (uint64_t)number_at(row, 6);
    out->broken_at = number_at(row, 7);
    text_at(row, 9, out->broken_by, sizeof out->broken_by);
}

static void read_asker(const redisReply *row, dibs__asker *out)
{
    char info[DIBS__HOST_SIZE + 24];
    long long pid = 0;
    int at = 0;

    memset(out, 0, sizeof *out);
    text_at(row, 5, out->owner, sizeof out->owner);
    text_at(row, 6, out->attempt, sizeof out->attempt);
    text_at(row, 7, info, sizeof info);
    if (sscanf(info, "%lld %n", &pid, &at) == 1)
        snprintf(out->host, sizeof out->host, "%.*s", DIBS__HOST_SIZE - 1, info + at);
    out->pid = pid;
    text_at(row, 8, out->wake, sizeof out->wake);
    out->weight = (uint32_t)number_at(row, 9);
    out->lease = number_at(row, 10);
    out->min_hold = number_at(row, 4);
}

static void read_holder(const redisReply *row, dibs__holder *out)
{
    memset(out, 0, sizeof *out);
    read_asker(row, &out->who);
    out->fence = (uint64_t)number_at(row, 0);
    out->since = number_at(row, 1);
    out->expires = number_at(row, 2);
    out->released = number_at(row, 3) == 1;
}

static void read_waiter(const redisReply *row, dibs__waiter *out)
{
    memset(out, 0, sizeof *out);
    read_asker(row, &out->who);
    out->place = (uint64_t)number_at(row, 0);
    out->since = number_at(row, 1);
    out->alive_until = number_at(row, 2);
    out->window = number_at(row, 3);
}

static int by_number(const void *a, const void *b)
{
    int64_t x = number_at(*(redisReply *const *)a, 0), y = number_at(*(redisReply *const *)b, 0);

    return x < y ? -1 : x > y;
}

static void sort_entries(const redisReply *list)
{
    if (list->elements > 1)
        qsort(list->element, list->elements, sizeof *list->element, by_number);
}

static bool is_entries(const redisReply *list)
{
    if (list->type != REDIS_REPLY_ARRAY)
        return false;
    for (size_t i = 0; i < list->elements; i++)
        if (list->element[i]->type != REDIS_REPLY_ARRAY)
            return false;
    return true;
}

static void report_entries(const redisReply *reply, dibs__time now, dibs__report_builder *out)
{
    const redisReply *holders = reply->element[2], *waiters = reply->element[3];
    dibs__holder h;
    dibs__waiter w;

    sort_entries(holders);
    sort_entries(waiters);
    for (size_t i = 0; i < holders->elements; i++) {
        read_holder(holders->element[i], &h);
        dibs__report_holder(out, &h, now);
    }
    for (size_t i = 0; i < waiters->elements; i++) {
        read_waiter(waiters->element[i], &w);
        dibs__report_waiter(out, &w, now);
    }
}

static dibs_status report_one(const redisReply *reply, const char *name, bool idle,
                              dibs__report_builder *out, dibs_error *err)
{
    dibs__record record;
    dibs__time now;

    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 0)
        return DIBS_OK;
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 4 ||
        reply->element[1]->type != REDIS_REPLY_ARRAY || !is_entries(reply->element[2]) ||
        !is_entries(reply->element[3]))
        return dibs__redis_refusal(reply, err);
    now.lease = now.wall = number_at(reply, 0);
    read_record(reply->element[1], &record);
    if (!idle && record.holders == 0 && record.waiters == 0)
        return DIBS_OK;
    dibs__report_lock(out, name, &record);
    report_entries(reply, now, out);
    return DIBS_OK;
}

/* ---- One lock -------------------------------------------------------------------------------- */

typedef struct looked {
    char *key;
    bool waiters;
} looked;

static void write_look(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const looked *l = what;

    dibs__redis_begin_lock(n, DIBS__SCRIPT_INSPECT, whole, l->key, 2, out);
    dibs__resp_text(out, "1");
    dibs__resp_text(out, l->waiters ? "1" : "0");
    dibs__guard_write(n, out);
}

dibs_status dibs__redis_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                dibs__report_builder *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    char key[DIBS__REDIS_KEY_SIZE];
    looked l = {key, true};
    dibs__redis_ask a = {.write = write_look, .what = &l};
    dibs_status status;

    a.bucket = dibs__redis_lock_key(r, name, key);
    status = dibs__redis_ask_one(r, &a, until, err);
    if (status == DIBS_OK)
        status = report_one(a.reply, name, true, out, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    if (a.reply)
        freeReplyObject(a.reply);
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* Makes the set of busy locks complete, if it is not. In a cluster it always is: no version without it has run there. */
static dibs_status complete_set(dibs__redis *r, dibs__deadline until, dibs_error *err)
{
    char set[DIBS__REDIS_KEY_SIZE], pattern[DIBS__PATTERN_SIZE], cursor[DIBS__CURSOR_SIZE] = "0";
    dibs_status status = DIBS_OK;

    dibs__names_busy(r->prefix, set);
    dibs__names_pattern(r->prefix, "", pattern);
    do {
        dibs__bytes bytes = {0};
        redisReply *reply;
        dibs__script_begin(
            &r->scripts,
            (dibs__script_call){DIBS__SCRIPT_INDEX, atomic_load(&r->node->flags), true, 2, 0}, set,
            &bytes);
        dibs__resp_text(&bytes, cursor);
        dibs__resp_text(&bytes, pattern);
        status = dibs__redis_ask_node(r->node, &bytes, &reply, until, err);
        if (status == DIBS_OK && reply->type != REDIS_REPLY_STRING)
            status = dibs__redis_refusal(reply, err);
        if (status == DIBS_OK)
            snprintf(cursor, sizeof cursor, "%s", reply->str);
        if (reply)
            freeReplyObject(reply);
    } while (status == DIBS_OK && strcmp(cursor, "0") != 0);
    return status;
}

/* A page of the set of busy locks of one bucket. */
typedef struct page {
    unsigned bucket;
    const char *start; /* of the names */
    char cursor[DIBS__CURSOR_SIZE];
} page;

static void write_page(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const page *p = what;
    char prefix[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE];
    char set[DIBS__REDIS_KEY_SIZE], pattern[DIBS__PATTERN_SIZE];

    (void)whole;
    dibs__redis_prefix(n->r, p->bucket, prefix);
    dibs__names_busy(prefix, set);
    dibs__names_pattern(prefix, p->start, pattern);
    dibs__names_write_scan(set, p->cursor, pattern, out);
}

/* The next page of each of these sets. */
static dibs_status take_pages(dibs__redis *r, page *pages, size_t count, dibs__deadline until,
                              dibs__names *found, dibs_error *err)
{
    dibs__redis_ask asks[LOOK_MAX];
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < count; i++)
        asks[i] =
            (dibs__redis_ask){.bucket = pages[i].bucket, .write = write_page, .what = &pages[i]};
    dibs__redis_ask_many(r, asks, count, DIBS__NEVER, until, err);
    for (size_t i = 0; i < count; i++) {
        if (status == DIBS_OK)
            status = asks[i].status;
        if (status == DIBS_OK)
            status = dibs__names_take(found, asks[i].reply, pages[i].cursor, err);
        if (asks[i].reply)
            freeReplyObject(asks[i].reply);
    }
    return status;
}

/* Those that are held or waited for. */
static dibs_status find_busy(dibs__redis *r, const char *start, dibs__deadline until,
                             dibs__names *found, dibs_error *err)
{
    unsigned buckets = r->node ? 1 : DIBS__BUCKETS;
    dibs_status status = r->node ? complete_set(r, until, err) : DIBS_OK;

    for (unsigned b = 0; b < buckets && status == DIBS_OK; b += LOOK_MAX) {
        page pages[LOOK_MAX];
        size_t count = buckets - b < LOOK_MAX ? buckets - b : LOOK_MAX;
        for (size_t i = 0; i < count; i++)
            pages[i] = (page){b + (unsigned)i, start, "0"};
        status = take_pages(r, pages, count, until, found, err);
        for (size_t i = 0; i < count && status == DIBS_OK; i++)
            while (status == DIBS_OK && strcmp(pages[i].cursor, "0") != 0)
                status = take_pages(r, &pages[i], 1, until, found, err);
    }
    return status;
}

static dibs_status find_all(dibs__redis *r, const char *start, dibs__deadline until,
                            dibs__names *found, dibs_error *err)
{
    char prefix[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE], pattern[DIBS__PATTERN_SIZE];
    dibs__redis_scan scan;
    dibs_status status = DIBS_OK;

    dibs__redis_prefix(r, 0, prefix);
    dibs__names_pattern(prefix, start, pattern);
    dibs__redis_any_bucket(r, pattern);
    dibs__redis_scan_begin(r, &scan);
    while (scan.at < scan.count && status == DIBS_OK)
        status = dibs__redis_scan_next(&scan, pattern, until, found, err);
    return status;
}

/* Up to LOOK_MAX locks. */
static dibs_status look_at_some(dibs__redis *r, char *const keys[], size_t count, bool idle,
                                dibs__deadline until, dibs__report_builder *out, dibs_error *err)
{
    dibs__redis_ask asks[LOOK_MAX];
    looked what[LOOK_MAX];
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < count; i++) {
        what[i] = (looked){keys[i], false};
        asks[i] = (dibs__redis_ask){
            .bucket = dibs__redis_bucket_in(r, keys[i]), .write = write_look, .what = &what[i]};
    }
    dibs__redis_ask_many(r, asks, count, DIBS__NEVER, until, err);
    for (size_t i = 0; i < count; i++) {
        const char *name;
        if (status == DIBS_OK)
            status = asks[i].status;
        name = status == DIBS_OK ? dibs__redis_name_in(r, keys[i]) : NULL;
        if (name)
            status = report_one(asks[i].reply, name, idle, out, err);
        if (asks[i].reply)
            freeReplyObject(asks[i].reply);
    }
    return status;
}

dibs_status dibs__redis_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                             dibs__report_builder *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__names found = {0};
    dibs_status status =
        idle ? find_all(r, prefix, until, &found, err) : find_busy(r, prefix, until, &found, err);

    dibs__names_sort(&found);
    for (size_t i = 0; status == DIBS_OK && i < found.count; i += LOOK_MAX) {
        size_t n = found.count - i < LOOK_MAX ? found.count - i : LOOK_MAX;
        status = look_at_some(r, found.keys + i, n, idle, until, out, err);
    }
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    dibs__names_fini(&found);
    return status;
}
