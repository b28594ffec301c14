/* Reading where a server is. */
#define _GNU_SOURCE
#include "engines/redis/address.h"

#include "core/error.h"
#include "engines/redis/cluster.h"
#include "engines/redis/sentinel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

dibs_status dibs__address_login(dibs__redis_address *address, const char *user,
                                const char *password, dibs_error *err)
{
    user = user && *user ? user : NULL;
    if (user && !password)
        return dibs__fail(err, DIBS_INVALID,
                          "the URL has a user but no password: write user:password@host");
    if (!copy(&address->user, user) || !copy(&address->password, password))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    return DIBS_OK;
}

dibs_status dibs__address_db(const char *text, int64_t *out, dibs_error *err)
{
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || n > INT32_MAX)
        return dibs__fail(
            err, DIBS_INVALID,
            "invalid database '%.40s' in the URL: write its number after the host, as in "
            "redis://host/0",
            strchr(text, '@') ? "..." : text);
    *out = n;
    return DIBS_OK;
}

dibs_status dibs__address_prefix(dibs__url *url, char out[DIBS__REDIS_PREFIX_MAX + 1],
                                 dibs_error *err)
{
    const char *prefix = dibs__url_take(url, "prefix");

    prefix = prefix ? prefix : "dibs";
    if (!*prefix || strlen(prefix) > DIBS__REDIS_PREFIX_MAX || strpbrk(prefix, "{}"))
        return dibs__fail(err, DIBS_INVALID,
                          "prefix= in the URL: give 1 to %d bytes without braces",
                          DIBS__REDIS_PREFIX_MAX);
    strcpy(out, prefix);
    return DIBS_OK;
}

dibs_status dibs__address_flag(dibs__url *url, const char *key, bool *out, dibs_error *err)
{
    const char *value = dibs__url_take(url, key);

    *out = value && strcmp(value, "yes") == 0;
    if (value && !*out && strcmp(value, "no") != 0)
        return dibs__fail(err, DIBS_INVALID, "%s=%.40s in the URL: give yes or no", key, value);
    return DIBS_OK;
}

dibs_status dibs__address_tls(dibs__url *url, dibs__tls_context **out, dibs_error *err)
{
    const char *ca = dibs__url_take(url, "ca");
    const char *cert = dibs__url_take(url, "cert");
    const char *key = dibs__url_take(url, "key");

    return dibs__tls_context_new(ca, cert, key, out, err);
}

void dibs__address_fini(dibs__redis_address *address)
{
    dibs__cluster_free(address->cluster);
    dibs__sentinels_free(address->sentinels);
    free(address->host);
    free(address->socket);
    free(address->user);
    if (address->password)
        explicit_bzero(address->password, strlen(address->password));
    free(address->password);
    memset(address, 0, sizeof *address);
}
