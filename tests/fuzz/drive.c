/* Calls of the core to an engine whose server is the fuzzer's, and what engine.h promises of their answers. */
#define _GNU_SOURCE
#include "fuzz/drive.h"

#include "core/report.h"
#include "engines/engine.h"
#include "support/sink.h"

#include <stdarg.h>

#define SPAN  DIBS__SECOND
#define LEASE (10 * DIBS__SECOND)
#define NAME  "a{b}%c"
#define WHO   "owner"

typedef struct driver {
    const dibs__env *env;
    dibs__engine *e;
    const dibs__engine_class *class;
    bool echoes; /* the input has the secret: the server says it */
    dibs_error err;
    uint8_t what; /* the call's own byte */
} driver;

typedef void call_fn(driver *d);

/* ---- The handle's side ----------------------------------------------------------------------- */

static void on_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    (void)sink;
    (void)floor;
    must(strlen(attempt) < DIBS__ATTEMPT_SIZE, "an attempt is too long");
    must(fence != 0, "handed over without a fence");
}

static void on_look(dibs__sink *sink, const char *attempt)
{
    (void)sink;
    must(strlen(attempt) < DIBS__ATTEMPT_SIZE, "an attempt is too long");
}

__attribute__((format(printf, 3, 4))) static void on_log(dibs__sink *sink, dibs_log_level level,
                                                         const char *format, ...)
{
    char line[2048];
    va_list args;

    (void)sink;
    (void)level;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
}

static dibs__sink sink = {.granted = on_granted, .check = on_look, .log = on_log, QUIET_SINK};

/* ---- Answers --------------------------------------------------------------------------------- */

static void check_status(const driver *d, dibs_status status)
{
    fuzz_check_message(&d->err, status);
    must(d->echoes || !strstr(d->err.message, DRIVE_SECRET), "a message has the password");
}

/* Of release and break, which grant nothing: what is no verdict of theirs counts as a loss. */
static void check_verdict(dibs_status status, const dibs__reply *r)
{
    if (status != DIBS_OK)
        return;
    must(r->verdict <= DIBS__RELEASED, "a verdict that is none");
    must(r->remaining >= 0, "less than nothing remains");
}

static void check_reply(dibs_status status, const dibs__reply *r)
{
    check_verdict(status, r);
    if (status == DIBS_OK && r->verdict == DIBS__GRANTED)
        must(r->fence != 0 && r->fence <= INT64_MAX && r->floor <= r->fence,
             "a fence that is none");
}

static dibs__deadline until(const driver *d)
{
    return dibs__after(d->env, SPAN);
}

static void set_text(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%s", text);
}

static dibs__claim claim_of(const driver *d)
{
    return (dibs__claim){.name = NAME,
                         .owner = WHO,
                         .attempt = "0123456789abcdef-1",
                         .fence = d->what & 2 ? 1700000000000000 : 0,
                         .lease = LEASE};
}

/* ---- Calls: locks ---------------------------------------------------------------------------- */

static void enter(driver *d)
{
    dibs__enter_request q = {.name = NAME, .capacity = d->what & 1 ? DIBS__PLAIN : 4};
    dibs__reply reply = {0};
    dibs_status status;

    set_text(q.who.owner, sizeof q.who.owner, WHO);
    set_text(q.who.attempt, sizeof q.who.attempt, "0123456789abcdef-1");
    set_text(q.who.host, sizeof q.who.host, "host");
    q.who.weight = d->what & 1 ? DIBS__PLAIN : 1;
    q.who.lease = LEASE;
    q.window = d->what & 2 ? SPAN : 0;
    q.owner_named = d->what & 8;
    if ((d->class->can.no_slots && !(d->what & 1)))
        return;
    status = d->class->enter(d->e, &q, until(d), &reply, &d->err);
    check_status(d, status);
    check_reply(status, &reply);
}

static void keep(driver *d)
{
    dibs__claim claim[3] = {claim_of(d), claim_of(d), claim_of(d)};
    dibs__claim *claims[3] = {&claim[0], &claim[1], &claim[2]};
    size_t count = 1 + d->what % 3;

    d->class->keep(d->e, claims, count, until(d));
    for (size_t i = 0; i < count; i++)
        check_reply(claim[i].status, &claim[i].reply);
}

static void release(driver *d)
{
    dibs__claim claim = claim_of(d);
    dibs__reply reply = {0};
    dibs_status status = d->class->release(d->e, &claim, until(d), &reply, &d->err);

    check_status(d, status);
    check_verdict(status, &reply);
}

static void cancel(driver *d)
{
    dibs__claim claim = claim_of(d);

    claim.fence = 0;
    check_status(d, d->class->cancel(d->e, &claim, until(d), &d->err));
}

static void break_lock(driver *d)
{
    dibs__reply reply = {0};
    dibs_status status =
        d->class->break_lock(d->e, NAME, "op", d->what & 1, until(d), &reply, &d->err);

    check_status(d, status);
    check_verdict(status, &reply);
}

