/* Heads, bodies and trailers; see the header. */
#define _GNU_SOURCE
#include "http/wire.h"

#include <stdlib.h>

/* ---- Characters ------------------------------------------------------------------------------ */

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_token_char(char c)
{
    return is_alnum(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c));
}

bool wire_is_token(const char *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!is_token_char(at[i]))
            return false;
    return size > 0;
}

bool wire_is_value(const char *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((unsigned char)at[i] < ' ' && at[i] != '\t') || at[i] == 0x7f)
            return false;
    return true;
}

bool wire_is_alike(wire_text t, const char *word)
{
    if (strlen(word) != t.size)
        return false;
    for (size_t i = 0; i < t.size; i++)
        if (strncasecmp(is_alnum(t.at[i]) ? &t.at[i] : "-", word + i, 1) != 0)
            return false;
    return true;
}

static wire_text trim(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (at < end && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return (wire_text){at, (size_t)(end - at)};
}

const wire_field *wire_find(const wire_head *h, const char *name, size_t i)
{
    size_t size = strlen(name);

    for (size_t k = 0; k < h->count; k++)
        if (h->field[k].name.size == size && strncasecmp(h->field[k].name.at, name, size) == 0 &&
            i-- == 0)
            return &h->field[k];
    return NULL;
}

static wire_text copy_text(char **to, wire_text t)
{
    char *at = *to;

    memcpy(at, t.at, t.size);
    at[t.size] = '\0';
    *to += t.size + 1;
    return (wire_text){at, t.size};
}

wire_head *wire_fields_copy(const wire_head *h)
{
    size_t fields = offsetof(wire_head, field) + h->count * sizeof(wire_field), texts = 0;
    wire_head *copy;
    char *to;

    for (size_t i = 0; i < h->count; i++)
        texts += h->field[i].name.size + h->field[i].value.size + 2;
    copy = calloc(1, fields + texts);
    if (!copy)
        return NULL;
    to = (char *)copy + fields;
    copy->count = h->count;
    for (size_t i = 0; i < h->count; i++) {
        copy->field[i].name = copy_text(&to, h->field[i].name);
        copy->field[i].value = copy_text(&to, h->field[i].value);
    }
    return copy;
}

/* ---- Fields ---------------------------------------------------------------------------------- */

/* Where the head ends: >0. 0: not yet. <0: it never will. */
static ssize_t find_end(const char *data, size_t size, size_t *seen, size_t max, const char **why)
{
    const char *at = data + *seen, *end;

    while ((end = memchr(at, '\n', size - (size_t)(at - data)))) {
        if (end == data || end[-1] != '\r') {
            *why = "a line ends without CR";
            return -400;
        }
        if (end - data >= 3 && memcmp(end - 3, "\r\n\r\n", 4) == 0)
            break;
        at = end + 1;
    }
    *seen = end ? 0 : size;
    if (end && (size_t)(end + 1 - data) <= max)
        return end + 1 - data;
    *why = "the head is too large";
    return end || size > max ? -431 : 0;
}

static int read_field(const char *line, const char *end, wire_field *f, const char **why)
{
    const char *colon = memchr(line, ':', (size_t)(end - line));

    *why = "invalid header name";
    if (!colon || !wire_is_token(line, (size_t)(colon - line)))
        return -400; /* also: folded lines, and space before the colon */
    *f = (wire_field){.name = {line, (size_t)(colon - line)}, .value = trim(colon + 1, end)};
    *why = "control character in a header";
    return wire_is_value(f->value.at, f->value.size) ? 0 : -400;
}

/* The lines from `at` up to the empty one. */
static int read_fields(const char *at, const char *end, wire_head *h, const char **why)
{
    for (h->count = 0; at < end; h->count++) {
        const char *line_end = memchr(at, '\r', (size_t)(end - at));
        int failed;

        if (!line_end || line_end[1] != '\n') {
            *why = "control character in a header";
            return -400;
        }
        if (line_end == at)
            return 0;
        if (h->count == WIRE_FIELDS) {
            *why = "too many headers";
            return -431;
        }
        failed = read_field(at, line_end, &h->field[h->count], why);
        if (failed)
            return failed;
        at = line_end + 2;
    }
    return 0;
}

/* Calls `each` with the members of a list like Connection's. */
static void each_member(wire_head *h, wire_text list, void (*each)(wire_head *h, wire_text member))
{
    const char *at = list.at, *end = list.at + list.size;

    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        wire_text member = trim(at, comma ? comma : end);
        if (member.size > 0)
            each(h, member);
        at = comma ? comma + 1 : end;
    }
}

