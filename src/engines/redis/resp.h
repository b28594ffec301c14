/* Requests in the Redis protocol, written into a buffer that grows. A failed allocation is
 * remembered and told once, by `failed`, so that a command is put together without a check for each
 * of its words. */
#ifndef DIBS_REDIS_RESP_H
#define DIBS_REDIS_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dibs__bytes {
    char *data;
    size_t length;
    size_t room;
    bool failed;
} dibs__bytes;

void dibs__bytes_add(dibs__bytes *b, const void *data, size_t length);
void dibs__bytes_clear(dibs__bytes *b); /* the memory is kept */
void dibs__bytes_fini(dibs__bytes *b);

/* A command of `words` words, each of which follows. */
void dibs__resp_begin(dibs__bytes *b, size_t words);
void dibs__resp_word(dibs__bytes *b, const void *data, size_t length);
void dibs__resp_text(dibs__bytes *b, const char *text);
void dibs__resp_number(dibs__bytes *b, int64_t number);

#endif
