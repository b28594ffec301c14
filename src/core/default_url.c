/* Which engine is meant when no URL is given: $DIBS_URL, or the file that $DIBS_URL_FILE names, else the
 * embedded store. The command and programs agree on it: two answers would be two stores, and no
 * exclusion between them. */
#define _GNU_SOURCE
#include "core/calls.h"
#include "core/error.h"
#include "core/url.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many bytes of the file came into `text`; -1: errno. */
static ssize_t read_all(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), failure;
    size_t used = 0;
    ssize_t n = fd < 0 ? -1 : 1;

    while (fd >= 0 && used < size && (n = read(fd, text + used, size - used)) != 0) {
        if (n > 0)
            used += (size_t)n;
        else if (errno != EINTR)
            break;
    }
    failure = errno;
    if (fd >= 0)
        close(fd);
    errno = failure;
    return n < 0 ? -1 : (ssize_t)used;
}

static dibs_status check_line(const char *path, const char *text, size_t size, dibs_error *err)
{
    if (size > DIBS__URL_MAX)
        return dibs__fail(err, DIBS_INVALID, "the URL in %.400s is longer than %d bytes", path,
                          DIBS__URL_MAX);
    if (size == 0 || strlen(text) != size || strpbrk(text, "\r\n"))
        return dibs__fail(err, DIBS_INVALID,
                          "%.400s does not contain a URL: write one line such as redis://host:port",
                          path);
    return DIBS_OK;
}

dibs_status dibs__do_url_read(const char *path, char **out, dibs_error *err)
{
    char text[DIBS__URL_MAX + 3]; /* its line may end in CR and LF */
    ssize_t size = read_all(path, text, sizeof text - 1);
    dibs_status status;

    *out = NULL;
    if (size < 0)
        return dibs__fail_errno(err, DIBS_INVALID, errno, "cannot read the URL from %.400s: %s",
                                path, strerror(errno));
    while (size > 0 && isspace((unsigned char)text[size - 1]))
        size--;
    text[size] = '\0';
    status = check_line(path, text, (size_t)size, err);
    if (status == DIBS_OK && !(*out = strdup(text)))
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    explicit_bzero(text, sizeof text);
    return status;
}

dibs_status dibs__url_default(char **out, dibs_error *err)
{
    const char *url = secure_getenv("DIBS_URL");
    const char *path = secure_getenv("DIBS_URL_FILE");

    *out = NULL;
    if (url && *url && path && *path)
        return dibs__fail(err, DIBS_INVALID,
                          "DIBS_URL and DIBS_URL_FILE are both set: unset one of them");
    if (path && *path)
        return dibs__do_url_read(path, out, err);
    *out = strdup(url && *url ? url : "sqlite:");
    return *out ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
}

void dibs__url_forget(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}
