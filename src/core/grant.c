/* Grants: made before their lock is asked for, held while the deadline is ahead, given back or
 * lost.
 *
 * A holder's deadline counts from the moment before the request was sent whose answer granted or
 * renewed it, less a margin for clocks that run at different rates: it is over for us before it is
 * for the engine. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/stats.h"
#include "state/attempt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE (10 * DIBS__MS)
#define MAX_PAUSE   DIBS__SECOND

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Clocks drift by far less than a hundredth; a few milliseconds more for scheduling, but never so
 * much that a short lease has nothing left. */
dibs__deadline dibs__deadline_of(dibs__deadline sent, int64_t remaining, int64_t lease)
{
    return sent + remaining - at_most(lease / 100 + 5 * DIBS__MS, lease / 10);
}

/* ---- Making and freeing ---------------------------------------------------------------------- */

/* Ten digits fit behind the secret of a portable lock; they last for 35 years of 1,000 attempts per second. Once per
 * lock call, so without printf, which is a twentieth of a call on the memory engine. */
#define ATTEMPT_DIGITS 10
_Static_assert(sizeof((dibs *)0)->id + sizeof((dibs_grant *)0)->secret + ATTEMPT_DIGITS <=
                   sizeof((dibs_grant *)0)->attempt,
               "an attempt fits");

static void write_attempt(dibs_grant *g)
{
    uint64_t number = ++g->d->attempts_made;
    char *at = stpcpy(stpcpy(stpcpy(g->attempt, g->d->id), g->secret), "-");
    int shift = 4 * (ATTEMPT_DIGITS - 1);

    while (number >> shift == 0) /* it is never 0 */
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *at++ = "0123456789abcdef"[number >> shift & 15];
    *at = '\0';
}

/* Listings show owners, and so the handle and the number: what makes the attempts of a portable lock a secret
 * are 66 bits more. They stay with the grant, so that a newer attempt is known as such. */
static void draw_secret(dibs_grant *g)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_~";
    unsigned char bytes[sizeof g->secret];

    g->d->env->random(g->d->env->ctx, bytes, sizeof bytes);
    g->secret[0] = DIBS__SECRET;
    for (size_t i = 1; i < sizeof g->secret - 1; i++)
        g->secret[i] = digits[bytes[i] & 63];
}

/* Whose it is if nobody else's: what is shown of its first attempt. */
static void write_owner(const dibs_grant *g, char *out, size_t size)
{
    snprintf(out, size, "%s%s", g->d->id, strrchr(g->attempt, '-'));
}

dibs_grant *dibs__grant_new(dibs *d, const char *name, const char *owner, bool portable)
{
    size_t name_size = strlen(name) + 1;
    size_t owner_size = owner ? strlen(owner) + 1 : sizeof((dibs_grant *)0)->attempt;
    dibs_grant *g = calloc(1, sizeof *g + name_size + owner_size);

    if (!g)
        return NULL;
    g->d = d;
    g->refs = 1;
    g->depth = 1;
    g->portable = portable;
    if (portable)
        draw_secret(g);
    write_attempt(g);
    if (owner)
        memcpy(g->text, owner, owner_size);
    else
        write_owner(g, g->text, owner_size);
    memcpy(g->text + owner_size, name, name_size);
    g->owner = g->text;
    g->name = g->text + owner_size;
    g->reentrant = owner != NULL;
    return g;
}

dibs__claim dibs__grant_claim(const dibs_grant *g)
{
    return (dibs__claim){.name = g->name,
                         .owner = g->owner,
                         .attempt = g->attempt,
                         .fence = g->fence,
                         .adopted = g->adopted,
                         .handed_over = g->fence > 0 && !g->whole,
                         .status = DIBS_UNKNOWN};
}

void dibs__grant_ref(dibs_grant *g)
{
    g->refs++;
}

void dibs__grant_unref(dibs_grant *g)
{
    if (--g->refs == 0)
        free(g);
}

