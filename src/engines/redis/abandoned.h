/* Connections that were given up while requests on them may be unanswered.
 *
 * Such a request may reach the server at any later time: after a partition, out of a proxy, out of the buffers
 * of a server that was stopped. So before a connection of the handle carries anything newer, it carries
 * CLIENT KILL ID for each of them. One connection's commands run in their order: what follows the kill finds the
 * old connection gone, and nothing that it had brought or would have brought is run any more.
 *
 * It stays on the list until the server has confirmed that. Identifiers begin anew when a server restarts, and
 * then belong to strangers: they count only together with the server's run id. */
#ifndef DIBS_REDIS_ABANDONED_H
#define DIBS_REDIS_ABANDONED_H

#include "engines/engine.h"
#include "engines/redis/connection.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct dibs__abandoned {
    pthread_mutex_t lock;
    pthread_cond_t turned; /* one of `enders` is done */
    int enders;            /* threads that are ending them, each on a connection of its own */
    dibs__sink *sink;
    const char *text; /* which server, for a message; borrowed */
    struct dibs__abandoned_conn {
        uint64_t number; /* counts those that were given up */
        int64_t id;
        char run_id[DIBS__RUN_ID_SIZE];
    } * list;
    size_t count, room;
    uint64_t last;
    _Atomic uint64_t newest; /* on the list; 0: the list is empty */
    bool warned;
} dibs__abandoned;

void dibs__abandoned_init(dibs__abandoned *a, dibs__sink *sink, const char *text);
void dibs__abandoned_fini(dibs__abandoned *a);

/* The connection is given up with requests unanswered. It is still the caller's to close, and closing it drops
 * what has not been sent. Where the account may not end it, a warning is logged, once. */
void dibs__abandoned_add(dibs__abandoned *a, dibs__conn *c);

/* Adds to `out` what ends all that `c` has not ended yet, and returns how many replies will come for it: 0, with
 * nothing added, is the usual case. `c->ended` is moved on; who cannot do it after all moves it back. */
size_t dibs__abandoned_write(dibs__abandoned *a, dibs__conn *c, dibs__bytes *out);
/* One of these replies. False: refused for the moment, all of them must be asked for again. A refusal for good is
 * logged, once, and counts as done. */
bool dibs__abandoned_reply(dibs__abandoned *a, const redisReply *reply);
/* All of these replies have come, and say that it is done. */
void dibs__abandoned_ended(dibs__abandoned *a, const dibs__conn *c, uint64_t upto);

/* This is the server from now on: those of another one, or of another run of it, are out of reach or gone, and their
 * numbers are strangers'. */
void dibs__abandoned_reached(dibs__abandoned *a, const dibs__conn *c);

typedef enum dibs__ending {
    DIBS__ENDED,
    DIBS__END_REFUSED, /* not now; the connection is sound */
    DIBS__END_CUT,     /* close it: what it still brings does no harm */
} dibs__ending;

/* The same in one exchange on a connection that nobody else uses. */
dibs__ending dibs__abandoned_end(dibs__abandoned *a, dibs__conn *c, dibs__deadline until);

#endif
