/* Two processes in the place of one: what holds inside a process is no lock any more. */
#include "actor.h"
#include "hazards.h"

static void two_processes(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64], why[256];
    const lab_plan plan = {.processes = 2,
                           .threads = 8,
                           .loops = 25,
                           .stock = 400,
                           .limit_ms = 60000,
                           .resource = resource};
    lab_result r;

    if (!lab_scene(s, site, plan.stock, resource, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    lab_run(s, site, &plan, &r);
    out->oversold = r.oversold;
    if (r.error[0])
        lab_found(out, LAB_NOT_RUN, "%s", r.error);
    else if (r.oversold > 0)
        lab_found(out, LAB_BROKE, "%lld sold, but the stock record has only %lld: oversold by %lld",
                  (long long)r.sold, (long long)(r.sold - r.oversold), (long long)r.oversold);
    else if (r.cut && !lab_is_stuck(&r))
        lab_found(out, LAB_NOT_RUN, "too slow on this machine: %lld sold in %lld s, and going on",
                  (long long)r.sold, (long long)plan.limit_ms / 1000);
    else if (r.cut)
        lab_found(out, LAB_BROKE, "stuck: not over after %lld s", (long long)plan.limit_ms / 1000);
    else if (r.sold == 0)
        lab_found(out, LAB_BROKE, "nobody could buy: %s",
                  r.note[0] ? r.note : "no error was reported");
    else
        lab_found(out, LAB_SURVIVED, "%lld sold, and the stock record agrees", (long long)r.sold);
}

static const char *everybody(const lab_strategy *s)
{
    (void)s;
    return NULL;
}

const lab_hazard lab_hazard_two_processes = {
    .kind = LAB_TWO_PROCESSES,
    .name = "two-processes",
    .title = "two processes instead of one",
    .why_not = everybody,
    .run = two_processes,
};
