/* The lock's state machine, explored: from an empty lock every sequence of commands of a few
 * owners, as far as it leads to new states, with the rules of support/rules.c held against every
 * single step.
 *
 * The first owner asks through two handles, one of which makes a second attempt: so every message of its, of
 * any command, is also tried late and twice.
 *
 * A state is written down without what cannot matter: times relative to now, fences and places by
 * rank. So states repeat and the search can go deep. */
#include "support/machine.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DEPTH
#define DEPTH 9 /* commands in a row */
#endif
#define MOST 24000 /* states: the nearest ones */

#define OWNERS   3
#define ATTEMPTS 3 /* of the first owner; the others have one each */
#define LEASE    4
#define WINDOW   2
#define MIN_HOLD 3 /* of the last owner */

/* ---- Commands and how to try each ------------------------------------------------------------ */

typedef struct world {
    const char *label;
    uint32_t capacity;
    uint32_t weight[2]; /* what owners ask for */
    int depth;
    size_t most; /* states */
    tiny_lie lie;
} world;

#define STEPS 3 /* time passes by 0, 1 or 3 before a command */
static const int64_t step_of[STEPS] = {0, 1, 3};

static const command_kind per_owner[] = {COMMAND_ACQUIRE, COMMAND_KEEP, COMMAND_RELEASE,
                                         COMMAND_CANCEL};

/* The n-th command at `now`; false past the last. */
static bool nth_command(const world *w, size_t n, int64_t now, command *c)
{
    static const char *const attempts[ATTEMPTS] = {"h-1", "h-2", "k-1"};
    size_t owner, attempt, kind, weight, queue;

    memset(c, 0, sizeof *c);
    c->now.lease = now + step_of[n % STEPS];
    n /= STEPS;
    if (n < 3) {
        c->kind = n < 2 ? COMMAND_BREAK : COMMAND_SETTLE;
        c->at_once = n == 1;
        snprintf(c->who.owner, sizeof c->who.owner, "operator");
        return true;
    }
    n -= 3;
    owner = n % (OWNERS - 1 + ATTEMPTS), n /= OWNERS - 1 + ATTEMPTS;
    attempt = owner < ATTEMPTS ? owner : 0;
    owner = owner < ATTEMPTS ? 0 : owner - ATTEMPTS + 1;
    kind = n % 7;
    weight = kind < 4 ? kind % 2 : 0;
    queue = kind < 4 ? kind / 2 : 0;
    if (n / 7 > 0)
        return false;
    c->kind = per_owner[kind < 4 ? 0 : kind - 3];
    snprintf(c->who.owner, sizeof c->who.owner, "%c", (char)('a' + owner));
    snprintf(c->who.attempt, sizeof c->who.attempt, "%s", attempts[attempt]);
    c->who.weight = w->weight[weight];
    c->who.lease = LEASE;
    c->who.min_hold = owner == OWNERS - 1 ? MIN_HOLD : 0;
    c->capacity = w->capacity;
    c->window = queue ? WINDOW : 0;
    c->fence = 1;
    return true;
}

/* ---- States, written down -------------------------------------------------------------------- */

typedef struct key_entry {
    uint8_t owner, handle, number, weight, rank, left, hold, released;
} key_entry;

typedef struct key {
    uint8_t exists, capacity, holders, waiters, broken_rank;
    key_entry entry[2 * OWNERS + 2];
} key;

static uint8_t clamp(int64_t left)
{
    return left > 0 ? (uint8_t)left : 0;
}

/* How many of the holders' fences are below `fence`. */
static uint8_t rank_of(const tiny *t, uint64_t fence)
{
    uint8_t n = 0;

    for (size_t i = 0; i < t->holders; i++)
        n = (uint8_t)(n + (t->holder[i].fence < fence));
    return n;
}

static key_entry write_asker(const dibs__asker *who)
{
    return (key_entry){.owner = (uint8_t)who->owner[0],
                       .handle = (uint8_t)who->attempt[0],
                       .number = (uint8_t)who->attempt[2],
                       .weight = (uint8_t)(who->weight > 100 ? 100 : who->weight)};
}

static key_entry write_holder(const tiny *t, const dibs__holder *h, int64_t now)
{
    key_entry e = write_asker(&h->who);

    e.rank = rank_of(t, h->fence);
    e.left = clamp(h->expires - now);
    e.released = h->released;
    if (h->released) /* nobody's any more */
        e.owner = e.handle = e.number = 0;
    else if (h->who.min_hold)
        e.hold = clamp(h->since + h->who.min_hold - now);
    return e;
}

static bool write_key(const tiny *t, int64_t now, key *k)
{
    size_t n = 0;

    memset(k, 0, sizeof *k);
    if (t->holders + t->waiters > sizeof k->entry / sizeof k->entry[0])
        return false;
    k->exists = t->exists;
    k->capacity = t->record.capacity > 100 ? 100 : (uint8_t)t->record.capacity;
    k->holders = (uint8_t)t->holders;
    k->waiters = (uint8_t)t->waiters;
    k->broken_rank = rank_of(t, t->record.broken_fence);
    for (size_t i = 0; i < t->holders; i++, n++)
        k->entry[n] = write_holder(t, &t->holder[i], now);
    for (size_t i = 0; i < t->waiters; i++, n++) {
        k->entry[n] = write_asker(&t->waiter[i].who);
        k->entry[n].left = clamp(t->waiter[i].alive_until - now);
    }
    return true;
}

/* ---- The search ------------------------------------------------------------------------------ */

typedef struct node {
    key k;
    uint32_t parent;
    uint16_t by; /* the command that led here */
    uint16_t depth;
} node;

