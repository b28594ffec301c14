/* Random commands on the cell's machine, and rules that must hold after every one of them. The same
 * rules are run on a store that lies, and must notice. */
#include "support/cell_rules.h"
#include "support/env.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

#define SEC      ((int64_t)1000000)
#define COMMANDS 2000
#define RUNS     200

/* ---- Runs ------------------------------------------------------------------------------------ */

static void move_clock(cell_watch *w)
{
    int64_t by = (int64_t)(sim_random(&w->author.seed) % 4);

    w->now.lease += by;
    w->now.wall += by;
}

/* The rule that was broken, or NULL. */
static const char *play(uint64_t seed, cell_lie lies, cell_order *order)
{
    cell_watch w = {.lies = lies, .now = {.lease = 1000 * SEC, .wall = 1700000000 * SEC}};

    w.author = (cell_author){.seed = seed, .counts = seed % 2, .moment = 3};
    for (int i = 0; i < COMMANDS; i++) {
        const char *broken = cell_watch_step(&w, order);
        if (broken)
            return broken;
        move_clock(&w);
    }
    return NULL;
}

static void the_rules_hold(void **state)
{
    cell_order order;
    char text[256];

    (void)state;
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        const char *broken = play(seed, CELL_HONEST, &order);
        if (broken) {
            cell_describe(&order.command, text, sizeof text);
            fail_msg("seed %llu: %s after %s", (unsigned long long)seed, broken, text);
        }
    }
}

static void lies_are_noticed(void **state)
{
    cell_order order;

    (void)state;
    for (int lies = CELL_HONEST + 1; lies < CELL_LIES; lies++) {
        const char *broken = NULL;
        for (uint64_t seed = 1; !broken && seed <= RUNS; seed++)
            broken = play(seed, (cell_lie)lies, &order);
        if (broken)
            printf("# lie %d: %s\n", lies, broken);
        else
            fail_msg("lie %d was not noticed", lies);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rules_hold),
        cmocka_unit_test(lies_are_noticed),
    };

    return cmocka_run_group_tests_name("cell_model", tests, NULL, NULL);
}
