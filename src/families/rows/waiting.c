/* Which of our attempts stand in line, and the wake-ups for them.
 *
 * The list is needed when wake-ups may have been missed: the keeper is asked to look at all of
 * them. An attempt that is in the list and no longer in line costs a look and nothing else. */
#include "families/rows/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct waiting {
    dibs__node node;
    char attempt[DIBS__ATTEMPT_SIZE];
} waiting;

static waiting *find(dibs__sql *e, const char *attempt, uint64_t hash)
{
    for (dibs__node *n = dibs__table_first(&e->waiting, hash); n; n = dibs__table_next(n)) {
        waiting *w = DIBS__FROM(waiting, node, n);
        if (strcmp(w->attempt, attempt) == 0)
            return w;
    }
    return NULL;
}

/* Without memory it is left out: its own signs of life find what it missed. */
void dibs__sql_waiting_add(dibs__sql *e, const char *attempt)
{
    uint64_t hash = dibs__hash(attempt);
    waiting *w;

    pthread_mutex_lock(&e->waiting_mutex);
    if (!find(e, attempt, hash) && dibs__table_reserve(&e->waiting) &&
        (w = malloc(sizeof *w)) != NULL) {
        snprintf(w->attempt, sizeof w->attempt, "%s", attempt);
        dibs__table_add(&e->waiting, &w->node, hash);
    }
    pthread_mutex_unlock(&e->waiting_mutex);
}

void dibs__sql_waiting_remove(dibs__sql *e, const char *attempt)
{
    waiting *w;

    pthread_mutex_lock(&e->waiting_mutex);
    w = find(e, attempt, dibs__hash(attempt));
    if (w)
        dibs__table_remove(&e->waiting, &w->node);
    pthread_mutex_unlock(&e->waiting_mutex);
    free(w);
}

void dibs__sql_waiting_fini(dibs__sql *e)
{
    for (size_t i = 0; i < e->waiting.size; i++) {
        for (dibs__node *n = e->waiting.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(waiting, node, n));
        }
    }
    dibs__table_fini(&e->waiting);
}

size_t dibs__sql_waiting(dibs__sql *e)
{
    size_t count;

    pthread_mutex_lock(&e->waiting_mutex);
    count = e->waiting.count;
    pthread_mutex_unlock(&e->waiting_mutex);
    return count;
}

/* The sink takes the handle's mutex, under which it may call nobody: no turn of order with ours. */
void dibs__sql_look_at_all(dibs__sql *e)
{
    pthread_mutex_lock(&e->waiting_mutex);
    for (size_t i = 0; i < e->waiting.size; i++)
        for (dibs__node *n = e->waiting.slot[i]; n; n = n->next)
            e->base.sink->look(e->base.sink, DIBS__FROM(waiting, node, n)->attempt);
    pthread_mutex_unlock(&e->waiting_mutex);
}

/* ---- Wake-ups as text: "attempt fence floor", or "attempt" ----------------------------------- */

void dibs__sql_notice_text(dibs__sql_notice *n)
{
    if (n->fence)
        snprintf(n->text, sizeof n->text, "%s %" PRIu64 " %" PRIu64, n->attempt, n->fence,
                 n->floor);
    else
        snprintf(n->text, sizeof n->text, "%s", n->attempt);
}

void dibs__sql_notice_tell(dibs__sql *e, const dibs__sql_notice *n)
{
    if (n->fence) {
        dibs__sql_waiting_remove(e, n->attempt);
        e->base.sink->granted(e->base.sink, n->attempt, n->fence, n->floor);
    } else {
        e->base.sink->look(e->base.sink, n->attempt);
    }
}

/* Without memory it is left out: it finds out at its next sign of life. */
void dibs__sql_mail_add(dibs__sql_mail *mail, const dibs__sql_notice *n)
{
    dibs__sql_notice *larger =
        dibs__sql_grown(mail->notice, mail->count, &mail->room, sizeof *mail->notice);

    if (!larger)
        return;
    mail->notice = larger;
    mail->notice[mail->count++] = *n;
}

void dibs__sql_mail_deliver(dibs__sql *e, dibs__sql_mail *mail)
{
    for (size_t i = 0; i < mail->count; i++)
        dibs__sql_notice_tell(e, &mail->notice[i]);
    free(mail->notice);
}

void dibs__sql_tell(dibs__sql *e, const char *text)
{
    dibs__sql_notice n = {0};
    size_t size = strcspn(text, " ");
    int end = 0;

    if (size == 0 || size >= sizeof n.attempt)
        return;
    memcpy(n.attempt, text, size);
    if (text[size] &&
        (sscanf(text + size, " %" SCNu64 " %" SCNu64 "%n", &n.fence, &n.floor, &end) != 2 ||
         text[size + (size_t)end] != '\0'))
        return;
    dibs__sql_notice_tell(e, &n);
}