/* The headers that say what the message is cannot be taken away by naming them in Connection. */
static void on_connection(wire_head *h, wire_text option)
{
    static const char *const kept[] = {
        "Host", "Content-Length", "Authorization", "Idempotency-Key", "Dibs-Token", "Dibs-Fence",
        NULL};

    if (wire_is(option, "close"))
        h->close = true;
    if (wire_is(option, "keep-alive") && h->minor == 0)
        h->close = false;
    for (size_t i = 0; kept[i]; i++)
        if (wire_is(option, kept[i]))
            return;
    for (size_t i = 0; i < h->count; i++)
        if (h->field[i].name.size == option.size &&
            strncasecmp(h->field[i].name.at, option.at, option.size) == 0)
            h->field[i].hop = true;
}

static bool is_hop(wire_text name)
{
    return wire_is(name, "Connection") || wire_is(name, "Keep-Alive") || wire_is(name, "TE") ||
           wire_is(name, "Trailer") || wire_is(name, "Transfer-Encoding") ||
           wire_is(name, "Upgrade") || (name.size > 6 && strncasecmp(name.at, "Proxy-", 6) == 0);
}

static bool read_length(wire_text t, uint64_t *out)
{
    *out = 0;
    if (t.size == 0 || t.size > 18)
        return false;
    for (size_t i = 0; i < t.size; i++) {
        if (t.at[i] < '0' || t.at[i] > '9')
            return false;
        *out = *out * 10 + (uint64_t)(t.at[i] - '0');
    }
    return true;
}

/* Everything that decides where the message ends, and what belongs to the connection. */
static int read_framing(wire_head *h, const char **why)
{
    size_t lengths = 0, codings = 0;

    h->close = h->minor == 0;
    h->framing = WIRE_EMPTY;
    for (size_t i = 0; i < h->count; i++) {
        wire_field *f = &h->field[i];
        f->hop |= is_hop(f->name);
        if (wire_is(f->name, "Connection"))
            each_member(h, f->value, on_connection);
        else if (wire_is(f->name, "Content-Length") &&
                 (++lengths > 1 || !read_length(f->value, &h->length)))
            return *why = "Content-Length is one number", -400;
        else if (wire_is(f->name, "Transfer-Encoding") &&
                 (++codings > 1 || !wire_is(f->value, "chunked")))
            return *why = "the only Transfer-Encoding is chunked", -400;
        else if (wire_is(f->name, "Upgrade"))
            h->upgrades = true;
    }
    if (codings && (lengths || h->minor == 0))
        return *why = "Transfer-Encoding beside Content-Length, or in HTTP/1.0", -400;
    if (codings)
        h->framing = WIRE_CHUNKED;
    else if (lengths)
        h->framing = WIRE_LENGTH;
    return 0;
}

static int read_version(const char *at, size_t size, int *minor, const char **why)
{
    if (size != 8 || memcmp(at, "HTTP/", 5) != 0 || at[6] != '.')
        return *why = "invalid version", -400;
    if (at[5] != '1' || at[7] < '0' || at[7] > '1')
        return *why = "only HTTP/1.0 and HTTP/1.1", -505;
    *minor = at[7] - '0';
    return 0;
}

/* ---- Requests -------------------------------------------------------------------------------- */

static int read_target(wire_head *h, const char **why)
{
    wire_text *t = &h->target;
    const char *host = t->at + 7, *slash;

    *why = "invalid target";
    for (size_t i = 0; i < t->size; i++)
        if ((unsigned char)t->at[i] <= ' ' || (unsigned char)t->at[i] >= 0x7f || t->at[i] == '#')
            return -400;
    if (t->size > 0 && t->at[0] == '/')
        return 0;
    if (wire_is(h->method, "OPTIONS") && wire_is(*t, "*"))
        return 0;
    if (t->size < 8 ||
        (strncasecmp(t->at, "http://", 7) != 0 && strncasecmp(t->at, "https://", 8) != 0))
        return -400;
    host += t->at[4] != ':';
    slash = memchr(host, '/', t->size - (size_t)(host - t->at));
    if (!slash)
        return -400;
    h->authority = (wire_text){host, (size_t)(slash - host)};
    *t = (wire_text){slash, t->size - (size_t)(slash - t->at)};
    return 0;
}

static int read_request_line(const char *at, const char *end, wire_head *h, const char **why)
{
    const char *first = memchr(at, ' ', (size_t)(end - at)), *second;

    *why = "invalid request line";
    second = first ? memchr(first + 1, ' ', (size_t)(end - first - 1)) : NULL;
    if (!second || !wire_is_token(at, (size_t)(first - at)))
        return -400;
    h->method = (wire_text){at, (size_t)(first - at)};
    h->target = (wire_text){first + 1, (size_t)(second - first - 1)};
    if (h->method.size == 7 && memcmp(h->method.at, "CONNECT", 7) == 0)
        return *why = "CONNECT is not supported", -501;
    return read_version(second + 1, (size_t)(end - second - 1), &h->minor, why);
}

