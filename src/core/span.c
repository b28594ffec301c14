/* Durations; see the header. */
#include "core/span.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t ms;
} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
#define UNITS   ((int)(sizeof units / sizeof units[0]))
#define SECONDS 1

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* a * b + c, or INT64_MAX when that is too much. None is negative. */
static int64_t grow(int64_t a, int64_t b, int64_t c)
{
    int64_t out;

    return __builtin_mul_overflow(a, b, &out) || __builtin_add_overflow(out, c, &out) ? INT64_MAX
                                                                                      : out;
}

/* Takes digits; how many there were. */
static size_t take_digits(const char **at, int64_t *out)
{
    const char *start = *at;

    for (*out = 0; is_digit(**at); ++*at)
        *out = grow(*out, 10, **at - '0');
    return (size_t)(*at - start);
}

/* Takes letters; the unit's place in the table, -1: there is no such unit. Nothing at all is seconds, if
 * the whole text is one number. */
static int take_unit(const char **at, bool alone)
{
    size_t n = strspn(*at, "dhms");

    for (int i = 0; n > 0 && i < UNITS; i++)
        if (strlen(units[i].name) == n && strncmp(units[i].name, *at, n) == 0) {
            *at += n;
            return i;
        }
    return n == 0 && **at == '\0' && alone ? SECONDS : -1;
}

/* Takes one part, "1h" or "1.5s", of a smaller unit than the `last`. */
static bool take_part(const char **at, bool alone, int *last, int64_t *total)
{
    int64_t whole, fraction = 0, scale = 1, ms;
    size_t digits = 0;
    int unit;

    if (take_digits(at, &whole) == 0)
        return false;
    if (**at == '.') {
        ++*at;
        digits = take_digits(at, &fraction);
        if (digits == 0 || digits > 9)
            return false;
    }
    unit = take_unit(at, alone);
    if (unit < 0 || unit >= *last)
        return false;
    while (digits-- > 0)
        scale *= 10;
    *last = unit;
    ms = units[unit].ms;
    *total = grow(whole, ms, grow(1, *total, fraction * ms / scale));
    return fraction * ms % scale == 0;
}

int64_t dibs__span_parse(const char *text)
{
    const char *at = text;
    int64_t total = 0;
    int last = UNITS;

    do {
        if (!take_part(&at, at == text, &last, &total))
            return -1;
    } while (*at);
    return total;
}

const char *dibs__span_write(char out[32], int64_t ms)
{
    int i = UNITS - 1;

    while (i > 0 && (ms == 0 || ms % units[i].ms != 0))
        i--;
    snprintf(out, 32, "%" PRId64 "%s", ms / units[i].ms, units[i].name);
    return out;
}
