/* Taking URLs apart in one copied buffer: the parts are cut out of it in place. */
#define _GNU_SOURCE
#include "core/url.h"

#include "core/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#define LOGIN_HINT \
    "; in a user or password write / as %%2F, ? as %%3F, , as %%2C, : as %%3A and @ as %%40"

/* In place; %00 and broken escapes are refused. */
bool dibs__url_decode(char *text)
{
    char *to = text;

    for (const char *from = text; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex(from[1]);
        int low = high < 0 ? -1 : hex(from[2]);
        if (low < 0 || (high | low) == 0)
            return false;
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = '\0';
    return true;
}

/* Cuts `text` at the first `mark` and returns what comes after it, or NULL. */
static char *cut(char *text, char mark)
{
    char *at = strchr(text, mark);

    if (!at)
        return NULL;
    *at = '\0';
    return at + 1;
}

/* What stands where a port should is perhaps a piece of a password: it is repeated only if `open`. */
static dibs_status parse_port(const char *text, bool open, int *out, dibs_error *err)
{
    char *end;
    long port;

    errno = 0;
    port = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || port < 1 || port > 65535)
        return dibs__fail(
            err, DIBS_INVALID,
            open ? "invalid port '%.20s' in the URL: give a number from 1 to 65535"
                 : "invalid port in the URL: give a number from 1 to 65535%.0s" LOGIN_HINT,
            text);
    *out = (int)port;
    return DIBS_OK;
}

dibs_status dibs__url_parse_host(dibs__url_host *host, char *text, bool open, dibs_error *err)
{
    char *port = NULL;

    if (*text == '[') {
        char *rest = cut(text, ']');
        if (!rest || (*rest && *rest != ':'))
            return dibs__fail(err, DIBS_INVALID,
                              "invalid IPv6 address in the URL: write it as [::1]:port");
        text++;
        port = *rest ? rest + 1 : NULL;
    } else {
        port = cut(text, ':');
    }
    if (!dibs__url_decode(text))
        return dibs__fail(err, DIBS_INVALID, "invalid percent escape in the URL's host");
    host->name = text;
    return port ? parse_port(port, open, &host->port, err) : DIBS_OK;
}

static dibs_status parse_hosts(dibs__url *url, char *text, bool open, dibs_error *err)
{
    while (text) {
        char *next = cut(text, ',');
        if (url->host_count == DIBS__HOSTS_MAX)
            return dibs__fail(err, DIBS_INVALID, "more than %d hosts in the URL", DIBS__HOSTS_MAX);
        dibs_status status = dibs__url_parse_host(&url->host[url->host_count++], text, open, err);
        if (status != DIBS_OK)
            return status;
        text = next;
    }
    return DIBS_OK;
}

static dibs_status parse_authority(dibs__url *url, char *text, dibs_error *err)
{
    char *at = strrchr(text, '@');

    url->authority = true;
    if (at) {
        *at = '\0';
        url->password = cut(text, ':');
        url->user = text;
        if (!dibs__url_decode(url->user) || (url->password && !dibs__url_decode(url->password)))
            return dibs__fail(err, DIBS_INVALID,
                              "invalid percent escape in the URL's user or password");
        text = at + 1;
    }
    return parse_hosts(url, text, !at, err);
}

static dibs_status parse_params(dibs__url *url, char *text, dibs_error *err)
{
    if (text && strchr(text, '?')) /* else the second parameter would be a piece of the first */
        return dibs__fail(
            err, DIBS_INVALID,
            "second ? in the URL: separate parameters with &, as in ?a=1&b=2; in a value "
            "write ? as %%3F");
    while (text && *text) {
        char *next = cut(text, '&');
        char *value = cut(text, '=');
        if (url->param_count == DIBS__PARAMS_MAX)
            return dibs__fail(err, DIBS_INVALID, "more than %d parameters in the URL",
                              DIBS__PARAMS_MAX);
        if (!*text || !value || !dibs__url_decode(text) || !dibs__url_decode(value))
            return dibs__fail(err, DIBS_INVALID,
                              "invalid parameter '%.40s' in the URL: write ?name=value", text);
        for (size_t i = 0; i < url->param_count; i++)
            if (strcmp(url->param[i].key, text) == 0)
                return dibs__fail(err, DIBS_INVALID, "parameter '%.40s' is in the URL twice", text);
        url->param[url->param_count].key = text;
        url->param[url->param_count++].value = value;
        text = next;
    }
    return DIBS_OK;
}

