/* What the cases about once share. Beginnings do not wait unless their options say so. */
#ifndef DIBS_TESTS_ONCES_H
#define DIBS_TESTS_ONCES_H

#include "conformance/suite.h"
#include "support/lossy.h"

dibs *once_open(void); /* skips the case where there are no cells */
dibs_status once_begin(dibs *d, const char *key, const dibs_once_options *options, dibs_once **out);
dibs_once *once_first(dibs *d, const char *key, const dibs_once_options *options); /* or it fails */
dibs_status once_answered(dibs *d, const char *key,
                          const dibs_once_options *options); /* and freed */
void once_end(dibs_once *o, const char *result);             /* with code 7 */
void once_expect(dibs *d, const char *key, const char *result);

/* A runner whose renewals are lost on the way is as good as dead: its lease ends. */
dibs_once *once_fall_silent(dibs *d, const char *key, const dibs_once_options *options);

/* For wait_until. */
typedef struct once_asked {
    dibs *d;
    const char *key;
    dibs_status want;
} once_asked;

bool once_answers_with(void *ctx);
bool once_is_dead(void *ctx); /* CRASHED, whatever is wanted */

/* The keeper of the lossy handle had so many commands answered: it has withdrawn what it had to. */
bool once_answers(void *ctx); /* int * */

#endif
