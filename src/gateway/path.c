/* Paths and patterns; see the header. */
#include "gateway/path.h"

#include <string.h>

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool is_unreserved(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c > 0 && strchr("-._~", c));
}

static bool decode(const char *path, size_t size, char *out)
{
    static const char digits[] = "0123456789ABCDEF";

    for (size_t i = 0; i < size; i++) {
        int high = path[i] == '%' && size - i > 2 ? hex(path[i + 1]) : -1;
        int low = high < 0 ? -1 : hex(path[i + 2]), c = high * 16 + low;

        if (path[i] == '\\' || (path[i] == '%' && (low < 0 || c < ' ' || c == 0x7f)))
            return false;
        if (path[i] != '%') {
            *out++ = path[i];
            continue;
        }
        i += 2;
        if (is_unreserved(c)) {
            *out++ = (char)c;
            continue;
        }
        *out++ = '%';
        *out++ = digits[high];
        *out++ = digits[low];
    }
    *out = '\0';
    return true;
}

bool gate_query_decode(const char *text, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++) {
        int high = text[i] == '%' && size - i > 2 ? hex(text[i + 1]) : -1;
        int low = high < 0 ? -1 : hex(text[i + 2]);

        if (text[i] == '%' && (low < 0 || high * 16 + low == 0))
            return false;
        *out++ = text[i] == '%' ? (char)(high * 16 + low) : text[i] == '+' ? ' ' : text[i];
        i += text[i] == '%' ? 2 : 0;
    }
    *out = '\0';
    return true;
}

static bool is_segment(const char *at, const char *dots)
{
    size_t n = strlen(dots);

    return strncmp(at, dots, n) == 0 && (at[n] == '/' || at[n] == '\0');
}

/* RFC 3986, 5.2.4, on a path that begins with /. */
static void remove_dots(char *path)
{
    char *to = path;

    for (const char *at = path; *at;) {
        if (is_segment(at, "/.")) {
            at += 2;
            if (!*at)
                *to++ = '/';
        } else if (is_segment(at, "/..")) {
            at += 3;
            while (to > path && *--to != '/')
                ;
            if (!*at)
                *to++ = '/';
        } else {
            *to++ = *at++;
            while (*at && *at != '/')
                *to++ = *at++;
        }
    }
    if (to == path)
        *to++ = '/';
    *to = '\0';
}

bool gate_path_normal(const char *path, size_t size, char *out)
{
    if (!decode(path, size, out))
        return false;
    if (out[0] == '/')
        remove_dots(out);
    return !strstr(out, "/.;") && !strstr(out, "/..;");
}

/* Applications take its escape for the character itself. */
static bool is_literal(int c)
{
    return c > ' ' && c < 0x7f && !strchr("/%;?#\\", c);
}

void gate_path_plain(char *path)
{
    char *to = path;

    for (const char *at = path; *at;) {
        int c = *at == '%' ? hex(at[1]) * 16 + hex(at[2]) : -1;

        if (is_literal(c)) {
            *to++ = (char)c;
            at += 3;
        } else if (*at == ';') {
            at += strcspn(at, "/");
        } else if (*at == '/' && to > path && to[-1] == '/') {
            at++;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

/* ---- Patterns -------------------------------------------------------------------------------- */

/* The segment at `at`, which begins behind a slash; its length. */
static size_t segment(const char *at)
{
    return strcspn(at, "/");
}

/* As the target of a request has to be: another byte would never match. */
static bool is_graphic(const char *text)
{
    while (*text > ' ' && *text < 0x7f)
        text++;
    return !*text;
}

bool gate_pattern_valid(const char *pattern)
{
    char plain[1024];

    if (pattern[0] != '/' || strlen(pattern) >= sizeof plain ||
        !gate_path_normal(pattern, strlen(pattern), plain))
        return false;
    gate_path_plain(plain);
    if (strcmp(plain, pattern) != 0 || strpbrk(pattern, "?#\"{}") || !is_graphic(pattern))
        return false;
    for (const char *at = pattern + 1; *at; at += at[0] == '/') {
        size_t n = segment(at);
        bool rest = n == 2 && at[0] == '*' && at[1] == '*', one = n == 1 && *at == '*';

        if ((rest && at[n]) || (!rest && !one && memchr(at, '*', n)))
            return false;
        at += n;
    }
    return true;
}

/* Walks both; `literal` says whether the other is a path, or a pattern whose asterisks are segments as well. */
static bool walk(const char *pattern, const char *path, const char **first, size_t *first_size)
{
    if (first)
        *first = NULL;
    for (;;) {
        size_t n, m;

        pattern++;
        path++;
        n = segment(pattern);
        m = segment(path);
        if (n == 2 && memcmp(pattern, "**", 2) == 0)
            return *path != '\0';
        if (n == 1 && *pattern == '*' && m > 0) {
            if (first && !*first) {
                *first = path;
                *first_size = m;
            }
        } else if (n != m || memcmp(pattern, path, n) != 0) {
            return false;
        }
        pattern += n;
        path += m;
        if (!*pattern || !*path)
            return *pattern == *path;
    }
}

bool gate_pattern_match(const char *pattern, const char *path, const char **first,
                        size_t *first_size)
{
    return path[0] == '/' && walk(pattern, path, first, first_size);
}

bool gate_pattern_covers(const char *wide, const char *narrow)
{
    const char *rest = strstr(narrow, "/**"), *end = strstr(wide, "/**");

    if (rest && !end)
        return false;
    if (rest) /* wide's fixed part has to be matched by narrow's */
        return end - wide <= rest - narrow && walk(wide, narrow, NULL, NULL);
    return walk(wide, narrow, NULL, NULL);
}
