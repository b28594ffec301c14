/* Take a lock, use its fence, give it back. */
#include <dibs.h>
#include <stdio.h>

int main(void)
{
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_error err = {0};

    if (dibs_open(NULL, NULL, &d, &err) == DIBS_OK &&
        dibs_lock(d, "stock:1", &(dibs_lock_options){.wait_ms = 5000}, &g, &err) == DIBS_OK) {
        printf("mine; the store refuses a fence below %llu\n",
               (unsigned long long)dibs_grant_fence(g));
        if (dibs_unlock(&g, &err) == DIBS_OK)
            printf("done, and nobody else was in there\n");
    }
    if (err.status != DIBS_OK)
        fprintf(stderr, "%s\n", err.message); /* what happened, and what to do */
    dibs_close(d);
    return dibs_status_exit_code(err.status);
}
