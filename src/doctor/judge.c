/* Judging: each row of a table whose conditions hold becomes a finding. Facts that could not be looked at
 * become one finding per reason, and only if a check would have needed them. */
#define _GNU_SOURCE
#include "doctor/judge.h"

#include "doctor/checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLES   3
#define TEXT_MAX 1400
#define NAMES    500

static const struct {
    const char *name;
    const dibs__check *table[TABLES];
} kinds[] = {
    {"sqlite", {dibs__checks_any, dibs__checks_sqlite}},
    {"redis", {dibs__checks_any, dibs__checks_redis_server, dibs__checks_redis}},
    {"redlock", {dibs__checks_any, dibs__checks_redlock}},
    {"redlock node", {dibs__checks_redis_server, dibs__checks_redlock_node}},
    {"postgresql", {dibs__checks_any, dibs__checks_postgresql}},
    {"mysql", {dibs__checks_any, dibs__checks_mysql}},
    {"zookeeper", {dibs__checks_any, dibs__checks_zookeeper}},
    {"zookeeper server", {dibs__checks_zookeeper_server}},
    {"etcd", {dibs__checks_any, dibs__checks_etcd}},
    {"etcd member", {dibs__checks_etcd_member}},
};

typedef struct row {
    dibs_finding finding;
    size_t order;
    char *text; /* owns the finding's */
} row;

struct dibs_findings {
    const char *engine;
    dibs_latency latency;
    row *row;
    size_t count;
    bool failed;
};

/* ---- Conditions ------------------------------------------------------------------------------ */

typedef enum answer { NO, YES, OPEN } answer;

static bool holds(const char *text, const dibs__condition *c)
{
    switch (c->is) {
    case DIBS__IS:
        return strcmp(text, c->value) == 0;
    case DIBS__IS_NOT:
        return strcmp(text, c->value) != 0;
    case DIBS__BELOW:
        return strtod(text, NULL) < strtod(c->value, NULL);
    case DIBS__ABOVE:
        return strtod(text, NULL) > strtod(c->value, NULL);
    case DIBS__HAS:
        return strstr(text, c->value) != NULL;
    }
    return false;
}

static answer applies(const dibs__check *check, const dibs__facts *f)
{
    answer all = YES;

    for (size_t i = 0; i < sizeof check->when / sizeof check->when[0] && check->when[i].fact; i++) {
        const dibs__fact *fact = dibs__fact_find(f, check->when[i].fact);
        if (!fact || (!fact->unseen && !holds(fact->text, &check->when[i])))
            return NO;
        if (fact->unseen)
            all = OPEN;
    }
    return all;
}

static bool is_about(const dibs__check *check, const char *fact)
{
    for (size_t i = 0; i < sizeof check->when / sizeof check->when[0] && check->when[i].fact; i++)
        if (strcmp(check->when[i].fact, fact) == 0)
            return true;
    return false;
}

/* ---- Findings -------------------------------------------------------------------------------- */

static void add(dibs_findings *all, const dibs_finding *f)
{
    size_t a = strlen(f->what) + 1, b = strlen(f->why) + 1, c = strlen(f->advice) + 1;
    row *larger = realloc(all->row, (all->count + 1) * sizeof *larger);
    char *text = malloc(a + b + c);

    if (larger)
        all->row = larger;
    if (!larger || !text) {
        free(text);
        all->failed = true;
        return;
    }
    memcpy(text, f->what, a);
    memcpy(text + a, f->why, b);
    memcpy(text + a + b, f->advice, c);
    all->row[all->count] = (row){
        .finding = {f->severity, f->id, text, text + a, text + a + b},
        .order = all->count,
        .text = text,
    };
    all->count++;
}

/* Copies `pattern` with {fact} replaced. */
static void fill_in(char *out, size_t size, const char *pattern, const dibs__facts *f)
{
    size_t n = strlen(out);

    while (*pattern && n + 1 < size) {
        const char *end = *pattern == '{' ? strchr(pattern, '}') : NULL;
        char name[64];
        if (!end || (size_t)(end - pattern) > sizeof name) {
            out[n++] = *pattern++;
            out[n] = '\0';
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)(end - pattern - 1), pattern + 1);
        snprintf(out + n, size - n, "%s", dibs__fact_text(f, name, "?"));
        n = strlen(out);
        pattern = end + 1;
    }
}

