/* Keys of `once` as operators see them: a page of many, or one with all that its record has.
 *
 * A page is read from the engine without the steps and results: the beginning of a record says how many there
 * are and how long. A record that cannot be read is shown as damaged, and does not end the listing. Which state
 * a key is in follows from record and age, as it does for a client that begins a run. */
#define _GNU_SOURCE
#include "recipes/keys.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL           (2 * DIBS_ONCE_DAMAGED - 1)
#define DEFAULT_LIMIT 1000
#define MAX_LIMIT     10000
#define SEARCH        2000            /* keys that are read at once when few of them are wanted */
#define PAUSE         (50 * DIBS__MS) /* before a page is asked for again */
#define KIND          "o:"

typedef struct item {
    dibs_once_info info;
    dibs_party runner;
    dibs__run_record record;
    void *raw; /* what the record borrows from; NULL in a list */
    dibs_once_step_info *step;
    const dibs_once_step_info **steps;
    char damage[128];
    char text[]; /* scope and key */
} item;

struct dibs_once_report {
    item **item;
    size_t count, room;
    char *next;
};

/* ---- States ---------------------------------------------------------------------------------- */

dibs_once_state dibs__once_state_of(const dibs__run_record *r, int64_t age)
{
    switch (r->state) {
    case DIBS__RUN_RUNNING:
        return age < r->lease ? DIBS_ONCE_RUNNING : DIBS_ONCE_CRASHED;
    case DIBS__RUN_DONE:
        return age < r->keep ? DIBS_ONCE_DONE : DIBS_ONCE_EXPIRED;
    case DIBS__RUN_FAILED:
        return age < r->keep ? DIBS_ONCE_FAILED : DIBS_ONCE_EXPIRED;
    case DIBS__RUN_ABANDONED:
        return DIBS_ONCE_CRASHED;
    case DIBS__RUN_FREE:
        return DIBS_ONCE_FREE;
    }
    return DIBS_ONCE_DAMAGED;
}

const char *dibs_once_state_name(dibs_once_state state)
{
    switch (state) {
    case DIBS_ONCE_RUNNING:
        return "running";
    case DIBS_ONCE_CRASHED:
        return "crashed";
    case DIBS_ONCE_DONE:
        return "done";
    case DIBS_ONCE_FAILED:
        return "failed";
    case DIBS_ONCE_EXPIRED:
        return "expired";
    case DIBS_ONCE_FREE:
        return "free";
    case DIBS_ONCE_DAMAGED:
        return "damaged";
    }
    return "unknown";
}

/* Until the runner counts as dead, or the result is no longer kept. */
static int64_t runner_left_ms(const dibs_once_info *info, const dibs__run_record *r, int64_t age)
{
    int64_t span = info->state == DIBS_ONCE_RUNNING                    ? r->lease
                   : info->state & (DIBS_ONCE_DONE | DIBS_ONCE_FAILED) ? r->keep
                                                                       : 0;

    if (span == INT64_MAX)
        return DIBS_FOREVER;
    return span > age ? (span - age) / DIBS__MS : 0;
}

/* ---- Items ----------------------------------------------------------------------------------- */

static void free_item(item *i)
{
    if (!i)
        return;
    dibs__steps_free(i->record.steps);
    free(i->raw);
    free(i->step);
    free(i->steps);
    free(i);
}

static item *new_item(const char *scope, size_t scope_size, const char *key)
{
    size_t size = strlen(key) + 1;
    item *i = calloc(1, sizeof *i + scope_size + 1 + size);

    if (!i)
        return NULL;
    memcpy(i->text, scope, scope_size);
    memcpy(i->text + scope_size + 1, key, size);
    i->info.scope = i->text;
    i->info.key = i->text + scope_size + 1;
    return i;
}

/* "o:3:payname". False: no key of `once` is written like that. */
static bool split_key(const char *cell, const char **scope, size_t *size, const char **key)
{
    char again[DIBS__CELL_KEY_SIZE], only[DIBS_NAME_MAX + 1];
    unsigned long n = 0;
    int at = 0;

    if (sscanf(cell, KIND "%4lu:%n", &n, &at) != 1 || at == 0 || n > DIBS_NAME_MAX ||
        strlen(cell + at) <= n || strlen(cell + at + n) > DIBS_NAME_MAX)
        return false;
    *scope = cell + at;
    *size = n;
    *key = cell + at + n;
    memcpy(only, *scope, n);
    only[n] = '\0';
    dibs__key(DIBS__KEY_ONCE, only, *key, again);
    return strcmp(again, cell) == 0;
}

