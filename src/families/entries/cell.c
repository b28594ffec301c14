/* Cells on a store of keys with versions; see the header.
 *
 * The record is binary, its first byte the version of the layout. Its times are those of the client that
 * wrote it. Of a runner of `once` only their difference counts, and the store says how long ago it
 * wrote: by its clock, or by a keep-alive that runs out. So no client with a wrong clock takes a runner
 * for dead, or the dead for alive. Everything else ends by the clients' clocks: one that is off makes it end
 * too early or too late. That two writers never pass rests on versions alone.
 *
 * A write cannot know its own number. So a record that got a new value says FRESH, and its version is the
 * number with which the store brings it. A record that was only touched (a floor was raised) has its version
 * in it. Layout 1 had versions by the clients' clocks, far above all numbers: such a record stays, be it
 * empty, and the next version is the one after its own. */
#define _GNU_SOURCE
#include "families/entries/cell.h"

#include "core/error.h"
#include "families/entries/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLD_LAYOUT     1 /* the same, never FRESH */
#define LAYOUT         2
#define REQUEST_LAYOUT 1
#define RECORD_SIZE    (2 + 5 * 8 + DIBS__STAMP_SIZE)
#define REQUEST_SIZE   (1 + 2 * 8)
#define DAY            (24 * 3600 * DIBS__SECOND)

/* The record's second byte. */
enum { COUNTER = 1, EMPTY = 2, ALIVE = 4 /* by a runner, with a keep-alive */, FRESH = 8 };

/* The `ctx` of the machine's store: the cell's blob, and the request's if there is one. */
typedef struct cursor {
    dibs__entries_blob *cell, *request;
    const dibs__cell_command *command;
    dibs__time now;
    int64_t clock; /* the store's; 0: not known */
    bool changed, foreign;
    bool fresh;       /* it gets a new version */
    bool dead;        /* the keep-alive has run out */
    uint64_t had;     /* the version that was read */
    uint64_t version; /* the new one is this at the least */
    char *record;     /* to be written */
    char answer[REQUEST_SIZE];
} cursor;

/* ---- Layout ---------------------------------------------------------------------------------- */

static char *put_number(char *at, uint64_t number)
{
    for (int i = 7; i >= 0; i--)
        *at++ = (char)(number >> (8 * i));
    return at;
}

static uint64_t get_number(const char **at)
{
    uint64_t number = 0;

    for (int i = 0; i < 8; i++)
        number = number << 8 | (unsigned char)*(*at)++;
    return number;
}

/* `alive` may be NULL. */
static bool read_record(const dibs__entries_blob *b, dibs__cell *out, bool *alive)
{
    const char *at = b->data;

    bool fresh;

    if (b->size < RECORD_SIZE || (at[0] != LAYOUT && at[0] != OLD_LAYOUT))
        return false;
    *out = (dibs__cell){.counter = at[1] & COUNTER, .empty = at[1] & EMPTY, .counted = b->number};
    fresh = at[0] == LAYOUT && at[1] & FRESH;
    if (alive)
        *alive = at[1] & ALIVE;
    at += 2;
    out->version = get_number(&at);
    if (fresh && b->number > out->version)
        out->version = b->number;
    out->floor = get_number(&at);
    out->written = (int64_t)get_number(&at);
    out->expires = (int64_t)get_number(&at);
    out->number = (int64_t)get_number(&at);
    memcpy(out->stamp, at, DIBS__STAMP_SIZE);
    out->stamp[DIBS__STAMP_SIZE - 1] = '\0';
    out->data = at + DIBS__STAMP_SIZE;
    out->size = b->size - RECORD_SIZE;
    return out->written >= 0 && out->expires >= 0 && out->number >= 0;
}

