/* Cases of test_zookeeper that have files of their own. */
#ifndef DIBS_TESTS_ZOOKEEPER_CASES_H
#define DIBS_TESTS_ZOOKEEPER_CASES_H

#include <zookeeper/zookeeper.h>

zhandle_t *connect_here(void); /* ZooKeeper's own client, to the_server */

/* sequence.c */
void order_outlives_sequence_numbers(void **state);
void what_lingers_stays_in_its_place(void **state);
/* watches.c */
void many_watches_survive_a_reconnect(void **state);
/* alone.c */
void a_lock_used_alone_needs_no_listing(void **state);
void who_comes_in_between_is_noticed(void **state);
void a_node_that_was_made_anew_is_noticed(void **state);

#endif