static void set_damaged(item *i, const char *why)
{
    i->info.state = DIBS_ONCE_DAMAGED;
    snprintf(i->damage, sizeof i->damage, "%.*s", (int)sizeof i->damage - 1, why);
    i->info.damage = i->damage;
}

/* What the record says; it has been read. */
static void fill(const dibs *d, item *i, int64_t age)
{
    const dibs__run_record *r = &i->record;

    i->info.state = dibs__once_state_of(r, age);
    i->info.runs = r->runs;
    i->info.code = r->code;
    i->info.decided_by = r->decided_by[0] ? r->decided_by : NULL;
    i->info.runner = &i->runner;
    i->runner = (dibs_party){
        .owner = r->owner,
        .host = r->host,
        .pid = r->pid,
        .since_ms = r->since / DIBS__MS,
        .left_ms = runner_left_ms(&i->info, r, age),
        .fence = (r->fence ? r->fence : i->info.version) + d->base,
        .weight = 1,
    };
}

static int64_t ms_of(int64_t left)
{
    return left == INT64_MAX ? DIBS_FOREVER : left / DIBS__MS;
}

/* ---- Many ------------------------------------------------------------------------------------ */

typedef struct search {
    dibs *d;
    const char *prefix; /* of the key; "" */
    uint32_t states;
    size_t limit;
    dibs_once_report *out;
} search;

static bool make_room(dibs_once_report *r)
{
    size_t room = r->room ? 2 * r->room : 64;
    item **larger;

    if (r->count < r->room)
        return true;
    larger = realloc(r->item, room * sizeof(item *));
    if (!larger)
        return false;
    r->item = larger;
    r->room = room;
    return true;
}

static item *item_of(const dibs *d, const dibs__cell_found *f)
{
    const char *scope = "", *key = f->key + strlen(KIND);
    size_t scope_size = 0;
    bool named = split_key(f->key, &scope, &scope_size, &key);
    item *i = named ? new_item(scope, scope_size, key) : new_item("", 0, f->key + strlen(KIND));
    dibs__record_sizes sizes;
    dibs_error why;

    if (!i)
        return NULL;
    i->info.version = f->version;
    i->info.left_ms = ms_of(f->left);
    if (!named) {
        set_damaged(i, "this is not a key of once");
    } else if (!f->head) {
        set_damaged(i, "the record was not written by dibs, or by a newer version");
    } else if (dibs__record_peek(f->head, f->head_size, f->size, &i->record, &sizes, &why) !=
               DIBS_OK) {
        set_damaged(i, why.message);
    } else {
        i->info.step_count = sizes.steps;
        i->info.result_size = sizes.result;
        fill(d, i, f->age);
        i->record.fingerprint = NULL; /* it was borrowed from the page */
    }
    return i;
}

/* False: out of memory. */
static bool take(const search *s, const dibs__cell_found *f)
{
    item *i = item_of(s->d, f);

    if (i &&
        (!(i->info.state & s->states) || strncmp(i->info.key, s->prefix, strlen(s->prefix)) != 0)) {
        free_item(i);
        return true;
    }
    if (!i || !make_room(s->out)) {
        free_item(i);
        return false;
    }
    s->out->item[s->out->count++] = i;
    return true;
}

static dibs_status no_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for the list");
}

static dibs_status go_on_after(dibs_once_report *r, const char *cell, dibs_error *err)
{
    r->next = strdup(cell + strlen(KIND));
    return r->next ? DIBS_OK : no_memory(err);
}

/* `after` moves on. `*over`: the end, or enough. */
static dibs_status take_page(const search *s, const dibs__cell_page *page, char *after, bool *over,
                             dibs_error *err)
{
    *over = !page->more;
    if (page->failed)
        return no_memory(err);
    for (size_t i = 0; i < page->count; i++) {
        if (!take(s, &page->found[i]))
            return no_memory(err);
        if (s->out->count == s->limit && (page->more || i + 1 < page->count)) {
            *over = true;
            return go_on_after(s->out, page->found[i].key, err);
        }
    }
    strcpy(after, page->reached);
    return DIBS_OK;
}

/* As many as are wanted, and one that says whether there are more; from page to page more, if few of those
 * that were read are wanted. */
