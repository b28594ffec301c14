/* The rules of cells; see the header. */
#include "support/cell_rules.h"

#include <string.h>

#define SEC ((int64_t)1000000)
#define DAY (24 * 3600 * SEC)

static bool there(const tiny_cell *t, dibs__time now)
{
    return t->exists && !t->cell.empty && t->cell.expires > now.lease;
}

static bool counts(const dibs__cell_command *c)
{
    return c->op == DIBS__CELL_SET || c->op == DIBS__CELL_ADD || c->op == DIBS__CELL_TAKE;
}

/* ---- The store's lies ------------------------------------------------------------------------ */

static void tamper(cell_watch *w, const tiny_cell *before)
{
    dibs__cell *c = &w->cell.cell;

    if (w->lies == CELL_FORGETS_FLOORS)
        c->floor = 0;
    else if (w->lies == CELL_REPEATS_VERSIONS && before->exists &&
             c->version > before->cell.version)
        c->version = before->cell.version;
    else if (w->lies == CELL_NEVER_ENDS)
        c->expires = INT64_MAX;
    else if (w->lies == CELL_FORGETS_STAMPS)
        c->stamp[0] = '\0';
    else if (w->lies == CELL_FORGETS_REQUESTS)
        memset(w->cell.request, 0, sizeof w->cell.request);
    else if (w->lies == CELL_COUNTS_TWICE && c->counter && c->number < INT64_MAX / 2)
        c->number += c->number - before->cell.number;
}

/* ---- The rules ------------------------------------------------------------------------------- */

static const char *rule_versions(cell_watch *w, const tiny_cell *before)
{
    const dibs__cell *c = &w->cell.cell;
    bool changed = w->cell.exists && c->version != 0 && /* 0: it never had a value */
                   (!before->exists || c->version != before->cell.version);

    if (changed && c->version <= w->highest)
        return "a version was given out twice, or went back";
    if (changed && c->version < (uint64_t)w->now.wall)
        return "a version is behind the clock";
    if (changed)
        w->highest = c->version;
    return NULL;
}

static const char *rule_floor(cell_watch *w, const dibs__cell_command *c,
                              const dibs__cell_answer *a)
{
    bool guarded = !counts(c) && c->op != DIBS__CELL_READ && c->fence != 0;
    bool kept =
        w->floor && ((uint64_t)(w->now.wall - DAY) <= w->floor || w->now.lease - DAY <= w->raised);

    if (guarded && kept && c->fence < w->floor && a->verdict != DIBS__CELL_FENCED &&
        a->verdict != DIBS__CELL_KIND &&
        !(c->op != DIBS__CELL_PASS && a->verdict == DIBS__CELL_DONE))
        return "an older fence was let in";
    if (guarded && kept && c->fence < w->floor && c->op == DIBS__CELL_PASS &&
        a->verdict == DIBS__CELL_DONE)
        return "an older fence was let in";
    if (guarded && c->fence >= w->floor && /* below: a lost reply was asked for again */
        (a->verdict == DIBS__CELL_DONE ||
         (c->op == DIBS__CELL_PASS && a->verdict == DIBS__CELL_ABSENT)) &&
        (c->floor ? c->floor : c->fence) > w->floor) {
        w->floor = c->floor ? c->floor : c->fence;
        w->raised = w->now.lease;
    }
    return NULL;
}

/* A command that was refused has changed nothing. */
static const char *rule_refusal(const cell_watch *w, const tiny_cell *before,
                                const dibs__cell_answer *a, const dibs__cell_command *c)
{
    if (a->verdict == DIBS__CELL_DONE || c->op == DIBS__CELL_PASS)
        return NULL;
    if (w->cell.exists != before->exists ||
        (before->exists && (w->cell.cell.version != before->cell.version ||
                            w->cell.cell.number != before->cell.number)))
        return "a refused command changed the cell";
    return NULL;
}

static const char *rule_swap(const cell_watch *w, const tiny_cell *before, bool again,
                             const dibs__cell_command *c, const dibs__cell_answer *a)
{
    bool was = there(before, w->now);
    bool fits =
        was ? c->version == DIBS__CELL_ANY || c->version == before->cell.version : c->version == 0;

    if (c->op != DIBS__CELL_SWAP || a->verdict != DIBS__CELL_DONE)
        return NULL;
    if (was && strcmp(before->cell.stamp, c->stamp) == 0)
        return w->cell.cell.version == before->cell.version ? NULL
                                                            : "a repeated swap was done twice";
    if (again)
        return was ? "a repeated swap was done again" : NULL;
    if (!fits)
        return "a swap without its version was done";
    if (w->cell.cell.version <= before->cell.version)
        return "a swap left the version as it was";
    if (w->cell.cell.size != c->size || memcmp(w->cell.cell.data, c->data, c->size) != 0)
        return "a swap left another value";
    return NULL;
}

