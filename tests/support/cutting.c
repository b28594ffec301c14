/* Cells over a network that is cut; see the header. */
#include "support/cutting.h"

#include "support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STOCK 100000

typedef struct scene {
    proxy *p;
    dibs *d, *witness;
    proxy_way way;
    int64_t at;
} scene;

static const char *where(const scene *s)
{
    static char text[64];

    snprintf(text, sizeof text, "cut %s at byte %d", s->way == PROXY_UP ? "up" : "down",
             (int)s->at);
    return text;
}

/* Runs `one` with a cut after each so many bytes of what it says when nothing is cut. */
static void cut_all(scene *s, void (*one)(scene *s), int up, int down)
{
    proxy_counts counts;
    int cuts = 0;

    one(s);
    one(s);
    proxy_reset_counts(s->p);
    one(s);
    proxy_read(s->p, &counts);
    for (int way = 0; way < 2; way++) {
        s->way = (proxy_way)way;
        for (s->at = 0; s->at <= counts.bytes[way]; s->at += way == PROXY_UP ? up : down) {
            proxy_cut(s->p, s->way, s->at, s->at % 2 != 0);
            one(s);
            proxy_heal(s->p);
            cuts++;
        }
    }
    printf("# %d bytes up, %d down, %d cuts\n", (int)counts.bytes[0], (int)counts.bytes[1], cuts);
}

/* A take with an id is asked for again until it is answered, and counts once. */
static void take_one(scene *s)
{
    static int number;
    dibs_error err = {0};
    char id[24];
    dibs_counter_options o = {.request = id};
    int64_t before = 0, answered = -1, after = -1;
    dibs_status status;

    snprintf(id, sizeof id, "request-%d", number++);
    assert_int_equal(dibs_counter_get(s->witness, "cut", &before, NULL), DIBS_OK);
    do {
        status = dibs_counter_take(s->d, "cut", 1, &o, &answered, &err);
        if (status == DIBS_UNAVAILABLE) /* surely not done */
            assert_true(dibs_counter_get(s->witness, "cut", &after, NULL) == DIBS_OK &&
                        after == before);
    } while (status == DIBS_UNAVAILABLE);
    if (status != DIBS_OK && status != DIBS_ALREADY)
        fail_msg("%s: %s", where(s), err.message);
    assert_int_equal(dibs_counter_get(s->witness, "cut", &after, NULL), DIBS_OK);
    if (after != before - 1 || answered != after)
        fail_msg("%s: %" PRId64 ", then %" PRId64 ", told %" PRId64, where(s), before, after,
                 answered);
}

void cut_counters(proxy *p, dibs *d, dibs *witness, int up, int down)
{
    scene s = {.p = p, .d = d, .witness = witness};

    assert_int_equal(dibs_counter_set(witness, "cut", STOCK, NULL, NULL), DIBS_OK);
    cut_all(&s, take_one, up, down);
}

static uint64_t version_of(dibs *d)
{
    dibs_value v = {0};
    uint64_t version;

    dibs_cell_read(d, "cut", &v, NULL);
    version = v.version;
    dibs_value_free(&v);
    return version;
}

/* Nobody else writes, so that the stamp settles every doubt: the swap is done, with what it says. */
static void swap_one(scene *s)
{
    static int number;
    dibs_error err = {0};
    dibs_value old = {0}, new = {0}, seen = {0};
    dibs_status status = dibs_cell_read(s->witness, "cut", &old, NULL);
    char text[24];

    assert_true(status == DIBS_OK || status == DIBS_NOT_FOUND);
    snprintf(text, sizeof text, "value %d", number++);
    while ((status = dibs_cell_swap(s->d, "cut", old.version, text, strlen(text), NULL, &new,
                                    &err)) == DIBS_UNAVAILABLE)
        assert_true(version_of(s->witness) == old.version); /* surely not done */
    if (status != DIBS_OK)
        fail_msg("%s: %s", where(s), err.message);
    assert_int_equal(dibs_cell_read(s->witness, "cut", &seen, NULL), DIBS_OK);
    assert_string_equal(seen.data, text);
    assert_true(seen.version == new.version &&new.version > old.version);
    dibs_value_free(&old);
    dibs_value_free(&new);
    dibs_value_free(&seen);
}

void cut_cells(proxy *p, dibs *d, dibs *witness, int up, int down)
{
    scene s = {.p = p, .d = d, .witness = witness};

    cut_all(&s, swap_one, up, down);
}
