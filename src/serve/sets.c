/* Collecting the locks of one request, holding them, and letting go of them; see the header. */
#define _GNU_SOURCE
#include "serve/sets.h"
#include "serve/secret.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    return strcmp(((const serve_set *)a)->key, ((const serve_set *)b)->key);
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const serve_set *)a)->id, ((const serve_set *)b)->id);
}

serve_set *serve_set_of_key(serve *s, const char *key)
{
    serve_set like, **found;

    snprintf(like.key, sizeof like.key, "%s", key);
    found = tfind(&like, &s->by_key, by_key);
    return found ? *found : NULL;
}

serve_set *serve_set_of_id(serve *s, const char *id)
{
    serve_set like = {.id = (char *)(uintptr_t)id}, **found = tfind(&like, &s->by_id, by_id);

    return found ? *found : NULL;
}

bool serve_set_enlist_key(serve_set *set)
{
    set->by_key = tsearch(set, &set->s->by_key, by_key) != NULL;
    return set->by_key;
}

bool serve_set_enlist_id(serve_set *set)
{
    set->by_id = tsearch(set, &set->s->by_id, by_id) != NULL;
    return set->by_id;
}

void serve_set_delist_id(serve_set *set)
{
    if (!set->by_id)
        return;
    tdelete(set, &set->s->by_id, by_id);
    set->by_id = false;
}

void serve_set_delist_key(serve_set *set)
{
    if (set->by_key)
        tdelete(set, &set->s->by_key, by_key);
    set->by_key = false;
}

/* tdelete while walking is not allowed: the sets are gathered first. */
typedef struct gathered {
    serve_set **set;
    size_t count, room;
} gathered;

static void gather(const void *node, VISIT visit, void *data)
{
    gathered *all = data;
    serve_set *set = *(serve_set *const *)node;

    if (visit != postorder && visit != leaf)
        return;
    if (all->count == all->room) {
        size_t room = all->room ? all->room * 2 : 256;
        serve_set **more = realloc(all->set, room * sizeof *more);
        if (!more)
            return;
        all->set = more;
        all->room = room;
    }
    all->set[all->count++] = set;
}

void serve_sets_each(void *table, void (*visit)(serve_set *set))
{
    gathered all = {0};

    twalk_r(table, gather, &all);
    for (size_t i = 0; i < all.count; i++)
        visit(all.set[i]);
    free(all.set);
}

static void shut_down(serve_set *set)
{
    if (set->shutdown)
        set->shutdown(set);
}

void serve_waits_drain(serve *s)
{
    serve_sets_each(s->by_key, shut_down);
}

/* A loss may still be reported for a grant whose release is out: the set stays until it is answered. */
void serve_set_free(serve_set *set)
{
    http_timer_stop(set->s->http, &set->timer);
    serve_set_delist_key(set);
    serve_set_delist_id(set);
    set->state = SERVE_ENDED;
    set->unwanted = true;
    if (set->out > 0)
        return;
    for (size_t i = 0; i < set->count; i++) {
        free(set->locks[i].name);
        free(set->locks[i].text);
    }
    free(set->failure);
    free(set->request);
    free(set->owner);
    free(set->id);
    free(set);
}

/* ---- Letting go ------------------------------------------------------------------------------ */

static void on_released(void *data, dibs_outcome *o)
{
    serve_set *set = data;

    (void)o; /* what was not confirmed is free when its lease ends */
    if (--set->out == 0 && set->unwanted)
        serve_set_free(set);
}

static void unlock(serve_set *set, dibs_grant *g)
{
    dibs_request r = {.op = DIBS_OP_UNLOCK, .grant = g};
    dibs_error err;

    if (serve_ask(set->s, &r, on_released, set, NULL, &err) == DIBS_OK)
        set->out++;
    else if (dibs_grant_detach(&g, &err) != DIBS_OK)
        return; /* no memory, and not portable: it ends with the handle */
}

