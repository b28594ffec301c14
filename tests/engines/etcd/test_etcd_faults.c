/* What goes wrong between a handle and an etcd cluster: leases that end although they are renewed,
 * requests that arrive late, a cluster that is slow, says goodbye, or was restored from a backup.
 *
 * usage: test_etcd_faults [long] [PATTERN] */
#define _GNU_SOURCE
#include "engines/entries/kit.h"
#include "etcdctl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t connections_of(proxy *p)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.connections;
}

/* ---- Leases that the server revokes ---------------------------------------------------------- */

/* Sessions last so long here that nobody learns it from a keep-alive. */
static dibs *open_lasting(void)
{
    char url[256];

    need_server();
    snprintf(url, sizeof url, "etcd://%s/tests?session=60s", the_server.hosts);
    return open_url(url);
}

static void a_holder_learns_of_its_revoked_lease(void **state)
{
    dibs *a = open_lasting();
    loss_note note = {0};
    dibs_grant *g = take(a, "told", &(dibs_lock_options){.on_lost = note_loss, .data = &note});

    (void)state;
    for (int i = 0; i < 2; i++) { /* the second time under a session that was made meanwhile */
        int64_t start = clock_ms();
        revoke_lease_of(&the_server, "told", 0);
        if (!loss_within(&note, SOON_MS))
            fail_msg("not told within %d ms", SOON_MS);
        print_message("# told after %d ms, etcdctl's own time included\n", (int)(note.at - start));
        assert_false(dibs_grant_held(g));
        assert_status(unlock(g), DIBS_LOST);
        memset(&note, 0, sizeof note);
        g = take(a, "told", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    }
    assert_status(unlock(g), DIBS_OK);
}

/* `end` makes the waiter's entry vanish while somebody waits behind it. */
static void waiter_loses_its_entry(const char *name, void (*end)(const char *name))
{
    dibs *a = open_lasting(), *b = open_lasting(), *c = open_lasting();
    dibs_grant *g = take(a, name, NULL);
    job *lost = job_start(b, name, NULL), *later;

    wait_for_queue(a, name, 1, 1);
    later = job_start(c, name, NULL);
    wait_for_queue(a, name, 1, 2);
    end(name);
    assert_status(unlock(g), DIBS_OK);
    job_join_held(later);
    if (job_done_within(lost, 500))
        fail_msg("two holders: fences %llu and %llu", (unsigned long long)lost->fence,
                 (unsigned long long)later->fence);
    wait_for_queue(a, name, 1, 1); /* it has entered again */
    assert_false(atomic_load(&lost->done));
    assert_true(dibs_grant_held(later->g));
    assert_status(unlock(later->g), DIBS_OK);
    job_join_held(lost);
    assert_true(lost->fence > later->fence);
    assert_status(unlock(lost->g), DIBS_OK);
}

static void revoke_second(const char *name)
{
    revoke_lease_of(&the_server, name, 1);
}

static void a_revoked_waiter_is_not_granted(void **state)
{
    (void)state;
    waiter_loses_its_entry("revoked-waiter", revoke_second);
}

/* The key alone: the session goes on, and no watch of the handle tells. */
static void delete_second(const char *name)
{
    char line[128], keys[4096], *first, *second;

    snprintf(line, sizeof line,
             "get --prefix tests/%s/ --keys-only --sort-by=CREATE --order=ASCEND", name);
    assert_int_equal(etcdctl(&the_server, keys, sizeof keys, line), 0);
    first = strtok(keys, "\n");
    second = first ? strtok(NULL, "\n") : NULL;
    assert_non_null(second);
    snprintf(line, sizeof line, "del %s", second);
    must(&the_server, line);
}

static void a_deleted_waiter_is_not_granted(void **state)
{
    (void)state;
    waiter_loses_its_entry("deleted-waiter", delete_second);
}

/* ---- A leader that slept ---------------------------------------------------------------------- */

#define LOCKS      4
#define RIVALS     (3 * LOCKS)
#define NEWCOMERS  LOCKS /* of them: the leader that slept does not know their sessions */
#define SLEPT_MS   4000
#define ELECTED_MS 3500
#define PAUSED_MS  (SLEPT_MS + 1500)
#define AFTER_MS   3000
#define HOLD_MS    3000

typedef struct rival {
    pthread_t thread;
    dibs *d;
    atomic_bool *stop;
    pthread_mutex_t *mutex; /* guards the two of all */
    const char *name;
    const dibs_grant *g; /* what it has, and has not given back */
    uint64_t *last;      /* fence of the last grant of this lock, over all */
    int grants, backwards;
} rival;

static void note_grant(rival *r, const dibs_grant *g, uint64_t before)
{
    pthread_mutex_lock(r->mutex);
    r->g = g;
    r->grants++;
    r->backwards += dibs_grant_fence(g) <= before;
    if (dibs_grant_fence(g) > *r->last)
        *r->last = dibs_grant_fence(g);
    pthread_mutex_unlock(r->mutex);
}

static void forget_grant(rival *r)
{
    pthread_mutex_lock(r->mutex);
    r->g = NULL;
    pthread_mutex_unlock(r->mutex);
}

static uint64_t last_fence(rival *r)
{
    pthread_mutex_lock(r->mutex);
    uint64_t last = *r->last;
    pthread_mutex_unlock(r->mutex);
    return last;
}

/* Takes the lock, holds it as long as it believes in it, or for some seconds, and gives it back, again and again. A
 * fence that is not higher than one that was given before it began to ask is out of order. */
static void *rival_run(void *arg)
{
    rival *r = arg;

    while (!atomic_load(r->stop)) {
        dibs_grant *g = NULL;
        uint64_t before = last_fence(r);
        if (dibs_lock(r->d, r->name, &(dibs_lock_options){.wait_ms = 8000}, &g, NULL) != DIBS_OK)
            continue;
        note_grant(r, g, before);
        for (int64_t end = clock_ms() + HOLD_MS;
             dibs_grant_held(g) && clock_ms() < end && !atomic_load(r->stop);)
            sleep_ms(5);
        forget_grant(r);
        unlock(g);
    }
    return NULL;
}

static void count_ends(void *data, dibs_log_level level, const char *message)
{
    (void)level;
    if (strstr(message, "the session has expired"))
        atomic_fetch_add((atomic_int *)data, 1);
}

/* Does more than one believe that it holds this lock? */
static bool is_held_twice(const rival r[], const char *name)
{
    int held = 0;

    pthread_mutex_lock(r->mutex);
    for (int i = 0; i < RIVALS; i++)
        held += r[i].name == name && r[i].g && dibs_grant_held(r[i].g);
    pthread_mutex_unlock(r->mutex);
    return held > 1;
}

static const char *const slept[LOCKS] = {"slept-1", "slept-2", "slept-3", "slept-4"};

/* For how long at most one of the locks was held twice. */
static int64_t longest_overlap(const rival r[])
{
    int64_t since[LOCKS] = {0}, longest = 0;

    for (int64_t end = clock_ms() + AFTER_MS; clock_ms() < end; sleep_ms(1))
        for (int k = 0; k < LOCKS; k++) {
            int64_t now = clock_ms();
            since[k] = is_held_twice(r, slept[k]) ? (since[k] ? since[k] : now) : 0;
            if (since[k] && now - since[k] > longest)
                longest = now - since[k];
        }
    return longest;
}

/* `all`: what they have in common. */
static void start_rivals(rival r[], int from, int to, const rival *all, const char *url,
                         const dibs_options *o)
{
    for (int i = from; i < to; i++) {
        r[i] = *all;
        r[i].name = slept[i % LOCKS];
        r[i].last += i % LOCKS;
        r[i].d = open_at(url, o);
        assert_int_equal(pthread_create(&r[i].thread, NULL, rival_run, &r[i]), 0);
    }
}

static void end_rivals(rival r[], int64_t longest)
{
    int grants = 0, backwards = 0;

    atomic_store(r->stop, true);
    for (int i = 0; i < RIVALS; i++) {
        pthread_join(r[i].thread, NULL);
        grants += r[i].grants;
        backwards += r[i].backwards;
        close_handle(r[i].d);
    }
    print_message("# %d grants, longest overlap %d ms, %d fences out of order\n", grants,
                  (int)longest, backwards);
    assert_int_equal(backwards, 0);
    assert_in_range(longest, 0, 500);
}

/* How many sessions the leader ended when it woke. */
static int let_the_leader_sleep(void)
{
    ensemble e;
    rival r[RIVALS];
    atomic_bool stop = false;
    atomic_int ended = 0;
    uint64_t last[LOCKS] = {0};
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    rival all = {.stop = &stop, .last = last, .mutex = &mutex};
    dibs_options o = {.log = count_ends, .log_data = &ended};
    int64_t longest;
    int leader;
    char url[256];

    ensemble_need(&e, ENSEMBLE_ETCD, 3, NULL);
    snprintf(url, sizeof url, "etcd://%s/tests?session=%dms", e.hosts, SLEPT_MS);
    start_rivals(r, 0, RIVALS - NEWCOMERS, &all, url, &o);
    leader = ensemble_leader(&e);
    assert_true(leader >= 0);
    ensemble_pause(&e, leader);
    sleep_ms(ELECTED_MS);
    start_rivals(r, RIVALS - NEWCOMERS, RIVALS, &all, url, &o);
    sleep_ms(PAUSED_MS - ELECTED_MS);
    atomic_store(&ended, 0);
    ensemble_continue(&e, leader);
    longest = longest_overlap(r);
    print_message("# %d sessions ended\n", atomic_load(&ended));
    end_rivals(r, longest);
    ensemble_stop(&e);
    return atomic_load(&ended);
}

/* The server revokes sessions that are alive. The next in the queue may be a moment faster than the news of
 * it, but nobody goes on holding, and nobody is granted an entry that is gone. The leader does not always get to it
 * before it learns that it is none. */
static void a_leader_that_slept_costs_no_exclusion(void **state)
{
    (void)state;
    need_server();
    for (int i = 0; i < 3 && let_the_leader_sleep() == 0; i++)
        continue;
}

/* ---- A backup ---------------------------------------------------------------------------------- */

static void restore(ensemble *e, const char *backup)
{
    char old[SCRATCH_MAX + 64], line[1024], command[2048];
    const char *name = NULL, *cluster = NULL, *peer = NULL;

    for (char **a = e->node[0].args; *a; a++) {
        if (strncmp(*a, "--name=", 7) == 0)
            name = *a;
        if (strncmp(*a, "--initial-cluster=", 18) == 0)
            cluster = *a;
        if (strncmp(*a, "--initial-advertise-peer-urls=", 30) == 0)
            peer = *a;
        if (strncmp(*a, "--data-dir=", 11) == 0)
            snprintf(old, sizeof old, "%s", *a + 11);
    }
    assert_true(name && cluster && peer);
    snprintf(line, sizeof line, "etcdctl snapshot restore %s --data-dir=%s %s %s %s", backup, old,
             name, cluster, peer);
    snprintf(command, sizeof command, "rm -rf %s; ETCDCTL_API=3 %s >/dev/null 2>&1", old, line);
    assert_int_equal(run_program(NULL, 0, (const char *const[]){"sh", "-c", command, NULL}), 0);
}

/* The backup has the sessions in it. A watch that was set up after it would wait for a revision that is
 * far off, and whoever was first in the queue would not learn it. */
static void a_restored_cluster_wakes_its_waiters(void **state)
{
    ensemble e;
    char backup[SCRATCH_MAX + 32], line[SCRATCH_MAX + 64];
    dibs *a, *b, *c;
    dibs_grant *g;
    job *first, *second;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 1, NULL);
    a = open_url(url_lasting(e.hosts));
    b = open_url(url_lasting(e.hosts));
    c = open_url(url_lasting(e.hosts));
    g = take(a, "restored", NULL);
    first = job_start(b, "restored", &(dibs_lock_options){.wait_ms = 2500});
    wait_for_queue(a, "restored", 1, 1);
    second = job_start(c, "restored", NULL);
    wait_for_queue(a, "restored", 1, 2);
    snprintf(backup, sizeof backup, "%s/backup", e.folder.path);
    snprintf(line, sizeof line, "snapshot save %s", backup);
    must(&e, line);
    for (int i = 0; i < 20; i++)
        must(&e, "put elsewhere x");
    job_join(first); /* it gives up: the other watches the holder from now on */
    wait_for_queue(a, "restored", 1, 1);
    ensemble_end(&e, 0, SIGKILL);
    restore(&e, backup);
    assert_int_equal(ensemble_restart(&e, 0), 0);
    unlock(g);
    if (!job_done_within(second, 10000))
        fail_msg("first in the queue, and not woken");
    job_join_held(second);
    assert_status(unlock(second->g), DIBS_OK);
    close_handle(a);
    close_handle(b);
    close_handle(c);
    ensemble_stop(&e);
}