/* Where the lease is the handle's, no lock has a longer one; it is known when the engine is open. */
void dibs__grant_fit_lease(dibs_grant *g)
{
    int64_t most = dibs__is_open(g->d) ? g->d->engine->lease : 0;

    if (most && g->lease > most)
        g->lease = most;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* Each grant in the tables has a place in all heaps waiting for it. */
static bool reserve(dibs *d)
{
    return dibs__table_reserve(&d->attempts) && dibs__table_reserve(&d->owners) &&
           dibs__heap_reserve(&d->due, d->attempts.count - d->due.count) &&
           dibs__heap_reserve(&d->exchanges, d->attempts.count - d->exchanges.count) &&
           dibs__heap_reserve(&d->expiries, d->attempts.count - d->expiries.count);
}

static void list_attempt(dibs_grant *g)
{
    dibs__table_add(&g->d->attempts, &g->by_attempt, dibs__hash(g->attempt));
    g->in_attempts = true;
}

static void delist_attempt(dibs_grant *g)
{
    if (g->in_attempts)
        dibs__table_remove(&g->d->attempts, &g->by_attempt);
    g->in_attempts = false;
}

bool dibs__grant_enlist(dibs_grant *g)
{
    if (!reserve(g->d))
        return false;
    list_attempt(g);
    if (g->reentrant) {
        dibs__table_add(&g->d->owners, &g->by_owner, dibs__hash_pair(g->owner, g->name));
        g->in_owners = true;
    }
    return true;
}

void dibs__grant_leave_owner(dibs_grant *g)
{
    if (g->in_owners)
        dibs__table_remove(&g->d->owners, &g->by_owner);
    g->in_owners = false;
}

void dibs__grant_retire(dibs_grant *g)
{
    dibs__heap_remove(&g->d->due, &g->due);
    dibs__heap_remove(&g->d->exchanges, &g->exchange);
    dibs__heap_remove(&g->d->expiries, &g->expiry);
    delist_attempt(g);
    dibs__grant_leave_owner(g);
    g->state = DIBS__OVER;
}

void dibs__grant_new_attempt(dibs_grant *g)
{
    delist_attempt(g);
    write_attempt(g);
    list_attempt(g);
}

dibs_grant *dibs__grant_of_attempt(dibs *d, const char *attempt)
{
    dibs__node *n = dibs__table_first(&d->attempts, dibs__hash(attempt));

    for (; n; n = dibs__table_next(n)) {
        dibs_grant *g = DIBS__FROM(dibs_grant, by_attempt, n);
        if (strcmp(g->attempt, attempt) == 0)
            return g;
    }
    return NULL;
}

dibs_grant *dibs__grant_of_owner(dibs *d, const char *owner, const char *name)
{
    dibs__node *n = dibs__table_first(&d->owners, dibs__hash_pair(owner, name));

    for (; n; n = dibs__table_next(n)) {
        dibs_grant *g = DIBS__FROM(dibs_grant, by_owner, n);
        if (strcmp(g->owner, owner) == 0 && strcmp(g->name, name) == 0)
            return g;
    }
    return NULL;
}

/* ---- Holding --------------------------------------------------------------------------------- */

void dibs__grant_schedule(dibs_grant *g, dibs__deadline when)
{
    dibs__heap_put(&g->d->due, &g->due, when);
    dibs__keeper_arm(g->d, when);
}

/* While its thread is inside `enter`, its entry may be there or not: the check follows the answer. */
void dibs__grant_check(dibs_grant *g)
{
    if (g->state == DIBS__HELD || (g->ticket && !g->ticket->enter_again))
        dibs__grant_schedule(g, dibs__now(g->d->env));
    else if (g->ticket)
        g->ticket->doubt = true;
}

void dibs__check_all(dibs *d, unsigned at)
{
    if (at & DIBS__CELLS)
        dibs__watches_end_all(d);
    for (size_t i = 0; i < d->attempts.size; i++) {
        for (dibs__node *n = d->attempts.slot[i]; n; n = n->next) {
            dibs_grant *g = DIBS__FROM(dibs_grant, by_attempt, n);
            if (at & (g->state == DIBS__HELD ? DIBS__HOLDERS : DIBS__WAITERS))
                dibs__grant_check(g);
        }
    }
}

static void set_deadline(dibs_grant *g, dibs__deadline deadline)
{
    atomic_store(&g->deadline, deadline);
    dibs__heap_put(&g->d->expiries, &g->expiry, deadline);
    dibs__keeper_arm(g->d, deadline);
}

/* A third of what there is now; a hand-over that nobody renews gets its one whole lease just the
 * same. */
static void schedule_renewal(dibs_grant *g, dibs__deadline from)
{
    dibs__deadline deadline = atomic_load(&g->deadline);

    if ((g->renew || !g->whole) && !g->last)
        dibs__grant_schedule(g, from + (deadline - from) / 3);
    else
        dibs__heap_remove(&g->d->due, &g->due);
}

void dibs__grant_hold(dibs_grant *g, uint64_t fence, uint64_t floor, dibs__deadline deadline,
                      bool whole)
{
    int64_t now = dibs__now(g->d->env);

    g->state = DIBS__HELD;
    g->fence = fence;
    g->floor = floor;
    g->whole = whole;
    g->since = now;
    g->max_until = g->max_hold ? now + g->max_hold : DIBS__NEVER;
    g->last = whole && g->max_hold && g->max_hold <= g->lease;
    set_deadline(g, deadline);
    schedule_renewal(g, now);
    dibs__keeper_expect(g->d, g->lease, now);
    g->d->stats.held++;
    g->d->stats.grants++;
    dibs__break_notice_listen(g->d, now);
}

int64_t dibs__grant_lease_left(const dibs_grant *g, dibs__deadline sent)
{
    return at_least(at_most(g->lease, g->max_until - sent), 1);
}

static void renewed(dibs_grant *g, dibs__deadline sent, const dibs__reply *reply)
{
    g->silent = false;
    g->whole = true;
    g->floor = reply->floor;
    g->last = sent + g->lease >= g->max_until;
    g->d->stats.renewals++;
    set_deadline(g, dibs__deadline_of(sent, reply->remaining, g->lease));
    schedule_renewal(g, sent);
}

static void not_renewed(dibs_grant *g, dibs_status status)
{
    g->silent = true;
    g->d->stats.renewal_failures++;
    dibs__log(g->d, DIBS_LOG_WARNING, "renewing '%.80s' failed: %s", g->name,
              dibs_status_text(status));
    dibs__grant_schedule(g, dibs__now(g->d->env) +
                                at_least(at_most(g->lease / 12, MAX_PAUSE), FIRST_PAUSE));
}

/* Held never comes back: an answer that was too late for our clock is a loss, and what the engine
 * has of it then goes back with dibs_unlock. */
static void too_late(dibs_grant *g, dibs_status status, const dibs__reply *reply)
{
    g->owed = status == DIBS_OK && reply->verdict == DIBS__GRANTED;
    dibs__grant_lose(g, status == DIBS_OK ? DIBS_LOSS_EXPIRED : DIBS_LOSS_UNREACHABLE);
}

void dibs__grant_answer(dibs_grant *g, dibs__deadline sent, dibs_status status,
                        const dibs__reply *reply)
{
    if (status == DIBS_OK && reply->verdict == DIBS__QUEUED)
        return; /* a waiter's keep-alive, overtaken by the hand-over on its way back */
    if (status == DIBS_OK && reply->verdict == DIBS__BROKEN) {
        g->owed = reply->remaining > 0; /* the operator waits for our word that we have let go */
        dibs__grant_lose(g, DIBS_LOSS_BROKEN);
    } else if (status == DIBS_OK && reply->verdict == DIBS__RESUMED) {
        g->owed = reply->remaining > 0; /* so does the other handle of this owner */
        dibs__grant_lose(g, DIBS_LOSS_RESUMED);
    } else if (!dibs_grant_held(g)) {
        too_late(g, status, reply);
    } else if (status != DIBS_OK) {
        not_renewed(g, status);
    } else if (reply->verdict == DIBS__GRANTED) {
        renewed(g, sent, reply);
    } else {
        dibs__grant_lose(
            g, DIBS_LOSS_GONE); /* there is no such entry although, by our clock, it should be */
    }
}

void dibs__grant_note_end(dibs_grant *g)
{
    g->d->stats.held--;
    dibs__histogram_add(&g->d->stats.hold, dibs__now(g->d->env) - g->since);
}

/* With the mutex, which is given away while the callback runs. */
static void report_loss(dibs *d, dibs__news *n)
{
    dibs_grant *g = DIBS__FROM(dibs_grant, news, n);

    pthread_mutex_unlock(&d->mutex);
    g->on_lost(g->data, g, (dibs_loss)atomic_load(&g->loss));
    pthread_mutex_lock(&d->mutex);
    dibs__grant_unref(g);
}

/* The reference is not the last one: the user has the grant, and unlocking it takes this out of the list. */
static void fill_loss(dibs *d, dibs__news *n, dibs_outcome *out)
{
    dibs_grant *g = DIBS__FROM(dibs_grant, news, n);

    (void)d;
    out->op = DIBS_OP_LOST;
    out->user = g->data;
    out->grant = g;
    out->loss = (dibs_loss)atomic_load(&g->loss);
    dibs__fail(&out->err, DIBS_LOST, "'%.200s' was lost: %s", g->name, dibs_loss_text(out->loss));
    dibs__grant_unref(g);
}

void dibs__grant_lose(dibs_grant *g, dibs_loss why)
{
    dibs *d = g->d;

    atomic_store(&g->loss, why);
    atomic_store(&g->deadline, 0);
    g->state = DIBS__GRANT_LOST;
    dibs__heap_remove(&d->due, &g->due);
    dibs__heap_remove(&d->expiries, &g->expiry);
    dibs__grant_note_end(g);
    d->stats.losses[why]++;
    dibs__log(d, DIBS_LOG_ERROR, "lost '%.80s': %s", g->name, dibs_loss_text(why));
    if (!g->delivered)
        return; /* whoever is about to hand it out finds that it is not held */
    dibs__grant_ref(g);
    if (g->on_lost)
        g->news.call = report_loss;
    else
        g->news.fill = fill_loss;
    dibs__news_add(d, &g->news);
}

/* The keeper may not have come to it yet. */
void dibs__grant_lose_if_over(dibs_grant *g)
{
    if (g->state == DIBS__HELD && !dibs_grant_held(g))
        dibs__grant_lose(g, g->silent ? DIBS_LOSS_UNREACHABLE : DIBS_LOSS_EXPIRED);
}

void dibs__grant_deliver_anew(dibs_grant *g, bool renew, int64_t max_hold)
{
    int64_t now = dibs__now(g->d->env);

    g->delivered = true;
    g->renew = renew;
    g->since = now;
    g->max_hold = max_hold;
    g->max_until = max_hold ? now + max_hold : DIBS__NEVER;
    g->last = false;
    schedule_renewal(g, now);
}

bool dibs__grant_deliver(dibs_grant *g)
{
    dibs__grant_lose_if_over(g);
    if (g->state == DIBS__HELD)
        g->delivered = true;
    return g->state == DIBS__HELD;
}

void dibs__grant_orphan(dibs_grant *g, bool release_it)
{
    dibs *d = g->d;
    int64_t now = dibs__now(d->env);

    dibs__grant_leave_owner(g);
    g->release_it = release_it;
    g->give_up = now + g->lease + DIBS__WINDOW;
    if (d->drained || (!g->in_attempts && !reserve(d))) { /* it ends with its lease */
        dibs__grant_retire(g);
        dibs__grant_unref(g);
        return;
    }
    if (!g->in_attempts)
        list_attempt(g);
    g->state = DIBS__ORPHAN;
    dibs__heap_remove(&d->expiries, &g->expiry);
    dibs__grant_schedule(g, now);
}

/* ---- Renewing by hand ------------------------------------------------------------------------- */

dibs_status dibs__no_grant(const char *verb, dibs_error *err)
{
    return dibs__fail(err, DIBS_INVALID, "no grant to %s: it was unlocked already, or never held",
                      verb);
}

dibs_status dibs__grant_renew(dibs_grant *g, dibs__deadline until, dibs_error *err)
{
    dibs *d = g->d;
    dibs__claim claim, *claims[] = {&claim};
    dibs__deadline sent;
    dibs_status status = DIBS_OK;

    if (!dibs__begin_call(d)) {
        dibs__end_call(d);
        return dibs__closing(err);
    }
    dibs__grant_ref(g);
    dibs__grant_lose_if_over(g);
    sent = dibs__now(d->env);
    claim = dibs__grant_claim(g);
    claim.lease = dibs__grant_lease_left(g, sent);
    if (g->state == DIBS__HELD) {
        pthread_mutex_unlock(&d->mutex);
        d->class->keep(d->engine, claims, 1, until);
        pthread_mutex_lock(&d->mutex);
        status = claim.status;
    }
    if (g->state == DIBS__HELD)
        dibs__grant_answer(g, sent, status, &claim.reply);
    if (status != DIBS_OK)
        dibs__fail(err, status, "renewing '%.80s': %s", g->name, dibs_status_text(status));
    else if (g->state != DIBS__HELD)
        status = dibs__fail(err, DIBS_LOST, "'%.80s' was lost: %s", g->name,
                            dibs_loss_text(dibs_grant_loss(g)));
    dibs__grant_unref(g);
    dibs__end_call(d);
    return status;
}

dibs_status dibs__do_renew(dibs_grant *g, dibs_error *err)
{
    if (!g)
        return dibs__no_grant("renew", err);
    if (!dibs__same_process(g->d))
        return dibs__forked(err);
    return dibs__grant_renew(g, dibs__after(g->d->env, g->d->request_span), err);
}

/* ---- What a cell is written under ------------------------------------------------------------- */

dibs_status dibs__grant_guard(const dibs_cell_options *o, uint64_t *fence, uint64_t *floor,
                              dibs_error *err)
{
    const dibs_grant *g = o->grant ? *o->grant : NULL;

    if (o->grant && (o->fence || o->floor))
        return dibs__fail(err, DIBS_INVALID, "give a grant, or its fence and floor: not both");
    if (o->grant && !g)
        return dibs__no_grant("write under", err);
    if (g && !dibs_grant_held(g))
        return dibs__fail(err, DIBS_LOST, "'%.200s' was lost: %s", g->name,
                          dibs_loss_text(dibs_grant_loss(g)));
    *fence = g ? dibs_grant_fence(g) : o->fence;
    *floor = g ? dibs_grant_floor(g) : o->floor;
    return DIBS_OK;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

bool dibs_grant_held(const dibs_grant *g)
{
    return g && dibs__same_process(g->d) && dibs__now(g->d->env) < atomic_load(&g->deadline);
}

int64_t dibs_grant_remaining_ms(const dibs_grant *g)
{
    int64_t left = g ? atomic_load(&g->deadline) - dibs__now(g->d->env) : 0;

    return left > 0 && dibs__same_process(g->d) ? left / DIBS__MS : 0;
}

dibs_loss dibs_grant_loss(const dibs_grant *g)
{
    dibs_loss why = g ? (dibs_loss)atomic_load(&g->loss) : DIBS_LOSS_NONE;

    return g && why == DIBS_LOSS_NONE && !dibs_grant_held(g) ? DIBS_LOSS_EXPIRED : why;
}

static const struct {
    const char *name, *text;
} losses[] = {
    [DIBS_LOSS_NONE] = {"none", "not lost"},
    [DIBS_LOSS_EXPIRED] = {"expired", "its lease expired"},
    [DIBS_LOSS_BROKEN] = {"broken", "an operator broke it"},
    [DIBS_LOSS_GONE] = {"gone", "the engine no longer has it"},
    [DIBS_LOSS_UNREACHABLE] = {"unreachable", "the engine did not answer before the lease expired"},
    [DIBS_LOSS_RESUMED] = {"resumed", "the same owner requested it elsewhere"},
    [DIBS_LOSS_CLOSED] = {"closed", "its handle was closed or drained"},
};

#define LOSSES (sizeof losses / sizeof losses[0])

_Static_assert(LOSSES <= sizeof((dibs_stats *)0)->losses / sizeof(uint64_t), "each is counted");

const char *dibs_loss_name(dibs_loss why)
{
    return (size_t)why < LOSSES ? losses[why].name : "unknown";
}

const char *dibs_loss_text(dibs_loss why)
{
    return (size_t)why < LOSSES ? losses[why].text : "unknown";
}

uint64_t dibs_grant_fence(const dibs_grant *g)
{
    return g ? g->fence + g->d->base : 0;
}

uint64_t dibs_grant_floor(const dibs_grant *g)
{
    return g ? g->floor + g->d->base : 0;
}

const char *dibs_grant_name(const dibs_grant *g)
{
    return g ? g->name : "";
}

const char *dibs_grant_owner(const dibs_grant *g)
{
    return g ? g->owner : "";
}
