/* libFuzzer on cells that somebody else has written to: the bytes are put under a key of the library's own, and the
 * calls that read them answer within their contract. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "fuzz/fuzz.h"

#define STORE "memory:fuzz"
#define TOKEN "0123456789abcdef0123456789abcdef"

static void put(dibs *d, const char *key, const uint8_t *data, size_t size, int64_t keep)
{
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .data = data, .size = size, .keep = keep, .stamp = "s"};
    dibs__cell_reply reply = {0};

    must(d->class->cell(d->engine, key, &c, false, DIBS__NEVER, &reply, NULL) == DIBS_OK &&
             reply.verdict == DIBS__CELL_DONE,
         "the cell was not written");
    free(reply.data);
}

/* ---- Once ------------------------------------------------------------------------------------ */

static void check_runner(const dibs_once *o)
{
    dibs_party p;
    size_t size = 0;
    const char *result = dibs_once_result(o, &size);

    dibs_once_runner(o, &p, sizeof p);
    must(strlen(p.owner) < DIBS__OWNER_SIZE && strlen(p.host) < DIBS__HOST_SIZE, "no end");
    must(p.left_ms >= 0 || p.left_ms == DIBS_FOREVER, "less than nothing is left");
    must(!result || size == 0 || result[size - 1] == result[size - 1],
         "a result that is not there");
    dibs_once_step_data(o, "step", &size);
}

/* What it ends with is what the next one is told. */
static void check_own(dibs *d, dibs_once *o, const dibs_once_options *options)
{
    dibs_error err = {0};
    dibs_once *next = NULL;
    size_t size;

    must(dibs_once_held(o) && dibs_once_fence(o) != 0, "begun, and not held");
    must(dibs_once_step(o, "step", "x", 1, &err) == DIBS_OK, "a step of our own run fails");
    must(dibs_once_finish(o, "done", 4, 3, &err) == DIBS_OK, "our own run cannot be finished");
    must(dibs_once_begin(d, "k", options, &next, &err) == DIBS_ALREADY, "finished, and not done");
    must(dibs_once_code(next) == 3 && memcmp(dibs_once_result(next, &size), "done", 4) == 0 &&
             size == 4,
         "another result");
    dibs_once_free(next);
}

static void begin(dibs *d, fuzz_input *in)
{
    uint8_t what = (uint8_t)fuzz_number(in, 1);
    bool yes = what & 1;
    dibs_once_options options = {.wait_ms = what & 2 ? 1 : DIBS_NO_WAIT,
                                 .on_crash = yes ? DIBS_CRASH_RERUN : DIBS_CRASH_REFUSE,
                                 .fingerprint = "fp",
                                 .fingerprint_size = what & 4 ? 2 : 0};
    dibs_once *o = NULL;
    dibs_error err = {0};
    dibs_status status;

    put(d, "o:0:k", in->at, in->left, what & 8 ? DIBS__SECOND : 0);
    status = dibs_once_begin(d, "k", &options, &o, &err);
    must(status == DIBS_OK || status == DIBS_ALREADY || status == DIBS_RUNNING ||
             status == DIBS_MISMATCH || status == DIBS_CRASHED || status == DIBS_EXPIRED ||
             status == DIBS_ENGINE_FAILED,
         "an answer that is none");
    must((o != NULL) == (status != DIBS_ENGINE_FAILED), "an answer without a run");
    fuzz_check_message(&err, status == DIBS_ALREADY ? DIBS_OK : status);
    if (o)
        check_runner(o);
    if (status == DIBS_OK && what & 16)
        check_own(d, o, &options);
    else if (status == DIBS_OK)
        dibs_once_undo(o, &err);
    dibs_once_free(o);
}

/* ---- Tokens, counters, cells ----------------------------------------------------------------- */

static void redeem(dibs *d, fuzz_input *in)
{
    char heir[DIBS_TOKEN_SIZE];
    dibs_error err = {0};
    dibs_status status;

    put(d, "t:0:" TOKEN, in->at, in->left, DIBS__SECOND);
    status = dibs_token_redeem(d, TOKEN, NULL, &err);
    must(status == DIBS_OK || status == DIBS_REFUSED || status == DIBS_ENGINE_FAILED, "no answer");
    fuzz_check_message(&err, status);
    must(status != DIBS_OK || dibs_token_redeem(d, TOKEN, NULL, &err) == DIBS_REFUSED, "twice");
    err = (dibs_error){0};
    status = dibs_token_reissue(d, TOKEN, NULL, heir, &err);
    fuzz_check_message(&err, status);
    must(strlen(heir) == (status == DIBS_OK ? 32 : 0) &&
             strspn(heir, "0123456789abcdef") == strlen(heir),
         "a token that is none");
}

static void count(dibs *d, fuzz_input *in)
{
    int64_t value = 7;
    dibs_error err = {0};
    dibs_status status;

    put(d, "n:k", in->at, in->left, 0);
    status = dibs_counter_get(d, "k", &value, &err);
    fuzz_check_message(&err, status);
    must(value >= 0, "a counter below zero");
    status = dibs_counter_take(d, "k", 1, NULL, &value, &err);
    must(status == DIBS_ENGINE_FAILED, "taken from what is no counter");
}

static void read_cell(dibs *d, fuzz_input *in)
{
    dibs_value value;
    dibs_error err = {0};

    put(d, "c:k", in->at, in->left, 0);
    must(dibs_cell_read(d, "k", &value, &err) == DIBS_OK, "not read");
    must(value.size == in->left && (value.size == 0 || memcmp(value.data, in->at, value.size) == 0),
         "another value");
    must(((const char *)value.data)[value.size] == '\0', "no end");
    dibs_value_free(&value);
}

/* A number in digits, which fences can be added to, or refused. */
static void open_again(dibs *d, fuzz_input *in)
{
    dibs *other = NULL;
    dibs_error err = {0};
    dibs_status status;

    put(d, "=base", in->at, in->left, 0);
    status = dibs_open(STORE "?fence_above=1", NULL, &other, &err);
    fuzz_check_message(&err, status);
    if (status != DIBS_OK)
        return;
    for (size_t i = 0; i < in->left; i++)
        must(in->at[i] >= '0' && in->at[i] <= '9', "a base that is no number");
    must(other->base <= INT64_MAX, "a base that fences cannot be added to");
    dibs_close(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const table[])(dibs * d, fuzz_input * in) = {begin, redeem, count, read_cell,
                                                               open_again};
    fuzz_input in = {data, size};
    uint8_t which = (uint8_t)fuzz_number(&in, 1);
    dibs_error err;
    dibs *d;

    must(dibs_open(STORE, NULL, &d, &err) == DIBS_OK, "not opened");
    table[which % (sizeof table / sizeof table[0])](d, &in);
    dibs_close(d);
    return 0;
}
