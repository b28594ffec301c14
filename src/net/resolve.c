/* A numeric address is answered at once. A name is looked up in a thread of its own, where nobody waits for it longer
 * than the deadline. */
#define _GNU_SOURCE
#include "net/resolve.h"

#include "core/error.h"
#include "net/detached.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct question {
    int result; /* of getaddrinfo */
    struct addrinfo *addresses;
    char port[8];
    char host[];
} question;

static int look_up(const char *host, const char *port, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};

    return getaddrinfo(host, port, &hints, out);
}

static void answer(void *task)
{
    question *q = task;
    struct addrinfo *found = NULL;

    q->result = look_up(q->host, q->port, 0, &found);
    q->addresses = q->result == 0 ? found : NULL;
}

static void drop(void *task)
{
    question *q = task;

    if (q->addresses)
        freeaddrinfo(q->addresses);
    free(q);
}

static question *question_new(const char *host, const char *port)
{
    question *q = calloc(1, sizeof *q + strlen(host) + 1);

    if (q) {
        strcpy(q->host, host);
        snprintf(q->port, sizeof q->port, "%s", port);
    }
    return q;
}

static dibs_status explain(int result, const char *host, dibs_error *err)
{
    if (result == EAI_MEMORY)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    dibs__fail(err, DIBS_UNAVAILABLE, "cannot resolve the host '%.200s': %s; check the URL", host,
               gai_strerror(result));
    dibs__error_code(err, "EAI %d", result);
    return DIBS_UNAVAILABLE;
}

static dibs_status ask(const dibs__env *env, question *q, dibs__deadline until,
                       struct addrinfo **out, dibs_error *err)
{
    const char *host = q->host;
    dibs__detached *a = dibs__detached_start(answer, drop, q, -1);
    dibs_status status = DIBS_OK;

    if (!a) {
        status = dibs__fail(err, DIBS_UNAVAILABLE,
                            "cannot start a thread to resolve the host '%.200s'", host);
        drop(q);
        return status;
    }
    if (!dibs__detached_wait(a, env, until))
        status = dibs__fail(err, DIBS_UNAVAILABLE, "resolving the host '%.200s' timed out", host);
    if (!dibs__detached_end(a))
        return status;
    if (status == DIBS_OK && q->result != 0)
        status = explain(q->result, host, err);
    if (status == DIBS_OK) {
        *out = q->addresses;
        q->addresses = NULL;
    }
    drop(q);
    return status;
}

dibs_status dibs__resolve(const dibs__env *env, const char *host, int port, dibs__deadline until,
                          struct addrinfo **out, dibs_error *err)
{
    char number[8];
    question *q;

    snprintf(number, sizeof number, "%u", (unsigned)port & 0xffffu);
    if (look_up(host, number, AI_NUMERICHOST, out) == 0)
        return DIBS_OK;
    q = question_new(host, number);
    if (!q)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    return ask(env, q, until, out, err);
}
