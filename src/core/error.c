/* Statuses as text, and messages that are wrapped on the way up. */
#define _GNU_SOURCE
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *text;
    dibs_next next;
    int http;
    int exit_code;
} statuses[] = {
#define ROW(value, name, text, next, http, code) \
    [value] = {#name, text, DIBS_NEXT_##next, http, code},
    DIBS_STATUSES(ROW)
#undef ROW
};

#define STATUS_COUNT (sizeof statuses / sizeof statuses[0])

static size_t row(dibs_status status)
{
    return (size_t)status < STATUS_COUNT ? (size_t)status : (size_t)DIBS_ENGINE_FAILED;
}

const char *dibs_status_name(dibs_status status)
{
    return statuses[row(status)].name;
}

const char *dibs_status_text(dibs_status status)
{
    return statuses[row(status)].text;
}

const char *dibs_next_name(dibs_next next)
{
    static const char *const names[] = {"none", "repeat", "later", "restart", "inspect"};

    return (size_t)next < sizeof names / sizeof names[0] ? names[next] : names[0];
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

uint32_t dibs_version_number(void)
{
    return DIBS_VERSION_NUMBER;
}

/* A message is one line for a log or a terminal: control bytes of names and servers do not get
 * there. */
static void make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

/* Of an earlier failure. */
static void forget_details(dibs_error *err)
{
    err->next = DIBS_NEXT_NONE;
    err->retry_after_ms = 0;
    err->fence = 0;
    err->pid = 0;
    err->owner[0] = err->host[0] = err->engine_code[0] = '\0';
    memset(err->reserved, 0, sizeof err->reserved);
}

static void fail_args(dibs_error *err, dibs_status status, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static void fail_args(dibs_error *err, dibs_status status, const char *format, va_list args)
{
    if (!err)
        return;
    forget_details(err);
    err->status = status;
    vsnprintf(err->message, sizeof err->message, format, args);
    make_one_line(err->message);
}

dibs_status dibs__fail(dibs_error *err, dibs_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail_args(err, status, format, args);
    va_end(args);
    return status;
}

dibs_status dibs__fail_errno(dibs_error *err, dibs_status status, int failure, const char *format,
                             ...)
{
    const char *name = strerrorname_np(failure);
    va_list args;

    va_start(args, format);
    fail_args(err, status, format, args);
    va_end(args);
    dibs__error_code(err, "%s", name ? name : "");
    return status;
}

dibs_status dibs__fail_as(dibs_error *err, dibs_status status, const dibs_error *why)
{
    if (err) {
        *err = *why;
        err->status = status;
    }
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
    forget_details(err);
    err->status = DIBS_OK;
    err->message[0] = '\0';
}

void dibs__error_holder(dibs_error *err, const char *owner, const char *host, int64_t pid,
                        uint64_t fence, int64_t left_ms)
{
    if (!err)
        return;
    snprintf(err->owner, sizeof err->owner, "%s", owner);
    snprintf(err->host, sizeof err->host, "%s", host);
    err->pid = pid;
    err->fence = fence;
    err->retry_after_ms = left_ms > 0 ? left_ms : 0;
}

void dibs__error_code(dibs_error *err, const char *format, ...)
{
    va_list args;

    if (!err)
        return;
    va_start(args, format);
    vsnprintf(err->engine_code, sizeof err->engine_code, format, args);
    va_end(args);
    make_one_line(err->engine_code);
}

static dibs_next next_step(dibs_status status, dibs_next unknown)
{
    if (status == DIBS_UNKNOWN || (status == DIBS_UNAVAILABLE && unknown == DIBS_NEXT_NONE))
        return unknown;
    return statuses[row(status)].next;
}

/* An inner call may have failed without harm to the whole, or the whole without a word. The lost answer to a
 * request that changes nothing is no unknown outcome: the message remains true, the status becomes another. */
dibs_status dibs__error_settle(dibs_error *err, dibs_status status, dibs_next unknown)
{
    if (err && err->status == DIBS_UNKNOWN && status == DIBS_UNAVAILABLE)
        err->status = status;
    if (status == DIBS_OK)
        dibs__error_clear(err);
    else if (err && (err->status != status || !err->message[0]))
        dibs__fail(err, status, "%s", dibs_status_text(status));
    if (err && err->next == DIBS_NEXT_NONE)
        err->next = next_step(status, unknown);
    return status;
}

dibs_status dibs__check_reserved(const uint64_t reserved[], size_t count, dibs_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (reserved[i])
            return dibs__fail(err, DIBS_INVALID,
                              "the options' reserved members are not zero: start from {0}, or use "
                              "a newer library");
    return DIBS_OK;
}

dibs_status dibs__check_ms(const char *what, int64_t ms, int64_t low, int64_t high, int also,
                           dibs_error *err)
{
    bool none = also & DIBS__OR_NO_WAIT, forever = also & DIBS__OR_FOREVER;

    if (ms == 0 || (ms >= low && ms <= high) || (none && ms == DIBS_NO_WAIT) ||
        (forever && ms == DIBS_FOREVER))
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID, "%s = %lld: give %lld to %lld milliseconds%s%s", what,
                      (long long)ms, (long long)low, (long long)high, none ? ", DIBS_NO_WAIT" : "",
                      forever ? ", or DIBS_FOREVER" : "");
}

dibs_status dibs__check_wait(int64_t wait_ms, dibs_error *err)
{
    return dibs__check_ms("wait_ms", wait_ms, 1, DIBS__MAX_MS, DIBS__OR_NO_WAIT | DIBS__OR_FOREVER,
                          err);
}

dibs_status dibs__check_fingerprint(const void *fingerprint, size_t size, dibs_error *err)
{
    if (size > DIBS_FINGERPRINT_MAX)
        return dibs__fail(err, DIBS_INVALID,
                          "a fingerprint of %zu bytes is longer than %d: use a hash", size,
                          DIBS_FINGERPRINT_MAX);
    if (size > 0 && !fingerprint)
        return dibs__fail(err, DIBS_INVALID, "the fingerprint is NULL, and its size is not 0");
    return DIBS_OK;
}
