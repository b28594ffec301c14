/* What a client asks for when it asks for locks: names and terms become a set. */
#define _GNU_SOURCE
#include "serve/secret.h"
#include "serve/sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEASE_MIN = 10, SLOTS_MAX = 1000000 };

#define TERMS                                                                                        \
    {"wait_ms", HTTP_INTEGER, 0, SERVE_DAY_MS, "How long to wait.", false},                          \
        {"lease_ms",                                                                                 \
         HTTP_INTEGER,                                                                               \
         LEASE_MIN,                                                                                  \
         SERVE_DAY_MS,                                                                               \
         "The lock is released after this unless it is renewed.",                                    \
         false},                                                                                     \
        {"shared", HTTP_BOOLEAN, 0, 0, "A shared (read) lock.", false},                              \
        {"slots", HTTP_INTEGER, 1, SLOTS_MAX, "A semaphore with so many slots.", false},             \
        {"weight", HTTP_INTEGER, 1, SLOTS_MAX, "Slots that this request takes (default 1).", false}, \
    {                                                                                                \
        "owner", HTTP_TEXT, 1, SERVE_LABEL_MAX, "Shown to operators.", false                         \
    }

const http_field serve_hold_fields[] = {TERMS, {0}};
const http_field serve_acquire_fields[] = {
    {"name", HTTP_NAME, 1, DIBS_NAME_MAX, "The lock.", false},
    {"names", HTTP_NAMES, 1, SERVE_NAMES, "Several locks: all or none.", false},
    {"request", HTTP_TEXT, SERVE_REQUEST_MIN, SERVE_REQUEST_MAX,
     "An id for this request, chosen by the client at random: the same id again returns the same "
     "grant.",
     false},
    TERMS,
    {0},
};

static bool refuse(http_exchange *x, const char *what)
{
    http_reply_problem(x, 400, DIBS_INVALID, "%s", what);
    return false;
}

static bool check(http_exchange *x, bool stream)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    const char *request = http_text(x, "request");

    if (!stream && http_given(x, "name") == http_given(x, "names"))
        return refuse(x, "give either 'name' or 'names'");
    if (request && strspn(request, allowed) != strlen(request))
        return refuse(x, "'request': use the characters A-Z a-z 0-9 . _ : -");
    if (http_given(x, "weight") && http_integer(x, "slots", 1) < 2)
        return refuse(x, "'weight' is for semaphores: give 'slots' as well");
    if (http_given(x, "weight") && http_integer(x, "weight", 1) > http_integer(x, "slots", 1))
        return refuse(x, "'weight' is greater than 'slots'");
    if (http_flag(x, "shared") && http_integer(x, "slots", 1) > 1)
        return refuse(x, "a semaphore is not shared: leave out 'shared' or 'slots'");
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const serve_lock *)a)->name, ((const serve_lock *)b)->name);
}

/* Sorted, so that sets cannot wait for each other, and each name once. */
static bool put_names(serve_set *set, const http_exchange *x)
{
    const json_t *names = http_list(x, "names"), *one;
    size_t i, kept = 0;

    if (!names) {
        set->locks[0].name = strdup(http_text(x, "name"));
        set->count = 1;
        return set->locks[0].name != NULL;
    }
    json_array_foreach(names, i, one)
    {
        set->locks[i].name = strdup(json_string_value(one));
        if (!set->locks[i].name)
            return false;
        set->count++;
    }
    qsort(set->locks, set->count, sizeof set->locks[0], by_name);
    for (i = 1; i < set->count; i++) {
        if (strcmp(set->locks[kept].name, set->locks[i].name) == 0)
            free(set->locks[i].name);
        else
            set->locks[++kept].name = set->locks[i].name;
    }
    set->count = kept + 1;
    return true;
}

/* Is this the same request as the one that had this id before? */
static void put_digest(serve_set *set)
{
    const serve_terms *t = &set->terms;
    const char *texts[SERVE_NAMES + 3] = {0};
    char numbers[96];
    size_t i;

    snprintf(numbers, sizeof numbers, "%lld %u %u %d", (long long)t->lease_ms, t->slots, t->weight,
             t->shared);
    texts[0] = numbers;
    texts[1] = set->owner;
    for (i = 0; i < set->count; i++)
        texts[i + 2] = set->locks[i].name;
    serve_hash(set->digest, texts);
}

/* The owner is named after the request and not after the server, so that a retry at another server takes the
 * place of the first one. It does not contain the id, which gives access to the grant. */
static bool put_owner(serve_set *set, http_exchange *x)
{
    const char *label = http_text(x, "owner"), *request = http_text(x, "request");
    char made[33];

    set->own_id = request != NULL;
    if (!request) {
        serve_random(made);
        request = made;
    }
    if (!label)
        label = http_client(x)[0] ? http_client(x) : "http";
    serve_hash(set->key, (const char *[]){http_client(x), request, NULL});
    set->request = strdup(request);
    return set->request && asprintf(&set->owner, "%s#%.16s", label, set->key) > 0;
}

static void put_terms(serve_set *set, const http_exchange *x, bool stream)
{
    int64_t wait = http_integer(x, "wait_ms", stream ? DIBS_FOREVER : 0);
    bool bound = set->s->engine->lease_of_handle;

    set->terms = (serve_terms){.lease_ms = http_integer(x, "lease_ms", set->s->lease_ms),
                               .slots = (uint32_t)http_integer(x, "slots", 0),
                               .weight = (uint32_t)http_integer(x, "weight", 0),
                               .shared = http_flag(x, "shared"),
                               .by_keeper = stream || bound,
                               .portable = !stream && !bound};
    if (bound && set->terms.lease_ms > set->s->lease_ms)
        set->terms.lease_ms = set->s->lease_ms;
    set->deadline_ms = wait == DIBS_FOREVER ? DIBS_FOREVER : http_now_ms() + wait;
}

serve_set *serve_set_read(http_exchange *x, bool stream)
{
    const json_t *names = http_list(x, "names");
    size_t most = names ? json_array_size(names) : 1;
    serve_set *set;
    bool good;

    if (!check(x, stream))
        return NULL;
    set = calloc(1, sizeof *set + most * sizeof(serve_lock));
    if (!set) {
        http_reply_error(x, &(dibs_error){.status = DIBS_NO_MEMORY});
        return NULL;
    }
    set->s = http_context(x);
    put_terms(set, x, stream);
    good = put_names(set, x) && put_owner(set, x);
    for (size_t i = 0; i < set->count; i++)
        set->locks[i].set = set;
    if (good) {
        put_digest(set);
        return set;
    }
    http_reply_error(x, &(dibs_error){.status = DIBS_NO_MEMORY});
    serve_set_free(set);
    return NULL;
}
