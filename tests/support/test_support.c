/* The tools of the tests are tested too: the private server comes, goes and comes back; the proxy
 * cuts where it says, swallows, freezes, drips and counts. */
#define _GNU_SOURCE
#include "support/clock.h"
#include "support/env.h"
#include "support/proxy.h"
#include "support/scratch.h"
#include "support/server.h"
#include "support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Sends PING and returns how many bytes came back within `ms`; -1 when the connection ended first.
 */
static int ping(int fd, int64_t ms)
{
    char buffer[64];
    int got = 0;
    int64_t end = clock_ms() + ms;

    if (send(fd, "PING\r\n", 6, MSG_NOSIGNAL) != 6)
        return -1;
    while (got < 7 && clock_ms() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(end - clock_ms())) <= 0)
            break;
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0)
            return got > 0 ? got : -1;
        got += (int)n;
    }
    return got;
}

static void scratch_comes_and_goes(void **state)
{
    scratch s;
    char file[512];
    FILE *f;

    (void)state;
    assert_int_equal(scratch_make(&s), 0);
    f = fopen(scratch_file(&s, "inner", file, sizeof file), "w");
    assert_non_null(f);
    fclose(f);
    scratch_remove(&s);
    assert_int_equal(access(file, F_OK), -1);
    scratch_remove(&s);
}

static void simulated_time_stands_still(void **state)
{
    sim_env a, b;
    uint64_t x, y;

    (void)state;
    sim_env_init(&a, 1);
    sim_env_init(&b, 1);
    assert_true(dibs__now(&a.env) == dibs__now(&a.env));
    sim_env_pass(&a, 5);
    assert_true(dibs__now(&a.env) == dibs__now(&b.env) + 5);
    a.env.random(a.env.ctx, &x, sizeof x);
    b.env.random(b.env.ctx, &y, sizeof y);
    assert_true(x == y);
}

static void server_restarts_on_its_port(void **state)
{
    server s;
    char reply[64];
    int port;

    (void)state;
    server_need(&s, NULL);
    port = s.port;
    server_end(&s, SIGKILL);
    assert_int_equal(server_command(&s, "PING", NULL, 0), -1);
    assert_int_equal(server_restart(&s), 0);
    assert_int_equal(s.port, port);
    assert_int_equal(server_command(&s, "PING", reply, sizeof reply), 0);
    assert_string_equal(reply, "+PONG\r\n");
    server_stop(&s);
}

static void server_stops_and_goes_on(void **state)
{
    server s;
    int fd;

    (void)state;
    server_need(&s, NULL);
    fd = dial(s.port);
    server_pause(&s);
    assert_int_equal(ping(fd, 100), 0);
    server_continue(&s);
    assert_int_equal(ping(fd, 5000) >= 7, 1);
    close(fd);
    server_stop(&s);
}

static void proxy_cuts_at_every_byte(void **state)
{
    server s;
    proxy *p;
    proxy_counts c;

    (void)state;
    server_need(&s, NULL);
    p = proxy_start(s.port);
    assert_non_null(p);
    for (int k = 0; k <= 7; k++) {
        int fd = dial(proxy_port(p));
        proxy_cut(p, PROXY_DOWN, k, k % 2);
        assert_int_equal(ping(fd, 5000), k == 0 ? -1 : k);
        close(fd);
    }
    for (int k = 0; k < 6; k++) {
        int fd = dial(proxy_port(p));
        proxy_cut(p, PROXY_UP, k, false);
        assert_int_equal(ping(fd, 5000), -1);
        close(fd);
    }
    proxy_read(p, &c);
    assert_int_equal(c.cuts, 14);
    assert_int_equal(c.connections, 14);
    assert_int_equal(c.bytes[PROXY_DOWN], 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7);
    proxy_stop(p);
    server_stop(&s);
}

static void proxy_spoils_the_network(void **state)
{
    server s;
    proxy *p;
    proxy_counts c;
    int64_t start;
    int fd;

    (void)state;
    server_need(&s, NULL);
    p = proxy_start(s.port);
    fd = dial(proxy_port(p));
    assert_int_equal(ping(fd, 5000), 7);
    assert_int_equal(ping(fd, 5000), 7);
    proxy_read(p, &c);
    assert_int_equal(c.turns, 2);
    assert_int_equal(c.open, 1);

    proxy_drip(p, PROXY_DOWN, 20);
    start = clock_ms();
    assert_int_equal(ping(fd, 5000), 7);
    assert_true(clock_ms() - start >= 6 * 20 - 5);
    proxy_heal(p);

    proxy_delay(p, PROXY_UP, 60);
    start = clock_ms();
    assert_int_equal(ping(fd, 5000), 7);
    assert_true(clock_ms() - start >= 59);
    proxy_heal(p);

    proxy_freeze(p, PROXY_DOWN);
    assert_int_equal(ping(fd, 60), 0);
    proxy_heal(p);
    assert_int_equal(ping(fd, 5000) >= 7, 1);
    close(fd);

    fd = dial(proxy_port(p));
    proxy_swallow(p, PROXY_DOWN, 3);
    assert_int_equal(ping(fd, 60), 3);
    proxy_drop_all(p, true);
    assert_int_equal(ping(fd, 5000), -1);
    close(fd);
    proxy_stop(p);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scratch_comes_and_goes),
        cmocka_unit_test(simulated_time_stands_still),
        cmocka_unit_test(server_restarts_on_its_port),
        cmocka_unit_test(server_stops_and_goes_on),
        cmocka_unit_test(proxy_cuts_at_every_byte),
        cmocka_unit_test(proxy_spoils_the_network),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
