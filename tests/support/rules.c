/* The rules that hold after every command of the lock's state machine, whatever came before. Each
 * takes the lock before and after, the command and its reply, and gives the text of what is wrong,
 * or NULL. */
#include "support/machine.h"

#include "state/attempt.h"

#include <stdlib.h>
#include <string.h>

typedef struct step {
    const tiny *before, *after;
    const command *c;
    const dibs__reply *reply;
} step;

/* ---- Finding --------------------------------------------------------------------------------- */

static const dibs__holder *holder_with(const tiny *t, uint64_t fence)
{
    for (size_t i = 0; i < t->holders; i++)
        if (t->holder[i].fence == fence)
            return &t->holder[i];
    return NULL;
}

static const dibs__waiter *waiter_at(const tiny *t, uint64_t place)
{
    for (size_t i = 0; i < t->waiters; i++)
        if (t->waiter[i].place == place)
            return &t->waiter[i];
    return NULL;
}

static const dibs__holder *live_holder(const tiny *t, const char *owner)
{
    for (size_t i = 0; i < t->holders; i++)
        if (!t->holder[i].released && strcmp(t->holder[i].who.owner, owner) == 0)
            return &t->holder[i];
    return NULL;
}

static const dibs__waiter *waiter_named(const tiny *t, const char *owner)
{
    for (size_t i = 0; i < t->waiters; i++)
        if (strcmp(t->waiter[i].who.owner, owner) == 0)
            return &t->waiter[i];
    return NULL;
}

/* Not the machine's own: else it would judge itself. */
static dibs__kin kin(const dibs__asker *a, const dibs__asker *b)
{
    size_t n = strcspn(a->attempt, "-");

    if (strcmp(a->attempt, b->attempt) == 0)
        return DIBS__SAME;
    if (strncmp(a->attempt, b->attempt, n + 1) != 0)
        return DIBS__FOREIGN;
    return strtol(a->attempt + n + 1, NULL, 16) > strtol(b->attempt + n + 1, NULL, 16)
               ? DIBS__NEWER
               : DIBS__OLDER;
}

static bool same_entry(const dibs__asker *a, const dibs__asker *b)
{
    return strcmp(a->owner, b->owner) == 0 && strcmp(a->attempt, b->attempt) == 0;
}

/* ---- The lock as it is ----------------------------------------------------------------------- */

static const char *check_counts(const step *s)
{
    const tiny *t = s->after;
    uint64_t used = 0;

    for (size_t i = 0; i < t->holders; i++)
        used += t->holder[i].who.weight;
    if (t->record.used != used)
        return "used is not the sum of the weights";
    if (t->record.holders != t->holders || t->record.waiters != t->waiters)
        return "the record's counts are not those of the entries";
    if (used > t->record.capacity)
        return "more is used than there is";
    return NULL;
}

static const char *check_exclusion(const step *s)
{
    const tiny *t = s->after;

    for (size_t i = 0; i < t->holders; i++)
        if (t->holder[i].who.weight == t->record.capacity && t->holders > 1)
            return "an exclusive holder is not alone";
    return NULL;
}

static const char *check_owners(const step *s)
{
    const tiny *t = s->after;

    for (size_t i = 0; i < t->holders; i++)
        for (size_t k = 0; k < i; k++)
            if (!t->holder[i].released && !t->holder[k].released &&
                strcmp(t->holder[i].who.owner, t->holder[k].who.owner) == 0)
                return "an owner holds twice";
    for (size_t i = 0; i < t->waiters; i++) {
        const char *owner = t->waiter[i].who.owner;
        if (waiter_named(t, owner) != &t->waiter[i])
            return "an owner waits twice";
        const dibs__holder *h = live_holder(t, owner);
        if (h && kin(&h->who, &t->waiter[i].who) != DIBS__FOREIGN)
            return "an owner holds and waits through one handle";
    }
    return NULL;
}

