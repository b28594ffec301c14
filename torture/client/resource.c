/* The resource: two counters per lock, effects of once, and the tokens that workers hand to each other. The
 * coordinator serves one message at a time; what is written to resource.jsonl is in that order. */
#define _GNU_SOURCE
#include "coordinator.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REDEEMERS 4 /* workers that get the same token */

static const char *answer_of(const torture_message *m)
{
    return m->ok ? "ok" : "refused";
}

/* A fence is good as long as no higher one was here; presenting it shuts out all lower ones. */
static bool pass(torture_counters *k, uint64_t fence)
{
    if (fence < k->top)
        return false;
    k->top = fence;
    return true;
}

static void note(torture_coordinator *c, const torture_slot *s, const torture_message *m,
                 const char *event)
{
    char lock[96], id[32];
    bool fence = m->kind == TORTURE_SAY_RAISE || m->fenced;

    torture_lock_name(c->plan, m->index, lock);
    snprintf(id, sizeof id, "%d.%llu", s->number, (unsigned long long)m->sequence);
    torture_note(c->resource_fd, torture_now(), event, "{s:s,s:s,s:o,s:b,s:I,s:s}", "lock", lock,
                 "a", id, "fence", fence ? json_integer((json_int_t)m->fence) : json_null(),
                 "fenced", fence, "value", (json_int_t)m->value, "answer", answer_of(m));
}

static void store(torture_counters *k, torture_message *m)
{
    m->ok = !m->fenced || pass(k, m->fence);
    if (!m->ok)
        return;
    *(m->fenced ? &k->fenced : &k->plain) = m->value;
    *(m->fenced ? &k->writes_fenced : &k->writes_plain) += 1;
}

static void effect(torture_coordinator *c, const torture_slot *s, torture_message *m)
{
    char id[32];

    m->ok = true;
    snprintf(id, sizeof id, "%d.%llu", s->number, (unsigned long long)m->sequence);
    torture_note(c->resource_fd, torture_now(), "effect", "{s:s,s:s,s:i,s:I}", "k", m->text, "b",
                 id, "worker", s->number, "fence", (json_int_t)m->fence);
}

static void give(torture_resource *r, const torture_message *m)
{
    size_t at = r->given++ % TORTURE_POOL;

    snprintf(r->pool[at].token, sizeof r->pool[at].token, "%s", m->text);
    r->pool[at].left = REDEEMERS;
}

/* The oldest that is left: those who come within a short time get the same one. */
static void take(torture_resource *r, torture_message *m)
{
    m->ok = false;
    for (size_t i = 0; i < TORTURE_POOL && !m->ok; i++) {
        size_t at = (r->given + i) % TORTURE_POOL;
        if (r->pool[at].left == 0)
            continue;
        r->pool[at].left--;
        memcpy(m->text, r->pool[at].token, sizeof m->text);
        m->ok = true;
    }
}

static void answer(torture_coordinator *c, torture_slot *s, torture_message *m)
{
    torture_counters *k = &c->resource.lock[m->index % TORTURE_LOCKS_MAX];

    switch (m->kind) {
    case TORTURE_SAY_OPENED:
        c->opened++;
        break;
    case TORTURE_SAY_RAISE:
        m->ok = pass(k, m->fence);
        m->value = k->fenced;
        s->writing = m->ok;
        note(c, s, m, "raise");
        break;
    case TORTURE_SAY_READ:
        m->ok = true;
        m->value = k->plain;
        s->writing = true;
        note(c, s, m, "read");
        break;
    case TORTURE_SAY_STORE:
        s->writing = false;
        store(k, m);
        note(c, s, m, "store");
        break;
    case TORTURE_SAY_EFFECT:
        effect(c, s, m);
        break;
    case TORTURE_SAY_GIVE:
        give(&c->resource, m);
        break;
    case TORTURE_SAY_TAKE:
        take(&c->resource, m);
        break;
    }
}

void torture_serve(torture_coordinator *c, int slot)
{
    torture_slot *s = &c->slots[slot];
    torture_message m;
    ssize_t n = recv(s->socket, &m, sizeof m, MSG_DONTWAIT);

    if (n == (ssize_t)sizeof m) {
        answer(c, s, &m);
        send(s->socket, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL); /* if it is still there */
    } else if (n >= 0 || (errno != EAGAIN && errno != EINTR)) {
        close(s->socket); /* it has died: waitpid will tell */
        s->socket = -1;
    }
}

void torture_resource_end(torture_coordinator *c)
{
    for (int64_t i = 0; i < c->plan->locks; i++) {
        const torture_counters *k = &c->resource.lock[i];
        char lock[96];
        torture_lock_name(c->plan, i, lock);
        torture_note(c->resource_fd, torture_now(), "final", "{s:s,s:I,s:I,s:I,s:I}", "lock", lock,
                     "fenced", (json_int_t)k->fenced, "plain", (json_int_t)k->plain,
                     "writes_fenced", (json_int_t)k->writes_fenced, "writes_plain",
                     (json_int_t)k->writes_plain);
    }
}
