/* The ZooKeeper engine: places that are made, accounts, nodes that vanish when nobody uses them or that somebody
 * deletes, and a follower that is cut off from its leader. What hits etcd as well is in test_entries_faults.c. */
#define _GNU_SOURCE
#define THREADED
#include "cases.h"
#include "engines/entries/kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zookeeper/zookeeper.h>

/* Unused nodes are looked for every 300 ms; by default ZooKeeper does that once a minute. */
static const char *const quick_cleaning[] = {"-Dznode.container.checkIntervalMs=300", NULL};

/* ---- A person with ZooKeeper's own client ---------------------------------------------------- */

static void ignore(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    (void)zk, (void)type, (void)state, (void)path, (void)context;
}

static bool is_connected(void *zk)
{
    return zoo_state(zk) == ZOO_CONNECTED_STATE;
}

zhandle_t *connect_here(void)
{
    zhandle_t *zk;

    need_server();
    zoo_set_debug_level((ZooLogLevel)0);
    zk = zookeeper_init(the_server.hosts, ignore, 10000, NULL, NULL, 0);
    assert_non_null(zk);
    assert_true(wait_until(is_connected, zk, LONG_MS));
    return zk;
}

static bool exists(zhandle_t *zk, const char *path)
{
    return zoo_exists(zk, path, 0, NULL) == ZOK;
}

/* The number that the server put behind a node's name. */
static int number_of(const char *name)
{
    size_t length = strlen(name);

    return length > 10 ? atoi(name + length - 10) : 0;
}

/* The first in the queue, or the last. */
static void delete_child(zhandle_t *zk, const char *path, bool first)
{
    struct String_vector names = {0};
    char child[512];
    int best = 0;

    assert_int_equal(zoo_get_children(zk, path, 0, &names), ZOK);
    assert_true(names.count > 0);
    for (int i = 1; i < names.count; i++)
        if ((number_of(names.data[i]) < number_of(names.data[best])) == first)
            best = i;
    snprintf(child, sizeof child, "%s/%s", path, names.data[best]);
    deallocate_String_vector(&names);
    assert_int_equal(zoo_delete(zk, child, -1), ZOK);
}

/* ---- Places ---------------------------------------------------------------------------------- */

static const char *url_in(const char *place)
{
    static char url[256];

    need_server();
    snprintf(url, sizeof url, "zookeeper://%s%s?session=%dms", the_server.hosts, place, SESSION_MS);
    return url;
}

static void places_are_made(void **state)
{
    static const char *const places[] = {"", "/", "/one", "/a/deep/er/place"};
    zhandle_t *zk = connect_here();

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        dibs *d = open_url(url_in(places[i])), *other = open_url(url_in(places[i]));
        dibs_grant *g = take(d, "placed", NULL);
        assert_status(try_lock(other, "placed"), DIBS_BUSY);
        assert_status(unlock(g), DIBS_OK);
        close_handle(d);
        close_handle(other);
    }
    assert_true(exists(zk, "/a/deep/er/place"));
    zookeeper_close(zk);
}

/* One lock each, and none of them climbs out of its place. */
static void odd_names_stay_in_their_place(void **state)
{
    static const char *const odd[] = {".", "..", "a/b", "/", "zookeeper", "%2F", "a%2Fb", "\x7f"};
    enum { N = sizeof odd / sizeof odd[0] };
    dibs *d = open_url(url_in("/odd")), *other = open_url(url_in("/odd"));
    dibs_grant *g[N];

    (void)state;
    for (size_t i = 0; i < N; i++)
        g[i] = take(d, odd[i], &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT});
    for (size_t i = 0; i < N; i++) {
        dibs_lock_report *r = NULL;
        assert_status(try_lock(other, odd[i]), DIBS_BUSY);
        assert_status(dibs_lock_list(other, odd[i], NULL, &r, NULL), DIBS_OK);
        assert_true(dibs_lock_report_count(r) >= 1);
        assert_string_equal(dibs_lock_report_at(r, 0)->name, odd[i]);
        dibs_lock_report_free(r);
        assert_status(unlock(g[i]), DIBS_OK);
    }
}