static void events(driver *d)
{
    if (d->class->events)
        d->class->events(d->e, until(d));
}

/* ---- Calls: reports -------------------------------------------------------------------------- */

static void check_party(const dibs_party *p)
{
    must(p->left_ms >= 0, "less than nothing is left");
    must(strlen(p->owner) < DIBS__OWNER_SIZE && strlen(p->host) < DIBS__HOST_SIZE, "a long text");
}

static void check_report(const dibs_lock_report *r)
{
    for (size_t i = 0; i < dibs_lock_report_count(r); i++) {
        const dibs_lock_info *l = dibs_lock_report_at(r, i);
        must(strlen(l->name) <= DIBS_NAME_MAX, "a name is too long");
        must(!l->broken_by || strlen(l->broken_by) < DIBS__BY_SIZE, "a long text");
        for (size_t k = 0; k < l->holder_count; k++)
            check_party(l->holders[k]);
        for (size_t k = 0; l->waiters && k < l->waiter_count; k++)
            check_party(l->waiters[k]);
        for (size_t k = 0; k < l->note_count; k++)
            must(strlen(l->notes[k]) < 512, "a long note");
    }
}

static void look(driver *d)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_lock_report *report = NULL;
    dibs_status status = d->what & 1 ? d->class->inspect(d->e, NAME, until(d), b, &d->err)
                                     : d->class->list(d->e, "a", d->what & 2, until(d), b, &d->err);

    check_status(d, status);
    if (status != DIBS_OK) {
        dibs__report_drop(b);
        return;
    }
    must(dibs__report_finish(b, 0, &report, NULL) == DIBS_OK, "no memory");
    check_report(report);
    dibs_lock_report_free(report);
}

/* ---- Calls: cells ---------------------------------------------------------------------------- */

static void check_cell(dibs__cell_op op, const dibs__cell_reply *r)
{
    must(r->verdict <= DIBS__CELL_KIND, "a verdict that is none");
    must(r->age >= 0 && r->left >= 0, "a time below zero");
    must(dibs__cell_shows_data(op, r->verdict) == (r->data != NULL), "data, or none");
    must(!r->data || ((const char *)r->data)[r->size] == '\0', "data without an end");
}

static void cell(driver *d)
{
    dibs__cell_command c = {.op = (dibs__cell_op)(d->what % (DIBS__CELL_TAKE + 1)),
                            .version = d->what & 16 ? 1700000000000000 : 0,
                            .data = "value",
                            .size = 5,
                            .number = 3,
                            .fence = d->what & 32 ? 7 : 0,
                            .stamp = "0123456789abcdef-2",
                            .request = d->what & 64 ? "r{1}" : NULL,
                            .request_keep = SPAN};
    dibs__cell_reply reply = {0};
    dibs_status status;

    if (!d->class->cell)
        return;
    status = d->class->cell(d->e, "c:" NAME, &c, d->what & 128, until(d), &reply, &d->err);
    check_status(d, status);
    if (status == DIBS_OK)
        check_cell(c.op, &reply);
    free(reply.data);
}

static void watch(driver *d)
{
    void *watched = NULL;
    dibs_status status;

    if (!d->class->watch)
        return;
    status = d->class->watch(d->e, "c:" NAME, 5, until(d), &watched, &d->err);
    check_status(d, status);
    must(status == DIBS_OK || !watched, "a watch that is none");
    if (watched)
        d->class->unwatch(d->e, watched);
}

/* ---- A run ----------------------------------------------------------------------------------- */

static void make_calls(driver *d, const uint8_t *calls, size_t size)
{
    static call_fn *const table[] = {enter, events, keep,   release, cancel, break_lock,
                                     look,  cell,   events, cell,    watch};

    for (size_t i = 0; i + 1 < size; i += 2) {
        d->what = calls[i + 1];
        d->err = (dibs_error){0};
        table[calls[i] % (sizeof table / sizeof table[0])](d);
    }
}

void drive(const char *text, const dibs__env *env, fuzz_input *in)
{
    dibs__url url;
    driver d = {.env = env, .echoes = memmem(in->at, in->left, DRIVE_SECRET, strlen(DRIVE_SECRET))};
    size_t size;
    const uint8_t *calls = fuzz_bytes(in, 2 * (fuzz_number(in, 1) % DRIVE_CALLS), &size);
    dibs__open_request request = {.url = &url,
                                  .env = env,
                                  .sink = &sink,
                                  .handle_id = "0123456789abcdef",
                                  .request_span = SPAN};
    dibs_status status;

    must(dibs__url_parse(&url, text, NULL) == DIBS_OK, "the fuzzer's own URL");
    d.class = dibs__engine_find(url.scheme);
    request.until = until(&d);
    status = d.class->open(&request, &d.e, &d.err);
    dibs__url_fini(&url);
    check_status(&d, status);
    if (status == DIBS_OK) {
        d.e->class = d.class;
        make_calls(&d, calls, size);
        d.class->close(d.e);
    }
}
