/* R12b: many want the lock of six nodes at the same moment, and the votes may split 3:3. How often,
 * when the nodes are asked one after another or all at once, and those who failed come back after a
 * fixed or a random pause? */
#include "lab/hazards/actor.h"
#include "quorum.h"
#include "sessions.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NODES   6
#define CLIENTS 4
#define ROUNDS  40

typedef struct race {
    const lab_node *nodes;
    bool at_once, random;
    int number;
    int got, split, lost; /* attempts: won, no majority for anybody seen, beaten */
    pthread_barrier_t *start;
} race;

static void *client(void *data)
{
    race *r = data;
    char id[32];
    lab_quorum q;
    unsigned seed = (unsigned)r->number + 1;

    snprintf(id, sizeof id, "client-%d", r->number);
    lab_quorum_open(&q, r->nodes, NODES, id);
    pthread_barrier_wait(r->start);
    for (int round = 0; round < ROUNDS;) {
        int votes = lab_quorum_ask(&q, "lock:split", 5000, r->at_once);
        if (lab_quorum_has(&q, votes)) {
            r->got++;
            usleep(500);
            round++;
        } else if (votes > 0) {
            r->split++;
        } else {
            r->lost++;
        }
        lab_quorum_release(&q, "lock:split");
        usleep(r->random ? (useconds_t)(rand_r(&seed) % 4000) : 2000);
    }
    lab_quorum_close(&q);
    return NULL;
}

/* Per cent of the tries that split. */
static double run(const lab_node *nodes, bool at_once, bool random, lab_rows *rows)
{
    pthread_barrier_t start;
    pthread_t thread[CLIENTS];
    race r[CLIENTS] = {0};
    int got = 0, split = 0, lost = 0;
    int64_t begin = lab_now_us();

    pthread_barrier_init(&start, NULL, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        r[i] = (race){
            .nodes = nodes, .at_once = at_once, .random = random, .number = i, .start = &start};
        pthread_create(&thread[i], NULL, client, &r[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(thread[i], NULL);
        got += r[i].got;
        split += r[i].split;
        lost += r[i].lost;
    }
    pthread_barrier_destroy(&start);
    lab_rows_add(rows, "%s\t%s\t%.0f %%\t%.2f\t%.0f", at_once ? "all at once" : "one after another",
                 random ? "random" : "fixed", 100.0 * split / (got + split + lost),
                 (double)(got + split + lost) / got, got * 1e6 / (double)(lab_now_us() - begin));
    return 100.0 * split / (got + split + lost);
}

static void split_votes(const lab_site *site, lab_finding *out)
{
    lab_node nodes[NODES] = {0};
    char why[256] = "";
    lab_rows *rows;
    double rate[4];
    int up = 0;

    (void)site;
    while (up < NODES && lab_node_new(&nodes[up], NULL, why))
        up++;
    if (up == NODES) {
        rows =
            lab_rows_new("nodes are asked\tpause\tsplit votes\ttries per grant\tgrants per second");
        for (int i = 0; i < 4; i++)
            rate[i] = run(nodes, i & 1, i & 2, rows);
        out->table = lab_rows_end(rows);
        lab_found(
            out, LAB_SHOWN,
            "%d clients, %d nodes: asked one after another with a fixed pause %.0f %% of the "
            "tries split the votes, with a random one %.0f %%; all at once %.0f %% and %.0f %%",
            CLIENTS, NODES, rate[0], rate[2], rate[1], rate[3]);
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", why);
    }
    for (int i = 0; i < NODES; i++)
        lab_node_kill(&nodes[i]);
}

const lab_experiment lab_split_votes = {
    .id = "R12b",
    .name = "split-votes",
    .title = "six nodes and votes that split",
    .run = split_votes,
};
