/* The cases of test_redlock that are in files of their own. */
#ifndef DIBS_TESTS_REDLOCK_SUITE_H
#define DIBS_TESTS_REDLOCK_SUITE_H

/* guard.c */
void without_the_guard_two_hold(void **state);
void with_the_guard_one_holds(void **state);
void a_node_that_syncs_votes_at_once(void **state);

/* cut.c */
void most_nodes_cut_while_nobody_reads(void **state);
void most_nodes_cut_under_many_threads(void **state);
void a_free_lock_is_free_after_idle_connections_ended(void **state);
void a_break_breaks_after_idle_connections_ended(void **state);

/* hints.c */
void a_release_wakes_one_of_many(void **state);
void a_waiter_that_left_costs_no_look(void **state);
void a_waiter_that_hangs_costs_a_look(void **state);
void nodes_that_disagree_serve_both(void **state);
void hints_are_bounded_and_end(void **state);

/* storm.c */
void a_storm_of_clients_and_restarts(void **state);

#endif