static char *write_record(const dibs__cell *c, uint64_t version, int flags)
{
    char *record = malloc(RECORD_SIZE + c->size + 1), *at = record;

    if (!record)
        return NULL;
    *at++ = LAYOUT;
    *at++ = (char)((c->counter ? COUNTER : 0) | (c->empty ? EMPTY : 0) | flags);
    at = put_number(at, version);
    at = put_number(at, c->floor);
    at = put_number(at, (uint64_t)c->written);
    at = put_number(at, (uint64_t)c->expires);
    at = put_number(at, (uint64_t)c->number);
    memcpy(at, c->stamp, DIBS__STAMP_SIZE);
    if (c->size)
        memcpy(at + DIBS__STAMP_SIZE, c->data, c->size);
    return record;
}

static bool read_request(const dibs__entries_blob *b, int64_t *number, int64_t *expires)
{
    const char *at = b->data;

    if (b->size != REQUEST_SIZE || at[0] != REQUEST_LAYOUT)
        return false;
    at++;
    *number = (int64_t)get_number(&at);
    *expires = (int64_t)get_number(&at);
    return true;
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* As if it had been written by this client, `age` ago. */
static void rebase(dibs__cell *cell, int64_t age, int64_t now)
{
    int64_t span = cell->expires - cell->written;

    cell->written = now - age;
    if (cell->expires != INT64_MAX)
        cell->expires = span > INT64_MAX - now ? INT64_MAX : cell->written + span;
}

/* Of what a runner wrote. */
static void settle_time(cursor *c, dibs__cell *cell)
{
    int64_t stamp = c->cell->stamp;

    if (c->clock)
        rebase(cell, c->clock > stamp ? c->clock - stamp : 0, c->now.lease);
    else if (c->cell->alive)
        rebase(cell, 0, c->now.lease);
    else
        c->dead = true;
}

/* Asks the store for its clock if somebody's life depends on it. */
static dibs_status look_at_clock(dibs__entries *entries, cursor *c, dibs__deadline until,
                                 dibs_error *err)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    dibs__cell cell;
    bool alive = false;

    if (!cells->clock || c->cell->version < 0 || !read_record(c->cell, &cell, &alive) || !alive)
        return DIBS_OK;
    return cells->clock(entries->backend, until, &c->clock, err);
}

/* ---- The machine's store --------------------------------------------------------------------- */

static int load(void *ctx, dibs__cell *out)
{
    cursor *c = ctx;
    bool alive;

    if (c->cell->version < 0)
        return 0;
    if (read_record(c->cell, out, &alive)) {
        c->had = out->version;
        if (alive)
            settle_time(c, out);
        return 1;
    }
    c->foreign = true;
    return -1;
}

static int put(void *ctx, const dibs__cell *cell)
{
    cursor *c = ctx;

    free(c->record);
    c->fresh = cell->version != c->had;
    c->version = c->had + c->fresh;
    c->record =
        write_record(cell, c->version, (c->command->alive ? ALIVE : 0) | (c->fresh ? FRESH : 0));
    if (!c->record)
        return -1;
    c->cell->change = DIBS__ENTRIES_PUT;
    c->cell->put = c->record;
    c->cell->put_size = RECORD_SIZE + cell->size;
    c->cell->heartbeat = c->command->alive ? c->command->lease : 0;
    c->changed = true;
    return 0;
}

static int drop(void *ctx)
{
    cursor *c = ctx;

    c->cell->change = DIBS__ENTRIES_DROP;
    c->changed = true;
    return 0;
}

static int request_find(void *ctx, const char *request, int64_t now, int64_t *number)
{
    cursor *c = ctx;
    int64_t expires;

    (void)request; /* the blob is that request's */
    if (c->request->version < 0)
        return 0;
    if (!read_request(c->request, number, &expires)) {
        c->foreign = true;
        return -1;
    }
    return expires > now;
}

static int request_put(void *ctx, const char *request, int64_t number, int64_t expires)
{
    cursor *c = ctx;

    (void)request;
    c->answer[0] = REQUEST_LAYOUT;
    put_number(put_number(c->answer + 1, (uint64_t)number), (uint64_t)expires);
    c->request->change = DIBS__ENTRIES_PUT;
    c->request->put = c->answer;
    c->request->put_size = REQUEST_SIZE;
    c->changed = true;
    return 0;
}

