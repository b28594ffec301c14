/* Requests in the Redis protocol. A command is put together without a check for each of its words: see core/bytes.h. */
#ifndef DIBS_REDIS_RESP_H
#define DIBS_REDIS_RESP_H

#include "core/bytes.h"

#include <stdint.h>

/* A command of `words` words, each of which follows. */
void dibs__resp_begin(dibs__bytes *b, size_t words);
void dibs__resp_word(dibs__bytes *b, const void *data, size_t length);
void dibs__resp_text(dibs__bytes *b, const char *text);
void dibs__resp_number(dibs__bytes *b, int64_t number);

#endif
