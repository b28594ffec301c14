/* The checker: buyers and books compared. It believes neither: pieces that buyers were told they got
 * must be missing from the stock, no more and no fewer. */
#include "lab.h"

bool lab_is_correct(const lab_result *r)
{
    return !r->error[0] && !r->cut && r->oversold == 0 && r->lost == 0 && r->left >= 0 &&
           r->failed == 0;
}

bool lab_as_promised(const lab_result *r, const lab_plan *plan)
{
    bool oversells = r->strategy->oversells || (r->strategy->one_process && plan->processes > 1);

    return oversells ? r->oversold > 0 : lab_is_correct(r);
}

#define STILL_MS 5000

bool lab_is_stuck(const lab_result *r)
{
    return r->cut && r->idle_ms >= STILL_MS;
}

const char *lab_verdict(const lab_result *r)
{
    if (r->error[0])
        return "not run";
    if (r->oversold > 0)
        return "oversold";
    if (r->lost > 0 || r->left < 0)
        return "books wrong";
    if (lab_is_stuck(r))
        return "stuck";
    if (r->failed > 0)
        return "errors";
    if (r->cut)
        return "not finished";
    return r->refused > 0 && r->left > 0 ? "refused buyers" : "correct";
}