static const dibs__cell_store store = {load, put, drop, request_find, request_put};

/* ---- One command ----------------------------------------------------------------------------- */

static void name_blob(dibs__entries_blob *b, const char *folder, const char *key,
                      const char *request)
{
    snprintf(b->folder, sizeof b->folder, "%s", folder);
    dibs__entries_escape(key, b->key);
    if (request) {
        strcat(b->key, "%"); /* no escape ends like that */
        dibs__entries_escape(request, b->key + strlen(b->key));
    }
}

void dibs__entries_cell_name(dibs__entries_blob *b, const char *key)
{
    name_blob(b, "%c", key, NULL);
}

uint64_t dibs__entries_cell_version(const dibs__entries_blob *b)
{
    dibs__cell cell;

    return b->version >= 0 && read_record(b, &cell, NULL) && !cell.empty ? cell.version : 0;
}

static bool reports_death(const dibs__cell_command *c, dibs__cell_verdict verdict)
{
    return verdict == DIBS__CELL_CONFLICT ||
           (c->op == DIBS__CELL_READ && c->alive && verdict == DIBS__CELL_DONE);
}

dibs__entries_found dibs__entries_cell_view(const dibs__entries_blob *b, dibs__time now,
                                            int64_t clock, dibs__cell *out, bool *dead)
{
    cursor c = {.cell = (dibs__entries_blob *)(uintptr_t)b, .now = now, .clock = clock};
    int found = load(&c, out);

    *dead = c.dead;
    return found > 0 ? DIBS__ENTRIES_CELL : found < 0 ? DIBS__ENTRIES_FOREIGN : DIBS__ENTRIES_NONE;
}

bool dibs__entries_cell_stands_for_life(const dibs__entries_blob *b)
{
    dibs__cell cell;
    bool alive = false;

    return b->version >= 0 && read_record(b, &cell, &alive) && alive;
}

static dibs_status decide(dibs__entries *entries, cursor *c, dibs__cell_reply *out, dibs_error *err)
{
    dibs__cell_answer answer;

    if (dibs__cell_apply(&store, c, c->now, c->command, &answer) < 0)
        return c->foreign
                   ? dibs__fail(err, DIBS_ENGINE_FAILED,
                                "%s: '%s/%s' has data that was not written by dibs, or by a newer "
                                "dibs wrote",
                                entries->backend->adapter->name, c->cell->folder, c->cell->key)
                   : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (!dibs__cell_reply_of(c->command, &answer, c->now, out))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (c->dead && reports_death(c->command, answer.verdict))
        out->age = INT64_MAX;
    return DIBS_OK;
}

/* The store has numbered our write. */
static void take_number(const cursor *c, uint64_t number, dibs__cell_reply *out)
{
    if (c->fresh && out->version)
        out->version = number > c->version ? number : c->version;
}

/* Looks, decides, writes. *done = false: somebody was faster, or goes first. */
static dibs_status try_once(dibs__entries *entries, dibs__entries_blob *blobs, size_t count,
                            const dibs__cell_command *command, dibs__crowd *crowd,
                            dibs__deadline until, dibs__cell_reply *out, bool *done,
                            dibs_error *err)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    int64_t wall = entries->base.env->wall(entries->base.env->ctx);
    cursor c = {.cell = &blobs[0],
                .request = count > 1 ? &blobs[1] : NULL,
                .command = command,
                .now = {wall, wall}};
    dibs_status status = cells->read(entries->backend, blobs, count, until, err);
    uint64_t number = 1;

    if (status == DIBS_OK)
        status = look_at_clock(entries, &c, until, err);
    if (status == DIBS_UNKNOWN) /* a look changes nothing */
        status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK)
        status = decide(entries, &c, out, err);
    crowd->queue = status == DIBS_OK && c.changed && crowd->tries == 0 && blobs[0].queue;
    if (crowd->queue)
        number = 0; /* others were here before us */
    else if (status == DIBS_OK && c.changed)
        status = cells->write(entries->backend, blobs, count, until, &number, err);
    *done = number != 0;
    take_number(&c, number, out);
    if (status != DIBS_OK || !*done) {
        free(out->data);
        *out = (dibs__cell_reply){0};
    }
    free(c.record);
    for (size_t i = 0; i < count; i++) {
        free(blobs[i].data);
        blobs[i].data = NULL;
        blobs[i].change = DIBS__ENTRIES_AS_IT_IS;
    }
    return status;
}

