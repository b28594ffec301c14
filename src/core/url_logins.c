/* Lists of hosts in which each may have a login of its own. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/url.h"

#include <stdlib.h>
#include <string.h>

/* "[user][:password]" before an @. "": nobody in particular. */
static dibs_status read_login(char *text, dibs__url_login *out, dibs_error *err)
{
    char *password = strchr(text, ':');

    if (password)
        *password++ = '\0';
    if (!dibs__url_decode(text) || (password && !dibs__url_decode(password)))
        return dibs__fail(err, DIBS_INVALID,
                          "invalid percent escape in the URL's user or password");
    out->user = *text ? text : NULL;
    out->password = password;
    return DIBS_OK;
}

dibs_status dibs__url_logins(const dibs__url *url, dibs__url_login out[DIBS__HOSTS_MAX],
                             size_t *count, char **room, dibs_error *err)
{
    dibs__url_login current = {0};
    dibs_status status = DIBS_OK;
    bool open = !url->logins || !strchr(url->logins, '@');

    *count = 0;
    *room = strdup(url->logins ? url->logins : "");
    if (!*room)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    for (char *text = *room, *next; text && status == DIBS_OK; text = next) {
        next = strchr(text, ',');
        if (next)
            *next++ = '\0';
        char *at = strrchr(text, '@');
        if (*count == DIBS__HOSTS_MAX)
            return dibs__fail(err, DIBS_INVALID, "more than %d hosts in the URL", DIBS__HOSTS_MAX);
        if (at) {
            *at = '\0';
            status = read_login(text, &current, err);
            text = at + 1;
        }
        current.at = (dibs__url_host){0};
        if (status == DIBS_OK)
            status = dibs__url_parse_host(&current.at, text, open, err);
        out[(*count)++] = current;
    }
    return status;
}
