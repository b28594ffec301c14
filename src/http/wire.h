/* HTTP/1.1 as it is on the wire: heads, bodies and trailers, without I/O.
 *
 * The reading is strict. Whatever two programs could understand in two ways is an error: lines that end in a bare
 * LF, folded lines, space before a colon, two lengths, a length beside a transfer coding, any coding but one
 * `chunked`. What is understood is never sent on in the bytes in which it came; it is written anew. */
#ifndef DIBS_HTTP_WIRE_H
#define DIBS_HTTP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

enum { WIRE_FIELDS = 100, WIRE_HEAD_MAX = 16 * 1024, WIRE_TRAILER_MAX = 8 * 1024 };

/* Bytes of the buffer that was parsed. */
typedef struct wire_text {
    const char *at;
    size_t size;
} wire_text;

typedef struct wire_field {
    wire_text name, value;
    bool hop; /* hop-by-hop: belongs to this connection, and is not sent on */
} wire_field;

typedef enum wire_framing { WIRE_EMPTY, WIRE_LENGTH, WIRE_CHUNKED, WIRE_CLOSE } wire_framing;

typedef struct wire_head {
    wire_text method, target; /* of a request */
    wire_text authority;      /* of a target like http://host/path */
    wire_text host;           /* empty only in HTTP/1.0 */
    int status;               /* of an answer */
    wire_text reason;
    int minor;              /* HTTP/1.minor */
    bool close;             /* the connection ends with this message */
    bool expects, upgrades; /* a request with Expect: 100-continue, with Upgrade */
    wire_framing framing;
    uint64_t length;
    size_t count;
    wire_field field[WIRE_FIELDS];
} wire_head;

/* Reads a head at the start of `data`. >0: its bytes. 0: more is needed. <0: invalid; the status of the answer,
 * negated, and `why` is set. `seen` is how much of it was looked at before, and is updated. */
ssize_t wire_request(const char *data, size_t size, size_t *seen, size_t max, wire_head *h,
                     const char **why);
/* The same for an answer. `bodiless`: it answers HEAD. */
ssize_t wire_answer(const char *data, size_t size, size_t *seen, size_t max, bool bodiless,
                    wire_head *h, const char **why);

/* Without regard to case. */
static inline bool wire_is(wire_text t, const char *word)
{
    return strlen(word) == t.size && strncasecmp(t.at, word, t.size) == 0;
}

/* The same, and whatever is neither letter nor digit counts as `-`: WSGI and CGI give an application one variable for `-`
 * and `_`, and lighttpd for all of them. */
bool wire_is_alike(wire_text t, const char *word);
/* The i-th field of that name, from 0 on; NULL: there is none. */
const wire_field *wire_find(const wire_head *h, const char *name, size_t i);
/* The fields alone, each text with a NUL behind it; freed by the caller. NULL: out of memory. */
wire_head *wire_fields_copy(const wire_head *h);
bool wire_is_token(const char *at, size_t size);
bool wire_is_value(const char *at, size_t size);

/* A body that is being read. Zero it, then set framing and left. */
typedef struct wire_body {
    wire_framing framing;
    uint64_t left; /* of the body, or of the chunk */
    int state, digits;
    size_t line;   /* bytes of the line that is being read */
    char *trailer; /* "Name: value\r\n", as they came; freed by the owner */
    size_t trailer_size;
    bool done;
} wire_body;

void wire_body_begin(wire_body *b, const wire_head *h);
/* Takes bytes from `data`; `part` is what of them is the body's. Returns how many were taken; -1: invalid. */
ssize_t wire_body_take(wire_body *b, const char *data, size_t size, wire_text *part);
/* The trailers as fields of `h`, whose other members are left alone; false: invalid. */
bool wire_trailers(const wire_body *b, wire_head *h);

#endif
