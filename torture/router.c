/* A router in user space between network namespaces, so that real TCP meets drop, delay, loss and a slow wire on
 * kernels without netem.
 *
 * usage: router NAME=NAMESPACE=ADDRESS...
 *
 * Each node gets a TUN device `dibs0` in its namespace (a name below /run/netns). What a node sends is looked at
 * here: the destination address says which node it is for, the rule of that pair and direction says what becomes
 * of it. The caller gives the devices their addresses and brings them up after the line `ready`.
 *
 * Commands are lines on standard input; each is answered by `ok` or `error TEXT` when it is in force:
 *   rule A B [drop] [delay_ms=N] [loss=PERCENT] [rate=BITS_PER_SECOND]   replaces the rule for packets from A to B
 *   alias ADDRESS NODE                                                    that address leads to NODE from now on
 *   clear                                                                 every pair is clean again
 *   stats                                                                 ok forwarded=N dropped=N
 * A or B may be `*`. The end of the input ends the router, so it never outlives its caller.
 *
 * Queues are bounded: a pair keeps QUEUE packets at most, and on a slow wire no more than it can send in
 * BACKLOG_NS. What does not fit is dropped, as a real router does. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { NODES = 16, PACKET = 2048, QUEUE = 4096, BATCH = 64 };
#define SECOND     1000000000LL
#define BACKLOG_NS (SECOND / 2)

typedef struct {
    bool drop;
    int64_t delay; /* ns */
    double loss;   /* 0 to 1 */
    int64_t rate;  /* bits a second; 0: no limit */
} rule;

typedef struct packet {
    struct packet *next;
    int64_t due;
    uint16_t size;
    char data[];
} packet;

/* One direction between two nodes: a queue in order of arrival. */
typedef struct {
    rule r;
    packet *first, *last;
    size_t count;
    int64_t free_at; /* when the wire has sent what was given to it so far */
} path;

static struct {
    char name[32];
    uint32_t address;
    int fd;
} nodes[NODES];
static size_t node_count;
static path paths[NODES][NODES];
static unsigned long long forwarded, dropped;

/* An address beside the nodes' own that may move from one to another, as in a failover. */
static uint32_t alias_address;
static size_t alias_node;

static void die(const char *what, const char *of)
{
    fprintf(stderr, "router: %s %s: %s\n", what, of, strerror(errno));
    exit(1);
}

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static bool chance(double of)
{
    return of > 0 && drand48() < of;
}

/* A TUN device belongs to the namespace that it is made in, and its descriptor works from anywhere. */
static int open_tun(const char *netns)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    char file[128];
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there, fd;

    snprintf(file, sizeof file, "/run/netns/%s", netns);
    there = open(file, O_RDONLY | O_CLOEXEC);
    if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0)
        die("cannot enter namespace", netns);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strcpy(request.ifr_name, "dibs0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
        die("cannot make a TUN device in", netns);
    if (setns(home, CLONE_NEWNET) != 0)
        die("cannot leave namespace", netns);
    close(there);
    close(home);
    return fd;
}

static void add_node(char *spec)
{
    char *netns = strchr(spec, '='), *address = netns ? strchr(netns + 1, '=') : NULL;
    struct in_addr in;

    if (!address || netns - spec >= (int)sizeof nodes[0].name || node_count == NODES ||
        inet_pton(AF_INET, address + 1, &in) != 1) {
        fprintf(stderr, "router: '%s' is not NAME=NAMESPACE=ADDRESS, or there are over %d\n", spec,
                NODES);
        exit(64);
    }
    *netns++ = *address++ = '\0';
    strcpy(nodes[node_count].name, spec);
    nodes[node_count].address = in.s_addr;
    nodes[node_count].fd = open_tun(netns);
    node_count++;
}

static void send_to(size_t to, const char *data, size_t size)
{
    if (write(nodes[to].fd, data, size) == (ssize_t)size)
        forwarded++;
    else
        dropped++; /* the device is down or its queue is full */
}

static void enqueue(path *p, const char *data, size_t size, int64_t due)
{
    packet *new = p->count < QUEUE ? malloc(sizeof *new + size) : NULL;

    if (!new) {
        dropped++;
        return;
    }
    *new = (packet){.due = due, .size = (uint16_t)size};
    memcpy(new->data, data, size);
    if (p->last)
        p->last->next = new;
    else
        p->first = new;
    p->last = new;
    p->count++;
}

/* Whose address that is; node_count: nobody's. */
static size_t find_node(uint32_t address)
{
    size_t to = 0;

    if (address == alias_address)
        return alias_node;
    while (to < node_count && nodes[to].address != address)
        to++;
    return to;
}

static void route(size_t from, const char *data, size_t size)
{
    uint32_t address;
    size_t to;
    path *p;
    int64_t at, sent;

    if (size < 20 || (data[0] & 0xf0) != 0x40) /* IPv6 housekeeping of the kernel */
        return;
    memcpy(&address, data + 16, sizeof address);
    to = find_node(address);
    p = &paths[from][to < node_count ? to : 0];
    if (to == node_count || p->r.drop || chance(p->r.loss)) {
        dropped++;
        return;
    }
    if (!p->first && !p->r.delay && !p->r.rate) {
        send_to(to, data, size);
        return;
    }
    at = now();
    sent = p->r.rate ? (p->free_at > at ? p->free_at : at) + (int64_t)size * 8 * SECOND / p->r.rate
                     : at;
    if (sent - at > BACKLOG_NS) {
        dropped++;
        return;
    }
    p->free_at = sent;
    enqueue(p, data, size, sent + p->r.delay);
}

