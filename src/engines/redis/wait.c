/* Waiting: BLPOP on the attempt's own list, on a seat of the waiting thread's own. The hand-over
 * pushes fence and floor there, so that the thread reads its own wake-up and nobody stands between
 * it and the server. What is pushed without numbers only says: look again. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In `engine_data` of a sitter that was poked before it sat down. */
static char poked_early;

static void write_blpop(const dibs__redis *r, const char *name, const char *attempt,
                        dibs__bytes *out)
{
    char key[DIBS__REDIS_KEY_SIZE + DIBS__ATTEMPT_SIZE + 4];

    dibs__redis_key(r->prefix, name, key);
    strcat(key, ":w:");
    strcat(key, attempt);
    dibs__resp_begin(out, 3);
    dibs__resp_text(out, "BLPOP");
    dibs__resp_text(out, key);
    dibs__resp_text(out, "0");
}

uint64_t dibs__redis_read_double(const char *at)
{
    uint64_t bits = 0;
    double number;

    for (int i = 0; i < 8; i++)
        bits = bits << 8 | (unsigned char)at[i];
    memcpy(&number, &bits, sizeof number);
    return number >= 0 && number < 0x1p63 ? (uint64_t)number : 0;
}

/* What a BLPOP gave: GRANTED, or QUEUED when there is only reason to look. */
static dibs_status read_wake_up(const redisReply *reply, dibs__reply *out, dibs_error *err)
{
    memset(out, 0, sizeof *out);
    out->verdict = DIBS__QUEUED;
    if (reply->type == REDIS_REPLY_ERROR)
        return dibs__redis_refusal(reply, err);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_STRING || reply->element[1]->len != 16)
        return DIBS_OK;
    out->fence = dibs__redis_read_double(reply->element[1]->str);
    out->floor = dibs__redis_read_double(reply->element[1]->str + 8);
    if (dibs__redis_is_fence((int64_t)out->fence, (int64_t)out->floor))
        out->verdict = DIBS__GRANTED;
    return DIBS_OK;
}

dibs_status dibs__redis_take_seat(dibs__redis *r, dibs__deadline until, dibs__seat **out,
                                  dibs_error *err)
{
    dibs__conn *conn = NULL;
    dibs__ending ending;
    dibs_status status;

    *out = dibs__seat_idle(&r->seats, until);
    if (*out)
        return DIBS_OK;
    status = dibs__redis_connect(&r->place, until, &conn, err);
    if (status != DIBS_OK)
        return status;
    ending = dibs__abandoned_end(&r->abandoned, conn, until);
    if (ending != DIBS__ENDED) {
        dibs__conn_close(conn);
        return dibs__fail(err, DIBS_UNAVAILABLE, "%s: %s", r->place.text,
                          ending == DIBS__END_CUT
                              ? "no answer in time"
                              : "the server does not close an abandoned connection: retry");
    }
    *out = dibs__seat_new(&r->seats, conn);
    return *out ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "out of memory or file descriptors");
}

/* ---- Sitting down and getting up ------------------------------------------------------------- */

/* false: poked already. */
static bool sit_down(dibs__redis *r, dibs__sitter *sitter, dibs__seat *seat)
{
    bool early;

    pthread_mutex_lock(&r->seats.lock);
    early = sitter->engine_data == &poked_early;
    sitter->engine_data = early ? NULL : seat;
    pthread_mutex_unlock(&r->seats.lock);
    return !early;
}

static void get_up(dibs__redis *r, dibs__sitter *sitter)
{
    pthread_mutex_lock(&r->seats.lock);
    sitter->engine_data = NULL;
    pthread_mutex_unlock(&r->seats.lock);
}

