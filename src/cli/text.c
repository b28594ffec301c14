/* Escaping and formatting; see the header. */
#define _GNU_SOURCE
#include "text.h"

#include <inttypes.h>
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

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

static wchar_t number_of(const char *s, size_t length)
{
    const unsigned char *u = (const unsigned char *)s;
    uint32_t n = length == 1 ? u[0] : u[0] & (0xFFU >> (length + 1));

    for (size_t i = 1; i < length; i++)
        n = n << 6 | (u[i] & 0x3F);
    return (wchar_t)n;
}

/* What changes how other characters are shown, or is not seen at all: control characters of both kinds, marks
 * of the direction of writing, line separators, and what has no width and no looks. */
static bool steers(const char *s, size_t length)
{
    static const struct {
        wchar_t from, to;
    } ranges[] = {{0, 0x1F},        {0x7F, 0x9F},     {0xAD, 0xAD},      {0x61C, 0x61C},
                  {0x180E, 0x180E}, {0x200B, 0x200F}, {0x2028, 0x202E},  {0x2060, 0x206F},
                  {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
    wchar_t n = number_of(s, length);

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (n >= ranges[i].from && n <= ranges[i].to)
            return true;
    return false;
}

static void know_widths(void)
{
    setlocale(LC_CTYPE, "C.UTF-8");
}

/* The locale is several files, which a command that prints nothing of the kind does not open. */
size_t cli_columns(const char *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t length = cli_utf8_length(s);
    int width = 1;

    if (length > 1) {
        pthread_once(&once, know_widths);
        width = wcwidth(number_of(s, length));
    }
    return width < 0 ? 1 : (size_t)width;
}

/* Writes what stands for the character at `*s` and moves past it. */
static size_t escape_one(char out[8], const char **s, bool exact)
{
    const unsigned char *u = (const unsigned char *)*s;
    size_t length = cli_utf8_length(*s);

    if (length > 0 && !steers(*s, length) && (u[0] != '\\' || !exact)) {
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
        columns += one[0] == '\\' ? n : cli_columns(one);
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

/* A password that is a parameter, as that of sentinels. */
static void hide_parameter(char *text)
{
    char *value = strstr(text, "password=");

    if (value)
        for (value += strlen("password="); *value && *value != '&'; value++)
            *value = '*';
}

void cli_hide_login(char *text, size_t size)
{
    char *at = memrchr(text, '@', size);
    size_t login = at ? (size_t)(at - text) : 0, stars = login < 3 ? login : 3, rest;

    hide_parameter(text);
    if (login == 0)
        return;
    rest = strlen(at);
    memset(text, '*', stars);
    memmove(text + stars, at, rest);
    memset(text + stars + rest, '\0', login - stars);
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