static void find(dibs_findings *all, const dibs__check *check, const dibs__facts *f)
{
    char what[TEXT_MAX] = "", advice[TEXT_MAX] = "";

    if (f->label[0])
        snprintf(what, sizeof what, "%s: ", f->label);
    fill_in(what, sizeof what, check->what, f);
    fill_in(advice, sizeof advice, check->advice, f);
    add(all, &(dibs_finding){check->severity, check->id, what, check->why, advice});
}

/* ---- What could not be looked at ------------------------------------------------------------- */

static bool is_needed(const dibs__check *const table[TABLES], const dibs__facts *f,
                      const char *name)
{
    for (size_t i = 0; i < TABLES && table[i]; i++)
        for (const dibs__check *c = table[i]; c->id; c++)
            if (is_about(c, name) && applies(c, f) == OPEN)
                return true;
    return false;
}

/* The first of those with this reason speaks for all. */
static bool is_first(const dibs__facts *f, const dibs__fact *fact)
{
    for (const dibs__fact *at = f->first; at != fact; at = at->next)
        if (at->unseen && strcmp(at->text, fact->text) == 0)
            return false;
    return true;
}

static void find_unseen(dibs_findings *all, const dibs__check *const table[TABLES],
                        const dibs__facts *f)
{
    for (const dibs__fact *fact = f->first; fact; fact = fact->next) {
        char what[TEXT_MAX], names[NAMES] = "";
        if (!fact->unseen || !is_first(f, fact))
            continue;
        for (const dibs__fact *at = fact; at; at = at->next)
            if (at->unseen && strcmp(at->text, fact->text) == 0 &&
                dibs__fact_find(f, at->name) == at && is_needed(table, f, at->name)) {
                size_t n = strlen(names);
                snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", at->name);
            }
        if (!names[0])
            continue;
        snprintf(what, sizeof what, "%s%scould not check %s: %s", f->label, f->label[0] ? ": " : "",
                 names, fact->text);
        add(all, &(dibs_finding){DIBS_SEVERITY_UNSEEN, "unseen", what, "", ""});
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

static int worst_first(const void *a, const void *b)
{
    const row *x = a, *y = b;

    if (x->finding.severity != y->finding.severity)
        return x->finding.severity < y->finding.severity ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

static void judge_part(dibs_findings *all, const dibs__facts *f)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (strcmp(kinds[k].name, f->checks) != 0)
            continue;
        for (size_t i = 0; i < TABLES && kinds[k].table[i]; i++)
            for (const dibs__check *c = kinds[k].table[i]; c->id; c++)
                if (applies(c, f) == YES)
                    find(all, c, f);
        find_unseen(all, kinds[k].table, f);
    }
}

dibs_findings *dibs__judge(const dibs__facts *whole, const char *engine)
{
    dibs_findings *all = calloc(1, sizeof *all);

    if (!all)
        return NULL;
    all->engine = engine;
    all->latency = whole->latency;
    all->failed = whole->failed;
    for (const dibs__facts *f = whole; f; f = f->next)
        judge_part(all, f);
    if (all->failed) {
        dibs_findings_free(all);
        return NULL;
    }
    if (all->count > 0)
        qsort(all->row, all->count, sizeof *all->row, worst_first);
    return all;
}

size_t dibs_findings_count(const dibs_findings *f)
{
    return f->count;
}

const dibs_finding *dibs_findings_at(const dibs_findings *f, size_t i)
{
    return i < f->count ? &f->row[i].finding : NULL;
}

const dibs_latency *dibs_findings_latency(const dibs_findings *f)
{
    return &f->latency;
}

const char *dibs_findings_engine(const dibs_findings *f)
{
    return f->engine;
}

void dibs_findings_free(dibs_findings *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->count; i++)
        free(f->row[i].text);
    free(f->row);
    free(f);
}

const char *dibs_severity_name(dibs_severity severity)
{
    static const char *const names[] = {"unseen", "note", "warning", "danger"};

    return (size_t)severity < sizeof names / sizeof names[0] ? names[severity] : "unknown";
}
