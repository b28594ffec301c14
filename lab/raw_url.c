/* "scheme://user:password@host:port/path?…" in parts, for clients that take them one by one. The lab does not
 * see the library's own parser: it is a user of dibs like any other. Complaints do not repeat the URL: it
 * may hold a password. */
#include "raw.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "%41" is "A". What is no such thing stays as it is. */
static void decode(char *text)
{
    char *to = text;

    for (; *text; text++)
        if (text[0] == '%' && isxdigit((unsigned char)text[1]) &&
            isxdigit((unsigned char)text[2])) {
            *to++ = (char)strtol((char[]){text[1], text[2], 0}, NULL, 16);
            text += 2;
        } else {
            *to++ = *text;
        }
    *to = '\0';
}

/* Cuts "host:port", "[::1]:port". False: the port is none. */
static bool take_host(char *text, lab_url *out)
{
    char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']'), *end = NULL;
    long port;

    if (colon && (!bracket || colon > bracket)) {
        port = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || port < 1 || port > 65535)
            return false;
        out->port = (int)port;
        *colon = '\0';
    }
    if (text[0] == '[' && bracket) {
        *bracket = '\0';
        text++;
    }
    snprintf(out->host, sizeof out->host, "%s", *text ? text : "127.0.0.1");
    return true;
}

static void take_user(char *text, lab_url *out)
{
    char *colon = strchr(text, ':');

    if (colon) {
        *colon = '\0';
        snprintf(out->password, sizeof out->password, "%.255s", colon + 1);
        decode(out->password);
    }
    snprintf(out->user, sizeof out->user, "%.255s", text);
    decode(out->user);
}

bool lab_url_read(lab_buyer *buyer, const char *scheme, const char *url, int port, lab_url *out)
{
    char rest[sizeof buyer->site->url[0]], *host, *at, *slash;
    size_t size = strlen(scheme);

    *out = (lab_url){.port = port};
    if (strncmp(url, scheme, size) != 0 || strncmp(url + size, "://", 3) != 0)
        return lab_note(buyer, "a URL for %s begins with %s://, not with '%.*s'", scheme, scheme,
                        (int)strcspn(url, ":"), url);
    snprintf(rest, sizeof rest, "%s", url + size + 3);
    rest[strcspn(rest, "?#")] = '\0';
    if ((slash = strchr(rest, '/'))) {
        *slash = '\0';
        snprintf(out->path, sizeof out->path, "%.255s", slash + 1);
        decode(out->path);
    }
    host = rest;
    if ((at = strrchr(rest, '@'))) {
        *at = '\0';
        host = at + 1;
        take_user(rest, out);
    }
    return take_host(host, out) || lab_note(buyer, "%s://…: invalid port after the host", scheme);
}