/* ---- Requests that arrive late ---------------------------------------------------------------- */

/* `far` goes through the proxy, `near` does not. */
typedef struct late {
    proxy *p;
    dibs *far, *near;
} late;

static void open_both(late *l)
{
    l->p = proxy_here();
    l->far = open_at(url_lasting(hosts_of(l->p)), &(dibs_options){.request_ms = 1000});
    l->near = open_url(url_lasting(the_server.hosts));
}

/* What `far` has to say to read a cell: what comes after so many bytes is its write. */
static int64_t bytes_up(proxy *p)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.bytes[PROXY_UP];
}

static bool is_answered_late(void *p)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.kept == 0 && counts.late > 0;
}

/* The connection with the request is given up, `far` goes on with another, and then the server gets it. */
static void deliver_late(late *l)
{
    proxy_counts counts;
    int64_t value;

    proxy_read(l->p, &counts);
    assert_true(counts.kept > 0);
    proxy_desert(l->p);
    dibs_counter_get(l->far, "anything", &value, NULL); /* newer than what is late */
    assert_int_equal(connections_of(l->p), 2);
    proxy_deliver(l->p);
    assert_true(wait_until(is_answered_late, l->p, LONG_MS));
}

static void a_late_enter_makes_no_entry(void **state)
{
    dibs_grant *g = NULL;
    size_t holders, waiters;
    late l;

    (void)state;
    open_both(&l);
    unlock(take(l.far, "late", NULL));
    proxy_strand(l.p, 0);
    assert_int_not_equal(dibs_lock(l.far, "late", &(dibs_lock_options){.wait_ms = 500}, &g, NULL),
                         DIBS_OK);
    deliver_late(&l);
    count_queue(l.near, "late", &holders, &waiters);
    if (holders + waiters > 0)
        fail_msg("the late request has made an entry");
    assert_status(unlock(take(l.near, "late", NULL)), DIBS_OK);
    assert_status(unlock(take(l.far, "late", NULL)), DIBS_OK);
}

