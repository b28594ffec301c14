/* dibs-bench-http: pairs of acquire and release over HTTP, from one thread with an epoll set, so that 64 clients
 * cost this side little. Each client has a keep-alive connection and a lock of its own, and sends a request when
 * the answer to the one before is here. `serve.py` beside it drives the comparison.
 *
 * What is asked may be `dibs serve`, or a server that gives one constant answer to everything: all that is read
 * of an answer is its status, its length and "grant". Prints one line of JSON; 1: an answer was wrong. */
#define _GNU_SOURCE
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SAMPLES = 4000000, CLIENTS_MAX = 10000, ROOM = 16384, ERRORS_MAX = 100 };

static const double warm_seconds = 0.3;

typedef struct client {
    int fd, number;
    bool releasing;
    double asked; /* when the pair began */
    size_t have;
    char text[ROOM]; /* of the answer */
} client;

typedef struct load {
    int epoll;
    double from, until; /* pairs that begin and end between them are counted */
    long pairs, errors;
    long sample_count;
    float *samples;
} load;

static bool fail(load *l, const client *c, const char *what)
{
    if (l->errors++ < 3)
        fprintf(stderr, "dibs-bench-http: client %d: %s: %.300s\n", c->number, what, c->text);
    return false;
}

static bool post(load *l, client *c, const char *path, const char *body)
{
    char text[ROOM];
    int size = snprintf(text, sizeof text,
                        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n\r\n%s",
                        path, strlen(body), body);

    c->have = 0;
    return send(c->fd, text, (size_t)size, MSG_NOSIGNAL) == size || fail(l, c, "send");
}

static bool ask_acquire(load *l, client *c)
{
    char body[64];

    c->releasing = false;
    c->asked = bench_now();
    snprintf(body, sizeof body, "{\"name\":\"lock:%d\"}", c->number);
    return post(l, c, "/v1/acquire", body);
}

static bool ask_release(load *l, client *c)
{
    static const char key[] = "\"grant\":\"";
    const char *grant = strstr(c->text, key), *end;
    char body[ROOM / 2];

    if (!grant || !(end = strchr(grant += sizeof key - 1, '"')) || end - grant > ROOM / 4)
        return fail(l, c, "an answer without a grant");
    c->releasing = true;
    snprintf(body, sizeof body, "{\"grant\":\"%.*s\"}", (int)(end - grant), grant);
    return post(l, c, "/v1/release", body);
}

static void count(load *l, const client *c)
{
    double now = bench_now();

    if (c->asked < l->from || now > l->until)
        return;
    l->pairs++;
    if (l->sample_count < SAMPLES)
        l->samples[l->sample_count++] = (float)((now - c->asked) * 1e6);
}

/* Bytes of the whole answer, as its head says; 0: the head is not here yet. */
static size_t size_of_answer(const client *c)
{
    const char *end = strstr(c->text, "\r\n\r\n");
    const char *length = end ? strcasestr(c->text, "\r\nContent-Length:") : NULL;

    if (!end)
        return 0;
    return (size_t)(end + 4 - c->text) +
           (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
}

static bool on_answer(load *l, client *c)
{
    if (strncmp(c->text, "HTTP/1.1 20", 11) != 0)
        return fail(l, c, "not granted, or not released");
    if (!c->releasing)
        return ask_release(l, c);
    count(l, c);
    return ask_acquire(l, c);
}

static bool on_readable(load *l, client *c)
{
    ssize_t n = recv(c->fd, c->text + c->have, sizeof c->text - 1 - c->have, MSG_DONTWAIT);
    size_t whole;

    if (n <= 0)
        return fail(l, c, "the connection has ended");
    c->have += (size_t)n;
    c->text[c->have] = '\0';
    whole = size_of_answer(c);
    if (whole == 0 || c->have < whole)
        return c->have < sizeof c->text - 1 || fail(l, c, "the answer is too long");
    return on_answer(l, c);
}

static bool open_client(load *l, client *c, int port)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int on = 1;

    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&to, sizeof to) != 0)
        return fail(l, c, "connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0 && ask_acquire(l, c);
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double percentile(const load *l, double share)
{
    return l->sample_count ? (double)l->samples[(long)((double)(l->sample_count - 1) * share)] : 0;
}

/* Runs until the clock says so; the processor time that both sides took is that of the counted part. */
static void run(load *l, double seconds, int server_pid)
{
    struct epoll_event events[256];
    double cpu = 0, server = 0;
    bool warm = false;

    l->from = bench_now() + warm_seconds;
    l->until = l->from + seconds;
    for (double now; (now = bench_now()) < l->until && l->errors < ERRORS_MAX;) {
        int n = epoll_wait(l->epoll, events, 256, 100);

        if (!warm && now >= l->from) {
            warm = true;
            cpu = bench_cpu();
            server = bench_server_cpu(server_pid);
        }
        for (int i = 0; i < n; i++)
            if (!on_readable(l, events[i].data.ptr))
                epoll_ctl(l->epoll, EPOLL_CTL_DEL, ((client *)events[i].data.ptr)->fd, NULL);
    }
    cpu = bench_cpu() - cpu;
    server = bench_server_cpu(server_pid) - server;
    qsort(l->samples, (size_t)l->sample_count, sizeof *l->samples, compare);
    printf("{\"rate\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"client_busy\": %.3f, "
           "\"server_busy\": %.3f, \"pairs\": %ld, \"errors\": %ld}\n",
           (double)l->pairs / seconds, percentile(l, 0.5), percentile(l, 0.99), cpu / seconds,
           server / seconds, l->pairs, l->errors);
}

int main(int argc, char **argv)
{
    int port = argc == 5 ? atoi(argv[1]) : 0, count = argc == 5 ? atoi(argv[2]) : 0;
    double seconds = argc == 5 ? strtod(argv[3], NULL) : 0;
    load l = {.epoll = epoll_create1(EPOLL_CLOEXEC), .from = 1e300};
    client *clients;

    if (port <= 0 || port > 65535 || count <= 0 || count > CLIENTS_MAX || !(seconds > 0)) {
        fputs("usage: dibs-bench-http PORT CLIENTS SECONDS SERVER-PID\n", stderr);
        return 64;
    }
    clients = calloc((size_t)count, sizeof *clients);
    l.samples = malloc(SAMPLES * sizeof *l.samples);
    if (!clients || !l.samples || l.epoll < 0)
        return 71;
    for (int i = 0; i < count; i++) {
        clients[i].number = i;
        if (!open_client(&l, &clients[i], port))
            return 1;
    }
    run(&l, seconds, atoi(argv[4]));
    for (int i = 0; i < count; i++)
        close(clients[i].fd);
    free(clients);
    free(l.samples);
    return l.errors || !l.pairs ? 1 : 0;
}
