/* D1: a lock inside the process, in the four ways in which people use it:
 *
 *   mutex           one for all, around read and write: right, in one process
 *   mutex-each      every request makes its own lock object: it locks nothing
 *   mutex-in-tx     inside the transaction: given back before the commit, so that the next one reads
 *                   the old number
 *   mutex-around-tx around the transaction: right again, in one process
 *
 * In several processes there are several locks, and all four sell what is not there. */
#include "sql_buyer.h"

#include <pthread.h>
#include <stdlib.h>

static bool mutex_open(lab_buyer *buyer)
{
    pthread_mutex_t *m = malloc(sizeof *m);

    if (!m || pthread_mutex_init(m, NULL) != 0) {
        free(m);
        return lab_note(buyer, "no mutex");
    }
    buyer->shared = m;
    return true;
}

static void mutex_close(lab_buyer *buyer)
{
    pthread_mutex_destroy(buyer->shared);
    free(buyer->shared);
}

static lab_sale buy_under(lab_buyer *buyer, pthread_mutex_t *m)
{
    lab_sale sale;

    pthread_mutex_lock(m);
    sale = lab_sql_sell(buyer);
    pthread_mutex_unlock(m);
    return sale;
}

static lab_sale buy_one_for_all(lab_buyer *buyer)
{
    return buy_under(buyer, buyer->shared);
}

static lab_sale buy_each_his_own(lab_buyer *buyer)
{
    pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;

    return buy_under(buyer, &mine);
}

static bool say(lab_buyer *buyer, const char *word)
{
    return lab_sql_run(buyer, buyer->own, "%s", word) >= 0;
}

static lab_sale buy_in_tx(lab_buyer *buyer)
{
    lab_sale sale;

    if (!say(buyer, "BEGIN"))
        return LAB_FAILED;
    sale = buy_under(buyer, buyer->shared);
    lab_point(buyer, "between unlock and COMMIT");
    return say(buyer, sale == LAB_FAILED ? "ROLLBACK" : "COMMIT") ? sale : LAB_FAILED;
}

static lab_sale buy_around_tx(lab_buyer *buyer)
{
    lab_sale sale = LAB_FAILED;

    pthread_mutex_lock(buyer->shared);
    if (say(buyer, "BEGIN")) {
        sale = lab_sql_sell(buyer);
        if (!say(buyer, sale == LAB_FAILED ? "ROLLBACK" : "COMMIT"))
            sale = LAB_FAILED;
    }
    pthread_mutex_unlock(buyer->shared);
    return sale;
}

#define BUYER                                                                             \
    .open_process = mutex_open, .close_process = mutex_close, .open = lab_sql_buyer_open, \
    .close = lab_sql_buyer_close

LAB_TWINS(lab_d1_mutex, "D1", "mutex", "lock inside the process", BUYER, .one_process = true,
          .buy = buy_one_for_all);
LAB_TWINS(lab_d1_each, "D1", "mutex-each", "a lock object for each request", BUYER,
          .oversells = true, .buy = buy_each_his_own);
LAB_TWINS(lab_d1_in_tx, "D1", "mutex-in-tx", "lock given back before the commit", BUYER,
          .oversells = true, .buy = buy_in_tx);
LAB_TWINS(lab_d1_around_tx, "D1", "mutex-around-tx", "lock around the transaction", BUYER,
          .one_process = true, .buy = buy_around_tx);
