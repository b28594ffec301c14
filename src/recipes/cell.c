/* Cells: a value that changes only if it is still what was read.
 *
 * One command, one round trip. It goes well with DONE; CONFLICT brings what is there instead. When
 * the reply is lost the command is sent again under its stamp, and a cell that bears the stamp has
 * had it. If the cell bears another by then, nobody can tell whether ours was there in between: the
 * caller is told so (DIBS_UNKNOWN), and decides from what it reads. */
#define _GNU_SOURCE
#include "recipes/cell.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_PAUSE (5 * DIBS__MS)
#define MAX_PAUSE   (200 * DIBS__MS)

/* ---- Keys and checks ------------------------------------------------------------------------- */

void dibs__key(dibs__key_kind kind, const char *scope, const char *name,
               char out[DIBS__CELL_KEY_SIZE])
{
    if (scope)
        snprintf(out, DIBS__CELL_KEY_SIZE, "%c:%zu:%s%s", (char)kind, strlen(scope), scope, name);
    else
        snprintf(out, DIBS__CELL_KEY_SIZE, "%c:%s", (char)kind, name);
}

dibs_status dibs__check_text(const char *what, const char *text, bool may_be_empty, dibs_error *err)
{
    size_t n = text ? strnlen(text, DIBS_NAME_MAX + 1) : 0;

    if (n == 0 && !may_be_empty)
        return dibs__fail(err, DIBS_INVALID, "%s must not be empty", what);
    if (n > DIBS_NAME_MAX)
        return dibs__fail(err, DIBS_INVALID, "%s is too long (at most %d bytes): '%.40s…'", what,
                          DIBS_NAME_MAX, text);
    return DIBS_OK;
}

dibs_status dibs__check_size(const dibs *d, const char *what, const void *data, size_t size,
                             dibs_error *err)
{
    size_t most = d->class->can.value_max;

    if (size > 0 && !data)
        return dibs__fail(err, DIBS_INVALID, "%s: %zu bytes, but no data given", what, size);
    if (size > most)
        return dibs__fail(err, DIBS_INVALID, "%s is too long: %s takes at most %zu bytes", what,
                          d->class->scheme, most);
    return DIBS_OK;
}

dibs_status dibs__cells_ready(dibs *d, dibs_error *err)
{
    if (!dibs__same_process(d))
        return dibs__forked(err);
    if (d->class->cell)
        return dibs__usable(d, err);
    return dibs__fail(err, DIBS_UNSUPPORTED, "%s: %s", d->class->scheme,
                      d->class->no_cells ? d->class->no_cells
                                         : "has no cells, counters, once and tokens");
}

/* ---- One command ----------------------------------------------------------------------------- */

static bool may_repeat(const dibs__cell_command *c)
{
    bool counts = c->op == DIBS__CELL_SET || c->op == DIBS__CELL_ADD || c->op == DIBS__CELL_TAKE;

    return !counts || c->request;
}

/* Inside a call. */
static dibs_status ask(dibs *d, const char *key, const dibs__cell_command *command, bool notify,
                       dibs__deadline until, dibs__cell_reply *reply, bool *unsure, dibs_error *err)
{
    int64_t pause = FIRST_PAUSE;

    for (;;) {
        memset(reply, 0, sizeof *reply);
        dibs_status status = d->class->cell(d->engine, key, command, notify, until, reply, err);
        if (status == DIBS_UNKNOWN)
            *unsure = true;
        else if (status != DIBS_UNAVAILABLE || !*unsure)
            return status;
        if (!may_repeat(command) || dibs__now(d->env) + pause >= until) {
            if (err)
                err->status = DIBS_UNKNOWN;
            return DIBS_UNKNOWN;
        }
        dibs__sleep(d->env, pause);
        pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
    }
}

dibs_status dibs__cell_do(dibs *d, const char *key, const dibs__cell_command *command, bool notify,
                          dibs__deadline until, dibs__cell_reply *reply, bool *unsure,
                          dibs_error *err)
{
    bool lost = false;
    dibs_status status;

    memset(reply, 0, sizeof *reply);
    if (!dibs__begin_call(d)) {
        dibs__end_call(d);
        return dibs__closing(err);
    }
    pthread_mutex_unlock(&d->mutex);
    status = ask(d, key, command, notify, until, reply, &lost, err);
    pthread_mutex_lock(&d->mutex);
    if (status == DIBS_OK)
        dibs__reap_start(d);
    dibs__end_call(d);
    if (unsure)
        *unsure = lost;
    return status;
}

/* ---- What the public calls have in common ---------------------------------------------------- */

/* Takes the reply's data. `out` may be NULL. */
static void give(dibs__cell_reply *r, dibs_value *out)
{
    if (out)
        *out = (dibs_value){
            .data = r->data,
            .size = r->size,
            .version = r->version,
            .left_ms = r->left == INT64_MAX ? DIBS_FOREVER : (r->left + DIBS__MS - 1) / DIBS__MS,
        };
    else
        free(r->data);
    r->data = NULL;
}