/* Nobody who is dead holds; nobody who could have it waits. */
static const char *check_settled(const step *s)
{
    const tiny *t = s->after;
    const dibs__waiter *head = NULL;

    for (size_t i = 0; i < t->holders; i++)
        if (t->holder[i].expires <= s->c->now.lease)
            return "a holder's lease has ended and it is still there";
    for (size_t i = 0; i < t->waiters; i++)
        if (!head || t->waiter[i].place < head->place)
            head = &t->waiter[i];
    if (head && head->alive_until <= s->c->now.lease)
        return "a dead waiter is at the head of the queue";
    if (head && (uint64_t)t->record.used + head->who.weight <= t->record.capacity &&
        !live_holder(t, head->who.owner)) /* through another handle */
        return "the head of the queue would fit and was not served";
    return NULL;
}

/* ---- What the command did -------------------------------------------------------------------- */

static const char *check_fences(const step *s)
{
    const tiny *a = s->before, *b = s->after;

    if (b->record.fence < a->record.fence)
        return "the last fence went back";
    for (size_t i = 0; i < b->holders; i++) {
        if (b->holder[i].fence > b->record.fence)
            return "a holder's fence is above the last one given out";
        if (!holder_with(a, b->holder[i].fence) && b->holder[i].fence <= a->record.fence)
            return "a new grant has no higher fence than the one before";
    }
    return NULL;
}

static const char *check_order(const step *s)
{
    const tiny *a = s->before, *b = s->after;

    for (size_t i = 0; i < b->holders; i++) {
        const dibs__holder *h = &b->holder[i];
        const dibs__waiter *was = waiter_named(a, h->who.owner);
        const dibs__holder *held = live_holder(a, h->who.owner);
        if (holder_with(a, h->fence) || (held && kin(&h->who, &held->who) == DIBS__NEWER))
            continue; /* nothing new, or in the place of one that was given up */
        for (size_t k = 0; k < b->waiters; k++)
            if (waiter_at(a, b->waiter[k].place) && (!was || b->waiter[k].place < was->place))
                return "somebody was served before one who had waited longer";
    }
    return NULL;
}

static bool became_holder(const tiny *t, const dibs__asker *who)
{
    const dibs__holder *h = live_holder(t, who->owner);

    return h && same_entry(&h->who, who);
}

static bool woken(const tiny *t, uint64_t fence)
{
    for (size_t i = 0; i < t->woken_count && i < TINY_MAX; i++)
        if (t->woken[i] == fence)
            return true;
    return false;
}

/* A waiter goes by being served (and told), by dying, or by its owner's own command. */
static const char *check_waiters(const step *s)
{
    for (size_t i = 0; i < s->before->waiters; i++) {
        const dibs__waiter *w = &s->before->waiter[i];
        /* Served as time passed, and then broken with the other holders. */
        bool broken = s->c->kind == COMMAND_BREAK && s->c->at_once;
        if (waiter_at(s->after, w->place) || broken || strcmp(s->c->who.owner, w->who.owner) == 0)
            continue;
        if (w->alive_until <= s->c->now.lease)
            continue;
        if (!became_holder(s->after, &w->who))
            return "a living waiter is gone";
        if (!woken(s->after, live_holder(s->after, w->who.owner)->fence))
            return "a waiter was served and not told";
    }
    return NULL;
}

static bool may_go(const step *s, const dibs__holder *h)
{
    bool same = same_entry(&s->c->who, &h->who);

    switch (s->c->kind) {
    case COMMAND_ACQUIRE: /* it was given up */
        return strcmp(s->c->who.owner, h->who.owner) == 0 &&
               kin(&s->c->who, &h->who) == DIBS__NEWER;
    case COMMAND_RELEASE:
    case COMMAND_CANCEL:
        return same;
    case COMMAND_BREAK:
        return s->c->at_once || h->released;
    default:
        return false;
    }
}

