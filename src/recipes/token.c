/* Tokens: 128 random bits that are good for one redemption.
 *
 * A token is a cell under its own text, and its value says what became of it: issued, spent, or spent
 * and reissued as another. To redeem is to read it and to swap "issued" for "spent": of many who try,
 * one swap names the version that is there. The read cannot be saved by writing the version into the
 * token: versions follow the clock, and a bearer could guess that of the spent one and spend it
 * again.
 *
 * The spent token stays for the rest of its time, for reissue. Its successor is noted before it is
 * made, so that asking again gives the same one; and the note ends no later than the successor, so
 * that a successor which was redeemed and is gone is never made a second time. */
#define _GNU_SOURCE
#include "recipes/cell.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT      1
#define RANDOM      16
#define TEXT        (RANDOM * 2)
#define DEFAULT_TTL (10 * 60 * DIBS__SECOND)

typedef enum token_state { ISSUED = 'i', SPENT = 's' } token_state;

/* The value of a token's cell. */
typedef struct token_record {
    unsigned char format;
    unsigned char state;
    char heir[TEXT]; /* zero: none */
} token_record;

static const dibs_token_options defaults;

/* ---- Texts and checks ------------------------------------------------------------------------ */

static void make_text(const dibs *d, char out[DIBS_TOKEN_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[RANDOM];

    d->env->random(d->env->ctx, bytes, sizeof bytes);
    for (int i = 0; i < RANDOM; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[TEXT] = '\0';
}

static bool is_token(const char *text)
{
    return text && strlen(text) == TEXT && strspn(text, "0123456789abcdef") == TEXT;
}

static dibs_status check(dibs *d, const dibs_token_options *o, dibs_error *err)
{
    dibs_status status = dibs__cells_ready(d, err);

    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("ttl_ms", o->ttl_ms, 1, DIBS__MAX_MS, 0, err);
    if (status == DIBS_OK && o->scope)
        status = dibs__check_text("a scope", o->scope, true, err);
    return status;
}

static dibs_status refuse(dibs_error *err, const char *why)
{
    return dibs__fail(err, DIBS_REFUSED, "the token %s", why);
}

static dibs_status refuse_unknown(dibs_error *err)
{
    return refuse(err, "has expired, was never issued, or is for another scope");
}

/* ---- Commands -------------------------------------------------------------------------------- */

static dibs_status look_up(dibs *d, const char *key, dibs__deadline until, token_record *out,
                           dibs__cell_reply *reply, dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_READ, .stamp = ""};
    dibs_status status = dibs__cell_do(d, key, &c, false, until, reply, NULL, err);
    bool ours;

    if (status != DIBS_OK)
        return status;
    if (reply->verdict == DIBS__CELL_ABSENT)
        return refuse_unknown(err);
    ours = reply->verdict == DIBS__CELL_DONE && reply->size == sizeof *out;
    if (ours)
        memcpy(out, reply->data, sizeof *out);
    free(reply->data);
    reply->data = NULL;
    if (ours && out->format == FORMAT)
        return DIBS_OK;
    return dibs__fail(err, DIBS_ENGINE_FAILED,
                      "the token's record has an unknown format: use a newer version of dibs");
}

/* `done`: it was written. */
static dibs_status write_record(dibs *d, const char *key, uint64_t version, const token_record *r,
                                int64_t keep, dibs__deadline until, bool *done, bool *unsure,
                                dibs_error *err)
{
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP,
        .version = version,
        .data = r,
        .size = sizeof *r,
        .keep = keep == INT64_MAX ? 0
                : keep > 0        ? keep
                                  : 1,
        .stamp = stamp,
    };
    dibs__cell_reply reply;
    dibs_status status;

    dibs__stamp(d, stamp);
    status = dibs__cell_do(d, key, &c, false, until, &reply, unsure, err);
    *done = status == DIBS_OK && reply.verdict == DIBS__CELL_DONE;
    free(reply.data);
    return status;
}

/* ---- The calls ------------------------------------------------------------------------------- */

dibs_status dibs__do_token_issue(dibs *d, const dibs_token_options *options,
                                 char out[DIBS_TOKEN_SIZE], dibs_error *err)
{
    const dibs_token_options *o = options ? options : &defaults;
    token_record r = {FORMAT, ISSUED, {0}};
    char key[DIBS__CELL_KEY_SIZE];
    bool done = false;
    dibs_status status = check(d, o, err);

    out[0] = '\0';
    if (status != DIBS_OK)
        return status;
    make_text(d, out);
    dibs__key(DIBS__KEY_TOKEN, o->scope ? o->scope : "", out, key);
    status = write_record(d, key, 0, &r, o->ttl_ms ? o->ttl_ms * DIBS__MS : DEFAULT_TTL,
                          dibs__after(d->env, d->request_span), &done, NULL, err);
    if (status == DIBS_OK && !done)
        status = dibs__fail(err, DIBS_ENGINE_FAILED, "the random token already exists: retry");
    if (status != DIBS_OK)
        out[0] = '\0';
    return status;
}