/* A round of the reaper begins at what this handle used: neither store can tell what ended first, and
 * if all rounds began at the front, handles that make one round would never come to the rest. Nor if they
 * began at a cell that all handles use. */
static void note_place(dibs__entries *entries, const dibs__entries_blob *blobs, size_t count)
{
    pthread_mutex_lock(&entries->mutex);
    for (size_t i = 0; i < count; i++)
        if (!*entries->reaped[i])
            strcpy(entries->reaped[i], blobs[i].key);
    pthread_mutex_unlock(&entries->mutex);
}

dibs_status dibs__entries_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                               bool notify, dibs__deadline until, dibs__cell_reply *out,
                               dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    size_t count = command->request ? 2 : 1;
    dibs__entries_blob *blobs = calloc(count, sizeof *blobs);
    dibs_status status = DIBS_OK;
    dibs__crowd crowd = {0};
    bool done = false;

    (void)notify; /* the store tells those who watch, whoever writes */
    *out = (dibs__cell_reply){0};
    if (!blobs)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    dibs__entries_cell_name(&blobs[0], key);
    blobs[0].heartbeats = command->op == DIBS__CELL_SWAP || command->op == DIBS__CELL_DELETE ||
                          (command->op == DIBS__CELL_READ && command->alive);
    blobs[0].only = command->op == DIBS__CELL_READ;
    blobs[0].turn = blobs[0].only ? NULL : &crowd.turn;
    if (command->request)
        name_blob(&blobs[1], "%r", key, command->request);
    while (status == DIBS_OK && !done) {
        dibs__crowd_wait(entries, &blobs[0], &crowd, until);
        if (crowd.tries > 0 && dibs__now(e->env) >= until)
            status = dibs__fail(err, DIBS_UNAVAILABLE,
                                "%s: timed out: %zu other clients want to "
                                "change '%.200s'",
                                entries->backend->adapter->name, crowd.ahead, key);
        else
            status = try_once(entries, blobs, count, command, &crowd, until, out, &done, err);
        crowd.tries++;
    }
    dibs__crowd_leave(entries, &blobs[0], &crowd);
    if (status == DIBS_OK && *key != *DIBS__OWN_CELL)
        note_place(entries, blobs, count);
    free(blobs);
    return status;
}

/* ---- What has ended -------------------------------------------------------------------------- */

void dibs__entries_blobs_free(dibs__entries_blob *blobs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(blobs[i].data);
    free(blobs);
}

/* What a runner wrote is left for a day longer: it may be alive, and our clock be wrong. */
static bool is_over(const dibs__entries_blob *b, int64_t wall)
{
    int64_t number, expires;
    dibs__cell cell;
    bool alive;

    if (b->version < 0)
        return false;
    if (strcmp(b->folder, "%r") == 0)
        return read_request(b, &number, &expires) && expires <= wall;
    if (!read_record(b, &cell, &alive))
        return false;
    if (alive)
        wall -= DAY;
    return dibs__cell_may_drop(&cell, (dibs__time){wall, wall});
}

