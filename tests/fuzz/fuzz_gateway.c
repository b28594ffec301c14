/* libFuzzer on what `dibs gateway` reads from clients, from the application and from the engine: heads, bodies in pieces,
 * paths, keys, kept answers.
 *
 * The first byte says what the rest is. What was read once is read the same way in pieces, and what was understood and
 * written anew is understood as the same again: so nobody behind the gateway can understand it differently. */
#include "fuzz/fuzz.h"
#include "gateway/key.h"
#include "gateway/path.h"
#include "gateway/stored.h"

#include <strings.h>

enum { MOST = 8192 };

static ssize_t read_head(bool answers, const char *data, size_t size, size_t *seen, wire_head *h)
{
    const char *why = NULL;
    ssize_t end = answers ? wire_answer(data, size, seen, MOST, false, h, &why)
                          : wire_request(data, size, seen, MOST, h, &why);

    must(end >= 0 || why, "refused without a reason");
    must(end <= (ssize_t)size, "more than there is");
    return end;
}

/* A byte more at a time, as a slow client sends it. */
static void read_in_pieces(bool answers, const char *data, size_t size, ssize_t whole)
{
    size_t seen = 0;
    wire_head h;
    ssize_t end = 0;

    for (size_t n = 1; n <= size && end == 0; n++)
        end = read_head(answers, data, n, &seen, &h);
    must(end == whole, "in pieces it is another head");
}

static bool same(wire_text a, wire_text b)
{
    return a.size == b.size && memcmp(a.at, b.at, a.size) == 0;
}

/* Written as the gateway writes it; without hop-by-hop headers the same is there. */
static void write_anew(bool answers, const wire_head *h)
{
    http_buffer out = {0};
    size_t seen = 0, kept = 0;
    wire_head again;

    if (answers)
        http_buffer_format(&out, "HTTP/1.1 %d \r\n", h->status);
    else
        http_buffer_text(&out, "POST / HTTP/1.1\r\n");
    for (size_t i = 0; i < h->count; i++)
        if (!h->field[i].hop) {
            http_buffer_add(&out, h->field[i].name.at, h->field[i].name.size);
            http_buffer_add(&out, ": ", 2);
            http_buffer_add(&out, h->field[i].value.at, h->field[i].value.size);
            http_buffer_add(&out, "\r\n", 2);
        }
    http_buffer_text(&out, "\r\n");
    must(read_head(answers, out.data, out.to, &seen, &again) == (ssize_t)out.to,
         "what was written is not understood");
    for (size_t i = 0; i < h->count; i++)
        if (!h->field[i].hop) {
            must(same(h->field[i].name, again.field[kept].name) &&
                     same(h->field[i].value, again.field[kept].value),
                 "another header");
            kept++;
        }
    must(kept == again.count, "other headers");
    must(!wire_find(&again, "Transfer-Encoding", 0) && !wire_find(&again, "Connection", 0),
         "a hop was passed on");
    http_buffer_free(&out);
}

/* Payload and end; -1: invalid. */
static ssize_t read_body(wire_framing framing, uint64_t left, const char *data, size_t size,
                         size_t piece, http_buffer *out)
{
    wire_body b = {.framing = framing, .left = left};
    size_t at = 0;
    ssize_t taken = 0;

    b.done = framing == WIRE_EMPTY || (framing == WIRE_LENGTH && left == 0);
    while (at < size && !b.done && taken >= 0) {
        size_t n = fuzz_least(piece, size - at);
        wire_text part;
        taken = wire_body_take(&b, data + at, n, &part);
        must(taken != 0 && taken <= (ssize_t)n, "nothing was taken");
        if (taken > 0) {
            must(part.size == 0 ||
                     (part.at >= data + at && part.at + part.size <= data + at + taken),
                 "not in the data");
            http_buffer_add(out, part.at, part.size);
            at += (size_t)taken;
        }
    }
    free(b.trailer);
    return taken < 0 ? -1 : b.done ? (ssize_t)at : (ssize_t)size + 1;
}