static dibs_status redeem(dibs *d, const char *key, dibs_error *err)
{
    dibs__deadline until = dibs__after(d->env, d->request_span);
    dibs__cell_reply reply;
    token_record r;
    bool done, unsure = false;
    dibs_status status;

    status = look_up(d, key, until, &r, &reply, err);
    if (status == DIBS_OK && r.state != ISSUED)
        status = refuse(err, "was already used");
    if (status != DIBS_OK)
        return status;
    r.state = SPENT;
    status = write_record(d, key, reply.version, &r, reply.left, until, &done, &unsure, err);
    if (status != DIBS_OK || done)
        return status;
    if (unsure) /* spent by us and reissued or ended since, or spent by another */
        return dibs__fail(
            err, DIBS_UNKNOWN,
            "the answer was lost, and the token has been used, possibly by this call");
    return refuse(err, "was already used");
}

dibs_status dibs__do_token_redeem(dibs *d, const char *token, const dibs_token_options *options,
                                  dibs_error *err)
{
    const dibs_token_options *o = options ? options : &defaults;
    char key[DIBS__CELL_KEY_SIZE];
    dibs_status status = check(d, o, err);

    if (status == DIBS_OK && !is_token(token))
        status = refuse_unknown(err);
    if (status != DIBS_OK)
        return status;
    dibs__key(DIBS__KEY_TOKEN, o->scope ? o->scope : "", token, key);
    dibs__stay(d);
    status = redeem(d, key, err);
    dibs__go(d);
    return status;
}

/* Makes sure that the heir is there. It is noted in a record that ends no later than the heir does:
 * whoever finds the note finds the heir, too, unless it was never made. */
static dibs_status make_heir(dibs *d, const char *scope, const char *heir, int64_t ttl,
                             dibs__deadline until, dibs_error *err)
{
    token_record r = {FORMAT, ISSUED, {0}};
    char key[DIBS__CELL_KEY_SIZE];
    bool done;

    dibs__key(DIBS__KEY_TOKEN, scope, heir, key);
    return write_record(d, key, 0, &r, ttl, until, &done, NULL, err);
}

/* Gives the spent token its heir, or finds the one that it has; then `ttl` is not below what is left
 * of the note. */
static dibs_status name_heir(dibs *d, const char *key, int64_t *ttl, dibs__deadline until,
                             char *heir, dibs_error *err)
{
    char fresh[DIBS_TOKEN_SIZE];

    make_text(d, fresh);
    for (;;) {
        token_record r;
        dibs__cell_reply reply;
        bool done;
        dibs_status status = look_up(d, key, until, &r, &reply, err);
        if (status == DIBS_OK && r.state != SPENT)
            status = refuse(err, "was not redeemed: redeem it first");
        if (status != DIBS_OK)
            return status;
        if (r.heir[0]) {
            memcpy(heir, r.heir, TEXT);
            heir[TEXT] = '\0';
            if (!is_token(heir))
                return dibs__fail(err, DIBS_ENGINE_FAILED, "the token's record is damaged");
            *ttl = reply.left > *ttl ? reply.left : *ttl;
            return DIBS_OK;
        }
        memcpy(r.heir, fresh, TEXT);
        status = write_record(d, key, reply.version, &r, reply.left < *ttl ? reply.left : *ttl,
                              until, &done, NULL, err);
        if (status == DIBS_OK && done)
            memcpy(heir, fresh, sizeof fresh);
        if (status != DIBS_OK || done)
            return status;
        if (dibs__now(d->env) >= until)
            return dibs__fail(err, DIBS_UNAVAILABLE, "no answer in time");
    }
}

dibs_status dibs__do_token_reissue(dibs *d, const char *token, const dibs_token_options *options,
                                   char out[DIBS_TOKEN_SIZE], dibs_error *err)
{
    const dibs_token_options *o = options ? options : &defaults;
    const char *scope = o->scope ? o->scope : "";
    int64_t ttl;
    dibs__deadline until = dibs__after(d->env, d->request_span);
    char key[DIBS__CELL_KEY_SIZE];
    dibs_status status = check(d, o, err);

    out[0] = '\0';
    if (status == DIBS_OK && !is_token(token))
        status = refuse_unknown(err);
    if (status != DIBS_OK)
        return status;
    ttl = o->ttl_ms ? o->ttl_ms * DIBS__MS : DEFAULT_TTL;
    dibs__key(DIBS__KEY_TOKEN, scope, token, key);
    dibs__stay(d);
    status = name_heir(d, key, &ttl, until, out, err);
    if (status == DIBS_OK)
        status = make_heir(d, scope, out, ttl, until, err);
    dibs__go(d);
    if (status != DIBS_OK)
        out[0] = '\0';
    return status;
}
