/* Escaping and formatting; see the header. */
#include "text.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static bool continues(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

size_t cli_utf8_length(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80)
        return 1;
    if (u[0] < 0xC2 || u[0] > 0xF4 || !continues(u[1]))
        return 0;
    if (u[0] < 0xE0)
        return 2;
    if ((u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xED && u[1] > 0x9F) || !continues(u[2]))
        return 0;
    if (u[0] < 0xF0)
        return 3;
    if ((u[0] == 0xF0 && u[1] < 0x90) || (u[0] == 0xF4 && u[1] > 0x8F) || !continues(u[3]))
        return 0;
    return 4;
}

/* Control characters of both kinds: below space and delete, and U+0080 to U+009F. */
static bool steers(const unsigned char *u, size_t length)
{
    return (length == 1 && (u[0] < 0x20 || u[0] == 0x7F)) ||
           (length == 2 && u[0] == 0xC2 && u[1] < 0xA0);
}

/* Writes what stands for the character at `*s` and moves past it. */
static size_t escape_one(char out[8], const char **s, bool exact)
{
    const unsigned char *u = (const unsigned char *)*s;
    size_t length = cli_utf8_length(*s);

    if (length > 0 && !steers(u, length) && (u[0] != '\\' || !exact)) {
        memcpy(out, u, length);
        out[length] = '\0';
        *s += length;
        return length;
    }
    *s += 1;
    if (u[0] == '\n' || u[0] == '\t' || u[0] == '\\')
        return (size_t)snprintf(out, 8, "\\%c", u[0] == '\n' ? 'n' : u[0] == '\t' ? 't' : '\\');
    return (size_t)snprintf(out, 8, "\\x%02x", u[0]);
}

size_t cli_escape(char *out, size_t size, const char *bytes)
{
    size_t used = 0, columns = 0, n;
    char one[8];

    while (*bytes) {
        n = escape_one(one, &bytes, true);
        if (used + n >= size)
            break;
        memcpy(out + used, one, n);
        used += n;
        columns += one[0] == '\\' ? n : 1;
    }
    out[used] = '\0';
    return columns;
}

void cli_print_line(FILE *to, const char *message)
{
    char one[8];

    while (*message) {
        escape_one(one, &message, false);
        fputs(one, to);
    }
}

const char *cli_format_span(char out[24], int64_t ms)
{
    int64_t s = ms / 1000;

    if (ms < 0)
        ms = s = 0;
    if (s == 0)
        snprintf(out, 24, "%" PRId64 "ms", ms);
    else if (s < 60)
        snprintf(out, 24, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(out, 24, "%" PRId64 "m%02ds", s / 60, (int)(s % 60));
    else if (s < 86400)
        snprintf(out, 24, "%" PRId64 "h%02dm", s / 3600, (int)(s % 3600 / 60));
    else
        snprintf(out, 24, "%" PRId64 "d%02dh", s / 86400, (int)(s % 86400 / 3600));
    return out;
}

const char *cli_format_time(char out[32], int64_t unix_ms)
{
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm tm;

    if (!localtime_r(&seconds, &tm) || strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, 32, "%" PRId64, unix_ms / 1000);
    return out;
}