static void compare_bodies(wire_framing framing, uint64_t left, const char *data, size_t size,
                           size_t piece)
{
    http_buffer a = {0}, b = {0};
    ssize_t whole = read_body(framing, left, data, size, size, &a);

    must(read_body(framing, left, data, size, piece, &b) == whole, "in pieces it ends elsewhere");
    if (whole >= 0) {
        must(a.to == b.to && (a.to == 0 || memcmp(a.data, b.data, a.to) == 0),
             "in pieces it is another body");
        must(framing != WIRE_LENGTH || a.to <= left, "more than its length");
    }
    http_buffer_free(&a);
    http_buffer_free(&b);
}

static void message(bool answers, const char *data, size_t size, size_t piece)
{
    size_t seen = 0;
    wire_head h;
    ssize_t end = read_head(answers, data, size, &seen, &h);

    read_in_pieces(answers, data, size, end);
    if (end <= 0)
        return;
    if (!answers && !h.host.at) { /* the gateway refuses it */
        must(h.minor == 0 && !wire_find(&h, "Host", 0), "no Host");
        return;
    }
    must(answers || (wire_find(&h, "Host", 0) && !wire_find(&h, "Host", 1)), "not one Host");
    must(!wire_find(&h, "Content-Length", 0) || !wire_find(&h, "Transfer-Encoding", 0), "two ends");
    write_anew(answers, &h);
    compare_bodies(h.framing, h.framing == WIRE_LENGTH ? h.length : 0, data + end,
                   size - (size_t)end, piece);
}

static void paths(const char *data, size_t size)
{
    char once[MOST], twice[MOST];

    if (size == 0 || data[0] != '/' || memchr(data, 0, size) || !gate_path_normal(data, size, once))
        return;
    must(strlen(once) <= size && once[0] == '/', "it grew");
    must(gate_path_normal(once, strlen(once), twice) && strcmp(once, twice) == 0, "not normal");
    must(!strstr(once, "/../") && !strstr(once, "/./"), "dots");
    gate_path_plain(once);
    must(once[0] == '/' && !strstr(once, "//") && !strchr(once, ';'), "not plain");
    must(gate_path_normal(once, strlen(once), twice) && strcmp(once, twice) == 0, "not normal");
    gate_path_plain(twice);
    must(strcmp(once, twice) == 0, "not plain at once");
    if (gate_pattern_valid(once))
        must(gate_pattern_covers(once, once), "does not cover itself");
}

static void keys(const char *data, size_t size)
{
    char key[GATE_KEY_SIZE], again[GATE_KEY_SIZE], quoted[2 * GATE_KEY_SIZE + 2] = "\"";
    size_t n = 1;

    if (!gate_key_read((wire_text){data, size}, key))
        return;
    must(*key, "empty");
    for (const char *at = key; *at; at++) {
        must(*at >= ' ' && *at <= '~', "not printable");
        if (*at == '"' || *at == '\\')
            quoted[n++] = '\\';
        quoted[n++] = *at;
    }
    quoted[n++] = '"';
    must(gate_key_read((wire_text){quoted, n}, again) && strcmp(key, again) == 0, "another key");
}

static void kept(const char *data, size_t size)
{
    wire_head trailers;
    gate_stored s;

    if (!gate_stored_decode(data, size, &s))
        return;
    must(s.body.at >= data && s.body.at + s.body.size + s.trailers.trailer_size == data + size,
         "not all of it");
    wire_trailers(&s.trailers, &trailers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    unsigned what = (unsigned)fuzz_number(&in, 1), piece = what / 8 + 1;
    size_t left = fuzz_least(in.left, MOST - 1);
    char *text = malloc(left + 1); /* so that reading behind it is found */

    if (!text)
        return 0;
    memcpy(text, in.at, left);
    if (what % 8 < 2)
        message(what % 8 == 1, text, left, piece);
    else if (what % 8 == 2)
        compare_bodies(WIRE_CHUNKED, 0, text, left, piece);
    else if (what % 8 == 3)
        paths(text, left);
    else if (what % 8 == 4)
        keys(text, left);
    else
        kept(text, left);
    free(text);
    return 0;
}
