/* Bytes that wait: added at the end, taken from the front. Zero it first. */
#ifndef DIBS_GATEWAY_BUFFER_H
#define DIBS_GATEWAY_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gate_buffer {
    char *data;
    size_t from, to, room;
    bool failed; /* out of memory: what was added since is missing */
} gate_buffer;

size_t gate_buffer_size(const gate_buffer *b);
char *gate_buffer_start(gate_buffer *b);
/* Room for `size` more at data + to; NULL: out of memory. */
char *gate_buffer_reserve(gate_buffer *b, size_t size);
void gate_buffer_add(gate_buffer *b, const void *data, size_t size);
void gate_buffer_text(gate_buffer *b, const char *text);
void gate_buffer_format(gate_buffer *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void gate_buffer_drop(gate_buffer *b, size_t size); /* from the front */
void gate_buffer_free(gate_buffer *b);

#endif
