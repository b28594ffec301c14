/* Those of this handle who stand in the queue, for a driver whose wake-ups do not say whom they are for: when one
 * comes, it is found out in one statement who has the lock by now.
 *
 * Nothing but wake-ups rests on this list. Who is left out of it (no memory, no place) finds out at its next
 * keep-alive; who has gone in a way that nobody noted is dropped when the core has the attempt's answer. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include <stdlib.h>
#include <string.h>

static size_t place_of(const dibs__sql_line *l, const char *attempt)
{
    size_t at = 0;

    while (at < l->count && strcmp(l->standing[at].attempt, attempt) != 0)
        at++;
    return at;
}

static bool fill(dibs__sql_standing *s, const dibs__sql_task *t)
{
    size_t name = strlen(t->name) + 1, owner = strlen(t->owner) + 1;

    s->name = malloc(name + owner);
    if (!s->name)
        return false;
    s->owner = s->name + name;
    memcpy(s->name, t->name, name);
    memcpy(s->name + name, t->owner, owner);
    strncpy(s->attempt, t->attempt, sizeof s->attempt - 1);
    return true;
}

void dibs__sql_line_add(dibs__sql *e, const dibs__sql_task *t)
{
    dibs__sql_line *l = &e->line;

    if (!e->driver->silent)
        return;
    pthread_mutex_lock(&l->mutex);
    if (l->count < DIBS__SQL_LINE_MAX && place_of(l, t->attempt) == l->count) {
        memset(&l->standing[l->count], 0, sizeof l->standing[0]);
        if (fill(&l->standing[l->count], t))
            l->count++;
    }
    pthread_mutex_unlock(&l->mutex);
}

bool dibs__sql_line_drop(dibs__sql *e, const char *attempt)
{
    dibs__sql_line *l = &e->line;
    size_t at;
    bool there;

    if (!e->driver->silent)
        return false;
    pthread_mutex_lock(&l->mutex);
    at = place_of(l, attempt);
    there = at < l->count;
    if (there) {
        free(l->standing[at].name);
        l->standing[at] = l->standing[--l->count];
    }
    pthread_mutex_unlock(&l->mutex);
    return there;
}

size_t dibs__sql_line_count(dibs__sql *e)
{
    size_t count;

    pthread_mutex_lock(&e->line.mutex);
    count = e->line.count;
    pthread_mutex_unlock(&e->line.mutex);
    return count;
}

void dibs__sql_line_init(dibs__sql_line *l)
{
    pthread_mutex_init(&l->mutex, NULL);
}

void dibs__sql_line_fini(dibs__sql_line *l)
{
    while (l->count > 0)
        free(l->standing[--l->count].name);
    pthread_mutex_destroy(&l->mutex);
}

/* ---- Who of them has it? --------------------------------------------------------------------- */

typedef struct finding {
    dibs__sql_line line; /* a copy */
    dibs__sql_notice found[DIBS__SQL_LINE_MAX];
    size_t count;
} finding;

static bool copy_line(dibs__sql_line *to, dibs__sql_line *from)
{
    bool whole = true;

    pthread_mutex_lock(&from->mutex);
    for (size_t i = 0; i < from->count && whole; i++) {
        const dibs__sql_standing *s = &from->standing[i];
        dibs__sql_task t = {.name = s->name, .owner = s->owner, .attempt = s->attempt};
        whole = fill(&to->standing[to->count], &t);
        to->count += whole;
    }
    pthread_mutex_unlock(&from->mutex);
    return whole;
}

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    finding *f = ctx;
    dibs__sql_notice *n = &f->found[f->count];

    (void)command, (void)count;
    if (f->count == DIBS__SQL_LINE_MAX)
        return 0;
    dibs__sql_read_text(&cells[0], n->attempt, sizeof n->attempt);
    n->fence = n->floor = (uint64_t)cells[1].number;
    f->count++;
    return 0;
}

static void add_texts(dibs__sql_value *items, const finding *f, size_t offset)
{
    for (size_t i = 0; i < f->line.count; i++) {
        const dibs__sql_standing *s = &f->line.standing[i];
        const char *text = offset == 0 ? s->name : offset == 1 ? s->owner : s->attempt;
        items[i] = (dibs__sql_value){.kind = DIBS__SQL_BYTES, .bytes = text, .size = strlen(text)};
    }
}

static dibs_status find(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                        dibs_error *err)
{
    finding *f = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;
    dibs__sql_value items[3][DIBS__SQL_LINE_MAX];
    dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);

    if (status != DIBS_OK)
        return status;
    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    dibs__sql_add(b, DIBS__SQL_FIND);
    for (size_t i = 0; i < 3; i++) {
        add_texts(items[i], f, i);
        dibs__sql_items(b, items[i], f->line.count);
    }
    b->durable = false;
    b->row = on_row;
    b->ctx = f;
    status = dibs__conn_slot_exchange(e, conn_slot, job->until, err);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* False: not all of them could be asked for. */
static bool find_all(dibs__sql *e, dibs__deadline until, size_t *count)
{
    dibs_error err;
    finding *f = calloc(1, sizeof *f);
    dibs__sql_job job = {.call = find, .ctx = f, .until = until, .err = &err};
    bool whole = f && copy_line(&f->line, &e->line);

    if (f && f->line.count > 0) {
        dibs__sql_do(e, &job);
        whole = whole && job.status == DIBS_OK;
        for (size_t i = 0; job.status == DIBS_OK && i < f->count; i++)
            dibs__sql_notice_deliver(e, &f->found[i]);
        *count = job.status == DIBS_OK ? f->count : 0;
    }
    while (f && f->line.count > 0)
        free(f->line.standing[--f->line.count].name);
    free(f);
    return whole;
}

size_t dibs__sql_line_look(dibs__sql *e, dibs__deadline until)
{
    size_t count = 0;

    if (!find_all(e, until, &count))
        e->base.sink->check_all(e->base.sink, DIBS__WAITERS);
    return count;
}
