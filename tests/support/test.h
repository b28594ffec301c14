/* What every test program includes: cmocka with the headers it needs, and no more. */
#ifndef DIBS_TESTS_TEST_H
#define DIBS_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