static void let_go(serve_set *set, bool release)
{
    dibs_error err;

    for (size_t i = 0; i < set->count; i++) {
        dibs_grant *g = set->locks[i].g;
        set->locks[i].g = NULL;
        if (g && (release || dibs_grant_detach(&g, &err) == DIBS_INVALID))
            unlock(set, g);
    }
    set->held = 0;
}

void serve_set_release(serve_set *set)
{
    let_go(set, true);
    set->state = SERVE_ENDED;
}

void serve_set_detach(serve_set *set)
{
    let_go(set, false);
    set->state = SERVE_ENDED;
}

/* ---- Collecting ------------------------------------------------------------------------------ */

static void ask_next(serve_set *set);

/* Nothing is held and nothing is out any more. */
static void end_collecting(serve_set *set, const dibs_error *err)
{
    set->state = SERVE_ENDED;
    let_go(set, true);
    if (set->stopped)
        serve_set_free(set);
    else
        set->collected(set, err);
}

static void keep_failure(serve_set *set, const dibs_error *err)
{
    if (!set->failure && (set->failure = malloc(sizeof *err)))
        *set->failure = *err;
}

static void restart(serve_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        set->locks[i].lost = DIBS_LOSS_NONE;
    let_go(set, true);
    set->restart = false;
    ask_next(set);
}

static bool any_lost(const serve_set *set)
{
    for (size_t i = 0; i < set->held; i++)
        if (set->locks[i].lost != DIBS_LOSS_NONE)
            return true;
    return false;
}

static void finish_collecting(serve_set *set)
{
    const dibs_error none = {.status = DIBS_OK};

    set->state = SERVE_HELD;
    set->collected(set, &none);
}

/* Several locks were renewed by the keeper while the last one was waited for; from now on the client renews. */
static void on_adopted(void *data, dibs_outcome *o)
{
    serve_lock *lock = data;
    serve_set *set = lock->set;
    dibs_error none = {.status = DIBS_OK};

    lock->g = o->grant;
    if (o->err.status != DIBS_OK)
        keep_failure(set, &o->err);
    set->out--;
    if (--set->adopting > 0)
        return;
    if (set->stopped || set->failure)
        end_collecting(set, set->failure ? set->failure : &none);
    else
        finish_collecting(set);
}

static void adopt_one(serve_lock *lock)
{
    serve_set *set = lock->set;
    dibs_lock_options options = {.no_renew = true, .data = lock};
    char text[DIBS_GRANT_SIZE];
    dibs_request r = {.op = DIBS_OP_GRANT_ADOPT, .name = text, .options.lock = &options};
    dibs_error err;

    if (dibs_grant_export(lock->g, text, &err) == DIBS_OK &&
        dibs_grant_detach(&lock->g, &err) == DIBS_OK) {
        if (serve_ask(set->s, &r, on_adopted, lock, NULL, &err) == DIBS_OK) {
            set->out++;
            set->adopting++;
            return;
        }
    }
    keep_failure(set, &err);
}

static void hand_to_client(serve_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        adopt_one(&set->locks[i]);
    if (set->adopting == 0)
        end_collecting(set, set->failure ? set->failure : &(dibs_error){.status = DIBS_NO_MEMORY});
}

static void all_collected(serve_set *set)
{
    if (any_lost(set))
        restart(set);
    else if (set->count > 1 && !set->terms.by_keeper)
        hand_to_client(set);
    else
        finish_collecting(set);
}

static void on_lock(void *data, dibs_outcome *o)
{
    serve_lock *lock = data;
    serve_set *set = lock->set;

    set->asked = 0;
    if (o->err.status == DIBS_OK) {
        lock->g = o->grant;
        lock->lost = DIBS_LOSS_NONE;
        set->held++;
    }
    if (set->stopped)
        end_collecting(set, &o->err);
    else if (set->restart)
        restart(set);
    else if (o->err.status != DIBS_OK)
        end_collecting(set, &o->err);
    else if (set->held == set->count)
        all_collected(set);
    else
        ask_next(set);
}

