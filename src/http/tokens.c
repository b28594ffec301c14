/* The token file, and addresses that guess.
 *
 *     NAME SHA256 VERBS [PREFIX...]
 *
 * one token per line: its name in the access log and for operators, the SHA-256 of the secret in hexadecimal (or "-":
 * there is none, the client has a certificate of this name), what it may do (read, lock, break, admin, with commas; or all), and the prefixes of the names that it may use (none:
 * all names). A prefix has the escapes of a URL. Empty lines and lines that begin with # are skipped. Secrets
 * are long random texts, so a plain hash is enough: there is nothing to guess. */
#define _GNU_SOURCE
#include "http/digest.h"
#include "inner.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST = HTTP_DIGEST, PREFIXES = 16, ADDRESSES = 1024, MINUTE_MS = 60000 };

typedef struct token {
    http__client client;
    bool secret;
    unsigned char digest[DIGEST]; /* of the secret */
    char *prefixes[PREFIXES + 1];
} token;

struct http__tokens {
    token *all;
    size_t count, shares; /* besides the first one */
};

static bool fail(dibs_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(dibs_error *err, const char *format, ...)
{
    va_list args;

    err->status = DIBS_INVALID;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool read_digest(const char *hex, unsigned char out[DIGEST])
{
    unsigned byte;

    if (strlen(hex) != 2 * DIGEST || strspn(hex, "0123456789abcdefABCDEF") != 2 * DIGEST)
        return false;
    for (size_t i = 0; i < DIGEST; i++) {
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (unsigned char)byte;
    }
    return true;
}

static bool read_verbs(char *text, unsigned *out)
{
    static const struct {
        const char *name;
        unsigned bits;
    } known[] = {{"read", HTTP_READ},
                 {"lock", HTTP_LOCK},
                 {"break", HTTP_BREAK},
                 {"admin", HTTP_ADMIN},
                 {"all", HTTP_READ | HTTP_LOCK | HTTP_BREAK | HTTP_ADMIN}};
    char *rest = NULL;

    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i].name, word) != 0)
            i++;
        if (i == sizeof known / sizeof known[0])
            return false;
        *out |= known[i].bits;
    }
    return *out != 0;
}

/* What is wrong with the line, or NULL. */
static const char *read_line(char *line, token *t)
{
    char *rest = NULL, *name = strtok_r(line, " \t\r\n", &rest);
    char *digest = strtok_r(NULL, " \t\r\n", &rest), *verbs = strtok_r(NULL, " \t\r\n", &rest),
         *word;
    size_t n = 0;

    if (!verbs)
        return "has no NAME, SHA256 and VERBS";
    if (strlen(name) >= sizeof t->client.name ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-") !=
            strlen(name))
        return "has a name with other characters than A-Z a-z 0-9 . _ @ -, or more than 64";
    strcpy(t->client.name, name);
    t->secret = strcmp(digest, "-") != 0;
    if (t->secret && !read_digest(digest, t->digest))
        return "has no SHA-256 of 64 hexadecimal digits behind the name";
    if (!read_verbs(verbs, &t->client.verbs))
        return "has verbs other than read, lock, break, admin and all";
    while ((word = strtok_r(NULL, " \t\r\n", &rest))) {
        if (n == PREFIXES)
            return "has more than 16 prefixes";
        if (!http__decode(word) || !(t->prefixes[n++] = strdup(word)))
            return "has a prefix with an invalid escape";
    }
    if (n > 0)
        t->client.prefixes = (const char *const *)t->prefixes;
    return NULL;
}

static bool add_line(http__tokens *t, char *line, const char *path, int number, dibs_error *err)
{
    token *more = realloc(t->all, (t->count + 1) * sizeof *more), *one;
    const char *wrong;

    if (!more)
        return fail(err, "out of memory");
    t->all = more;
    one = &more[t->count++];
    *one = (token){0};
    wrong = read_line(line, one);
    if (wrong)
        return fail(err, "%s, line %d %s", path, number, wrong);
    for (size_t i = 0; i + 1 < t->count; i++)
        if (strcmp(more[i].client.name, one->client.name) == 0)
            return fail(err, "%s, line %d: the name '%s' is there twice", path, number,
                        one->client.name);
    return true;
}

/* The lists move with their tokens while the array grows. */
static void settle(http__tokens *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->all[i].client.prefixes)
            t->all[i].client.prefixes = (const char *const *)t->all[i].prefixes;
}

