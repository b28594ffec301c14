/* An answer as it is kept for replay: a line that says how long its parts are, the head, the body, the trailers.
 *
 *     dibs-gateway/1 11 0
 *     HTTP/1.1 201 Created
 *     Content-Type: text/plain
 *
 *     hello world
 *
 * Operators can read it (dibs ls --once). Of an answer that was too large there is the head's first line only. */
#ifndef DIBS_GATEWAY_STORED_H
#define DIBS_GATEWAY_STORED_H

#include "http/buffer.h"
#include "http/wire.h"

typedef struct gate_stored {
    bool kept; /* false: executed, but its answer was too large */
    wire_head head;
    wire_text body;
    wire_body trailers; /* whose text is in the buffer that was decoded */
} gate_stored;

/* The head as it is kept: without what belongs to the connection, to this client or to this moment. */
void gate_stored_head(http_buffer *out, const wire_head *h, bool set_cookie);
/* All of it; `body` NULL: it is not kept. `trailers` are written lines. */
void gate_stored_encode(http_buffer *out, const http_buffer *head, const http_buffer *body,
                        const http_buffer *trailers);
/* False: nobody wrote this. The texts stay in `data`. */
bool gate_stored_decode(const char *data, size_t size, gate_stored *out);

#endif