static dibs_status verdict_of(const char *name, const dibs__cell_reply *r, bool unsure,
                              dibs_error *err)
{
    if (unsure && (r->verdict == DIBS__CELL_CONFLICT || r->verdict == DIBS__CELL_ABSENT))
        return dibs__fail(err, DIBS_UNKNOWN,
                          "'%.200s': the answer was lost, and the cell has changed since: read it "
                          "and decide again",
                          name);
    switch (r->verdict) {
    case DIBS__CELL_DONE:
    case DIBS__CELL_ALREADY:
        return DIBS_OK;
    case DIBS__CELL_ABSENT:
        return dibs__fail(err, DIBS_NOT_FOUND, "'%.200s': no such cell", name);
    case DIBS__CELL_CONFLICT:
        return dibs__fail(err, DIBS_CONFLICT, "'%.200s' has version %llu: read it and decide again",
                          name, (unsigned long long)r->version);
    case DIBS__CELL_FENCED:
        dibs__fail(err, DIBS_FENCED,
                   "'%.200s': a newer fence was seen (floor %llu): nothing was changed", name,
                   (unsigned long long)r->floor);
        if (err)
            err->fence = r->floor;
        return DIBS_FENCED;
    case DIBS__CELL_TOO_FEW:
    case DIBS__CELL_OVERFLOW:
    case DIBS__CELL_KIND:
        break;
    }
    return dibs__fail(err, DIBS_ENGINE_FAILED, "'%.200s': the engine has unexpected data there",
                      name);
}

static dibs_status check(dibs *d, const char *name, dibs_error *err)
{
    dibs_status status = dibs__cells_ready(d, err);

    return status == DIBS_OK ? dibs__check_text("a cell's name", name, false, err) : status;
}

static const dibs_cell_options defaults;

/* The command goes out under the fence of the options, or under that of their grant. */
static dibs_status set_fence(const dibs_cell_options *o, dibs__cell_command *c, dibs_error *err)
{
    dibs_status status = DIBS__CHECK_RESERVED(o, err);

    if (status == DIBS_OK)
        status = dibs__grant_guard(o, &c->fence, &c->floor, err);
    if (status == DIBS_OK && c->floor > c->fence)
        return dibs__fail(
            err, DIBS_INVALID,
            "fence %llu, floor %llu: give a grant's own (dibs_grant_fence, dibs_grant_floor)",
            (unsigned long long)c->fence, (unsigned long long)c->floor);
    return status;
}

static dibs_status run(dibs *d, const char *name, dibs__cell_command *c, dibs_value *out,
                       dibs_error *err)
{
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_reply reply;
    bool unsure;
    dibs_status status;

    dibs__key(DIBS__KEY_CELL, NULL, name, key);
    if (c->op == DIBS__CELL_SWAP || c->op == DIBS__CELL_DELETE) {
        dibs__stamp(d, stamp);
        c->stamp = stamp;
    } else {
        c->stamp = "";
    }
    status =
        dibs__cell_do(d, key, c, false, dibs__after(d->env, d->request_span), &reply, &unsure, err);
    if (status == DIBS_OK)
        status = verdict_of(name, &reply, unsure && c->stamp == stamp, err);
    if (status == DIBS_OK || status == DIBS_CONFLICT)
        give(&reply, out);
    free(reply.data);
    return status;
}

/* ---- The calls ------------------------------------------------------------------------------- */

dibs_status dibs__do_cell_read(dibs *d, const char *name, dibs_value *out, dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_READ};
    dibs_status status = check(d, name, err);

    memset(out, 0, sizeof *out);
    return status == DIBS_OK ? run(d, name, &c, out, err) : status;
}

dibs_status dibs__do_cell_swap(dibs *d, const char *name, uint64_t version, const void *data,
                               size_t size, const dibs_cell_options *options, dibs_value *now,
                               dibs_error *err)
{
    const dibs_cell_options *o = options ? options : &defaults;
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP,
        .version = version,
        .data = data ? data : "",
        .size = size,
    };
    dibs_status status = check(d, name, err);

    if (now)
        memset(now, 0, sizeof *now);
    if (status == DIBS_OK)
        status = set_fence(o, &c, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("keep_ms", o->keep_ms, 1, DIBS__MAX_MS, DIBS__OR_FOREVER, err);
    if (status == DIBS_OK)
        status = dibs__check_size(d, "the value", data, size, err);
    if (status != DIBS_OK)
        return status;
    c.keep = o->keep_ms == DIBS_FOREVER ? 0 : o->keep_ms * DIBS__MS;
    return run(d, name, &c, now, err);
}

dibs_status dibs__do_cell_delete(dibs *d, const char *name, uint64_t version,
                                 const dibs_cell_options *options, dibs_error *err)
{
    const dibs_cell_options *o = options ? options : &defaults;
    dibs__cell_command c = {.op = DIBS__CELL_DELETE, .version = version};
    dibs_status status = check(d, name, err);

    if (status == DIBS_OK)
        status = set_fence(o, &c, err);
    return status == DIBS_OK ? run(d, name, &c, NULL, err) : status;
}

void dibs_value_free(dibs_value *value)
{
    if (!value)
        return;
    free(value->data);
    memset(value, 0, sizeof *value);
}

dibs_status dibs__do_cell_pass(dibs *d, const char *name, const dibs_cell_options *options,
                               dibs_value *out, dibs_error *err)
{
    const dibs_cell_options *o = options ? options : &defaults;
    dibs__cell_command c = {.op = DIBS__CELL_PASS};
    dibs_status status = check(d, name, err);

    if (out)
        memset(out, 0, sizeof *out);
    if (status == DIBS_OK)
        status = set_fence(o, &c, err);
    if (status == DIBS_OK && c.fence == 0)
        status = dibs__fail(err, DIBS_INVALID, "no fence: give a grant, or its fence");
    if (status != DIBS_OK)
        return status;
    c.floor = c.floor ? c.floor : c.fence;
    status = run(d, name, &c, out, err);
    return status == DIBS_NOT_FOUND ? DIBS_OK : status; /* presented, and nothing there yet */
}