/* Strands the write of a command, and not its look before: `look` only looks. The answers to what the
 * server asks of its own (pings, to measure the line) take a few bytes, too. */
static void strand_write(late *l, void (*look)(late *l))
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < 4; i++) { /* the first time, headers are longer */
        int64_t before = bytes_up(l->p), bytes;
        look(l);
        bytes = bytes_up(l->p) - before;
        least = bytes < least ? bytes : least;
    }
    proxy_strand(l->p, least + 50);
}

static void look_at_cell(late *l)
{
    assert_int_not_equal(dibs_cell_swap(l->far, "late-b", 12345, "x", 1, NULL, NULL, NULL),
                         DIBS_OK);
}

static void a_late_cell_put_writes_nothing(void **state)
{
    dibs_value now = {0};
    dibs_status status;
    late l;

    (void)state;
    open_both(&l);
    assert_status(dibs_cell_swap(l.far, "late-a", 0, "warm", 4, NULL, NULL, NULL), DIBS_OK);
    strand_write(&l, look_at_cell);
    assert_status(dibs_cell_swap(l.far, "late-b", 0, "late", 4, NULL, NULL, NULL), DIBS_UNKNOWN);
    deliver_late(&l);
    status = dibs_cell_read(l.near, "late-b", &now, NULL);
    if (status != DIBS_NOT_FOUND)
        fail_msg("the late request has written: %s", dibs_status_name(status));
    assert_status(dibs_cell_swap(l.far, "late-b", 0, "new", 3, NULL, NULL, NULL), DIBS_OK);
}

