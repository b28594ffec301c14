/* Every state of model.h that can be reached, breadth first: the sound scheme keeps the rules in all of them, and each
 * variant that lacks a part of it is caught. */
#include "support/test.h"

#include "model.h"

#include <stdlib.h>
#include <string.h>

#ifndef MOST
#define MOST 4000000 /* states */
#endif

typedef struct search {
    const world *w;
    state *states;
    uint32_t *parent, *slot; /* open addressing: index + 1 */
    uint8_t *by;
    size_t count, slots, most;
    bool full;
    const char *wrong;
    char how[4096];
} search;

static uint64_t hash_of(const state *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

static void add_state(search *f, const state *s, uint32_t parent, int by)
{
    size_t i = hash_of(s) & (f->slots - 1);

    while (f->slot[i]) {
        if (memcmp(&f->states[f->slot[i] - 1], s, sizeof *s) == 0)
            return;
        i = (i + 1) & (f->slots - 1);
    }
    if (f->count == f->most) {
        f->full = true;
        return;
    }
    f->states[f->count] = *s;
    f->parent[f->count] = parent;
    f->by[f->count] = (uint8_t)by;
    f->slot[i] = (uint32_t)++f->count;
}

static void print_path(search *f, uint32_t at, int choice)
{
    uint8_t path[256];
    size_t n = 0, used = 0;

    path[n++] = (uint8_t)choice;
    for (; at != 0 && n < 256; at = f->parent[at])
        path[n++] = f->by[at];
    while (n-- > 0 && used < sizeof f->how - 80)
        used += (size_t)model_describe(path[n], f->how + used, sizeof f->how - used);
}

static void expand(search *f, uint32_t at)
{
    for (int choice = 0; choice < CHOICES && !f->wrong; choice++) {
        state s = f->states[at];
        if (!model_step(f->w, &s, choice, &f->wrong))
            continue;
        if (f->wrong) {
            print_path(f, at, choice);
            return;
        }
        model_forget(f->w, &s);
        add_state(f, &s, at, choice);
    }
}

static void explore(const world *w, size_t most, search *f)
{
    state start;

    memset(f, 0, sizeof *f);
    f->most = most < MOST ? most : MOST;
    f->w = w;
    for (f->slots = 1; f->slots < 2 * (size_t)MOST; f->slots *= 2)
        ;
    f->states = malloc(MOST * sizeof *f->states);
    f->parent = malloc(MOST * sizeof *f->parent);
    f->by = malloc(MOST);
    f->slot = calloc(f->slots, sizeof *f->slot);
    assert_true(f->states && f->parent && f->by && f->slot);
    model_begin(w, &start);
    add_state(f, &start, 0, 0);
    for (size_t i = 0; i < f->count && !f->wrong; i++)
        expand(f, (uint32_t)i);
    free(f->states);
    free(f->parent);
    free(f->by);
    free(f->slot);
}

static void keeps_the_rules(const world *w, size_t most)
{
    search f;

    explore(w, most, &f);
    print_message("# %s: %zu states%s\n", w->label, f.count,
                  f.full ? ", all that there is room for" : ", all that there are");
    if (f.wrong)
        fail_msg("%s after%s", f.wrong, f.how);
}

static void is_caught(const world *w)
{
    search f;

    explore(w, MOST, &f);
    print_message("# %s: %s after%s (%zu states)\n", w->label,
                  f.wrong ? f.wrong : "NOTHING NOTICED", f.how, f.count);
    assert_non_null(f.wrong);
}

/* ---- The worlds ------------------------------------------------------------------------------ */

static void sound(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"a failover", SOUND, false, 1, 0, 0, {0}}, MOST);
    keeps_the_rules(&(world){"two restarts", SOUND, false, 0, 2, 0, {0}}, MOST);
    keeps_the_rules(&(world){"a failover and a restart", SOUND, false, 1, 1, 0, {0}}, 2500000);
    keeps_the_rules(&(world){"two failovers", SOUND, false, 2, 0, 0, {0}}, 2500000);
}

static void sound_with_fences(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"fences, clocks behind", SOUND, true, 1, 0, 3, {20, 15, 10}}, MOST);
}

static void no_guard_is_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no guard", NO_GUARD, false, 1, 0, 0, {0}});
    is_caught(&(world){"no guard, a restart", NO_GUARD, false, 0, 1, 0, {0}});
}

static void no_wait_is_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no acknowledgements", NO_WAIT, false, 1, 0, 0, {0}});
    if (MOST < 1000000)
        return; /* it takes more than there is room for */
    is_caught(&(world){"none on renewals", NO_WAIT_RENEW, false, 1, 0, 0, {0}});
}

static void an_early_quiet_period_is_caught(void **unused)
{
    (void)unused;
    if (MOST < 1000000)
        skip();
    is_caught(&(world){"quiet from the notice on", EARLY_QUIET, false, 1, 0, 0, {0}});
    is_caught(&(world){"quiet from the restart on", EARLY_RESTART, false, 1, 1, 0, {0}});
}

static void no_ceiling_is_caught(void **unused)
{
    (void)unused;
    if (MOST < 1000000)
        skip();
    is_caught(&(world){"no ceiling", NO_CEILING, true, 1, 0, 3, {20, 15, 10}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound),
        cmocka_unit_test(sound_with_fences),
        cmocka_unit_test(no_guard_is_caught),
        cmocka_unit_test(no_wait_is_caught),
        cmocka_unit_test(an_early_quiet_period_is_caught),
        cmocka_unit_test(no_ceiling_is_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
