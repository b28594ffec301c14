/* What every answer has. */
#ifndef DIBS_HTTP_ANSWER_H
#define DIBS_HTTP_ANSWER_H

#include "http/buffer.h"

/* "HTTP/1.1 STATUS REASON" and Date, each with its end of line. */
void http_write_status(http_buffer *out, int status);

#endif