static void look_at_counter(late *l)
{
    assert_status(dibs_counter_take(l->far, "late-n", 100, NULL, NULL, NULL), DIBS_TOO_FEW);
}

static void a_late_counter_take_takes_nothing(void **state)
{
    int64_t value;
    late l;

    (void)state;
    open_both(&l);
    assert_status(dibs_counter_set(l.far, "late-n", 5, NULL, NULL), DIBS_OK);
    strand_write(&l, look_at_counter);
    assert_status(dibs_counter_take(l.far, "late-n", 1, NULL, NULL, NULL), DIBS_UNKNOWN);
    deliver_late(&l);
    assert_status(dibs_counter_get(l.near, "late-n", &value, NULL), DIBS_OK);
    assert_int_equal(value, 5);
    assert_status(dibs_counter_take(l.far, "late-n", 2, NULL, &value, NULL), DIBS_OK);
    assert_int_equal(value, 3);
}

static const dibs_once_options at_once = {.lease_ms = 10000, .wait_ms = DIBS_NO_WAIT};

static void look_at_run(late *l)
{
    dibs_once *o = NULL;

    assert_status(dibs_once_begin(l->far, "late-warm", &at_once, &o, NULL), DIBS_RUNNING);
    dibs_once_free(o);
}

/* The key that nobody ran is free. */
static void a_late_begin_begins_nothing(void **state)
{
    dibs_once *o = NULL, *other = NULL;
    dibs_status status;
    late l;

    (void)state;
    open_both(&l);
    assert_status(dibs_once_begin(l.far, "late-warm", &at_once, &o, NULL), DIBS_OK);
    strand_write(&l, look_at_run);
    assert_status(dibs_once_begin(l.far, "late-once", &at_once, &other, NULL), DIBS_UNKNOWN);
    dibs_once_free(other); /* withdrawn on the next connection */
    proxy_desert(l.p);
    sleep_ms(700); /* most likely before the late one: else this shows less, and does not fail */
    deliver_late(&l);
    status = dibs_once_begin(l.near, "late-once", &at_once, &other, NULL);
    if (status != DIBS_OK)
        fail_msg("the late request has begun it: %s", dibs_status_name(status));
    assert_status(dibs_once_finish(other, "done", 4, 0, NULL), DIBS_OK);
    dibs_once_free(other);
    dibs_once_free(o);
}

