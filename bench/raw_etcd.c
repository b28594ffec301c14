/* Raw limits on etcd through its HTTP gateway, a connection for every worker.
 *
 *   etcd-put   a key written and deleted
 *   etcd-lock  the server's own lock service, which waits on the server; one lease a worker, and no token */
#include "bench.h"

#include <curl/curl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_SIZE 8192
#define KEY_SIZE    512

typedef struct client {
    CURL *curl;
    struct curl_slist *headers;
    char base[64], lease[32];
    char key[KEY_SIZE];  /* in base64 */
    char held[KEY_SIZE]; /* the lock service's own key, in base64 */
    char answer[ANSWER_SIZE];
    size_t used;
} client;

/* ---- Requests -------------------------------------------------------------------------------- */

static size_t take_answer(char *data, size_t size, size_t count, void *context)
{
    client *c = context;
    size_t length = size * count;

    if (length >= sizeof c->answer - c->used)
        return 0;
    memcpy(c->answer + c->used, data, length);
    c->used += length;
    c->answer[c->used] = '\0';
    return length;
}

static int post(client *c, const char *path, const char *body)
{
    char url[128];
    long code = 0;

    snprintf(url, sizeof url, "%s%s", c->base, path);
    c->used = 0;
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body);
    if (curl_easy_perform(c->curl) != CURLE_OK)
        return -1;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    return code == 200 ? 0 : -1;
}

/* A text of the last answer. */
static int field(const client *c, const char *name, char *out, size_t size)
{
    json_t *root = json_loads(c->answer, 0, NULL);
    const char *text = json_string_value(json_object_get(root, name));
    int length = text ? snprintf(out, size, "%s", text) : -1;

    json_decref(root);
    return length > 0 && (size_t)length < size ? 0 : -1;
}

static void encode(const char *text, char out[KEY_SIZE])
{
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)strlen(text));
}

/* ---- Clients --------------------------------------------------------------------------------- */

static void *start_curl(const bench_plan *plan)
{
    return curl_global_init(CURL_GLOBAL_ALL) == 0 ? (void *)plan : NULL;
}

static void close_client(void *arg)
{
    client *c = arg;
    char body[100];

    if (c->lease[0]) {
        snprintf(body, sizeof body, "{\"ID\": \"%s\"}", c->lease);
        post(c, "/v3/lease/revoke", body);
    }
    curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers);
    free(c);
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);

    (void)shared;
    if (!c || !(c->curl = curl_easy_init())) {
        free(c);
        return NULL;
    }
    snprintf(c->base, sizeof c->base, "http://127.0.0.1:%d", plan->node_port);
    encode(key, c->key);
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    c->headers = curl_slist_append(c->headers, "Expect:");
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT, 60L);
    return c;
}

static void *open_with_lease(void *shared, const bench_plan *plan, const char *key)
{
    client *c = open_client(shared, plan, key);

    if (c && post(c, "/v3/lease/grant", "{\"TTL\": 120}") == 0 &&
        field(c, "ID", c->lease, sizeof c->lease) == 0)
        return c;
    fprintf(stderr, "bench: etcd gave no lease at port %d\n", plan->node_port);
    if (c)
        close_client(c);
    return NULL;
}

/* ---- A key that is there or not -------------------------------------------------------------- */

static int put_key(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    char body[KEY_SIZE + 64];

    (void)key;
    (void)fence;
    snprintf(body, sizeof body, "{\"key\": \"%s\", \"value\": \"eA==\"}", c->key);
    return post(c, "/v3/kv/put", body);
}

static int delete_key(void *arg, const char *key)
{
    client *c = arg;
    char body[KEY_SIZE + 64];

    (void)key;
    snprintf(body, sizeof body, "{\"key\": \"%s\"}", c->key);
    return post(c, "/v3/kv/deleterange", body);
}

/* ---- The lock service ------------------------------------------------------------------------ */

static int lock(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    char body[KEY_SIZE + 128];

    (void)key;
    (void)fence;
    snprintf(body, sizeof body, "{\"name\": \"%s\", \"lease\": \"%s\"}", c->key, c->lease);
    return post(c, "/v3/lock/lock", body) == 0 ? field(c, "key", c->held, sizeof c->held) : -1;
}

static int unlock(void *arg, const char *key)
{
    client *c = arg;
    char body[KEY_SIZE + 64];

    (void)key;
    snprintf(body, sizeof body, "{\"key\": \"%s\"}", c->held);
    return post(c, "/v3/lock/unlock", body);
}

const bench_peer bench_etcd_put = {
    .id = "etcd-put",
    .title = "raw put + delete over HTTP",
    .setup = start_curl,
    .open = open_client,
    .acquire = put_key,
    .release = delete_key,
    .close = close_client,
};

const bench_peer bench_etcd_lock = {
    .id = "etcd-lock",
    .title = "raw lock service over HTTP",
    .setup = start_curl,
    .open = open_with_lease,
    .acquire = lock,
    .release = unlock,
    .close = close_client,
};
