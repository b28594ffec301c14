/* Facts: kept in a list per part, looked up by name. */
#include "doctor/facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXCHANGES 100
#define PATIENCE  DIBS__SECOND

static dibs__facts *whole_of(dibs__facts *f)
{
    return f->whole ? f->whole : f;
}

static void put(dibs__facts *f, const char *name, bool unseen, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

static void put(dibs__facts *f, const char *name, bool unseen, const char *format, va_list args)
{
    char text[1024];
    size_t size = strlen(name) + 1, length;
    dibs__fact *fact;

    vsnprintf(text, sizeof text, format, args);
    length = strlen(text) + 1;
    fact = malloc(sizeof *fact + size + length);
    if (!fact) {
        whole_of(f)->failed = true;
        return;
    }
    memcpy(fact->name, name, size);
    memcpy(fact->name + size, text, length);
    fact->text = fact->name + size;
    fact->unseen = unseen;
    fact->next = f->first;
    f->first = fact;
}

void dibs__fact_add(dibs__facts *f, const char *name, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put(f, name, false, format, args);
    va_end(args);
}

void dibs__fact_unseen(dibs__facts *f, const char *name, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put(f, name, true, format, args);
    va_end(args);
}

void dibs__fact_number(dibs__facts *f, const char *name, int64_t value)
{
    dibs__fact_add(f, name, "%" PRId64, value);
}

void dibs__fact_flag(dibs__facts *f, const char *name, bool value)
{
    dibs__fact_add(f, name, "%s", value ? "yes" : "no");
}

const dibs__fact *dibs__fact_find(const dibs__facts *f, const char *name)
{
    for (const dibs__fact *at = f->first; at; at = at->next)
        if (strcmp(at->name, name) == 0)
            return at;
    return NULL;
}

const char *dibs__fact_text(const dibs__facts *f, const char *name, const char *otherwise)
{
    const dibs__fact *fact = dibs__fact_find(f, name);

    return fact && !fact->unseen ? fact->text : otherwise;
}

int64_t dibs__fact_value(const dibs__facts *f, const char *name, int64_t otherwise)
{
    const char *text = dibs__fact_text(f, name, NULL);

    return text ? strtoll(text, NULL, 10) : otherwise;
}

dibs__facts *dibs__facts_part(dibs__facts *f, const char *checks, const char *format, ...)
{
    dibs__facts *part = calloc(1, sizeof *part), **at = &f->next;
    va_list args;

    if (!part) {
        whole_of(f)->failed = true;
        return f;
    }
    va_start(args, format);
    vsnprintf(part->label, sizeof part->label, format, args);
    va_end(args);
    part->checks = checks;
    part->whole = f;
    while (*at)
        at = &(*at)->next;
    *at = part;
    return part;
}

void dibs__facts_fini(dibs__facts *f)
{
    dibs__facts *part = f->next;

    for (dibs__fact *at = f->first, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    f->first = NULL;
    f->next = NULL;
    if (part) {
        dibs__facts_fini(part);
        free(part);
    }
}

/* ---- What several engines state alike -------------------------------------------------------- */

/* The server read its clock at some moment in between. */
void dibs__fact_clock(dibs__facts *f, int64_t server, int64_t before, int64_t after)
{
    int64_t off = server < before ? before - server : server > after ? server - after : 0;

    dibs__fact_number(f, "clock_off_ms", off / DIBS__MS);
}

void dibs__fact_percent(dibs__facts *f, const char *name, int64_t used, int64_t limit)
{
    char full[64];

    if (limit <= 0)
        return;
    snprintf(full, sizeof full, "%s_percent", name);
    dibs__fact_number(f, full, used * 100 / limit);
}

static int by_length(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

void dibs__facts_measure(dibs__facts *f, const dibs__env *env, dibs__deadline until,
                         bool (*exchange)(void *ctx), void *ctx)
{
    int64_t took[EXCHANGES], start = dibs__now(env);
    dibs__deadline end = dibs__sooner(until, start + PATIENCE);
    size_t n = 0;

    while (n < EXCHANGES && start < end && exchange(ctx)) {
        int64_t now = dibs__now(env);
        took[n++] = now - start;
        start = now;
    }
    if (n == 0)
        return;
    qsort(took, n, sizeof took[0], by_length);
    f->latency.exchanges = n;
    f->latency.p50_us = took[n / 2];
    f->latency.p99_us = took[(n * 99 - 1) / 100];
    f->latency.max_us = took[n - 1];
}
