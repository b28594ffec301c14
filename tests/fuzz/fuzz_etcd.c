/* libFuzzer on the etcd engine: whatever a server answers, every call of the engine's table keeps its contract. The
 * engine has a thread of its own, which is one of the simulation's (tests/sim/): time is simulated, and one input is
 * one run.
 *
 * The first byte: 'g' lets the server log us in and give us a session; with anything else that comes from the input
 * too. Then calls, see drive.c; then answers: a byte of flags, a size in two bytes, a message. When there are none left
 * the server hangs up. */
#define _GNU_SOURCE
#include "fuzz/net.h"
#include "sim/sched.h"

#include <sys/eventfd.h>
#include <unistd.h>

#define CONNECTIONS 6
#define URL         "etcd://user:" DRIVE_SECRET "@host:1/p?session=10s"
#define PREFACE     24 /* bytes that a client begins with */
#define HEAD        9  /* of a frame */

enum { DATA = 0, HEADERS = 1, SETTINGS = 4, END_STREAM = 1, ACK = 1, END_HEADERS = 4 };

/* Flags of an answer. */
enum {
    RAW = 1,      /* bytes of HTTP/2, as they are */
    TURNED = 2,   /* the stream goes on where it should end, or the other way round */
    FAILS = 4,    /* no message, but an error with that text; its number is in the high bits */
    PART = 8,     /* the message is shorter than it says */
    STATUS = 0xf0 /* four bits */
};

static struct {
    bool greets;
    fuzz_input *answers;
    size_t heard[CONNECTIONS];  /* bytes */
    size_t calls[CONNECTIONS];  /* that end with their request */
    uint64_t open[CONNECTIONS]; /* streams with a head, by number */
} peer;

/* ---- Saying ---------------------------------------------------------------------------------- */

static void say_frame(size_t number, int type, int flags, uint32_t stream, const void *data,
                      size_t size)
{
    const uint8_t head[HEAD] = {
        (uint8_t)(size >> 16),   (uint8_t)(size >> 8),   (uint8_t)size,
        (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};

    drive_say(number, head, sizeof head);
    drive_say(number, data, size);
}

/* A header field that is not kept in any table. */
static uint8_t *add_field(uint8_t *to, const char *name, const void *value, size_t size)
{
    *to++ = 0;
    *to++ = (uint8_t)strlen(name);
    to = (uint8_t *)stpcpy((char *)to, name);
    *to++ = (uint8_t)size;
    memcpy(to, value, size);
    return to + size;
}

static void say_end(size_t number, uint32_t stream, int status, const void *text, size_t size)
{
    char digits[4];
    uint8_t block[256], *end;

    snprintf(digits, sizeof digits, "%d", status);
    end = add_field(block, "grpc-status", digits, strlen(digits));
    if (size > 0)
        end = add_field(end, "grpc-message", text, fuzz_least(size, 120));
    say_frame(number, HEADERS, END_HEADERS | END_STREAM, stream, block, (size_t)(end - block));
}

static void say_message(size_t number, uint32_t stream, const void *data, size_t size, size_t said)
{
    uint8_t message[5 + 65536] = {0, 0, (uint8_t)(said >> 16), (uint8_t)(said >> 8), (uint8_t)said};

    memcpy(message + 5, data, size);
    say_frame(number, DATA, 0, stream, message, 5 + size);
}

/* ":status: 200", once for each stream. */
static void say_head(size_t number, uint32_t stream)
{
    uint64_t bit = (uint64_t)1 << (stream / 2 % 64);

    if (!(peer.open[number] & bit))
        say_frame(number, HEADERS, END_HEADERS, stream, "\x88", 1);
    peer.open[number] |= bit;
}

/* ---- Answering ------------------------------------------------------------------------------- */

static void answer(size_t number, uint32_t stream, bool ends)
{
    int flags = (int)fuzz_number(peer.answers, 1);
    size_t size;
    const uint8_t *data = fuzz_bytes(peer.answers, fuzz_number(peer.answers, 2), &size);

    if (flags & RAW) {
        drive_say(number, data, size);
        return;
    }
    if (flags & TURNED)
        ends = !ends;
    say_head(number, stream);
    if (!(flags & FAILS))
        say_message(number, stream, data, size, size + (flags & PART ? 1 : 0));
    if (ends || flags & FAILS)
        say_end(number, stream, flags & FAILS ? (flags & STATUS) >> 4 : 0, data,
                flags & FAILS ? size : 0);
}

/* A token, a lease of 10 s, a revision: what makes a session. */
static bool greet(size_t number, uint32_t stream)
{
    static const struct {
        const char *data;
        size_t size;
    } messages[] = {
        {"\x12\x01t", 3}, {"\x0a\x02\x18\x05\x10\x07\x18\x0a", 8}, {"\x0a\x02\x18\x06", 4}};
    size_t call = peer.calls[number];

    if (!peer.greets || call >= (number == 0 ? 3 : 1))
        return false;
    say_head(number, stream);
    say_message(number, stream, messages[call].data, messages[call].size, messages[call].size);
    say_end(number, stream, 0, NULL, 0);
    return true;
}

static void on_frame(size_t number, int type, int flags, uint32_t stream)
{
    if (type == SETTINGS && !(flags & ACK)) {
        say_frame(number, SETTINGS, 0, 0, NULL, 0);
        say_frame(number, SETTINGS, ACK, 0, NULL, 0);
    }
    if (type != DATA)
        return;
    if (!(flags & END_STREAM) || !greet(number, stream)) {
        if (peer.answers->left == 0)
            drive_hang_up(number);
        else
            answer(number, stream, flags & END_STREAM);
    }
    peer.calls[number] += flags & END_STREAM ? 1 : 0;
}

/* The engine sends whole frames. */
static void heard(size_t number, const uint8_t *data, size_t size)
{
    size_t at = peer.heard[number] == 0 ? PREFACE : 0;

    peer.heard[number] += size;
    while (at < size) {
        const uint8_t *p = data + at;
        must(size - at >= HEAD, "half a frame");
        size_t length = (size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2];
        must(size - at - HEAD >= length, "half a frame");
        on_frame(number, p[3], p[4],
                 ((uint32_t)p[5] << 24 | (uint32_t)p[6] << 16 | (uint32_t)p[7] << 8 | p[8]) &
                     INT32_MAX);
        at += HEAD + length;
    }
}

/* ---- A run ----------------------------------------------------------------------------------- */

ssize_t __wrap_write(int fd, const void *data, size_t size);
ssize_t __real_write(int fd, const void *data, size_t size);

/* The simulation's descriptors are no files. */
ssize_t __wrap_write(int fd, const void *data, size_t size)
{
    uint64_t value;

    if (!sim_self() || fd < 1000000)
        return __real_write(fd, data, size);
    memcpy(&value, data, sizeof value);
    return eventfd_write(fd, value) == 0 ? (ssize_t)size : -1;
}

static void *run(void *in)
{
    drive(URL, &sim_self_process()->env, in);
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const drive_peer peer_class = {heard};
    fuzz_input in = {data, size};
    sim_process *process;
    const char *wrong;

    memset(&peer, 0, sizeof peer);
    peer.greets = fuzz_number(&in, 1) == 'g';
    peer.answers = &in;
    sim_begin(1);
    process = sim_process_new(0);
    net_begin(&process->env, &peer_class, CONNECTIONS);
    sim_thread_new(process, run, &in);
    wrong = sim_run();
    net_end();
    must(!wrong, wrong);
    return 0;
}