void dibs__redis_poke(dibs__engine *e, dibs__sitter *sitter)
{
    dibs__redis *r = (dibs__redis *)e;
    const uint64_t one = 1;
    dibs__seat *seat;

    pthread_mutex_lock(&r->seats.lock);
    seat = sitter->engine_data == &poked_early ? NULL : sitter->engine_data;
    if (!seat)
        sitter->engine_data = &poked_early;
    else if (!seat->poked)
        seat->poked = write(seat->poke_fd, &one, sizeof one) == sizeof one;
    pthread_mutex_unlock(&r->seats.lock);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static dibs_status start_blpop(dibs__redis *r, dibs__seat *seat, const dibs__claim *claim,
                               dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    size_t sent;
    bool ok;

    if (seat->blocked)
        return DIBS_OK;
    write_blpop(r, claim->name, claim->attempt, &bytes);
    seat->blocked = true; /* a part of it may go out */
    ok = !bytes.failed &&
         dibs__conn_send(seat->conn, bytes.data, bytes.length, until, &sent) == DIBS__IO_GOT;
    dibs__bytes_fini(&bytes);
    return ok ? DIBS_OK : dibs__fail(err, DIBS_UNAVAILABLE, "the connection was closed");
}

/* The next reply on the seat, or QUEUED in `out` when there was none in time. */
static dibs_status await_wake_up(dibs__seat *seat, dibs__deadline until, dibs__reply *out,
                                 dibs_error *err)
{
    redisReply *reply = NULL;
    dibs_status status;
    dibs__io io;

    memset(out, 0, sizeof *out);
    out->verdict = DIBS__QUEUED;
    while ((io = dibs__conn_next(seat->conn, &reply)) == DIBS__IO_LATE) {
        io = dibs__conn_receive(seat->conn, until, seat->poke_fd);
        if (io == DIBS__IO_LATE || io == DIBS__IO_POKED)
            return DIBS_OK;
        if (io != DIBS__IO_GOT)
            break;
    }
    if (io != DIBS__IO_GOT)
        return dibs__fail(err, DIBS_UNAVAILABLE, "%s", dibs__io_text(io));
    seat->blocked = false;
    status = read_wake_up(reply, out, err);
    freeReplyObject(reply);
    return status;
}

dibs_status dibs__redis_wait(dibs__engine *e, dibs__sitter *sitter, dibs__deadline until,
                             dibs__reply *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    const dibs__claim *claim = &sitter->claim;
    dibs__seat *seat = dibs__seat_of(&r->seats, claim->attempt);
    dibs_status status = DIBS_OK;

    memset(out, 0, sizeof *out);
    out->verdict = DIBS__QUEUED;
    if (!seat)
        status = dibs__redis_take_seat(r, until, &seat, err);
    if (status != DIBS_OK)
        return status;
    if (sit_down(r, sitter, seat)) {
        dibs__seat_assign(&r->seats, seat, claim->attempt);
        status = start_blpop(r, seat, claim, until, err);
        if (status == DIBS_OK)
            status = await_wake_up(seat, until, out, err);
        get_up(r, sitter);
    }
    dibs__seat_leave(&r->seats, seat,
                     status == DIBS_OK || !seat->blocked ? DIBS__SEAT_SOUND
                                                         : DIBS__SEAT_UNANSWERED);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->place.text);
    return status;
}

/* ---- Entering and waiting in one write ------------------------------------------------------- */

/* The answer to the enter; the BLPOP behind it is answered too unless the attempt is in line. */
static dibs_status read_entered(dibs__seat *seat, const redisReply *reply, int64_t lease,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__reply ignored;
    dibs_status status = dibs__redis_read_reply(reply, lease, out, err);

    seat->blocked = true;
    if (status == DIBS_OK && out->verdict != DIBS__QUEUED)
        await_wake_up(seat, until, &ignored, NULL);
    return status;
}

dibs_status dibs__redis_enter_and_wait(dibs__redis *r, const dibs__enter_request *request,
                                       dibs__bytes *bytes, dibs__deadline until, dibs__reply *out,
                                       dibs_error *err)
{
    dibs__seat *seat = NULL;
    redisReply *reply = NULL;
    dibs_status status;
    bool sound;

    if (dibs__redis_take_seat(r, until, &seat, NULL) != DIBS_OK)
        return DIBS_UNSUPPORTED;
    write_blpop(r, request->name, request->who.attempt, bytes);
    status = dibs__conn_ask(seat->conn, bytes, &reply, 1, until, err);
    if (status ==
        DIBS_UNAVAILABLE) /* the wait did not go out whole; the enter before it may have */
        status = dibs__fail(err, DIBS_UNKNOWN, "the connection was closed");
    sound = status == DIBS_OK && reply->type != REDIS_REPLY_ERROR;
    if (status == DIBS_OK)
        status = dibs__redis_no_script(reply)
                     ? DIBS_UNSUPPORTED
                     : read_entered(seat, reply, request->who.lease, until, out, err);
    if (status == DIBS_OK && out->verdict == DIBS__QUEUED)
        dibs__seat_assign(&r->seats, seat, request->who.attempt);
    else if (seat->blocked)
        sound = false;
    dibs__seat_leave(&r->seats, seat, sound ? DIBS__SEAT_SOUND : DIBS__SEAT_UNANSWERED);
    if (reply)
        freeReplyObject(reply);
    if (status != DIBS_OK && status != DIBS_UNSUPPORTED)
        dibs__wrap(err, "%s", r->place.text);
    return status;
}
