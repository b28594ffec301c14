#include "support/lossy.h"

#include "core/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static dibs__engine_class class; /* the copy */
static const dibs__engine_class *real;
static atomic_int commands, answers;

#define HELD_MAX 64

/* A command that the network keeps for later, with its own text. */
typedef struct held {
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE], request[DIBS__REQUEST_SIZE];
    dibs__cell_command command;
    void *data;
} held;

static held kept[HELD_MAX];
static int kept_count;
static struct {
    lossy_way way;
    int left; /* to be lost */
    void (*then)(void *data);
    void *data;
} plan;

/* True: this one is lost; `then` is what to do after it. */
static bool loses(lossy_way *way, void (**then)(void *data), void **data)
{
    bool lost;

    pthread_mutex_lock(&mutex);
    lost = plan.left != 0;
    *way = plan.way;
    *then = lost ? plan.then : NULL;
    *data = plan.data;
    if (lost)
        plan.then = NULL;
    if (plan.left > 0)
        plan.left--;
    pthread_mutex_unlock(&mutex);
    return lost;
}

static void hold_back(const char *key, const dibs__cell_command *c)
{
    held *h;

    pthread_mutex_lock(&mutex);
    if (kept_count < HELD_MAX) {
        h = &kept[kept_count++];
        h->command = *c;
        snprintf(h->key, sizeof h->key, "%s", key);
        snprintf(h->stamp, sizeof h->stamp, "%s", c->stamp ? c->stamp : "");
        snprintf(h->request, sizeof h->request, "%s", c->request ? c->request : "");
        h->command.stamp = h->stamp;
        h->command.request = c->request ? h->request : NULL;
        h->data = malloc(c->size + 1);
        if (h->data && c->size)
            memcpy(h->data, c->data, c->size);
        h->command.data = h->data;
    }
    pthread_mutex_unlock(&mutex);
}

/* Whatever is held back meanwhile is for the next time. */
int lossy_deliver(dibs *by)
{
    static held late[HELD_MAX];
    int count;

    pthread_mutex_lock(&mutex);
    count = kept_count;
    memcpy(late, kept, sizeof late);
    kept_count = 0;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < count; i++) {
        dibs__cell_reply reply = {0};
        late[i].command.stamp = late[i].stamp;
        late[i].command.request = late[i].command.request ? late[i].request : NULL;
        by->class->cell(by->engine, late[i].key, &late[i].command, false,
                        dibs__after(by->env, 5 * DIBS__SECOND), &reply, NULL);
        free(reply.data);
        free(late[i].data);
    }
    return count;
}

static dibs_status lossy_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                              bool notify, dibs__deadline until, dibs__cell_reply *out,
                              dibs_error *err)
{
    void (*then)(void *data);
    void *data;
    lossy_way way;
    dibs_status status = DIBS_OK;

    atomic_fetch_add(&commands, 1);
    if (!loses(&way, &then, &data)) {
        status = real->cell(e, key, command, notify, until, out, err);
        if (status == DIBS_OK)
            atomic_fetch_add(&answers, 1);
        return status;
    }
    if (way == LOSSY_HELD)
        hold_back(key, command);
    if (way == LOSSY_ANSWER) {
        status = real->cell(e, key, command, notify, until, out, err);
        free(out->data);
        memset(out, 0, sizeof *out);
    }
    if (way == LOSSY_LATE)
        status = real->cell(e, key, command, notify, until, out, err);
    if (then)
        then(data);
    if (way == LOSSY_LATE)
        return status;
    if (status != DIBS_OK)
        return status;
    if (way == LOSSY_DENIED)
        return dibs__fail(err, DIBS_DENIED, "not allowed any more");
    return dibs__fail(err, way == LOSSY_REFUSED ? DIBS_UNAVAILABLE : DIBS_UNKNOWN,
                      "lost on the way");
}

void lossy_put_in(dibs *d)
{
    lossy_stop();
    real = d->class;
    class = *d->class;
    class.cell = lossy_cell;
    d->class = &class;
    atomic_store(&commands, 0);
    atomic_store(&answers, 0);
}

int lossy_answers(void)
{
    return atomic_load(&answers);
}

int lossy_commands(void)
{
    return atomic_load(&commands);
}

void lossy_lose(lossy_way way, int times, void (*then)(void *data), void *data)
{
    pthread_mutex_lock(&mutex);
    plan.way = way;
    plan.left = times;
    plan.then = then;
    plan.data = data;
    pthread_mutex_unlock(&mutex);
}

void lossy_stop(void)
{
    lossy_lose(LOSSY_REQUEST, 0, NULL, NULL);
}
