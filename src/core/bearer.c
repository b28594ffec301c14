/* Writing and reading the text of a portable grant; see the header. */
#include "core/bearer.h"

#include "core/table.h"
#include "state/attempt.h"

#include <stdio.h>
#include <string.h>

#define FORM "dibs1."
#define SUM  17 /* a dot and 16 digits */
/* Of the fields before they are encoded: four texts and the numbers. */
#define RAW                                                                     \
    (sizeof((dibs__bearer *)0)->engine + DIBS_NAME_MAX + 1 + DIBS__OWNER_SIZE + \
     DIBS__ATTEMPT_SIZE + 64)

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- base64url, without padding -------------------------------------------------------------- */

static char *encode(const char *from, size_t size, char *to)
{
    uint32_t bits = 0;
    int have = 0;

    for (size_t i = 0; i < size; i++) {
        bits = bits << 8 | (unsigned char)from[i];
        for (have += 8; have >= 6; have -= 6)
            *to++ = digits[bits >> (have - 6) & 63];
    }
    if (have > 0)
        *to++ = digits[bits << (6 - have) & 63];
    return to;
}

/* What does not belong there is left out: who compares what this makes with the text notices. */
static size_t decode(const char *from, size_t size, char *to)
{
    uint32_t bits = 0;
    size_t n = 0;
    int have = 0;

    for (size_t i = 0; i < size; i++) {
        const char *digit = from[i] ? strchr(digits, from[i]) : NULL;
        if (!digit)
            continue;
        bits = bits << 6 | (uint32_t)(digit - digits);
        have += 6;
        if (have >= 8) {
            have -= 8;
            to[n++] = (char)(bits >> have & 255);
        }
    }
    return n;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static char *add_text(char *at, const char *text)
{
    return stpcpy(at, text) + 1;
}

/* In hexadecimal, with so many digits at least. A printf for each would be half of the work. */
static char *add_number(char *at, uint64_t number, int digits_least)
{
    int n = digits_least;

    while (n < 16 && number >> (4 * n))
        n++;
    while (n-- > 0)
        *at++ = "0123456789abcdef"[number >> (4 * n) & 15];
    return at;
}

void dibs__bearer_write(const dibs__bearer *b, char out[DIBS_GRANT_SIZE])
{
    const uint64_t numbers[] = {b->fence, (uint64_t)b->lease, b->capacity, b->weight};
    char raw[RAW], *end = raw, *body = stpcpy(out, FORM), *at;
    uint64_t sum;

    end = add_text(end, b->engine);
    end = add_text(end, b->name);
    end = add_text(end, b->owner);
    end = add_text(end, b->attempt);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (i > 0)
            *end++ = ' ';
        end = add_number(end, numbers[i], 1);
    }
    at = encode(raw, (size_t)(end - raw), body);
    *at = '\0';
    sum = dibs__hash(body);
    *at++ = '.';
    *add_number(at, sum, SUM - 1) = '\0';
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The text that begins at `*at`, with its NUL before `end`; false: too long, or none. */
static bool take_text(const char **at, const char *end, char *out, size_t size)
{
    size_t length = strnlen(*at, (size_t)(end - *at));

    if (length == 0 || length >= size || *at + length == end)
        return false;
    memcpy(out, *at, length + 1);
    *at += length + 1;
    return true;
}

static bool take_numbers(const char *at, dibs__bearer *out)
{
    unsigned long long fence, lease;

    if (sscanf(at, "%16llx %16llx %8x %8x", &fence, &lease, &out->capacity, &out->weight) != 4)
        return false;
    out->fence = fence;
    out->lease = (int64_t)lease;
    return true;
}

static bool in_range(const dibs__bearer *b)
{
    return b->fence > 0 && b->fence <= INT64_MAX && b->lease > 0 && b->capacity > 0 &&
           b->capacity <= DIBS__PLAIN && b->weight > 0 && b->weight <= b->capacity &&
           strchr(b->attempt, DIBS__SECRET);
}

static bool read_fields(const char *raw, size_t size, dibs__bearer *out)
{
    const char *at = raw, *end = raw + size;

    return take_text(&at, end, out->engine, sizeof out->engine) &&
           take_text(&at, end, out->name, sizeof out->name) &&
           take_text(&at, end, out->owner, sizeof out->owner) &&
           take_text(&at, end, out->attempt, sizeof out->attempt) && take_numbers(at, out) &&
           in_range(out);
}

/* It is one of ours if writing what was read gives the same text: so there is one way to write a grant. */
bool dibs__bearer_read(const char *text, dibs__bearer *out)
{
    char raw[DIBS_GRANT_SIZE] = "", again[DIBS_GRANT_SIZE];
    size_t length = strnlen(text, DIBS_GRANT_SIZE), form = sizeof FORM - 1;

    memset(out, 0, sizeof *out);
    if (length == DIBS_GRANT_SIZE || length < form + SUM || memcmp(text, FORM, form) != 0)
        return false;
    if (!read_fields(raw, decode(text + form, length - form - SUM, raw), out))
        return false;
    dibs__bearer_write(out, again);
    return strcmp(again, text) == 0;
}
