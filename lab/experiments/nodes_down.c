/* R12: five independent nodes, of which ever more are down: who still gives the lock? dibs, and Redisson's
 * form of it (R12a). And R12c once more, with dibs: a node that restarts empty inside a lease does not vote
 * until the longest lease has passed. */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "lab/servers.h"
#include "sessions.h"

#include <stdio.h>
#include <string.h>

#define NODES   5
#define WAIT_MS 1000

static void url_of(const lab_node *node, int count, const char *options, char out[512])
{
    size_t n = (size_t)snprintf(out, 512, "redlock://");

    for (int i = 0; i < count; i++)
        n += (size_t)snprintf(out + n, 512 - n, "%s127.0.0.1:%d", i ? "," : "", node[i].port);
    snprintf(out + n, 512 - n, "%s", options);
}

static bool start(lab_node *node, int count, char why[256])
{
    for (int i = 0; i < count; i++)
        if (!lab_node_new(&node[i], NULL, why))
            return false;
    return true;
}

static void stop(lab_node *node, int count)
{
    for (int i = 0; i < count; i++)
        lab_node_kill(&node[i]);
}

/* ---- Nodes that are down --------------------------------------------------------------------- */

/* By a handle of its own, as one who comes now. */
static bool take_dibs(const char *url, int64_t *took_us)
{
    const dibs_lock_options o = {.wait_ms = WAIT_MS};
    dibs_grant *g = NULL;
    dibs_error err;
    dibs *d = NULL;
    int64_t begin = lab_now_us();
    bool got =
        dibs_open(url, NULL, &d, &err) == DIBS_OK && dibs_lock(d, "r12", &o, &g, &err) == DIBS_OK;

    *took_us = lab_now_us() - begin;
    dibs_close(d); /* which unlocks it */
    return got;
}

static bool take_in_turn(const lab_site *site, int64_t *took_us)
{
    lab_buyer buyer = {.strategy = lab_find("redlock-in-turn", NULL),
                       .site = site,
                       .resource = "r12a",
                       .pace = {.wait_ms = WAIT_MS}};
    int64_t begin = lab_now_us();
    bool got = buyer.strategy->open_process(&buyer) && buyer.strategy->open(&buyer);

    if (got) {
        got = buyer.strategy->lock(&buyer);
        if (got)
            buyer.strategy->unlock(&buyer);
        buyer.strategy->close(&buyer);
        buyer.strategy->close_process(&buyer);
    }
    *took_us = lab_now_us() - begin;
    return got;
}

static void nodes_down(const lab_site *site, lab_finding *out)
{
    lab_rows *rows =
        lab_rows_new("of five nodes down\tdibs\tafter\tR12a, our model of Redisson's form\tafter");
    lab_site here = *site;
    lab_node node[NODES] = {0};
    char why[256] = "", url[512];
    int serves = -1, in_turn = -1;
    bool up = start(node, NODES, why);

    url_of(node, NODES, "", here.url[LAB_REDIS_NODES]);
    url_of(node, NODES, "?guard=off", url);
    for (int down = 0; up && down <= 3; down++) {
        int64_t dibs_us, turn_us;
        bool ours, theirs;
        if (down > 0)
            lab_node_kill(&node[down - 1]);
        ours = take_dibs(url, &dibs_us);
        theirs = take_in_turn(&here, &turn_us);
        serves = ours ? down : serves;
        in_turn = theirs ? down : in_turn;
        lab_rows_add(rows, "%d\t%s\t%lld ms\t%s\t%lld ms", down, ours ? "serves" : "refuses",
                     (long long)dibs_us / 1000, theirs ? "serves" : "refuses",
                     (long long)turn_us / 1000);
    }
    stop(node, NODES);
    out->table = lab_rows_end(rows);
    if (!up)
        lab_found(out, LAB_NOT_RUN, "%s", why);
    else
        lab_found(out, serves == 2 ? LAB_SURVIVED : LAB_BROKE,
                  "dibs serves with %d of five nodes down and refuses with %d; our model of "
                  "Redisson's form "
                  "with "
                  "%d",
                  serves, serves + 1, in_turn);
}

/* ---- A node that restarts empty -------------------------------------------------------------- */

typedef struct hold {
    dibs *first, *second;
    dibs_grant *grant;
    dibs_error err;
} hold;

/* The lock is on nodes 1 and 2; 2 restarts empty and 3 comes back. Who gets it now? */
static dibs_status second_after_restart(lab_node *node, hold *h)
{
    const dibs_lock_options o = {.wait_ms = WAIT_MS, .lease_ms = 5000};
    dibs_grant *g = NULL;
    char url[512];

    url_of(node, 3, "?guard=off", url);
    if (dibs_open(url, NULL, &h->first, &h->err) != DIBS_OK)
        return DIBS_INVALID;
    dibs_close(h->first); /* vouched for: they are new, and nobody has asked them for anything */
    h->first = NULL;
    url_of(node, 3, "", url);
    lab_node_kill(&node[2]);
    if (dibs_open(url, NULL, &h->first, &h->err) != DIBS_OK ||
        dibs_lock(h->first, "r12c", &o, &h->grant, &h->err) != DIBS_OK)
        return DIBS_INVALID;
    lab_node_kill(&node[1]);
    if (!lab_node_start(&node[1], NULL) || !lab_node_start(&node[2], NULL) ||
        dibs_open(url, NULL, &h->second, &h->err) != DIBS_OK)
        return DIBS_INVALID;
    return dibs_lock(h->second, "r12c", &o, &g, &h->err);
}

static void restart_dibs(const lab_site *site, lab_finding *out)
{
    lab_node node[3] = {0};
    char why[256] = "";
    hold h = {0};
    dibs_status second;

    (void)site;
    if (!start(node, 3, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
    } else {
        second = second_after_restart(node, &h);
        out->at_once = second == DIBS_OK ? 2 : 1;
        lab_found(
            out,
            second == DIBS_OK        ? LAB_BROKE
            : second == DIBS_INVALID ? LAB_NOT_RUN
                                     : LAB_SURVIVED,
            "dibs, and a node restarts empty inside a lease: %s (the second client is told: %s)",
            second == DIBS_OK ? "two holders" : "one holder", h.err.message);
    }
    dibs_close(h.first); /* which unlocks what it holds */
    dibs_close(h.second);
    stop(node, 3);
}

const lab_experiment lab_nodes_down = {
    .id = "R12",
    .name = "nodes-down",
    .title = "five nodes, and more and more of them down",
    .run = nodes_down,
    .promised = true,
};
const lab_experiment lab_restart_dibs = {
    .id = "R12c",
    .name = "node-restarts-dibs",
    .title = "a node restarts inside a lease, with dibs",
    .run = restart_dibs,
    .promised = true,
};
