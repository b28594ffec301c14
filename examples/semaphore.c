/* A semaphore: at most two of six workers at once use a licence. Usage: semaphore [URL] */
#include <dibs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#define WORKERS  6
#define LICENCES 2

static dibs *handle;
static atomic_int inside, most, failed;

static void note_most(int now)
{
    int seen = atomic_load(&most);

    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
        ;
}

static void *work(void *arg)
{
    dibs_lock_options options = {.slots = LICENCES, .wait_ms = 30000};
    dibs_grant *g = NULL;
    dibs_error err = {0};

    (void)arg;
    if (dibs_lock(handle, "licence", &options, &g, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        atomic_fetch_add(&failed, 1);
        return NULL;
    }
    note_most(atomic_fetch_add(&inside, 1) + 1);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    atomic_fetch_sub(&inside, 1);
    if (dibs_unlock(&g, &err) != DIBS_OK) { /* there may have been more than that */
        fprintf(stderr, "%s\n", err.message);
        atomic_fetch_add(&failed, 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[WORKERS];
    dibs_error err = {0};

    if (dibs_open(argc > 1 ? argv[1] : NULL, NULL, &handle, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            return 1;
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    printf("%d workers, %d licences: at most %d at once\n", WORKERS, LICENCES, atomic_load(&most));
    dibs_close(handle);
    return atomic_load(&failed) || atomic_load(&most) > LICENCES ? 1 : 0;
}
