/* A scripted TCP proxy between a client and a server on loopback, run by one thread of its own.
 *
 * Without a rule it passes bytes on as they come. Rules can be set at any time, count from then on
 * and over all connections, and hold until they have struck (cut) or until proxy_heal. "Up" is from
 * the client to the server. A proxied client that counts on TCP alone cannot tell this from a bad
 * network. */
#ifndef DIBS_TESTS_PROXY_H
#define DIBS_TESTS_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum proxy_way { PROXY_UP, PROXY_DOWN } proxy_way;

typedef struct proxy_counts {
    int64_t bytes[2];    /* passed on, by proxy_way */
    int64_t swallowed;   /* read and thrown away */
    int64_t connections; /* ever accepted */
    int64_t open;        /* now */
    int64_t turns;    /* times that the client spoke after the server: round trips of one client */
    int64_t cuts;     /* made by proxy_cut */
    int64_t stranded; /* connections that are, now */
    int64_t kept;     /* bytes that stranded connections keep back now */
    int64_t late;     /* bytes that the server answered to what was delivered late */
} proxy_counts;

typedef struct proxy proxy;

/* Listens on a free loopback port and forwards to 127.0.0.1:`server_port`. NULL on failure. */
proxy *proxy_start(int server_port);
int proxy_port(const proxy *p);
void proxy_stop(proxy *p);

/* After `k` more bytes in that direction, closes the connection that carried them, once. `k` = 0:
 * when the next byte comes, which is not passed on. `reset`: with RST, else in order. */
void proxy_cut(proxy *p, proxy_way way, int64_t k, bool reset);

/* After `k` more bytes in that direction, swallows what comes that way: a one-way partition. */
void proxy_swallow(proxy *p, proxy_way way, int64_t k);

/* Leaves what comes that way unread: half-open, with backpressure in the end. */
void proxy_freeze(proxy *p, proxy_way way);

/* Passes on one byte every `ms` in that direction. */
void proxy_drip(proxy *p, proxy_way way, int64_t ms);

/* Holds every chunk of that direction back for `ms`. */
void proxy_delay(proxy *p, proxy_way way, int64_t ms);

/* Late delivery. After `k` more bytes of clients, what comes on the connection that carried them (0: on
 * all that are open now) is kept back; new connections are not touched. A stranded connection outlives its client's end, which
 * proxy_desert closes. proxy_deliver passes on what was kept back, as a network does after a partition;
 * what the server answers then is counted as `late`. */
void proxy_strand(proxy *p, int64_t k);
void proxy_desert(proxy *p);
void proxy_deliver(proxy *p);

/* Says these bytes on every open connection, as if they came that way. */
void proxy_say(proxy *p, proxy_way way, const void *data, size_t size);

/* Closes what is open now; with `refuse`, new connections are closed at once until proxy_heal. */
void proxy_drop_all(proxy *p, bool refuse);

/* Ends what is open now with RST, as a host does that has lost its state, and returns when that is done. */
void proxy_reset_all(proxy *p);

/* Takes all rules back. A connection that has lost bytes to proxy_swallow cannot go on: it is reset. */
void proxy_heal(proxy *p);

void proxy_read(proxy *p, proxy_counts *out);
void proxy_reset_counts(proxy *p);

#endif
