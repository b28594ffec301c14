/* Many who want to change one cell.
 *
 * A write is refused when somebody else was faster. With fifty writers a caller would be refused fifty times
 * on the average, some of them several hundred times: luck decides, and every try costs the store two
 * exchanges. So whoever is refused twice takes a place in a queue beside the cell, and so does everybody
 * who comes and sees one. Only the first few of it try. The others look again when their turn can be near:
 * by how many are before them, and how fast these went so far. Nothing rests on that queue but time: what a
 * stopped process leaves in it is passed by. */
#define _GNU_SOURCE
#include "families/entries/inner.h"

#include <time.h>

#define ABREAST    8 /* so that one of them is always about to write, however slow they are */
#define FIRST_PACE (2 * DIBS__MS)
#define LEAST      (2 * DIBS__MS)
#define MOST       (2 * DIBS__SECOND)
#define STANDSTILL DIBS__SECOND /* and two pauses: then those before us count as dead */

static void sleep_for(const dibs__env *env, int64_t span, dibs__deadline until)
{
    int64_t left = until - dibs__now(env);

    if (span > left)
        span = left;
    dibs__sleep(env, span);
}

/* Those who were slower come back at different moments. */
static void pause_shortly(const dibs__env *env, dibs__deadline until)
{
    uint32_t random;

    env->random(env->ctx, &random, sizeof random);
    sleep_for(env, random % (2 * DIBS__MS), until);
}

/* How it moves on. False: it does not. A pace that falls is believed at once: else a store that hung for a
 * moment would slow everybody down for long. */
static bool note_progress(dibs__crowd *c, size_t ahead, dibs__deadline now)
{
    int64_t pace;

    if (c->at == 0) {
        c->pace = FIRST_PACE;
    } else if (ahead < c->ahead) {
        pace = (now - c->at) / (int64_t)(c->ahead - ahead);
        c->pace = pace < c->pace ? pace : (c->pace + pace) / 2;
    } else {
        return now < c->at + STANDSTILL + 2 * c->pause;
    }
    c->ahead = ahead;
    c->at = now;
    return true;
}

/* Half of the way to our turn: so a place in the queue is looked at as often as its number can be halved. */
static int64_t pause_of(const dibs__crowd *c)
{
    int64_t span = (int64_t)(c->ahead - ABREAST + 1) * c->pace / 2;

    return span < LEAST ? LEAST : span > MOST ? MOST : span;
}

/* Until it is our turn to try. */
static void queue(dibs__entries *entries, const dibs__entries_blob *cell, dibs__crowd *c,
                  dibs__deadline until)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    const dibs__env *env = entries->base.env;

    while (!c->front && dibs__now(env) < until) {
        size_t ahead = 0;
        if (cells->join_queue(entries->backend, cell, &c->turn, until, &ahead) != DIBS_OK) {
            pause_shortly(env, until);
            return;
        }
        c->front = ahead < ABREAST || !note_progress(c, ahead, dibs__now(env));
        if (c->front)
            return;
        c->pause = pause_of(c);
        sleep_for(env, c->pause, until);
    }
}

void dibs__crowd_wait(dibs__entries *entries, const dibs__entries_blob *cell, dibs__crowd *c,
                      dibs__deadline until)
{
    if (c->front || (c->tries == 1 && !c->queue))
        pause_shortly(entries->base.env, until);
    else if (c->tries > 0)
        queue(entries, cell, c, until);
}

void dibs__crowd_leave(dibs__entries *entries, const dibs__entries_blob *cell, dibs__crowd *c)
{
    if (c->turn.made)
        entries->backend->adapter->cells->leave_queue(entries->backend, cell, &c->turn);
}