/* ---- A cluster that is slow, or says goodbye -------------------------------------------------- */

/* The leader waits for its followers as it would for a slow disk, and knows no better for so long. */
static const char *const patient[] = {"--heartbeat-interval=400", "--election-timeout=8000", NULL};

/* request_ms bounds a slow answer, and nothing else does. */
static void a_slow_cluster_is_waited_for(void **state)
{
    ensemble e;
    proxy *p;
    char url[128];
    int leader;
    dibs *d;
    job *j;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 3, patient);
    leader = ensemble_leader(&e);
    assert_true(leader >= 0);
    p = proxy_to(e.node[leader].port);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/tests?session=20s", proxy_port(p));
    d = open_at(url, &(dibs_options){.request_ms = 8000});
    unlock(take(d, "slow", NULL));
    for (int i = 0; i < 3; i++)
        if (i != leader)
            ensemble_pause(&e, i);
    j = job_start(d, "slow", &(dibs_lock_options){.wait_ms = 7500});
    sleep_ms(3500);
    for (int i = 0; i < 3; i++)
        if (i != leader)
            ensemble_continue(&e, i);
    job_join(j);
    if (j->status != DIBS_OK)
        fail_msg("%s: %s; %d connections", dibs_status_name(j->status), j->err.message,
                 (int)connections_of(p));
    assert_int_equal(connections_of(p), 1);
    assert_status(unlock(j->g), DIBS_OK);
    close_handle(d);
    ensemble_stop(&e);
}

/* A member that hangs is noticed within 3 s, also when only one is known. */
static void a_silent_member_is_left(void **state)
{
    proxy *p = proxy_here();
    dibs *d = open_at(url_lasting(hosts_of(p)), &(dibs_options){.request_ms = 8000});
    job *j;

    (void)state;
    unlock(take(d, "left", NULL));
    proxy_strand(p, 0);
    j = job_start(d, "left", &(dibs_lock_options){.wait_ms = 20000});
    if (!job_done_within(j, 3000 + SOON_MS))
        fail_msg("the silent connection was not left");
    job_join_held(j);
    assert_true(connections_of(p) >= 2);
    assert_status(unlock(j->g), DIBS_OK);
}

/* "Send me nothing more": 8 bytes, type 7, stream 0; the last stream that is served, no error. */
static const unsigned char goaway[] = {0,    0,    8,    7,    0, 0, 0, 0, 0,
                                       0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0};

/* What the goodbye has overtaken surely was not done: it goes to the next connection, unseen. */
static void a_goodbye_costs_nobody_an_answer(void **state)
{
    proxy *p = proxy_here();
    dibs *d = open_url(url_lasting(hosts_of(p)));
    dibs_error err = {0};
    int64_t value;

    (void)state;
    assert_status(dibs_counter_set(d, "goodbye", 0, NULL, NULL), DIBS_OK);
    for (int i = 1; i <= 5; i++) {
        proxy_say(p, PROXY_DOWN, goaway, sizeof goaway);
        dibs_status status = dibs_counter_add(d, "goodbye", 1, NULL, &value, &err);
        if (status != DIBS_OK)
            fail_msg("%d: %s: %s", i, dibs_status_name(status), err.message);
        assert_int_equal(value, i);
    }
    assert_true(connections_of(p) > 1);
}

