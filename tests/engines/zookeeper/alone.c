/* A lock that one handle uses alone is not listed: what it costs, and who is noticed all the same. */
#define _GNU_SOURCE
#define THREADED
#include "cases.h"
#include "engines/entries/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK   "/tests/alone"
#define PAIRS  100
#define LEARNT 5 /* pairs after which a handle knows that it is alone */

static void pair(dibs *d)
{
    assert_status(unlock(take(d, "alone", NULL)), DIBS_OK);
}

static dibs *open_alone(const ensemble *e, int pairs)
{
    dibs *d = open_url(url_lasting(e->hosts));

    for (int i = 0; i < pairs; i++)
        pair(d);
    return d;
}

static int packets(ensemble *e)
{
    char text[8192] = "";
    const char *at;

    assert_true(ensemble_word(e, 0, "mntr", text, sizeof text - 1) > 0);
    at = strstr(text, "zk_packets_received");
    assert_non_null(at);
    return atoi(at + strlen("zk_packets_received"));
}

/* A create and a delete; now and then a look, and what proves the session. */
void a_lock_used_alone_needs_no_listing(void **state)
{
    ensemble e;
    dibs *d;
    int before;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ZOOKEEPER, 1,
                  NULL); /* which leaves unused nodes alone for a minute */
    d = open_alone(&e, LEARNT);
    before = packets(&e);
    for (int i = 0; i < PAIRS; i++)
        pair(d);
    assert_in_range(packets(&e) - before, 2 * PAIRS, 2 * PAIRS + PAIRS / 4);
    close_all(NULL);
    ensemble_stop(&e);
}

static void make_entry(zhandle_t *zk, char *path, int size)
{
    assert_int_equal(zoo_create(zk, LOCK "/x__lock__", "", 0, &ZOO_OPEN_ACL_UNSAFE,
                                ZOO_EPHEMERAL_SEQUENTIAL, path, size),
                     ZOK);
}

/* An entry that was made in between is ahead: also one of another recipe. */
void who_comes_in_between_is_noticed(void **state)
{
    zhandle_t *zk;
    char path[256];
    dibs *d;

    (void)state;
    zk = connect_here();
    d = open_alone(&the_server, LEARNT);
    make_entry(zk, path, sizeof path);
    assert_status(try_lock(d, "alone"), DIBS_BUSY);
    assert_int_equal(zoo_delete(zk, path, -1), ZOK);
    for (int i = 0; i < LEARNT; i++)
        pair(d);
    make_entry(zk, path, sizeof path);
    assert_int_equal(zoo_delete(zk, path, -1), ZOK);
    assert_status(try_lock(d, "alone"), DIBS_OK);
    zookeeper_close(zk);
}

/* The sequence number that would come next, in a node that was made anew: by as many entries, of which
 * the last one lives. */
void a_node_that_was_made_anew_is_noticed(void **state)
{
    zhandle_t *zk;
    char path[256], old[256], lock_value[64];
    int size = sizeof lock_value, made;
    dibs *d;

    (void)state;
    zk = connect_here();
    d = open_alone(&the_server, LEARNT);
    make_entry(zk, path, sizeof path);
    made = atoi(path + strlen(path) - 10) + 1; /* with this one */
    assert_int_equal(zoo_get(zk, LOCK, 0, lock_value, &size, NULL), ZOK);
    assert_int_equal(zoo_delete(zk, path, -1), ZOK);
    for (int i = 0; i < LEARNT; i++)
        pair(d);
    if (zoo_delete(zk, LOCK, -1) != ZOK) /* or the server has removed it just now */
        assert_int_not_equal(zoo_exists(zk, LOCK, 0, NULL), ZOK);
    assert_int_equal(
        zoo_create(zk, LOCK, lock_value, size, &ZOO_OPEN_ACL_UNSAFE, ZOO_CONTAINER, NULL, 0), ZOK);
    for (int i = 0; i < made + LEARNT; i++) {
        strcpy(old, path);
        make_entry(zk, path, sizeof path);
        if (i > 0) /* one is there at any time: else the server might remove the node */
            assert_int_equal(zoo_delete(zk, old, -1), ZOK);
    }
    assert_status(try_lock(d, "alone"), DIBS_BUSY);
    assert_int_equal(zoo_delete(zk, path, -1), ZOK);
    assert_status(try_lock(d, "alone"), DIBS_OK);
    zookeeper_close(zk);
}
