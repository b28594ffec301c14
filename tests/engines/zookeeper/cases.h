/* Cases of test_zookeeper that have files of their own. */
#ifndef DIBS_TESTS_ZOOKEEPER_CASES_H
#define DIBS_TESTS_ZOOKEEPER_CASES_H

/* sequence.c */
void order_outlives_sequence_numbers(void **state);
void what_lingers_stays_in_its_place(void **state);
/* watches.c */
void many_watches_survive_a_reconnect(void **state);

#endif