static size_t next_limit(size_t last, size_t wanted)
{
    size_t limit = 2 * last < SEARCH ? 2 * last : SEARCH;

    return limit > wanted ? limit : wanted;
}

/* A look changes nothing: one that gets no answer is repeated. */
static dibs_status read_page(dibs *d, const dibs__cell_range *range, dibs__deadline until,
                             dibs__cell_page *page, dibs_error *err)
{
    dibs_status status = d->class->cell_list(d->engine, range, until, page, err);

    while (status == DIBS_UNKNOWN && dibs__now(d->env) + PAUSE < until) {
        dibs__cell_page_fini(page);
        dibs__sleep(d->env, PAUSE);
        status = d->class->cell_list(d->engine, range, until, page, err);
    }
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* In a call. Whoever looks for a few among many is not kept longer than a request may take. */
static dibs_status list(const search *s, dibs__cell_range range, char *after, dibs_error *err)
{
    dibs *d = s->d;
    dibs__deadline until = dibs__after(d->env, d->request_span);
    dibs__deadline enough = dibs__after(d->env, d->request_span / 2);
    bool over = false;

    for (;;) {
        dibs__cell_page page = {0};
        dibs_status status;
        range.after = after;
        range.limit = next_limit(range.limit, s->limit - s->out->count + 1);
        status = read_page(d, &range, until, &page, err);
        if (status == DIBS_OK)
            status = take_page(s, &page, after, &over, err);
        dibs__cell_page_fini(&page);
        if (status != DIBS_OK || over)
            return status;
        if (dibs__now(d->env) >= enough)
            return go_on_after(s->out, after, err);
    }
}

static dibs_status check_list(dibs *d, const char *prefix, const dibs_once_list_options *o,
                              dibs_error *err)
{
    dibs_status status = dibs__cells_ready(d, err);

    if (status == DIBS_OK && !d->class->cell_list)
        status = dibs__fail(err, DIBS_UNSUPPORTED, "%s: cells cannot be listed", d->class->scheme);
    if (status == DIBS_OK)
        status = dibs__check_text("the prefix", prefix, true, err);
    if (status == DIBS_OK && o->scope)
        status = dibs__check_text("a scope", o->scope, true, err);
    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK && o->states & ~(uint32_t)ALL)
        status = dibs__fail(err, DIBS_INVALID, "states: unknown bits (%#x)", (unsigned)o->states);
    if (status == DIBS_OK && o->limit > MAX_LIMIT)
        status = dibs__fail(err, DIBS_INVALID, "limit: at most %d", MAX_LIMIT);
    if (status == DIBS_OK && o->after &&
        strnlen(o->after, DIBS__CELL_KEY_SIZE) >= DIBS__CELL_KEY_SIZE - strlen(KIND))
        status =
            dibs__fail(err, DIBS_INVALID, "after: give what dibs_once_report_next has returned");
    return status;
}

dibs_status dibs__do_once_list(dibs *d, const char *prefix, const dibs_once_list_options *options,
                               dibs_once_report **out, dibs_error *err)
{
    static const dibs_once_list_options defaults;
    const dibs_once_list_options *o = options ? options : &defaults;
    const char *start = prefix ? prefix : "";
    char cells[DIBS__CELL_KEY_SIZE] = KIND, after[DIBS__CELL_KEY_SIZE] = "";
    dibs__cell_range range = {.prefix = cells, .head = DIBS__RECORD_HEAD};
    search s = {d, start, o->states ? o->states : ALL & ~DIBS_ONCE_FREE, o->limit, NULL};
    dibs_status status;

    *out = NULL;
    status = check_list(d, start, o, err);
    if (status != DIBS_OK)
        return status;
    s.limit = s.limit ? s.limit : DEFAULT_LIMIT;
    if (o->scope)
        dibs__key(DIBS__KEY_ONCE, o->scope, start, cells);
    if (o->after)
        snprintf(after, sizeof after, KIND "%s", o->after);
    s.out = calloc(1, sizeof *s.out);
    if (!s.out)
        return no_memory(err);
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
    status = list(&s, range, after, err);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    if (status == DIBS_OK)
        *out = s.out;
    else
        dibs_once_report_free(s.out);
    return status;
}

/* ---- One ------------------------------------------------------------------------------------- */