/* ---- Answers that come together --------------------------------------------------------------- */

#define CALM 4 /* handles */
#define BUSY 4 /* threads of each */

typedef struct adder {
    pthread_t thread;
    dibs *d;
    char name[16];
    atomic_bool *over;
} adder;

static void *add_run(void *arg)
{
    adder *a = arg;

    while (!*a->over)
        dibs_counter_add(a->d, a->name, 1, NULL, NULL, NULL);
    return NULL;
}

/* The proof of the session is read at one revision, what others wrote right after it at a later one, and
 * both answers arrive in one piece: that is no cluster that went back. */
static void answers_in_one_piece_cost_no_session(void **state)
{
    proxy *p = proxy_here();
    dibs_grant *g[CALM];
    adder a[CALM * BUSY];
    atomic_bool over = false;
    bool held = true;

    (void)state;
    for (int i = 0; i < CALM * BUSY; i++) {
        a[i].d = i % BUSY ? a[i - 1].d : open_url(url_of(hosts_of(p), ""));
        a[i].over = &over;
        snprintf(a[i].name, sizeof a[i].name, "calm-%d", i);
        if (i % BUSY == 0)
            g[i / BUSY] = take(a[i].d, a[i].name, NULL);
        assert_int_equal(pthread_create(&a[i].thread, NULL, add_run, &a[i]), 0);
    }
    for (int64_t end = clock_ms() + SESSION_MS * 4 / 3; clock_ms() < end && held;) {
        proxy_freeze(p, PROXY_DOWN);
        sleep_ms(
            30); /* most likely some are together by then: else this shows less, and does not fail */
        proxy_heal(p);
        sleep_ms(5);
        for (int i = 0; i < CALM; i++)
            held = held && dibs_grant_held(g[i]);
    }
    over = true;
    for (int i = 0; i < CALM * BUSY; i++)
        pthread_join(a[i].thread, NULL);
    assert_true(held);
    for (int i = 0; i < CALM; i++)
        assert_status(unlock(g[i]), DIBS_OK);
}

#define ELECTION_MS 6000 /* less than etcd itself takes to give such a request up */

/* What a member passes to the leader that has just died is never answered. */
static void an_election_costs_no_opening(void **state)
{
    dibs_error err = {0};
    dibs *d = NULL;
    ensemble e;
    int leader;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 3, NULL);
    leader = ensemble_leader(&e);
    assert_true(leader >= 0);
    ensemble_end(&e, leader, SIGKILL);
    dibs_open(url_of(e.hosts, ""), &(dibs_options){.connect_ms = ELECTION_MS}, &d, &err);
    assert_string_equal(err.message, "");
    dibs_close(d);
    ensemble_stop(&e);
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, close_all)
    CASE(a_holder_learns_of_its_revoked_lease), CASE(a_revoked_waiter_is_not_granted),
    CASE(a_deleted_waiter_is_not_granted),      CASE(a_late_enter_makes_no_entry),
    CASE(a_late_cell_put_writes_nothing),       CASE(a_late_counter_take_takes_nothing),
    CASE(a_late_begin_begins_nothing),          CASE(a_silent_member_is_left),
    CASE(a_goodbye_costs_nobody_an_answer),     CASE(answers_in_one_piece_cost_no_session),
};

/* Those with a server that has to be slow. */
static const struct CMUnitTest long_tests[] = {
    CASE(a_leader_that_slept_costs_no_exclusion),
    CASE(an_election_costs_no_opening),
    CASE(a_restored_cluster_wakes_its_waiters),
    CASE(a_slow_cluster_is_waited_for),
};

int main(int argc, char *argv[])
{
    bool is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    int failed;

    describe_server(ENSEMBLE_ETCD, NULL);
    if (argc > 1 + is_long)
        cmocka_set_test_filter(argv[1 + is_long]);
    failed = is_long ? cmocka_run_group_tests_name("etcd-faults-long", long_tests, NULL, NULL)
                     : cmocka_run_group_tests_name("etcd-faults", tests, NULL, NULL);
    ensemble_stop(&the_server);
    return failed ? 1 : 0;
}