static void tls_is_refused_with_the_reason(void **state)
{
    char url[256];

    (void)state;
    need_server();
    snprintf(url, sizeof url, "zookeepers://%s/x", the_server.hosts);
    refused(url, DIBS_UNSUPPORTED, (const char *const[]){"TLS", NULL});
}

/* ---- Accounts -------------------------------------------------------------------------------- */

/* A place for its creator alone. */
static void make_private(const char *path, const char *account)
{
    zhandle_t *zk = connect_here();

    assert_int_equal(zoo_add_auth(zk, "digest", account, (int)strlen(account), NULL, NULL), ZOK);
    assert_int_equal(zoo_create(zk, path, "", 0, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0), ZOK);
    zookeeper_close(zk);
}

static void denied(const char *who)
{
    char url[256];
    dibs_error err = {0};
    dibs_grant *g = NULL;
    dibs *d = NULL;
    dibs_status status;

    snprintf(url, sizeof url, "zookeeper://%s%s/private?session=3s", who, the_server.hosts);
    status = dibs_open(url, NULL, &d, &err);
    if (status == DIBS_OK)
        status = dibs_lock(d, "mine", &(dibs_lock_options){.wait_ms = 3000}, &g, &err);
    dibs_close(d);
    if (status != DIBS_DENIED)
        fail_msg("%s: %s: %s", url, dibs_status_name(status), err.message);
    assert_true(strlen(err.message) > 20);
    assert_null(strstr(err.message, "wrong")); /* no password in a message */
}

static void accounts_are_checked(void **state)
{
    char url[256];
    dibs *d;
    dibs_grant *g;

    (void)state;
    make_private("/private", "app:secret");
    snprintf(url, sizeof url, "zookeeper://app:secret@%s/private?session=3s", the_server.hosts);
    d = open_url(url);
    g = take(d, "mine", NULL);
    denied("");
    denied("app:wrong@");
    denied("other:secret@");
    assert_status(unlock(g), DIBS_OK);
}

/* ---- Nodes that go --------------------------------------------------------------------------- */

static bool is_gone(void *zk)
{
    return !exists(zk, "/tests/unused");
}

static void unused_nodes_vanish(void **state)
{
    zhandle_t *zk = connect_here();
    dibs *d = open_here();
    dibs_grant *g = take(d, "unused", NULL);
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    assert_true(exists(zk, "/tests/unused"));
    assert_status(unlock(g), DIBS_OK);
    assert_true(wait_until(is_gone, zk, LONG_MS));
    g = take(d, "unused", NULL);
    assert_true(dibs_grant_fence(g) > fence);
    assert_status(unlock(g), DIBS_OK);
    zookeeper_close(zk);
}

typedef struct churn {
    pthread_t thread;
    dibs *d;
    long rounds, bad;
} churn;

static void *take_and_pause(void *arg)
{
    churn *c = arg;

    while (c->rounds < 120) {
        dibs_grant *g = NULL;
        if (dibs_lock(c->d, "churn", &(dibs_lock_options){.wait_ms = LONG_MS}, &g, NULL) !=
                DIBS_OK ||
            unlock(g) != DIBS_OK)
            c->bad++;
        c->rounds++;
        sleep_ms(c->rounds % 40); /* now and then long enough for the node to be unused */
    }
    return NULL;
}