/* A holder goes by its lease's end, by its own command, or by an operator. */
static const char *check_holders(const step *s)
{
    for (size_t i = 0; i < s->before->holders; i++) {
        const dibs__holder *h = &s->before->holder[i];
        const dibs__holder *now = holder_with(s->after, h->fence);
        if (!now && h->expires > s->c->now.lease && !may_go(s, h))
            return "a holder lost its lock by a stranger's command";
        if (now && now->expires < h->expires && !now->released &&
            !(s->c->kind == COMMAND_KEEP && same_entry(&s->c->who, &h->who)))
            return "a holder's lease was shortened by a stranger's command";
    }
    return NULL;
}

/* ---- What it answered ------------------------------------------------------------------------ */

static uint64_t lowest_fence(const tiny *t)
{
    uint64_t lowest = UINT64_MAX;

    for (size_t i = 0; i < t->holders; i++)
        if (t->holder[i].fence < lowest)
            lowest = t->holder[i].fence;
    return lowest;
}

static const char *check_granted(const step *s)
{
    const dibs__holder *h = live_holder(s->after, s->c->who.owner);

    if (!h || !same_entry(&h->who, &s->c->who) || h->fence != s->reply->fence)
        return "granted, but the lock does not say so";
    if (s->reply->remaining != h->expires - s->c->now.lease || s->reply->remaining <= 0)
        return "granted with a wrong rest of the lease";
    if (s->reply->floor != lowest_fence(s->after))
        return "granted with a wrong floor";
    return NULL;
}

static const char *check_reply(const step *s)
{
    const dibs__waiter *w = waiter_named(s->after, s->c->who.owner);
    const dibs__holder *h = live_holder(s->after, s->c->who.owner);

    switch (s->reply->verdict) {
    case DIBS__GRANTED:
        return check_granted(s);
    case DIBS__QUEUED:
        return w && same_entry(&w->who, &s->c->who) ? NULL : "queued, but not in the queue";
    case DIBS__BUSY:
        return s->after->holders > 0 ? NULL : "busy, but nobody holds it";
    case DIBS__LOST:
        return s->c->kind != COMMAND_BREAK && h && same_entry(&h->who, &s->c->who)
                   ? "lost, but still there"
                   : NULL;
    case DIBS__MISMATCH:
        return s->reply->capacity != s->c->capacity ? NULL
                                                    : "mismatch, but the capacity is the same";
    case DIBS__RESUMED:
        return (h && !same_entry(&h->who, &s->c->who)) || (w && !same_entry(&w->who, &s->c->who))
                   ? NULL
                   : "resumed, but nobody did";
    default:
        return NULL;
    }
}

/* ---- Asked again ----------------------------------------------------------------------------- */

static bool same_lock(const tiny *a, const tiny *b)
{
    return a->exists == b->exists && memcmp(&a->record, &b->record, sizeof a->record) == 0 &&
           a->holders == b->holders && a->waiters == b->waiters &&
           memcmp(a->holder, b->holder, a->holders * sizeof a->holder[0]) == 0 &&
           memcmp(a->waiter, b->waiter, a->waiters * sizeof a->waiter[0]) == 0;
}

static const char *check_settle_again(const step *s)
{
    tiny copy;
    dibs__reply reply;
    command settle = {.kind = COMMAND_SETTLE, .now = s->c->now};

    tiny_copy(&copy, s->after);
    if (tiny_run(&copy, &settle, &reply) < 0)
        return copy.overflow ? NULL : "settling failed";
    return same_lock(&copy, s->after) ? NULL : "settling again changes something";
}

