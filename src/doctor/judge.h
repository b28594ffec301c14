/* Judging facts: which checks of the tables apply, as findings for people. */
#ifndef DIBS_DOCTOR_JUDGE_H
#define DIBS_DOCTOR_JUDGE_H

#include "doctor/facts.h"

/* Judges all parts. NULL: out of memory. `engine` is borrowed for as long as the findings live. */
dibs_findings *dibs__judge(const dibs__facts *whole, const char *engine);

#endif