/* While the server takes unused nodes away, nobody who comes in that moment is turned away. */
static void cleaning_races_with_nobody(void **state)
{
    churn c[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        c[i] = (churn){.d = open_here()};
        assert_int_equal(pthread_create(&c[i].thread, NULL, take_and_pause, &c[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].bad, 0);
    }
}

static void a_deleted_node_is_a_loss(void **state)
{
    zhandle_t *zk = connect_here();
    dibs *a = open_here(), *b = open_here();
    loss_note note = {0};
    dibs_grant *g = take(a, "deleted", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    job *j = job_start(b, "deleted", NULL);
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    wait_for_queue(a, "deleted", 1, 1);
    delete_child(zk, "/tests/deleted", false);
    wait_for_queue(a, "deleted", 1, 1); /* it stands in the queue again */
    assert_false(atomic_load(&j->done));
    delete_child(zk, "/tests/deleted", true);
    assert_true(loss_within(&note, SESSION_MS + SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_GONE);
    assert_status(unlock(g), DIBS_LOST);
    job_join_held(j);
    assert_true(j->fence > fence);
    assert_status(unlock(j->g), DIBS_OK);
    zookeeper_close(zk);
}

/* Its node is gone, nothing tells it, and then it is first: no grant on what is not there. */
static void a_waiter_whose_node_was_deleted_is_not_granted(void **state)
{
    zhandle_t *zk = connect_here();
    dibs *a = open_url(url_lasting(the_server.hosts)), *b = open_url(url_lasting(the_server.hosts)),
         *c = open_url(url_lasting(the_server.hosts));
    dibs_grant *g = take(a, "deleted-waiter", NULL);
    job *lost = job_start(b, "deleted-waiter", NULL), *later;

    (void)state;
    wait_for_queue(a, "deleted-waiter", 1, 1);
    delete_child(zk, "/tests/deleted-waiter", false);
    later = job_start(c, "deleted-waiter", NULL);
    wait_for_queue(a, "deleted-waiter", 1, 1);
    assert_status(unlock(g), DIBS_OK);
    job_join_held(later);
    if (job_done_within(lost, 500))
        fail_msg("two holders: fences %llu and %llu", (unsigned long long)lost->fence,
                 (unsigned long long)later->fence);
    wait_for_queue(a, "deleted-waiter", 1, 1); /* it has entered again */
    assert_status(unlock(later->g), DIBS_OK);
    job_join_held(lost);
    assert_true(lost->fence > later->fence);
    assert_status(unlock(lost->g), DIBS_OK);
    zookeeper_close(zk);
}

/* ---- A follower on its own ------------------------------------------------------------------- */

/* Restarts node `f` so that it reaches the others by proxies; elections stay as they are. */
static void detour(ensemble *e, int f, proxy *by[ENSEMBLE_MAX])
{
    char path[SCRATCH_MAX + 32], copy[SCRATCH_MAX + 64], line[512];
    FILE *in, *out;
    int k, peer, vote;

    ensemble_end(e, f, SIGKILL);
    snprintf(path, sizeof path, "%s/%d/zoo.cfg", e->folder.path, f + 1);
    snprintf(copy, sizeof copy, "%s.new", path);
    in = fopen(path, "r");
    out = fopen(copy, "w");
    assert_true(in && out);
    while (fgets(line, sizeof line, in)) {
        if (sscanf(line, "server.%d=127.0.0.1:%d:%d", &k, &peer, &vote) == 3 && k != f + 1) {
            by[k - 1] = proxy_to(peer);
            fprintf(out, "server.%d=127.0.0.1:%d:%d\n", k, proxy_port(by[k - 1]), vote);
        } else {
            fputs(line, out);
        }
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(rename(copy, path), 0);
    assert_int_equal(ensemble_restart(e, f), 0);
}

/* It answers pings and reads for ten seconds more, but the leader has ended the session long before: the holder
 * must not believe the follower. */
static void a_follower_that_is_cut_off_is_not_believed(void **state)
{
    ensemble e;
    proxy *by[ENSEMBLE_MAX] = {0};
    dibs *a, *b;
    loss_note note = {0};
    dibs_grant *g;
    job *j;
    int leader, f;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ZOOKEEPER, 3, NULL);
    leader = ensemble_leader(&e);
    assert_true(leader >= 0);
    f = (leader + 1) % 3;
    detour(&e, f, by);
    assert_int_equal(ensemble_leader(&e), leader);
    a = open_url(url_at(e.node[f].port, ""));
    b = open_url(url_at(e.node[leader].port, ""));
    g = take(a, "follower", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    j = job_start_against(b, "follower", NULL, g);
    wait_for_queue(b, "follower", 1, 1);
    assert_non_null(by[leader]);
    proxy_freeze(by[leader], PROXY_UP);
    proxy_freeze(by[leader], PROXY_DOWN);
    job_join_held(j);
    assert_false(j->rival_held);
    assert_true(loss_within(&note, 0));
    assert_true(j->fence > dibs_grant_fence(g));
    assert_status(unlock(j->g), DIBS_OK);
    close_all(NULL);
    ensemble_stop(&e);
}

/* ---- A call that was given up ---------------------------------------------------------------- */

/* Its caller asks again while the answers to the first request are on their way. What the first call would do
 * after them (the lock's node is not there yet, so that it would make it and enter once more) must not
 * be done: nobody would ever remove such an entry. */
static void a_call_that_was_given_up_enters_no_more(void **state)
{
    proxy *p = proxy_here();
    dibs *a = NULL, *b = open_here();
    char name[32];

    (void)state;
    assert_status(dibs_open(url_lasting(hosts_of(p)), &(dibs_options){.request_ms = 100}, &a, NULL),
                  DIBS_OK);
    for (int i = 0; i < 8; i++) {
        job *j;
        snprintf(name, sizeof name, "given-up-%d", i);
        proxy_freeze(p, PROXY_UP);
        j = job_start(a, name, NULL);
        sleep_ms(250); /* it asks more than once */
        proxy_heal(p);
        job_join_held(j);
        unlock(j->g);
        wait_for_queue(b, name, 0, 0);
    }
    dibs_close(a);
}

/* ---- Places in the queue of a counter --------------------------------------------------------- */

typedef struct adder {
    pthread_t thread;
    dibs *d;
    atomic_bool *over;
} adder;

static void *add_run(void *arg)
{
    adder *a = arg;

    while (!*a->over)
        dibs_counter_add(a->d, "wanted by many", 1, NULL, NULL, NULL);
    return NULL;
}

static bool no_places(void *zk)
{
    struct String_vector queues = {0};
    struct Stat stat;
    char path[512];
    int places = 0;

    if (zoo_get_children(zk, "/tests/%q", 0, &queues) != ZOK)
        return false;
    for (int i = 0; i < queues.count; i++) {
        snprintf(path, sizeof path, "/tests/%%q/%s", queues.data[i]);
        if (zoo_exists(zk, path, 0, &stat) == ZOK)
            places += stat.numChildren;
    }
    deallocate_String_vector(&queues);
    return places == 0;
}

/* A connection that is cut takes answers with it: of places that were just made, or given up. The session
 * lives on, and so would they. */
static void no_place_in_a_queue_is_left_behind(void **state)
{
    zhandle_t *zk = connect_here();
    proxy *p = proxy_here();
    dibs *d = open_url(url_lasting(hosts_of(p)));
    atomic_bool over = false;
    adder a[16];

    (void)state;
    for (int i = 0; i < 16; i++) {
        a[i] = (adder){.d = d, .over = &over};
        assert_int_equal(pthread_create(&a[i].thread, NULL, add_run, &a[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        sleep_ms(100); /* most likely some are in the queue by then: else this shows less */
        proxy_reset_all(p);
        assert_true(wait_until(has_connections, p, LONG_MS));
    }
    over = true;
    for (int i = 0; i < 16; i++)
        pthread_join(a[i].thread, NULL);
    assert_true(wait_until(no_places, zk, LONG_MS));
    assert_status(dibs_counter_add(d, "wanted by many", 1, NULL, NULL, NULL), DIBS_OK);
    zookeeper_close(zk);
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, close_all)
    CASE(places_are_made),
    CASE(odd_names_stay_in_their_place),
    CASE(tls_is_refused_with_the_reason),
    CASE(accounts_are_checked),
    CASE(unused_nodes_vanish),
    CASE(cleaning_races_with_nobody),
    CASE(a_deleted_node_is_a_loss),
    CASE(a_waiter_whose_node_was_deleted_is_not_granted),
    CASE(a_follower_that_is_cut_off_is_not_believed),
    CASE(a_call_that_was_given_up_enters_no_more),
    CASE(no_place_in_a_queue_is_left_behind),
    CASE(order_outlives_sequence_numbers),
    CASE(what_lingers_stays_in_its_place),
    CASE(many_watches_survive_a_reconnect),
    CASE(a_lock_used_alone_needs_no_listing),
    CASE(who_comes_in_between_is_noticed),
    CASE(a_node_that_was_made_anew_is_noticed),
};

int main(int argc, char *argv[])
{
    int failed;

    describe_server(ENSEMBLE_ZOOKEEPER, quick_cleaning);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    failed = cmocka_run_group_tests_name("zookeeper", tests, NULL, NULL);
    ensemble_stop(&the_server);
    return failed ? 1 : 0;
}