dibs_status dibs__check_key(dibs *d, const char *scope, const char *key, dibs_error *err)
{
    dibs_status status = dibs__cells_ready(d, err);

    if (status == DIBS_OK)
        status = dibs__check_text("a key", key, false, err);
    return status == DIBS_OK && scope ? dibs__check_text("a scope", scope, true, err) : status;
}

dibs_status dibs__once_read(dibs *d, const char *cell, const char *key, dibs__cell_reply *out,
                            dibs__deadline until, dibs_error *err)
{
    const dibs__cell_command look = {.op = DIBS__CELL_READ, .alive = true};
    dibs_status status = dibs__cell_do(d, cell, &look, false, until, out, NULL, err);

    if (status == DIBS_UNKNOWN) /* a look changes nothing */
        status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK && out->verdict == DIBS__CELL_ABSENT)
        return dibs__fail(err, DIBS_NOT_FOUND,
                          "'%.200s': this key was not used, or its record has been removed", key);
    return status;
}

/* False: out of memory. */
static bool show_steps(item *i)
{
    size_t count = 0;

    for (const dibs__step *s = i->record.steps; s; s = s->next)
        count++;
    i->info.step_count = count;
    if (count == 0)
        return true;
    i->step = calloc(count, sizeof *i->step);
    i->steps = calloc(count, sizeof *i->steps);
    if (!i->step || !i->steps)
        return false;
    count = 0;
    for (const dibs__step *s = i->record.steps; s; s = s->next, count++) {
        i->step[count] = (dibs_once_step_info){s->name, s->data, s->size};
        i->steps[count] = &i->step[count];
    }
    i->info.steps = i->steps;
    return true;
}

/* Takes the reply's data. */
static dibs_status show(const dibs *d, item *i, dibs__cell_reply *reply, dibs_error *err)
{
    dibs_status status = dibs__record_decode(reply->data, reply->size, &i->record, err);

    i->raw = reply->data;
    reply->data = NULL;
    i->info.version = reply->version;
    i->info.left_ms = ms_of(reply->left);
    if (status == DIBS_NO_MEMORY)
        return status;
    if (status != DIBS_OK) {
        set_damaged(i, err->message);
        return DIBS_OK;
    }
    fill(d, i, reply->age);
    if (i->record.has_result) {
        i->info.result = i->record.result;
        i->info.result_size = i->record.result_size;
    }
    return show_steps(i) ? DIBS_OK : no_memory(err);
}

static dibs_once_report *report_of_one(const char *scope, const char *key)
{
    dibs_once_report *r = calloc(1, sizeof *r);

    if (r && make_room(r) && (r->item[0] = new_item(scope, strlen(scope), key)))
        r->count = 1;
    if (r && r->count == 1)
        return r;
    dibs_once_report_free(r);
    return NULL;
}

dibs_status dibs__do_once_inspect(dibs *d, const char *key,
                                  const dibs_once_inspect_options *options, dibs_once_report **out,
                                  dibs_error *err)
{
    const char *scope = options && options->scope ? options->scope : "";
    char cell[DIBS__CELL_KEY_SIZE];
    dibs__cell_reply reply = {0};
    dibs_error why = {0};
    dibs_once_report *r;
    dibs_status status = dibs__check_key(d, scope, key, err);

    *out = NULL;
    if (status == DIBS_OK && options)
        status = DIBS__CHECK_RESERVED(options, err);
    if (status != DIBS_OK)
        return status;
    r = report_of_one(scope, key);
    if (!r)
        return no_memory(err);
    dibs__key(DIBS__KEY_ONCE, scope, key, cell);
    status = dibs__once_read(d, cell, key, &reply, dibs__after(d->env, d->request_span), err);
    if (status == DIBS_OK) {
        status = show(d, r->item[0], &reply, &why);
        if (status != DIBS_OK)
            dibs__fail_as(err, status, &why);
    }
    free(reply.data);
    if (status == DIBS_OK)
        *out = r;
    else
        dibs_once_report_free(r);
    return status;
}

/* ---- Reports --------------------------------------------------------------------------------- */

size_t dibs_once_report_count(const dibs_once_report *r)
{
    return r->count;
}

const dibs_once_info *dibs_once_report_at(const dibs_once_report *r, size_t i)
{
    return i < r->count ? &r->item[i]->info : NULL;
}

const char *dibs_once_report_next(const dibs_once_report *r)
{
    return r->next;
}

void dibs_once_report_free(dibs_once_report *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        free_item(r->item[i]);
    free(r->item);
    free(r->next);
    free(r);
}