/* Our own drops may stand in the way of the next: then it is looked at once more. */
static bool drop_one(dibs__entries *entries, dibs__entries_blob *b, int64_t wall,
                     dibs__deadline until)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    dibs_status status = DIBS_OK;
    uint64_t number = 0;

    for (int tries = 0; tries < 2 && status == DIBS_OK && number == 0 && is_over(b, wall);
         tries++) {
        b->change = DIBS__ENTRIES_DROP;
        status = cells->write(entries->backend, b, 1, until, &number, NULL);
        if (status != DIBS_OK || number != 0)
            break;
        free(b->data);
        b->data = NULL;
        status = cells->read(entries->backend, b, 1, until, NULL);
    }
    return number != 0; /* else the next time */
}

/* All that are over to the front; how many. */
static size_t sort_out(dibs__entries_blob *blobs, size_t count, int64_t wall)
{
    size_t over = 0;

    for (size_t i = 0; i < count; i++)
        if (is_over(&blobs[i], wall)) {
            dibs__entries_blob b = blobs[over];
            blobs[over] = blobs[i];
            blobs[i] = b;
            blobs[over++].change = DIBS__ENTRIES_DROP;
        }
    return over;
}

/* One exchange for all of them, unless somebody changes one meanwhile: then one after another, so that only that
 * one stays. How many were dropped. */
static size_t drop_all(dibs__entries *entries, dibs__entries_blob *blobs, size_t count,
                       int64_t wall, dibs__deadline until)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    size_t over = sort_out(blobs, count, wall), dropped = 0;
    uint64_t number = 0;

    if (over == 0 || cells->write(entries->backend, blobs, over, until, &number, NULL) != DIBS_OK)
        return 0;
    if (number != 0)
        return over;
    for (size_t i = 0; i < over && dibs__now(entries->base.env) < until; i++)
        dropped += drop_one(entries, &blobs[i], wall, until);
    return dropped;
}

/* One stretch of a folder, behind `at`, which moves on; to the front again when that was the end.
 * How many there were; -1: no answer. */
static int reap_stretch(dibs__entries *entries, const char *folder, char *at, size_t limit,
                        dibs__deadline until, size_t *dropped)
{
    const struct dibs__entries_cells *cells = entries->backend->adapter->cells;
    int64_t wall = entries->base.env->wall(entries->base.env->ctx);
    dibs__entries_blob *blobs = NULL;
    size_t count = 0;

    if (cells->walk(entries->backend, folder, at, limit, until, &blobs, &count, NULL) != DIBS_OK)
        return -1;
    snprintf(at, DIBS__ENTRIES_CELL_KEY_SIZE, "%s", count == limit ? blobs[count - 1].key : "");
    *dropped += drop_all(entries, blobs, count, wall, until);
    dibs__entries_blobs_free(blobs, count);
    return (int)count;
}

/* Up to `limit` of a folder, from where the last round ended, once around at most. True: something had
 * ended there, and so it is worth going on; else the next ones have time until the next round. */
static bool reap_folder(dibs__entries *entries, int which, size_t limit, dibs__deadline until)
{
    static const char *const folders[] = {"%c", "%r"};
    char at[DIBS__ENTRIES_CELL_KEY_SIZE];
    size_t dropped = 0;
    bool front;

    pthread_mutex_lock(&entries->mutex);
    strcpy(at, entries->reaped[which]);
    pthread_mutex_unlock(&entries->mutex);
    front = !*at;
    while (limit > 0 && dibs__now(entries->base.env) < until) {
        int seen = reap_stretch(entries, folders[which], at,
                                limit < DIBS__ENTRIES_BATCH ? limit : DIBS__ENTRIES_BATCH, until,
                                &dropped);
        if (seen < 0 || (!*at && front))
            break;
        limit -= (size_t)seen;
        front = front || !*at;
    }
    pthread_mutex_lock(&entries->mutex);
    strcpy(entries->reaped[which], at);
    pthread_mutex_unlock(&entries->mutex);
    return dropped > 0;
}

bool dibs__entries_cell_reap(dibs__engine *e, size_t limit, dibs__deadline until)
{
    dibs__entries *entries = dibs__entries_of(e);
    bool more = reap_folder(entries, 0, limit, until);

    return reap_folder(entries, 1, limit, until) || more;
}