/* A lost reply is asked for again: same verdict, same fence, same rest. */
static const char *check_repeat(const step *s)
{
    tiny copy;
    dibs__reply reply;

    tiny_copy(&copy, s->after);
    if (s->c->kind != COMMAND_ACQUIRE && s->c->kind != COMMAND_KEEP)
        return NULL;
    if (tiny_run(&copy, s->c, &reply) < 0)
        return copy.overflow ? NULL : "asking again failed";
    if (reply.verdict != s->reply->verdict || reply.fence != s->reply->fence ||
        reply.remaining != s->reply->remaining || reply.floor != s->reply->floor)
        return "asked again, it answers something else";
    return same_lock(&copy, s->after) ? NULL : "asked again, it changes something";
}

/* A stranger's or an old attempt's release and renewal do no more than the passing of time. */
static const char *check_strangers(const step *s)
{
    tiny copy;
    dibs__reply reply;
    command settle = {.kind = COMMAND_SETTLE, .now = s->c->now};

    tiny_copy(&copy, s->before);
    if (s->c->kind == COMMAND_CANCEL || s->c->kind == COMMAND_BREAK)
        return NULL;
    if (s->reply->verdict != DIBS__LOST && s->reply->verdict != DIBS__RESUMED &&
        s->reply->verdict != DIBS__BROKEN)
        return NULL;
    if (tiny_run(&copy, &settle, &reply) < 0)
        return NULL;
    return same_lock(&copy, s->after) ? NULL : "a refused command changed something";
}

static bool settled(const step *s, tiny *out)
{
    dibs__reply reply;
    command settle = {.kind = COMMAND_SETTLE, .now = s->c->now};

    tiny_copy(out, s->before);
    return tiny_run(out, &settle, &reply) == 0;
}

/* What an attempt asks for after a newer one of its handle is here comes late: it does nothing. */
static const char *check_late(const step *s)
{
    tiny copy;
    const dibs__asker *who = &s->c->who;
    const dibs__holder *h;
    const dibs__waiter *w;
    bool late;

    if (s->c->kind > COMMAND_CANCEL || !settled(s, &copy))
        return NULL;
    h = live_holder(&copy, who->owner);
    w = waiter_named(&copy, who->owner);
    late = (h && kin(who, &h->who) == DIBS__OLDER) || (w && kin(who, &w->who) == DIBS__OLDER);
    if (late && !same_lock(&copy, s->after))
        return "a late message changed something";
    return late && s->reply->verdict == DIBS__GRANTED ? "a late message was granted" : NULL;
}

/* Two handles of one owner: the one that holds gets no more time once the other waits, and is not
 * disturbed by one that only tried. */
static const char *check_namesakes(const step *s)
{
    const dibs__asker *who = &s->c->who;
    const dibs__waiter *w = waiter_named(s->after, who->owner);
    const dibs__holder *h;
    tiny copy;

    if (s->c->kind == COMMAND_KEEP && s->reply->verdict == DIBS__GRANTED && w &&
        w->alive_until > s->c->now.lease)
        return "a holder was renewed though its owner waits elsewhere";
    if (s->c->kind != COMMAND_ACQUIRE || s->reply->verdict != DIBS__BUSY || !settled(s, &copy))
        return NULL;
    h = live_holder(&copy, who->owner);
    w = waiter_named(&copy, who->owner);
    if ((h && kin(who, &h->who) == DIBS__NEWER) || (w && kin(who, &w->who) == DIBS__NEWER))
        return NULL;
    return same_lock(&copy, s->after) ? NULL : "a try that failed changed something";
}

const char *tiny_step(tiny *t, const command *c, dibs__reply *out)
{
    static const char *(*const rules[])(const step *) = {
        check_counts, check_exclusion, check_owners,  check_settled,   check_fences,
        check_order,  check_waiters,   check_holders, check_reply,     check_settle_again,
        check_repeat, check_strangers, check_late,    check_namesakes,
    };
    tiny before;
    step s = {.before = &before, .after = t, .c = c, .reply = out};

    tiny_copy(&before, t);
    if (tiny_run(t, c, out) < 0)
        return "the command failed";
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const char *wrong = rules[i](&s);
        if (wrong)
            return wrong;
    }
    return NULL;
}