/* "scheme:" at the start of `text`: cuts it off and returns the rest. */
static char *parse_scheme(dibs__url *url, char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+.-");

    if (n == 0 || text[n] != ':' || !isalpha((unsigned char)text[0]))
        return NULL;
    url->scheme = text;
    text[n] = '\0';
    return text + n + 1;
}

/* A / or ? ends the authority. An @ after it says that this one stood in a password, whose pieces would be
 * taken for a host, a path or a parameter, and be shown or looked up as such. So does user:password@ where
 * the slashes are missing. */
static bool is_cut_login(const char *rest)
{
    bool authority = strncmp(rest, "//", 2) == 0;
    const char *end = authority ? rest + 2 + strcspn(rest + 2, "/?") : rest;
    bool hosts = authority && end > rest + 2;

    return strchr(hosts ? end : end + strcspn(end, ":?"), '@');
}

dibs_status dibs__url_parse(dibs__url *url, const char *text, dibs_error *err)
{
    char *rest;
    dibs_status status = DIBS_OK;

    memset(url, 0, sizeof *url);
    if (strlen(text) > DIBS__URL_MAX)
        return dibs__fail(err, DIBS_INVALID, "the URL is longer than %d bytes", DIBS__URL_MAX);
    /* The authority's end is a slash that must become a terminator and yet stay in the path: one
     * byte more, and the authority is moved down over its own second slash. */
    url->text = strdup(text);
    if (!url->text)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    url->size = strlen(text);
    rest = parse_scheme(url, url->text);
    if (!rest)
        return dibs__fail(err, DIBS_INVALID,
                          "'%.60s' is not a URL: write it like sqlite:///path or redis://host:port",
                          strchr(text, '@') ? "(with credentials)" : text);
    if (is_cut_login(rest))
        return dibs__fail(err, DIBS_INVALID,
                          "unexpected @ in the URL: write it as %%40" LOGIN_HINT);
    status = parse_params(url, cut(rest, '?'), err);
    if (status != DIBS_OK)
        return status;
    if (strncmp(rest, "//", 2) == 0) {
        char *authority = rest + 1;
        size_t n = strcspn(rest + 2, "/");
        memmove(authority, rest + 2, n);
        url->path = rest + 2 + n;
        authority[n] = '\0';
        url->logins = strdup(authority);
        if (!url->logins)
            return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
        status = parse_authority(url, authority, err);
    } else {
        url->path = rest;
    }
    if (status == DIBS_OK && !dibs__url_decode(url->path))
        status = dibs__fail(err, DIBS_INVALID, "invalid percent escape in the URL's path");
    return status;
}

void dibs__url_fini(dibs__url *url)
{
    if (url->text)
        explicit_bzero(url->text, url->size); /* there may be a password in it */
    if (url->logins)
        explicit_bzero(url->logins, strlen(url->logins));
    free(url->logins);
    free(url->text);
    memset(url, 0, sizeof *url);
}

const char *dibs__url_take(dibs__url *url, const char *key)
{
    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->param[i].key, key) == 0) {
            url->param[i].taken = true;
            return url->param[i].value;
        }
    }
    return NULL;
}

dibs_status dibs__url_take_number(dibs__url *url, const char *key, int64_t low, int64_t high,
                                  int64_t *out, dibs_error *err)
{
    const char *value = dibs__url_take(url, key);
    char *end;
    long long n;

    if (!value)
        return DIBS_OK;
    errno = 0;
    n = strtoll(value, &end, 10);
    if (!*value || *end || errno || n < low || n > high)
        return dibs__fail(err, DIBS_INVALID,
                          "parameter %s=%.40s in the URL: give a whole number from %lld to %lld",
                          key, value, (long long)low, (long long)high);
    *out = n;
    return DIBS_OK;
}

dibs_status dibs__url_all_taken(const dibs__url *url, const char *known, dibs_error *err)
{
    for (size_t i = 0; i < url->param_count; i++)
        if (!url->param[i].taken)
            return dibs__fail(err, DIBS_INVALID,
                              "unknown parameter '%.40s' in the URL; %s accepts: %s%sfence_above",
                              url->param[i].key, url->scheme, known, *known ? ", " : "");
    return DIBS_OK;
}
