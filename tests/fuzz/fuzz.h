/* What the fuzzers share: an input that is eaten from the front, and rules that end the program.
 *
 * libFuzzer calls LLVMFuzzerTestOneInput with bytes of its own making. A sanitizer's finding is a failure, and
 * so is a broken rule (`must`). */
#ifndef DIBS_TESTS_FUZZ_H
#define DIBS_TESTS_FUZZ_H

#include "dibs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define must(rule, text) ((rule) ? (void)0 : fuzz_broken(text, __FILE__, __LINE__))

static inline void fuzz_broken(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    abort();
}

typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

static inline size_t fuzz_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Little-endian; what is missing at the end is 0. */
static inline uint64_t fuzz_number(fuzz_input *in, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes && in->left; i++, in->left--)
        value |= (uint64_t)*in->at++ << (8 * i);
    return value;
}

/* Up to `most` bytes, as many as are left. */
static inline const uint8_t *fuzz_bytes(fuzz_input *in, size_t most, size_t *size)
{
    const uint8_t *data = in->at;

    *size = fuzz_least(most, in->left);
    in->at += *size;
    in->left -= *size;
    return data;
}

/* The next `most` bytes as a text, which ends at a NUL. */
static inline void fuzz_text(fuzz_input *in, size_t most, char *out, size_t room)
{
    size_t size, n;
    const uint8_t *data = fuzz_bytes(in, most, &size);

    n = fuzz_least(size ? strnlen((const char *)data, size) : 0, room - 1);
    if (n)
        memcpy(out, data, n);
    out[n] = '\0';
}

/* What the header promises of a message. */
static inline void fuzz_check_message(const dibs_error *err, dibs_status status)
{
    size_t length = strnlen(err->message, sizeof err->message);

    must(length < sizeof err->message, "a message is not terminated");
    for (size_t i = 0; i < length; i++)
        must((unsigned char)err->message[i] >= 0x20 && err->message[i] != 0x7f,
             "a message has control bytes");
    must(status == DIBS_OK || length > 0, "a failure without a message");
}

#endif
