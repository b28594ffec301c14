/* From a handler to the library and back: requests are started, outcomes find those who asked. */
#include "serve/sets.h"

#include "serve/metrics.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    serve_outcome_fn done;
    void *data;
} call;

static dibs_status no_memory(dibs_error *err)
{
    *err = (dibs_error){.status = DIBS_NO_MEMORY, .next = DIBS_NEXT_LATER};
    return DIBS_NO_MEMORY;
}

dibs_status serve_ask(serve *s, dibs_request *r, serve_outcome_fn done, void *data, uint64_t *id,
                      dibs_error *err)
{
    call *c = malloc(sizeof *c);
    dibs_status status;

    if (!c)
        return no_memory(err);
    c->done = done;
    c->data = data;
    r->user = c;
    status = dibs_start(s->d, r, id, err);
    if (status == DIBS_OK)
        s->calls++;
    else
        free(c);
    return status;
}

static bool take_one(serve *s)
{
    dibs_outcome o;
    call *c;

    if (!dibs_take(s->d, &o))
        return false;
    c = o.user;
    serve_metrics_outcome(s->metrics, &o);
    if (o.op == DIBS_OP_LOST) {
        if (o.grant)
            serve_set_lost(o.user, o.loss);
        return true;
    }
    s->calls--;
    c->done(c->data, &o);
    free(c);
    return true;
}

void serve_take(void *data)
{
    while (take_one(data))
        continue;
}

/* What else comes, the descriptor says. */
void serve_take_answers(void *data)
{
    serve *s = data;

    while (s->calls > 0 && take_one(s))
        continue;
}

void serve_drop(serve *s, dibs_outcome *o)
{
    (void)s;
    dibs_lock_report_free(o->lock_report);
    dibs_once_report_free(o->once_report);
    dibs_value_free(&o->value);
}

/* ---- Bytes in JSON ---------------------------------------------------------------------------- */

static bool read_hex(const char *text, char *to)
{
    static const char digits[] = "0123456789abcdef";

    for (; text[0]; text += 2) {
        const char *high = strchr(digits, text[0]), *low = text[1] ? strchr(digits, text[1]) : NULL;
        if (!high || !low)
            return false;
        *to++ = (char)((high - digits) * 16 + (low - digits));
    }
    return true;
}

bool serve_bytes(http_exchange *x, const char *text, const char *hex, void **out, size_t *size)
{
    const char *given = http_text(x, text), *in_hex = http_text(x, hex);
    size_t length = given ? strlen(given) : in_hex ? strlen(in_hex) / 2 : 0;

    *out = NULL;
    *size = length;
    if (given && in_hex) {
        http_reply_problem(x, 400, DIBS_INVALID, "give '%s' or '%s'", text, hex);
        return false;
    }
    if (!given && !in_hex)
        return true;
    *out = malloc(length + 1);
    if (*out && given)
        memcpy(*out, given, length);
    if (*out && (given || read_hex(in_hex, *out)))
        return true;
    http_reply_problem(x, *out ? 400 : 500, *out ? DIBS_INVALID : DIBS_NO_MEMORY,
                       "'%s' has pairs of the digits 0-9a-f", hex);
    free(*out);
    *out = NULL;
    return false;
}

/* ---- The usual handler ----------------------------------------------------------------------- */

typedef struct answer {
    http_exchange *x; /* NULL: the client has gone */
    serve *s;
    serve_write_fn write;
    int status;
} answer;

static void on_gone(void *data)
{
    ((answer *)data)->x = NULL;
}

static void on_outcome(void *data, dibs_outcome *o)
{
    answer *a = data;
    bool good = o->err.status == DIBS_OK || o->err.status == DIBS_ALREADY;

    if (a->x && good)
        http_reply_json(a->x, a->status, a->write(o));
    else if (a->x)
        http_reply_error(a->x, &o->err);
    serve_drop(a->s, o);
    free(a);
}

void serve_answer(http_exchange *x, dibs_request *r, int status, serve_write_fn write)
{
    serve *s = http_context(x);
    answer *a = malloc(sizeof *a);
    dibs_error err;

    if (!a) {
        no_memory(&err);
        http_reply_error(x, &err);
        return;
    }
    *a = (answer){.x = x, .s = s, .write = write, .status = status};
    http_on_gone(x, on_gone, a);
    if (serve_ask(s, r, on_outcome, a, NULL, &err) != DIBS_OK) {
        http_reply_error(x, &err);
        free(a);
    }
}
