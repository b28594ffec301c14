/* usage: pairs URL NAME COUNT: takes the lock, takes it again, gives both back, COUNT times. */
#include "dibs.h"
#include "support/calls.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    dibs *d;
    dibs_grant *outer, *inner;
    dibs_error err = {0};

    if (argc != 4 || dibs_open(argv[1], NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "pairs URL NAME COUNT: %s\n", err.message);
        return 64;
    }
    for (int i = atoi(argv[3]); i > 0; i--) {
        if (dibs_lock(d, argv[2], NULL, &outer, &err) != DIBS_OK ||
            dibs_lock(d, argv[2], NULL, &inner, &err) != DIBS_OK || unlock(inner) != DIBS_OK ||
            unlock(outer) != DIBS_OK) {
            fprintf(stderr, "pairs: %s\n", err.message);
            return 1;
        }
    }
    dibs_close(d);
    return 0;
}