typedef struct search {
    const world *w;
    node *nodes;
    size_t count;
    uint32_t *slot; /* open addressing: index + 1 */
    size_t slots;
    size_t steps;
    int depth; /* reached */
    const char *wrong;
    char how[2048];
} search;

static uint64_t hash_key(const key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

static void add_state(search *s, const key *k, uint32_t parent, uint16_t by, uint16_t depth)
{
    size_t i = hash_key(k) & (s->slots - 1);

    while (s->slot[i]) {
        if (memcmp(&s->nodes[s->slot[i] - 1].k, k, sizeof *k) == 0)
            return;
        i = (i + 1) & (s->slots - 1);
    }
    if (s->count == s->w->most)
        return;
    s->nodes[s->count] = (node){.k = *k, .parent = parent, .by = by, .depth = depth};
    s->slot[i] = (uint32_t)++s->count;
}

/* The way to a node, first command first: replayed, because the written state leaves things out. */
static size_t path_to(const search *s, uint32_t at, uint16_t *path)
{
    size_t n = s->nodes[at].depth;

    for (size_t i = n; i > 0; i--) {
        path[i - 1] = s->nodes[at].by;
        at = s->nodes[at].parent;
    }
    return n;
}

static void print_path(search *s, const uint16_t *path, size_t n, const char *wrong)
{
    static const char *const kinds[] = {"acquire", "keep", "release", "cancel", "break", "settle"};
    int64_t now = 0;
    size_t used = 0;
    command c;

    s->wrong = wrong;
    for (size_t i = 0; i < n && used < sizeof s->how - 100; i++) {
        nth_command(s->w, path[i], now, &c);
        now = c.now.lease;
        used += (size_t)snprintf(s->how + used, sizeof s->how - used, " @%d %s %s/%s w%u%s;",
                                 (int)now, kinds[c.kind], c.who.owner, c.who.attempt, c.who.weight,
                                 c.window    ? " queue"
                                 : c.at_once ? " now"
                                             : "");
    }
}

static void replay(const search *s, const uint16_t *path, size_t n, tiny *t, int64_t *now)
{
    command c;
    dibs__reply reply;

    memset(t, 0, sizeof *t);
    t->lie = s->w->lie;
    *now = 0;
    for (size_t i = 0; i < n; i++) {
        nth_command(s->w, path[i], *now, &c);
        *now = c.now.lease;
        tiny_run(t, &c, &reply);
    }
}

static void expand(search *s, uint32_t at)
{
    uint16_t path[64];
    size_t n = path_to(s, at, path);
    tiny from;
    int64_t now;
    command c;

    s->depth = (int)n + 1;
    replay(s, path, n, &from, &now);
    for (uint16_t by = 0; !s->wrong && nth_command(s->w, by, now, &c); by++) {
        tiny t;
        dibs__reply reply;
        key k;
        tiny_copy(&t, &from);
        const char *wrong = tiny_step(&t, &c, &reply);
        path[n] = by;
        s->steps++;
        if (wrong)
            print_path(s, path, n + 1, wrong);
        else if (write_key(&t, c.now.lease, &k))
            add_state(s, &k, at, by, (uint16_t)(n + 1));
        else
            print_path(s, path, n + 1, "more entries than owners can have");
    }
}

/* Breadth first; the text of the first rule broken, or NULL. */
static const char *explore(const world *w, search *s)
{
    key empty;

    memset(s, 0, sizeof *s);
    memset(&empty, 0, sizeof empty);
    s->w = w;
    for (s->slots = 1; s->slots < 2 * w->most; s->slots *= 2)
        ;
    s->nodes = calloc(w->most, sizeof *s->nodes);
    s->slot = calloc(s->slots, sizeof *s->slot);
    assert_true(s->nodes && s->slot);
    add_state(s, &empty, 0, 0, 0);
    for (size_t i = 0; i < s->count && !s->wrong && s->nodes[i].depth < w->depth; i++)
        expand(s, (uint32_t)i);
    free(s->nodes);
    free(s->slot);
    return s->wrong;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void explore_honest(const world *w)
{
    static search s;
    const char *wrong = explore(w, &s);

    print_message("# %s: %zu states, %zu steps, depth %d\n", w->label, s.count, s.steps, s.depth);
    if (wrong)
        fail_msg("%s after%s", wrong, s.how);
}

static void plain_lock_keeps_the_rules(void **state)
{
    (void)state;
    explore_honest(&(world){"plain", DIBS__PLAIN, {DIBS__PLAIN, 1}, DEPTH, MOST, TINY_HONEST});
}

static void semaphore_keeps_the_rules(void **state)
{
    (void)state;
    explore_honest(&(world){"two slots", 2, {1, 2}, DEPTH, MOST, TINY_HONEST});
}

static void semaphore_of_three_keeps_the_rules(void **state)
{
    (void)state;
    explore_honest(&(world){"three slots", 3, {1, 2}, DEPTH, MOST, TINY_HONEST});
}

/* The rules are seen to notice: each lie of the store must be reported. */
static void broken_machines_are_reported(void **state)
{
    static search s;

    (void)state;
    for (int lie = TINY_HONEST + 1; lie < TINY_LIES; lie++) {
        world w = {"broken", 2, {1, 2}, 7, 60000, (tiny_lie)lie};
        const char *wrong = explore(&w, &s);
        print_message("# lie %d: %s after%s\n", lie, wrong ? wrong : "NOTHING NOTICED", s.how);
        assert_non_null(wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_lock_keeps_the_rules),
        cmocka_unit_test(semaphore_keeps_the_rules),
        cmocka_unit_test(semaphore_of_three_keeps_the_rules),
        cmocka_unit_test(broken_machines_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
