/* Reports as JSON; see the header. */
#include "json.h"
#include "cli.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Half a document would be a wrong one: out of memory ends the command. */
static void *need(void *thing)
{
    if (thing)
        return thing;
    cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
    exit(dibs_status_exit_code(DIBS_NO_MEMORY));
}

json_t *cli_json_new(void)
{
    return need(json_object());
}

void cli_json_put(json_t *object, const char *key, json_t *value)
{
    need(json_object_set_new(object, key, need(value)) == 0 ? object : NULL);
}

static void put_hex(json_t *object, const char *key, const char *bytes, size_t size)
{
    char *hex = need(malloc(size * 2 + 1)), hex_key[32];

    hex[0] = '\0';
    for (size_t i = 0; i < size; i++)
        snprintf(hex + i * 2, 3, "%02x", (unsigned char)bytes[i]);
    snprintf(hex_key, sizeof hex_key, "%s_hex", key);
    cli_json_put(object, hex_key, json_string(hex));
    free(hex);
}

/* A NUL follows the bytes. */
static bool is_utf8(const char *bytes, size_t size)
{
    size_t n;

    for (const char *at = bytes; at < bytes + size; at += n)
        if ((n = cli_utf8_length(at)) == 0)
            return false;
    return true;
}

void cli_json_text(json_t *object, const char *key, const char *bytes)
{
    char shown[CLI_SHOWN_SIZE];

    if (!bytes) {
        cli_json_put(object, key, json_null());
    } else if (is_utf8(bytes, strlen(bytes))) {
        cli_json_put(object, key, json_string(bytes));
    } else {
        cli_escape(shown, sizeof shown, bytes);
        cli_json_put(object, key, json_string(shown));
        put_hex(object, key, bytes, strlen(bytes));
    }
}

void cli_json_bytes(json_t *object, const char *key, const void *bytes, size_t size)
{
    char *copy;

    if (!bytes) {
        cli_json_put(object, key, json_null());
        return;
    }
    copy = need(malloc(size + 1));
    memcpy(copy, bytes, size);
    copy[size] = '\0';
    if (is_utf8(copy, size)) {
        cli_json_put(object, key, json_stringn(copy, size));
    } else {
        cli_json_put(object, key, json_null());
        put_hex(object, key, copy, size);
    }
    free(copy);
}

void cli_json_integer(json_t *object, const char *key, int64_t value)
{
    cli_json_put(object, key, json_integer(value));
}

json_t *cli_json_runner(const dibs_party *p)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "owner", p->owner);
    cli_json_text(o, "host", p->host);
    cli_json_integer(o, "pid", p->pid);
    cli_json_integer(o, "since_ms", p->since_ms);
    cli_json_integer(o, "left_ms", p->left_ms);
    return o;
}

json_t *cli_json_party(const dibs_party *p, bool holder)
{
    json_t *o = cli_json_runner(p);

    cli_json_integer(o, "weight", p->weight);
    cli_json_put(o, "shared", json_boolean(p->shared));
    if (holder) {
        cli_json_integer(o, "fence", (int64_t)p->fence);
        cli_json_put(o, "released", json_boolean(p->released));
        cli_json_put(o, "breaking", json_boolean(p->breaking));
    }
    return o;
}

static json_t *parties_of(const dibs_party *const parties[], size_t count, bool holders)
{
    json_t *list = need(json_array());

    for (size_t i = 0; i < count; i++)
        need(json_array_append_new(list, cli_json_party(parties[i], holders)) == 0 ? list : NULL);
    return list;
}

static json_t *notes_of(const dibs_lock_info *lock)
{
    json_t *list = need(json_array());
    char shown[CLI_SHOWN_SIZE];

    for (size_t i = 0; i < lock->note_count; i++) {
        cli_escape(shown, sizeof shown, lock->notes[i]);
        need(json_array_append_new(list, json_string(shown)) == 0 ? list : NULL);
    }
    return list;
}

json_t *cli_json_lock(const dibs_lock_info *lock, bool waiters)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "name", lock->name);
    cli_json_integer(o, "slots", lock->slots);
    cli_json_integer(o, "used", lock->used);
    cli_json_put(o, "fence", lock->fence ? json_integer((json_int_t)lock->fence) : json_null());
    cli_json_put(o, "holders", parties_of(lock->holders, lock->holder_count, true));
    cli_json_integer(o, "waiter_count", (int64_t)lock->waiter_count);
    if (waiters)
        cli_json_put(o, "waiters", parties_of(lock->waiters, lock->waiter_count, false));
    if (waiters)
        cli_json_put(o, "notes", notes_of(lock));
    cli_json_text(o, "broken_by", lock->broken_by);
    if (lock->broken_by)
        cli_json_integer(o, "broken_at_ms", lock->broken_at_ms);
    return o;
}

json_t *cli_json_list(const dibs_lock_report *report)
{
    json_t *o = cli_json_new(), *list = need(json_array());

    for (size_t i = 0; i < dibs_lock_report_count(report); i++)
        need(json_array_append_new(list, cli_json_lock(dibs_lock_report_at(report, i), false)) == 0
                 ? list
                 : NULL);
    cli_json_put(o, "locks", list);
    return o;
}

static json_t *steps_of(const dibs_once_info *i)
{
    json_t *list = json_array();

    for (size_t k = 0; i->steps && k < i->step_count; k++) {
        json_t *step = cli_json_new();
        cli_json_text(step, "name", i->steps[k]->name);
        cli_json_bytes(step, "data", i->steps[k]->data, i->steps[k]->size);
        json_array_append_new(list, step);
    }
    return list;
}

json_t *cli_json_key(const dibs_once_info *i, bool whole)
{
    json_t *o = cli_json_new();

    cli_json_text(o, "scope", i->scope);
    cli_json_text(o, "key", i->key);
    cli_json_text(o, "state", dibs_once_state_name(i->state));
    cli_json_integer(o, "version", (int64_t)i->version);
    cli_json_integer(o, "runs", i->runs);
    cli_json_put(o, "fence", i->runner ? json_integer((json_int_t)i->runner->fence) : json_null());
    cli_json_put(o, "runner", i->runner ? cli_json_runner(i->runner) : json_null());
    cli_json_text(o, "decided_by", i->decided_by);
    cli_json_put(o, "left_ms", i->left_ms == DIBS_FOREVER ? json_null() : json_integer(i->left_ms));
    cli_json_integer(o, "code", i->code);
    cli_json_integer(o, "result_size", (int64_t)i->result_size);
    cli_json_integer(o, "step_count", (int64_t)i->step_count);
    cli_json_text(o, "damage", i->damage);
    if (whole) {
        cli_json_put(o, "steps", steps_of(i));
        cli_json_bytes(o, "result", i->result, i->result_size);
    }
    return o;
}

int cli_json_print(json_t *document, int indent)
{
    size_t flags = indent ? JSON_INDENT((size_t)indent) : JSON_COMPACT;

    if (isatty(STDOUT_FILENO)) /* no character of a name steers a terminal */
        flags |= JSON_ENSURE_ASCII;

    if (json_dumpf(document, stdout, flags) != 0 && !ferror(stdout))
        need(NULL);
    json_decref(document);
    putchar('\n');
    return cli_finish(0);
}