/* A name and a port: nothing that could be read as two headers or as a path. */
static bool is_host(wire_text t)
{
    for (size_t i = 0; i < t.size; i++)
        if (!is_token_char(t.at[i]) && !strchr(":[]()=;,", t.at[i]))
            return false;
    return true;
}

static int check_host(wire_head *h, const char **why)
{
    const wire_field *host = wire_find(h, "Host", 0);

    if (!host && h->minor == 0 && !h->authority.at)
        return 0;
    if (!host || wire_find(h, "Host", 1) || !is_host(host->value))
        return *why = "a request has one Host", -400;
    if (h->authority.at && (h->authority.size != host->value.size ||
                            strncasecmp(h->authority.at, host->value.at, h->authority.size) != 0))
        return *why = "the target's host is not Host", -400;
    h->host = host->value;
    return 0;
}

static int check_expect(wire_head *h, const char **why)
{
    const wire_field *f = wire_find(h, "Expect", 0);

    if (!f)
        return 0;
    if (!wire_is(f->value, "100-continue") || wire_find(h, "Expect", 1))
        return *why = "the only Expect is 100-continue", -417;
    h->expects = h->minor > 0;
    return 0;
}

ssize_t wire_request(const char *data, size_t size, size_t *seen, size_t max, wire_head *h,
                     const char **why)
{
    ssize_t end = find_end(data, size, seen, max, why);
    const char *line = end > 0 ? memchr(data, '\r', (size_t)end) : NULL;
    int failed;

    if (end == 0 && size > 0 && data[0] != '\r' && !is_token_char(data[0])) /* TLS ends no line */
        return *why = "invalid request line", -400;
    if (end <= 0)
        return end;
    memset(h, 0, offsetof(wire_head, field));
    *why = "control character in the first line";
    failed = line[1] == '\n' ? read_request_line(data, line, h, why) : -400;
    if (failed == 0)
        failed = read_target(h, why);
    if (failed == 0)
        failed = read_fields(line + 2, data + end, h, why);
    if (failed == 0)
        failed = read_framing(h, why);
    if (failed == 0)
        failed = check_host(h, why);
    if (failed == 0)
        failed = check_expect(h, why);
    if (failed == 0 && h->upgrades)
        return *why = "Upgrade is not supported", -501;
    return failed ? failed : end;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static int read_status_line(const char *at, const char *end, wire_head *h, const char **why)
{
    int failed = end - at < 12 ? -400 : read_version(at, 8, &h->minor, why);

    *why = "invalid status line";
    if (failed || at[8] != ' ' || (end - at > 12 && at[12] != ' '))
        return -400;
    for (size_t i = 9; i < 12; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -400;
        h->status = h->status * 10 + (at[i] - '0');
    }
    if (end - at > 13)
        h->reason = (wire_text){at + 13, (size_t)(end - at - 13)};
    return h->status >= 100 && h->status < 600 && wire_is_value(h->reason.at, h->reason.size)
               ? 0
               : -400;
}

ssize_t wire_answer(const char *data, size_t size, size_t *seen, size_t max, bool bodiless,
                    wire_head *h, const char **why)
{
    ssize_t end = find_end(data, size, seen, max, why);
    const char *line = end > 0 ? memchr(data, '\r', (size_t)end) : NULL;
    int failed;

    if (end == 0 && size > 0 && data[0] != '\r' && !is_token_char(data[0])) /* TLS ends no line */
        return *why = "invalid request line", -400;
    if (end <= 0)
        return end;
    memset(h, 0, offsetof(wire_head, field));
    *why = "control character in the first line";
    failed = line[1] == '\n' ? read_status_line(data, line, h, why) : -400;
    if (failed == 0)
        failed = read_fields(line + 2, data + end, h, why);
    if (failed == 0)
        failed = read_framing(h, why);
    if (failed)
        return failed;
    if (bodiless || h->status < 200 || h->status == 204 || h->status == 304)
        h->framing = WIRE_EMPTY;
    else if (h->framing == WIRE_EMPTY)
        h->framing = WIRE_CLOSE;
    h->close |= h->framing == WIRE_CLOSE;
    return end;
}

/* ---- Bodies ---------------------------------------------------------------------------------- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF };
enum { LINE = 256, DIGITS = 15 };

void wire_body_begin(wire_body *b, const wire_head *h)
{
    *b = (wire_body){.framing = h->framing, .left = h->framing == WIRE_LENGTH ? h->length : 0};
    b->done = b->framing == WIRE_EMPTY || (b->framing == WIRE_LENGTH && b->left == 0);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* A byte of a chunk's size line. Extensions are skipped: nobody has to know them. */
static bool take_size(wire_body *b, char c)
{
    int digit = b->state == SIZE ? hex(c) : -1;

    if (++b->line > LINE)
        return false;
    if (digit >= 0) {
        b->left = b->left * 16 + (uint64_t)digit;
        return ++b->digits <= DIGITS;
    }
    if (b->digits == 0)
        return false;
    if (c == '\r') {
        b->state = SIZE_LF;
        return true;
    }
    if (b->state == SIZE && c != ';' && c != ' ' && c != '\t')
        return false;
    b->state = EXTENSION;
    return wire_is_value(&c, 1);
}

static bool keep_trailer(wire_body *b, char c)
{
    char *more = b->trailer;

    if (b->trailer_size >= WIRE_TRAILER_MAX)
        return false;
    if (b->trailer_size % 1024 == 0)
        more = realloc(b->trailer, b->trailer_size + 1024);
    if (!more)
        return false;
    b->trailer = more;
    b->trailer[b->trailer_size++] = c;
    return true;
}

/* A byte of the lines behind the last chunk; an empty one ends the body. */
static bool take_trailer(wire_body *b, char c)
{
    wire_head trailers;

    if (!keep_trailer(b, c))
        return false;
    if (b->state == TRAILER && c == '\n')
        return false;
    if (b->state == TRAILER) {
        b->state = c == '\r' ? TRAILER_LF : TRAILER;
        b->line += c != '\r';
        return true;
    }
    if (c != '\n')
        return false;
    b->state = TRAILER;
    b->done = b->line == 0;
    b->line = 0;
    return !b->done || wire_trailers(b, &trailers);
}

/* One byte that is not data. */
static bool take_byte(wire_body *b, char c)
{
    switch (b->state) {
    case SIZE:
    case EXTENSION:
        return take_size(b, c);
    case SIZE_LF:
        b->state = b->left > 0 ? DATA : TRAILER;
        b->line = 0;
        return c == '\n';
    case DATA_CR:
        b->state = DATA_LF;
        return c == '\r';
    case DATA_LF:
        b->state = SIZE;
        b->digits = 0;
        return c == '\n';
    default:
        return take_trailer(b, c);
    }
}

static ssize_t take_data(wire_body *b, const char *data, size_t size, wire_text *part)
{
    size_t n = b->framing != WIRE_CLOSE && b->left < size ? (size_t)b->left : size;

    *part = (wire_text){data, n};
    if (b->framing == WIRE_CLOSE)
        return (ssize_t)n;
    b->left -= n;
    if (b->left == 0 && b->framing == WIRE_CHUNKED)
        b->state = DATA_CR;
    b->done = b->left == 0 && b->framing == WIRE_LENGTH;
    return (ssize_t)n;
}

ssize_t wire_body_take(wire_body *b, const char *data, size_t size, wire_text *part)
{
    size_t at = 0;

    *part = (wire_text){data, 0};
    if (b->done)
        return 0;
    if (b->framing != WIRE_CHUNKED)
        return take_data(b, data, size, part);
    while (at < size && !b->done) {
        if (b->state == DATA)
            return (ssize_t)at + take_data(b, data + at, size - at, part);
        if (!take_byte(b, data[at++]))
            return -1;
    }
    return (ssize_t)at;
}

/* Those that say what the message is, and what the gateway says of it, have no place behind it. */
static bool is_late(wire_text name)
{
    static const char *const early[] = {"Host",
                                        "Content-Length",
                                        "Transfer-Encoding",
                                        "Authorization",
                                        "Set-Cookie",
                                        "Idempotency-Key",
                                        "Dibs-Token",
                                        "Dibs-Fence",
                                        "Dibs-Attempt",
                                        "Forwarded",
                                        "X-Forwarded-For",
                                        "X-Forwarded-Proto",
                                        "X-Forwarded-Host",
                                        NULL};

    for (size_t i = 0; early[i]; i++)
        if (wire_is_alike(name, early[i]))
            return false;
    return !is_hop(name);
}

bool wire_trailers(const wire_body *b, wire_head *h)
{
    const char *why;

    h->count = 0;
    if (b->trailer_size == 0)
        return true;
    if (read_fields(b->trailer, b->trailer + b->trailer_size, h, &why) != 0)
        return false;
    for (size_t i = 0; i < h->count; i++)
        if (!is_late(h->field[i].name))
            h->field[i].hop = true;
    return true;
}