static int64_t wait_left(const serve_set *set)
{
    int64_t left =
        set->deadline_ms == DIBS_FOREVER ? DIBS_FOREVER : set->deadline_ms - http_now_ms();

    return left > 0 ? left : DIBS_NO_WAIT;
}

static void ask_next(serve_set *set)
{
    const serve_terms *t = &set->terms;
    serve_lock *lock = &set->locks[set->held];
    dibs_lock_options options = {.wait_ms = wait_left(set),
                                 .lease_ms = t->lease_ms,
                                 .no_renew = !t->by_keeper && set->count == 1,
                                 .shared = t->shared,
                                 .portable = t->portable,
                                 .slots = t->slots,
                                 .weight = t->weight,
                                 .owner = set->owner,
                                 .data = lock};
    dibs_request r = {.op = DIBS_OP_LOCK, .name = lock->name, .options.lock = &options};
    dibs_error err;

    if (serve_ask(set->s, &r, on_lock, lock, &set->asked, &err) != DIBS_OK)
        end_collecting(set, &err);
}

void serve_set_collect(serve_set *set)
{
    set->state = SERVE_COLLECTING;
    ask_next(set);
}

void serve_set_abandon(serve_set *set)
{
    set->stopped = true;
    serve_set_delist_key(set);
    http_timer_stop(set->s->http, &set->timer);
    if (set->asked)
        dibs_stop(set->s->d, set->asked);
}

void serve_set_lost(serve_lock *lock, dibs_loss why)
{
    serve_set *set = lock->set;

    lock->lost = why;
    if (set->state == SERVE_HELD && set->lost) {
        set->lost(set, why);
    } else if (set->state == SERVE_COLLECTING && set->asked && !set->stopped) {
        set->restart = true;
        dibs_stop(set->s->d, set->asked);
    }
}

/* ---- What it says ---------------------------------------------------------------------------- */

bool serve_set_is_held(const serve_set *set)
{
    return set->state == SERVE_HELD && serve_set_remaining_ms(set) > 0;
}

int64_t serve_set_remaining_ms(const serve_set *set)
{
    int64_t least = INT64_MAX;

    for (size_t i = 0; i < set->count; i++) {
        int64_t left = dibs_grant_remaining_ms(set->locks[i].g);
        least = left < least ? left : least;
    }
    if (set->terms.by_keeper && set->timer.place && set->timer.at_ms - http_now_ms() < least)
        least = set->timer.at_ms - http_now_ms();
    return least > 0 ? least : 0;
}

static json_t *lock_json(const serve_lock *lock)
{
    json_t *json = json_object();
    char fence[DIBS_FENCE_SIZE];

    dibs_fence_text(lock->g, fence);
    json_object_set_new(json, "name", json_string(lock->name));
    json_object_set_new(json, "fence", json_integer((json_int_t)dibs_grant_fence(lock->g)));
    json_object_set_new(json, "floor", json_integer((json_int_t)dibs_grant_floor(lock->g)));
    json_object_set_new(json, "fence_text", json_string(fence));
    return json;
}

json_t *serve_set_json(const serve_set *set)
{
    json_t *json = json_object(), *locks = json_array();

    if (set->id)
        json_object_set_new(json, "grant", json_string(set->id));
    if (set->request)
        json_object_set_new(json, "request", json_string(set->request));
    json_object_set_new(json, "fence", json_integer((json_int_t)dibs_grant_fence(set->locks[0].g)));
    json_object_set_new(json, "lease_ms", json_integer(set->terms.lease_ms));
    json_object_set_new(json, "remaining_ms", json_integer(serve_set_remaining_ms(set)));
    for (size_t i = 0; i < set->count; i++)
        json_array_append_new(locks, lock_json(&set->locks[i]));
    json_object_set_new(json, "locks", locks);
    return json;
}