dibs_status http__tokens_read(const char *path, http__tokens **out, dibs_error *err)
{
    http__tokens *t = calloc(1, sizeof *t);
    FILE *file = fopen(path, "re");
    char line[8192];
    bool good = t && file;

    if (!good)
        fail(err, "%s: %s", path, t ? strerror(errno) : "out of memory");
    for (int number = 1; good && fgets(line, sizeof line, file); number++)
        if (!strchr(line, '\n') && !feof(file))
            good = fail(err, "%s, line %d is too long", path, number);
        else if (line[0] != '#' && line[strspn(line, " \t\r\n")])
            good = add_line(t, line, path, number, err);
    if (file)
        fclose(file);
    if (good) {
        settle(t);
        *out = t;
        return DIBS_OK;
    }
    http__tokens_free(t);
    return DIBS_INVALID;
}

http__tokens *http__tokens_share(http__tokens *t)
{
    t->shares++;
    return t;
}

void http__tokens_free(http__tokens *t)
{
    if (t && t->shares > 0) {
        t->shares--;
        return;
    }
    for (size_t i = 0; t && i < t->count; i++)
        for (size_t n = 0; n < PREFIXES; n++)
            free(t->all[i].prefixes[n]);
    if (t)
        free(t->all);
    free(t);
}

/* ---- Finding --------------------------------------------------------------------------------- */

const http__client *http__tokens_find(const http__tokens *t, const char *secret)
{
    http_digest *all = http_digest_new();
    unsigned char digest[DIGEST];
    const http__client *found = NULL;

    http_digest_add(all, secret, strlen(secret));
    http_digest_end(all, digest);
    for (size_t i = 0; i < t->count; i++)
        if (http_same_bytes(t->all[i].digest, digest, DIGEST) && t->all[i].secret)
            found = &t->all[i].client;
    return found;
}

const http__client *http__tokens_named(const http__tokens *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->all[i].client.name, name) == 0)
            return &t->all[i].client;
    return NULL;
}

static bool same_prefixes(const token *a, const token *b)
{
    for (size_t i = 0; i < PREFIXES; i++)
        if (!a->prefixes[i] != !b->prefixes[i] ||
            (a->prefixes[i] && strcmp(a->prefixes[i], b->prefixes[i]) != 0))
            return false;
    return true;
}

bool http__tokens_keep(const http__tokens *t, const http__client *c)
{
    const token *then = (const token *)c; /* its first member */

    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->all[i].client.name, c->name) == 0)
            return t->all[i].client.verbs == c->verbs &&
                   http_same_bytes(t->all[i].digest, then->digest, DIGEST) &&
                   same_prefixes(&t->all[i], then);
    return false;
}

/* ---- Addresses that guess -------------------------------------------------------------------- */

/* A fixed table: an address that hashes to the place of another one shares its count. */
struct http__failures {
    struct {
        int64_t since_ms;
        unsigned count;
    } of[ADDRESSES];
};

http__failures *http__failures_new(void)
{
    return calloc(1, sizeof(http__failures));
}

/* Of an IPv6 address the network: its client may choose the rest. Clients of IPv4 that reach [::] have all the same
 * network, and an address of their own behind it. */
static size_t place(const struct sockaddr *from)
{
    uint32_t hash = 2166136261u;
    const unsigned char *bytes = NULL;
    size_t size = 0;

    if (from && from->sa_family == AF_INET) {
        bytes = (const unsigned char *)&((const struct sockaddr_in *)from)->sin_addr;
        size = 4;
    } else if (from && from->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)from)->sin6_addr;
        bytes = a->s6_addr + (IN6_IS_ADDR_V4MAPPED(a) ? 12 : 0);
        size = IN6_IS_ADDR_V4MAPPED(a) ? 4 : 8;
    }
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash % ADDRESSES;
}

void http__failures_count(http__failures *f, const struct sockaddr *from)
{
    size_t i = place(from);
    int64_t now = http_now_ms();

    if (f->of[i].count == 0 || now - f->of[i].since_ms >= MINUTE_MS) {
        f->of[i].since_ms = now;
        f->of[i].count = 0;
    }
    f->of[i].count++;
}

int http__failures_wait(const http__failures *f, const struct sockaddr *from)
{
    size_t i = place(from);
    int64_t age = http_now_ms() - f->of[i].since_ms;

    if (f->of[i].count < HTTP_FAILURES || age >= MINUTE_MS)
        return 0;
    return (int)((MINUTE_MS - age) / 1000 + 1);
}
