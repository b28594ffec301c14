/* The log as a ring; see the header. */
#include "journal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lab_journal {
    pthread_mutex_t lock;
    uint64_t count; /* of all entries so far */
    lab_entry ring[LAB_JOURNAL];
};

static const struct {
    const char *name, *text;
} fates[] = {
    [LAB_FATE_BUSY] = {"busy", "in progress"},   [LAB_FATE_SOLD] = {"sold", "sold"},
    [LAB_FATE_AGAIN] = {"again", "sold again"},  [LAB_FATE_REPLAYED] = {"replayed", "replayed"},
    [LAB_FATE_REFUSED] = {"refused", "refused"}, [LAB_FATE_SOLD_OUT] = {"sold-out", "sold out"},
    [LAB_FATE_FAILED] = {"failed", "failed"},    [LAB_FATE_SHOWN] = {"shown", "shown"},
};

const char *lab_fate_name(lab_fate fate)
{
    return fates[fate].name;
}

const char *lab_fate_text(lab_fate fate)
{
    return fates[fate].text;
}

lab_journal *lab_journal_open(void)
{
    lab_journal *j = calloc(1, sizeof *j);

    if (j)
        pthread_mutex_init(&j->lock, NULL);
    return j;
}

void lab_journal_close(lab_journal *j)
{
    if (!j)
        return;
    pthread_mutex_destroy(&j->lock);
    free(j);
}

static bool is_like(const lab_entry *a, const lab_entry *b)
{
    return a->fate == b->fate && a->status == b->status && strcmp(a->request, b->request) == 0 &&
           strcmp(a->text, b->text) == 0;
}

static uint64_t add(lab_journal *j, const lab_entry *e, bool count)
{
    struct timespec now;
    lab_entry *last;
    uint64_t number;

    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&j->lock);
    last = &j->ring[(j->count + LAB_JOURNAL - 1) % LAB_JOURNAL];
    if (count && j->count > 0 && is_like(last, e)) {
        last->times++;
    } else {
        last = &j->ring[j->count++ % LAB_JOURNAL];
        *last = *e;
        last->number = j->count;
        last->times = 1;
    }
    last->at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    number = last->number;
    pthread_mutex_unlock(&j->lock);
    return number;
}

uint64_t lab_journal_add(lab_journal *j, const lab_entry *e)
{
    return add(j, e, false);
}

void lab_journal_settle(lab_journal *j, uint64_t number, const lab_entry *e)
{
    lab_entry *kept = &j->ring[(number - 1) % LAB_JOURNAL];

    pthread_mutex_lock(&j->lock);
    if (kept->number == number) {
        kept->fate = e->fate;
        kept->status = e->status;
        memcpy(kept->text, e->text, sizeof kept->text);
    }
    pthread_mutex_unlock(&j->lock);
}

void lab_journal_count(lab_journal *j, const lab_entry *e)
{
    add(j, e, true);
}

size_t lab_journal_read(lab_journal *j, lab_entry out[LAB_JOURNAL])
{
    size_t n;

    pthread_mutex_lock(&j->lock);
    n = j->count < LAB_JOURNAL ? (size_t)j->count : LAB_JOURNAL;
    for (size_t i = 0; i < n; i++)
        out[i] = j->ring[(j->count - 1 - i) % LAB_JOURNAL];
    pthread_mutex_unlock(&j->lock);
    return n;
}