static void receive(size_t from)
{
    char data[PACKET];

    for (int i = 0; i < BATCH; i++) {
        ssize_t size = read(nodes[from].fd, data, sizeof data);
        if (size <= 0)
            return;
        route(from, data, (size_t)size);
    }
}

/* Sends what is due; when the next packet is, or -1. */
static int64_t flush_due(void)
{
    int64_t at = now(), next = -1;

    for (size_t from = 0; from < node_count; from++)
        for (size_t to = 0; to < node_count; to++) {
            path *p = &paths[from][to];
            packet *head;
            while ((head = p->first) && head->due <= at) {
                send_to(to, head->data, head->size);
                p->first = head->next;
                p->last = p->first ? p->last : NULL;
                p->count--;
                free(head);
            }
            if (p->first && (next < 0 || p->first->due < next))
                next = p->first->due;
        }
    return next;
}

/* A new rule counts for what is queued, too: nothing stays for a delay that is over, nothing passes a cut. */
static void set_rule(path *p, rule r)
{
    int64_t at = now();
    packet *next;

    p->r = r;
    for (packet *k = r.drop ? p->first : NULL; k; k = next) {
        next = k->next;
        free(k);
        dropped++;
    }
    if (r.drop) {
        p->first = p->last = NULL;
        p->count = 0;
    }
    for (packet *k = p->first; k; k = k->next)
        k->due = k->due < at + r.delay ? k->due : at + r.delay;
    p->free_at = at;
}

static bool parse_rule(char *words, rule *r)
{
    *r = (rule){0};
    for (char *word, *end; (word = strtok(words, " ")); words = NULL) {
        char *value = strchr(word, '=');
        double number = value ? strtod(value + 1, &end) : 0;
        if (value && (end == value + 1 || *end || number < 0))
            return false;
        if (strcmp(word, "drop") == 0)
            r->drop = true;
        else if (strncmp(word, "delay_ms=", 9) == 0)
            r->delay = (int64_t)(number * 1e6);
        else if (strncmp(word, "loss=", 5) == 0)
            r->loss = number / 100;
        else if (strncmp(word, "rate=", 5) == 0)
            r->rate = (int64_t)number;
        else
            return false;
    }
    return true;
}

static bool matches(const char *pattern, size_t node)
{
    return strcmp(pattern, "*") == 0 || strcmp(pattern, nodes[node].name) == 0;
}

static const char *apply_rule(char *words)
{
    char a[32], b[32];
    int used = 0, pairs = 0;
    rule r;

    if (sscanf(words, "%31s %31s%n", a, b, &used) != 2 || !parse_rule(words + used, &r))
        return "error usage: rule A B [drop] [delay_ms=N] [loss=PERCENT] [rate=BITS_PER_SECOND]";
    for (size_t from = 0; from < node_count; from++)
        for (size_t to = 0; to < node_count; to++)
            if (matches(a, from) && matches(b, to)) {
                set_rule(&paths[from][to], r);
                pairs++;
            }
    return pairs ? "ok" : "error no such node";
}

static const char *apply_alias(const char *words)
{
    char address[32], name[32];
    struct in_addr in;

    if (sscanf(words, "%31s %31s", address, name) != 2 || inet_pton(AF_INET, address, &in) != 1)
        return "error usage: alias ADDRESS NODE";
    for (size_t i = 0; i < node_count; i++)
        if (strcmp(nodes[i].name, name) == 0) {
            alias_address = in.s_addr;
            alias_node = i;
            return "ok";
        }
    return "error no such node";
}

static void obey(char *line)
{
    char all[] = "* *";

    if (strncmp(line, "rule ", 5) == 0)
        puts(apply_rule(line + 5));
    else if (strncmp(line, "alias ", 6) == 0)
        puts(apply_alias(line + 6));
    else if (strcmp(line, "clear") == 0)
        puts(apply_rule(all));
    else if (strcmp(line, "stats") == 0)
        printf("ok forwarded=%llu dropped=%llu\n", forwarded, dropped);
    else
        puts("error unknown command");
    fflush(stdout);
}

/* Complete lines of what has come; false at the end of the input. */
static bool listen_to_caller(void)
{
    static char text[4096];
    static size_t have;
    ssize_t got = read(STDIN_FILENO, text + have, sizeof text - 1 - have);
    char *end;

    if (got <= 0)
        return got < 0 && errno == EINTR;
    have += (size_t)got;
    text[have] = '\0';
    while ((end = strchr(text, '\n'))) {
        *end = '\0';
        obey(text);
        have -= (size_t)(end + 1 - text);
        memmove(text, end + 1, have + 1);
    }
    return have < sizeof text - 1;
}

int main(int argc, char **argv)
{
    struct pollfd set[NODES + 1];
    int64_t next = -1;

    for (int i = 1; i < argc; i++)
        add_node(argv[i]);
    if (node_count == 0) {
        fprintf(stderr, "usage: router NAME=NAMESPACE=ADDRESS...\n");
        return 64;
    }
    srand48(getpid());
    for (size_t i = 0; i < node_count; i++)
        set[i] = (struct pollfd){.fd = nodes[i].fd, .events = POLLIN};
    set[node_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t wait = next < 0 ? SECOND : next - now();
        struct timespec t = {wait > 0 ? wait / SECOND : 0, wait > 0 ? wait % SECOND : 0};
        if (ppoll(set, node_count + 1, &t, NULL) < 0 && errno != EINTR)
            die("cannot", "poll");
        for (size_t i = 0; i < node_count; i++)
            if (set[i].revents)
                receive(i);
        if (set[node_count].revents && !listen_to_caller())
            return 0;
        next = flush_due();
    }
}
