/* The answer that never came: the server gave the lock, and the client was not notified. Whoever takes that
 * for a refusal leaves a lock behind that belongs to nobody. */
#include "actor.h"
#include "hazards.h"
#include "proxy.h"

#define LEASE_MS    2000
#define PATIENCE_MS 9000

static lab_server server_of(const lab_strategy *s)
{
    for (int i = 0; i < LAB_SERVERS; i++)
        if (s->needs & LAB_NEED(i))
            return (lab_server)i;
    return LAB_SERVERS;
}

/* It believes that it has none: who else can have one, and when? */
static void after_refusal(const lab_role *role, const lab_answer *first, lab_finding *out)
{
    lab_actor b;
    lab_answer answer = {0};
    char why[256];
    int64_t begin = lab_now_us();

    if (!lab_actor_start(&b, role, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (lab_actor_do(&b, LAB_STEP_LOCK, PATIENCE_MS, PATIENCE_MS + 2000, &answer)) {
        out->stuck_ms = (lab_now_us() - begin) / 1000;
        lab_found(out, out->stuck_ms < LEASE_MS / 2 ? LAB_SURVIVED : LAB_BROKE,
                  "the client took the lost reply for a refusal (%s); the lock was held by nobody "
                  "for %lld ms",
                  first->note, (long long)out->stuck_ms);
    } else {
        out->stuck_ms = INT64_MAX;
        lab_found(out, LAB_BROKE,
                  "the client took the lost reply for a refusal (%s); the lock is held by nobody, "
                  "forever",
                  first->note);
    }
    lab_actor_end(&b);
}

/* It says that it has the lock: then nobody else may get it, and it must be able to give it back. */
static void after_grant(lab_actor *a, const lab_role *role, lab_finding *out)
{
    lab_actor b;
    lab_answer answer = {0};
    char why[256];

    if (!lab_actor_start(&b, role, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (lab_actor_do(&b, LAB_STEP_LOCK, 300, PATIENCE_MS, &answer)) {
        out->at_once = 2;
        lab_found(out, LAB_BROKE, "two holders: the client that asked again, and the next one");
    } else if (!lab_actor_do(a, LAB_STEP_UNLOCK, 0, PATIENCE_MS, &answer) ||
               !lab_actor_do(&b, LAB_STEP_LOCK, 500, PATIENCE_MS, &answer)) {
        lab_found(out, LAB_BROKE, "the client had the lock and could not release it: %s",
                  answer.note);
    } else {
        out->at_once = 1;
        lab_found(out, LAB_SURVIVED, "the client asked again, found its own lock, and released it");
    }
    lab_actor_end(&b);
}

static void lose_reply(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    lab_site through = *site;
    char resource[64], why[256];
    lab_role role = {
        .strategy = s, .site = &through, .resource = resource, .pace.lease_ms = LEASE_MS};
    lab_role direct = role;
    lab_answer answer = {0};
    lab_server server = server_of(s);
    lab_proxy proxy;
    lab_actor a;

    direct.site = site;
    if (server == LAB_REDIS_NODES) {
        lab_found(out, LAB_NOT_RUN,
                  "the lab's proxy works with one server, and this scheme uses several");
        return;
    }
    if (!lab_scene(s, site, 10, resource, why) ||
        !lab_proxy_start(&proxy, site->url[server], through.url[server], why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (lab_actor_start(&a, &role, why)) {
        bool got;
        lab_proxy_arm(&proxy);
        got = lab_actor_do(&a, LAB_STEP_LOCK, PATIENCE_MS, PATIENCE_MS + 2000, &answer);
        if (!lab_proxy_struck(&proxy))
            lab_found(out, LAB_NOT_RUN, "no answer came through the proxy");
        else if (got)
            after_grant(&a, &direct, out);
        else
            after_refusal(&direct, &answer, out);
        lab_actor_end(&a);
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", why);
    }
    lab_proxy_stop(&proxy);
}

static const char *over_a_network(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return server_of(s) == LAB_SQLITE ? "the store is a file: there is no network" : NULL;
}

const lab_hazard lab_hazard_reply_lost = {
    .kind = LAB_REPLY_LOST,
    .name = "reply-lost",
    .title = "the request is executed, the reply is lost",
    .why_not = over_a_network,
    .run = lose_reply,
};
