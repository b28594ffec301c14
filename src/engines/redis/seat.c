/* The pool of seats. */
#define _GNU_SOURCE
#include "engines/redis/seat.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define IDLE_MAX  64
#define IDLE_LOOK (100 * DIBS__MS) /* after that a connection is looked at before it is trusted */
#define END_SPAN  DIBS__SECOND     /* for ending others on an idle one */
#define LAST_WORD (50 * DIBS__MS)  /* for an answer that the server has surely sent */

static void seat_free(dibs__seat *seat)
{
    if (seat->blocked)
        dibs__conn_drop_unsent(seat->conn);
    dibs__conn_close(seat->conn);
    if (seat->poke_fd >= 0)
        close(seat->poke_fd);
    free(seat);
}

static void list_free(dibs__seat *seat)
{
    while (seat) {
        dibs__seat *next = seat->next;
        seat_free(seat);
        seat = next;
    }
}

static void remove_taken(dibs__seats *s, const dibs__seat *seat)
{
    dibs__seat **at = &s->taken;

    while (*at != seat)
        at = &(*at)->next;
    *at = seat->next;
}

void dibs__seats_init(dibs__seats *s, const dibs__env *env, dibs__abandoned *abandoned)
{
    memset(s, 0, sizeof *s);
    s->env = env;
    s->abandoned = abandoned;
    pthread_mutex_init(&s->lock, NULL);
}

void dibs__seats_fini(dibs__seats *s)
{
    list_free(s->idle);
    list_free(s->taken);
    pthread_mutex_destroy(&s->lock);
}

static void close_descriptors(const dibs__seat *seat)
{
    for (; seat; seat = seat->next) {
        close(seat->conn->fd);
        close(seat->poke_fd);
    }
}

void dibs__seats_abandon(dibs__seats *s)
{
    close_descriptors(s->idle);
    close_descriptors(s->taken);
}

static void take(dibs__seats *s, dibs__seat *seat)
{
    seat->busy = true;
    seat->blocked = seat->over = seat->poked = false;
    seat->attempt[0] = '\0';
    seat->next = s->taken;
    s->taken = seat;
}

/* The one used last is the likeliest to be sound, and warm. */
static dibs__seat *pop_idle(dibs__seats *s)
{
    dibs__seat *seat;

    pthread_mutex_lock(&s->lock);
    seat = s->idle;
    if (seat) {
        s->idle = seat->next;
        s->idle_count--;
        take(s, seat);
    }
    pthread_mutex_unlock(&s->lock);
    return seat;
}

static bool is_trusted(const dibs__seats *s, const dibs__seat *seat)
{
    return dibs__now(s->env) - seat->used < IDLE_LOOK || dibs__conn_is_quiet(seat->conn);
}

dibs__seat *dibs__seat_idle(dibs__seats *s, dibs__deadline until)
{
    dibs__deadline half;
    dibs__ending ending;
    dibs__seat *seat;

    if (dibs__now(s->env) >= until)
        return NULL;
    while ((seat = pop_idle(s)) && !is_trusted(s, seat))
        dibs__seat_leave(s, seat, DIBS__SEAT_USELESS);
    if (!seat)
        return NULL;
    half = dibs__after(s->env, (until - dibs__now(s->env)) / 2);
    ending = dibs__abandoned_end(s->abandoned, seat->conn,
                                 dibs__sooner(half, dibs__after(s->env, END_SPAN)));
    if (ending == DIBS__ENDED)
        return seat;
    dibs__seat_leave(s, seat, ending == DIBS__END_REFUSED ? DIBS__SEAT_SOUND : DIBS__SEAT_USELESS);
    return NULL;
}

dibs__seat *dibs__seat_new(dibs__seats *s, dibs__conn *conn)
{
    dibs__seat *seat = calloc(1, sizeof *seat);
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (!seat || fd < 0) {
        dibs__conn_close(conn);
        if (fd >= 0)
            close(fd);
        free(seat);
        return NULL;
    }
    seat->conn = conn;
    seat->poke_fd = fd;
    pthread_mutex_lock(&s->lock);
    take(s, seat);
    pthread_mutex_unlock(&s->lock);
    return seat;
}

static dibs__seat *find(const dibs__seats *s, const char *attempt)
{
    for (dibs__seat *seat = s->taken; seat; seat = seat->next)
        if (strcmp(seat->attempt, attempt) == 0)
            return seat;
    return NULL;
}

dibs__seat *dibs__seat_of(dibs__seats *s, const char *attempt)
{
    dibs__seat *seat;

    pthread_mutex_lock(&s->lock);
    seat = find(s, attempt);
    if (seat && seat->busy)
        seat = NULL;
    if (seat)
        seat->busy = true;
    pthread_mutex_unlock(&s->lock);
    return seat;
}

void dibs__seat_assign(dibs__seats *s, dibs__seat *seat, const char *attempt)
{
    pthread_mutex_lock(&s->lock);
    strncpy(seat->attempt, attempt, sizeof seat->attempt - 1);
    pthread_mutex_unlock(&s->lock);
}

static void drain_poke(dibs__seat *seat)
{
    uint64_t count;

    if (seat->poked && read(seat->poke_fd, &count, sizeof count) < 0)
        return; /* empty: as it should be */
    seat->poked = false;
}

void dibs__seat_leave(dibs__seats *s, dibs__seat *seat, dibs__seat_state state)
{
    bool keep, sound = state == DIBS__SEAT_SOUND;

    pthread_mutex_lock(&s->lock);
    drain_poke(seat);
    seat->busy = false;
    if (sound && seat->blocked && !seat->over) {
        pthread_mutex_unlock(&s->lock);
        return;
    }
    remove_taken(s, seat);
    if (sound && seat->blocked)
        state = DIBS__SEAT_UNANSWERED;
    keep = state == DIBS__SEAT_SOUND && s->idle_count < IDLE_MAX;
    if (keep) {
        seat->used = dibs__now(s->env);
        seat->next = s->idle;
        s->idle = seat;
        s->idle_count++;
    }
    pthread_mutex_unlock(&s->lock);
    if (state == DIBS__SEAT_UNANSWERED)
        dibs__abandoned_add(s->abandoned, seat->conn);
    if (!keep)
        seat_free(seat);
}

/* Takes the reply of the BLPOP, which must be on its way. */
static bool finish_blpop(dibs__seat *seat, dibs__deadline until)
{
    redisReply *reply = NULL;
    dibs__io io;

    while ((io = dibs__conn_next(seat->conn, &reply)) == DIBS__IO_LATE)
        if ((io = dibs__conn_receive(seat->conn, until, -1)) != DIBS__IO_GOT)
            return false;
    if (io != DIBS__IO_GOT)
        return false;
    freeReplyObject(reply);
    return true;
}

void dibs__seat_give_up(dibs__seats *s, const char *attempt, bool answered, dibs__deadline until)
{
    dibs__seat *seat;

    pthread_mutex_lock(&s->lock);
    seat = s->taken ? find(s, attempt) : NULL;
    if (seat && seat->busy) {
        seat->over = true;
        seat = NULL;
    } else if (seat) {
        seat->busy = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (!seat)
        return;
    if (seat->blocked && answered &&
        finish_blpop(seat, dibs__sooner(until, dibs__after(s->env, LAST_WORD))))
        seat->blocked = false;
    seat->over = true;
    dibs__seat_leave(s, seat, DIBS__SEAT_SOUND);
}