static const char *rule_counter(const cell_watch *w, const tiny_cell *before, bool again,
                                const dibs__cell_command *c, const dibs__cell_answer *a)
{
    int64_t had = there(before, w->now) ? before->cell.number : 0;
    int64_t has = w->cell.cell.number;

    if (!counts(c))
        return NULL;
    if (w->cell.exists && has < 0)
        return "a counter is below zero";
    if (a->verdict == DIBS__CELL_TOO_FEW && c->op == DIBS__CELL_TAKE && had >= c->number)
        return "there were enough";
    if (a->verdict != DIBS__CELL_DONE)
        return NULL;
    if (again && there(before, w->now) && strcmp(before->cell.stamp, c->stamp) == 0)
        return has == had ? NULL : "a repeated command counted twice";
    if (c->op == DIBS__CELL_SET ? has != c->number
                                : has - had != (c->op == DIBS__CELL_TAKE ? -c->number : c->number))
        return "a counter counted wrong";
    return NULL;
}

static const char *rule_request(cell_watch *w, const tiny_cell *before, const dibs__cell_command *c,
                                const dibs__cell_answer *a)
{
    int i = c->request ? c->request[1] - '0' : 0;
    bool known = c->request && w->request[i].answered && w->request[i].until > w->now.lease;

    if (!c->request || a->verdict == DIBS__CELL_KIND)
        return NULL;
    if (!known && a->verdict == DIBS__CELL_ALREADY)
        return "a request was never answered";
    if (known && a->verdict != DIBS__CELL_ALREADY && a->verdict != DIBS__CELL_DONE)
        return "a request was forgotten";
    if (known && a->verdict == DIBS__CELL_DONE && strcmp(w->request[i].stamp, c->stamp) != 0)
        return "two calls were told that they had counted one request";
    if (known && w->cell.cell.version != before->cell.version)
        return "a request counted twice";
    if (known && a->cell.number != w->request[i].number)
        return "a request was answered in another way";
    /* not when the stamp was found: that was answered before */
    if (a->verdict == DIBS__CELL_DONE && w->cell.cell.version != before->cell.version) {
        w->request[i].answered = true;
        memcpy(w->request[i].stamp, c->stamp, strlen(c->stamp) + 1);
        w->request[i].number = a->cell.number;
        w->request[i].until =
            c->request_keep > INT64_MAX - w->now.lease ? INT64_MAX : w->now.lease + c->request_keep;
    }
    return NULL;
}

/* What was to live for so long has an end then. */
static const char *rule_end(const cell_watch *w, const dibs__cell_command *c,
                            const dibs__cell_answer *a)
{
    if (c->op == DIBS__CELL_SWAP && a->verdict == DIBS__CELL_DONE && c->keep > 0 &&
        w->cell.cell.written == w->now.lease && c->keep < DAY &&
        w->cell.cell.expires != w->now.lease + c->keep)
        return "a cell ends at another time";
    return NULL;
}

const char *cell_watch_step(cell_watch *w, cell_order *order)
{
    dibs__cell_answer answer;
    tiny_cell before = w->cell;
    const dibs__cell_command *c = &order->command;
    const char *broken;
    bool again;

    before.cell.data = before.data;
    cell_author_next(&w->author, &w->cell, order, &again);
    tiny_cell_run(&w->cell, w->now, c, &answer);
    if (w->cell.exists)
        tamper(w, &before);
    broken = rule_versions(w, &before);
    if (!broken)
        broken = rule_floor(w, c, &answer);
    if (!broken)
        broken = rule_refusal(w, &before, &answer, c);
    if (!broken)
        broken = rule_swap(w, &before, again, c, &answer);
    if (!broken)
        broken = rule_counter(w, &before, again, c, &answer);
    if (!broken)
        broken = rule_request(w, &before, c, &answer);
    if (!broken)
        broken = rule_end(w, c, &answer);
    return broken;
}
