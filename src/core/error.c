/* Statuses as text, and messages that are wrapped on the way up. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *text;
    int http;
    int exit_code;
} statuses[] = {
#define X(name, text, http, code) {#name, text, http, code},
    DIBS_STATUSES(X)
#undef X
};

#define STATUS_COUNT (sizeof statuses / sizeof statuses[0])

static size_t row(dibs_status status)
{
    return (size_t)status < STATUS_COUNT ? (size_t)status : (size_t)DIBS_BROKEN_ENGINE;
}

const char *dibs_status_name(dibs_status status)
{
    return statuses[row(status)].name;
}

const char *dibs_status_text(dibs_status status)
{
    return statuses[row(status)].text;
}

int dibs_status_http(dibs_status status)
{
    return statuses[row(status)].http;
}

int dibs_status_exit_code(dibs_status status)
{
    return statuses[row(status)].exit_code;
}

const char *dibs_version(void)
{
    return DIBS_VERSION;
}

/* A message is one line for a log or a terminal: control bytes of names and servers do not get
 * there. */
static void make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

dibs_status dibs__fail(dibs_error *err, dibs_status status, const char *format, ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    make_one_line(err->message);
    return status;
}

void dibs__wrap(dibs_error *err, const char *format, ...)
{
    char inner[sizeof err->message];
    va_list args;
    int n;

    if (!err)
        return;
    memcpy(inner, err->message, sizeof inner);
    va_start(args, format);
    n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    /* said already, where the same thing failed further down */
    if (n > 0 && (size_t)n < sizeof inner && strncmp(inner, err->message, (size_t)n) == 0 &&
        inner[n] == ':')
        memcpy(err->message, inner, sizeof inner);
    else if (n >= 0 && (size_t)n < sizeof err->message)
        snprintf(err->message + n, sizeof err->message - (size_t)n, ": %.*s",
                 (int)sizeof inner - 8 - n, inner);
    make_one_line(err->message);
}

void dibs__error_clear(dibs_error *err)
{
    if (!err)
        return;
    err->status = DIBS_OK;
    err->message[0] = '\0';
}

/* An inner call may have failed without harm to the whole, or the whole without a word. The lost answer to a
 * request that changes nothing is no unknown outcome: the message remains true, the status becomes another. */
dibs_status dibs__error_settle(dibs_error *err, dibs_status status)
{
    if (err && err->status == DIBS_UNKNOWN && status == DIBS_UNAVAILABLE)
        err->status = status;
    if (status == DIBS_OK)
        dibs__error_clear(err);
    else if (err && (err->status != status || !err->message[0]))
        dibs__fail(err, status, "%s", dibs_status_text(status));
    return status;
}

dibs_status dibs__check_ms(const char *what, int64_t ms, int64_t low, int64_t high,
                           const char *minus_one, dibs_error *err)
{
    if (ms == 0 || (ms >= low && ms <= high) || (minus_one && ms == -1))
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID, "%s = %lld: give %lld to %lld milliseconds%s%s", what,
                      (long long)ms, (long long)low, (long long)high, minus_one ? ", or " : "",
                      minus_one ? minus_one : "");
}
