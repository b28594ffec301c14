/* Looking: one lock with its line, or all whose names start alike. Names are found in the set of busy
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

/* ---- Reading what look.lua gives ------------------------------------------------------------- */

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

static void write_look(dibs__redis *r, const char *key, bool whole, bool waiters, dibs__bytes *out)
{
    dibs__script_begin(
        &r->scripts,
        (dibs__script_call){DIBS__SCRIPT_LOOK, r->flags, whole, 2 + dibs__guard_words(&r->guard)},
        key, out);
    dibs__resp_text(out, "1");
    dibs__resp_text(out, waiters ? "1" : "0");
    dibs__guard_write(&r->guard, out);
}

dibs_status dibs__redis_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                dibs__report_builder *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    char key[DIBS__REDIS_KEY_SIZE];
    bool whole = false;
    dibs_status status;

    dibs__redis_key(r->prefix, name, key);
    do {
        if (reply)
            freeReplyObject(reply);
        dibs__bytes_clear(&bytes);
        write_look(r, key, whole, true, &bytes);
        status = dibs__pipeline_call(r->pipeline, &bytes, &reply, 1, until, err);
    } while (status == DIBS_OK && dibs__redis_no_script(reply) && !whole && (whole = true));
    if (status == DIBS_OK)
        status = report_one(reply, name, true, out, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* Whatever `bytes` asks for, in one reply, which is to be freed when DIBS_OK comes back. */
static dibs_status ask(dibs__redis *r, dibs__bytes *bytes, dibs__deadline until, redisReply **reply,
                       dibs_error *err)
{
    dibs_status status;

    *reply = NULL;
    status = dibs__pipeline_call(r->pipeline, bytes, reply, 1, until, err);
    dibs__bytes_fini(bytes);
    return status;
}

/* Makes the set of busy locks complete, if it is not. */
static dibs_status complete_set(dibs__redis *r, const char *set, dibs__deadline until,
                                dibs_error *err)
{
    char pattern[DIBS__PATTERN_SIZE], cursor[DIBS__CURSOR_SIZE] = "0";
    dibs_status status;

    dibs__names_pattern(r->prefix, "", pattern);
    do {
        dibs__bytes bytes = {0};
        redisReply *reply;
        dibs__script_begin(&r->scripts, (dibs__script_call){DIBS__SCRIPT_INDEX, r->flags, true, 2},
                           set, &bytes);
        dibs__resp_text(&bytes, cursor);
        dibs__resp_text(&bytes, pattern);
        status = ask(r, &bytes, until, &reply, err);
        if (status == DIBS_OK && reply->type != REDIS_REPLY_STRING)
            status = dibs__redis_refusal(reply, err);
        if (status == DIBS_OK)
            snprintf(cursor, sizeof cursor, "%s", reply->str);
        if (reply)
            freeReplyObject(reply);
    } while (status == DIBS_OK && strcmp(cursor, "0") != 0);
    return status;
}

/* Those in `set`, or all if it is NULL. */
static dibs_status find_names(dibs__redis *r, const char *prefix, const char *set,
                              dibs__deadline until, dibs__names *found, dibs_error *err)
{
    char pattern[DIBS__PATTERN_SIZE], cursor[DIBS__CURSOR_SIZE] = "0";
    dibs_status status;

    dibs__names_pattern(r->prefix, prefix, pattern);
    do {
        dibs__bytes bytes = {0};
        redisReply *reply;
        dibs__resp_begin(&bytes, set ? 7 : 6);
        dibs__resp_text(&bytes, set ? "SSCAN" : "SCAN");
        if (set)
            dibs__resp_text(&bytes, set);
        dibs__resp_text(&bytes, cursor);
        dibs__resp_text(&bytes, "MATCH");
        dibs__resp_text(&bytes, pattern);
        dibs__resp_text(&bytes, "COUNT");
        dibs__resp_text(&bytes, "1000");
        status = ask(r, &bytes, until, &reply, err);
        if (status == DIBS_OK)
            status = dibs__names_take(found, reply, cursor, err);
        if (reply)
            freeReplyObject(reply);
    } while (status == DIBS_OK && strcmp(cursor, "0") != 0);
    return status;
}

/* Up to LOOK_MAX locks. The first goes out with the script itself, so that the others find it. */
static dibs_status look_at_some(dibs__redis *r, char *const keys[], size_t count, bool idle,
                                dibs__deadline until, dibs__report_builder *out, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *replies[LOOK_MAX] = {NULL};
    dibs_status status;

    for (size_t i = 0; i < count; i++)
        write_look(r, keys[i], i == 0, false, &bytes);
    status = dibs__pipeline_call(r->pipeline, &bytes, replies, count, until, err);
    for (size_t i = 0; i < count; i++) {
        const char *name = status == DIBS_OK ? dibs__redis_name(r->prefix, keys[i]) : NULL;
        if (name)
            status = report_one(replies[i], name, idle, out, err);
        if (replies[i])
            freeReplyObject(replies[i]);
    }
    dibs__bytes_fini(&bytes);
    return status;
}

dibs_status dibs__redis_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                             dibs__report_builder *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    char busy[DIBS__REDIS_KEY_SIZE];
    dibs__names found = {0};
    dibs_status status;

    dibs__names_busy(r->prefix, busy);
    status = idle ? DIBS_OK : complete_set(r, busy, until, err);
    if (status == DIBS_OK)
        status = find_names(r, prefix, idle ? NULL : busy, until, &found, err);
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
