/* More than a mebibyte of watches in one handle: the server takes no request that is longer. */
#define _GNU_SOURCE
#define THREADED
#include "cases.h"
#include "engines/entries/kit.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCKS 700 /* each has a path of 1600 bytes */

static const char *long_name(int i)
{
    static char name[512];

    memset(name, '/', 500); /* three bytes each, where it is one part of a path */
    snprintf(name + 490, sizeof name - 490, "%05d", i);
    return name;
}

typedef struct tally {
    int settled, granted;
} tally;

static void on_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    tally *t = data;

    (void)err;
    t->settled++;
    t->granted += status == DIBS_OK && dibs_grant_held(g);
    if (status == DIBS_OK)
        unlock(g);
}

static bool some_are_watched(void *unused)
{
    char out[512];
    const char *total;

    (void)unused;
    if (ensemble_word(&the_server, 0, "wchs", out, sizeof out) < 0)
        return false;
    total = strstr(out, "Total watches:");
    return total && atoi(total + 14) > 300;
}

void many_watches_survive_a_reconnect(void **state)
{
    static dibs_grant *held[LOCKS];
    proxy *p = proxy_here();
    char hosts[64];
    loss_note note = {0};
    tally t = {0};
    dibs *a, *b;
    dibs_grant *other, *after;

    (void)state;
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", proxy_port(p));
    a = open_url(url_lasting(the_server.hosts));
    b = open_url(url_lasting(hosts));
    for (int i = 0; i < LOCKS; i++)
        held[i] = take(a, long_name(i), NULL);
    other = take(b, "other", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    for (int i = 0; i < LOCKS; i++)
        assert_status(start_lock(b, long_name(i), &(dibs_lock_options){.wait_ms = 10 * LONG_MS},
                                 on_outcome, &t, NULL, NULL),
                      DIBS_OK);
    for (int i = 0; i < LOCKS; i++)
        wait_for_queue(a, long_name(i), 1, 1);
    assert_true(wait_until(some_are_watched, NULL, LONG_MS));
    proxy_drop_all(p, false);
    after = take(b, "after", NULL);
    assert_int_equal(atomic_load(&note.count), 0);
    assert_true(dibs_grant_held(other));
    assert_status(unlock(other), DIBS_OK);
    assert_status(unlock(after), DIBS_OK);
    for (int i = 0; i < LOCKS; i++)
        assert_status(unlock(held[i]), DIBS_OK);
    for (int64_t end = clock_ms() + LONG_MS; t.settled < LOCKS && clock_ms() < end;) {
        struct pollfd fd = {.fd = dibs_fd(b), .events = POLLIN};
        poll(&fd, 1, 100);
        take_all(b);
    }
    assert_int_equal(t.granted, LOCKS);
}
