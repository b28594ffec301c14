/* What the engine sends is walked command by command; it is well-formed, else the fuzzer fails. */
#define _GNU_SOURCE
#include "fuzz/redis_peer.h"

#include "fuzz/net.h"

#define CONNECTIONS 32
#define INFO                                                                                  \
    "# Server\r\nredis_version:7.0.15\r\nrun_id:0123456789012345678901234567890123456789\r\n" \
    "role:master\r\nuptime_in_seconds:100000\r\nmaxmemory_policy:noeviction\r\n"

static const struct {
    const char *word, *second, *answer;
} greetings[] = {
    {"AUTH", NULL, "+OK\r\n"},
    {"SELECT", NULL, "+OK\r\n"},
    {"CLIENT", "ID", ":7\r\n"},
    {"CLIENT", "KILL", ":1\r\n"},
    {"CLIENT", NULL, "+OK\r\n"},
    {"SCRIPT", NULL, "$2\r\nab\r\n"},
    {"SUBSCRIBE", NULL, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"},
    {"INFO", NULL, NULL},
};

static bool greets;
static fuzz_input *answers;

static void answer(size_t number)
{
    size_t size;
    const uint8_t *data;

    if (answers->left == 0)
        drive_hang_up(number);
    data = fuzz_bytes(answers, fuzz_number(answers, 2), &size);
    drive_say(number, data, size);
}

static bool is_word(const char *word, const uint8_t *data, size_t size)
{
    return strlen(word) == size && memcmp(data, word, size) == 0;
}

static bool greet(size_t number, const uint8_t *word[2], const size_t size[2])
{
    char info[400];

    for (size_t i = 0; i < sizeof greetings / sizeof greetings[0]; i++) {
        const char *said = greetings[i].answer, *second = greetings[i].second;
        if (!is_word(greetings[i].word, word[0], size[0]) ||
            (second && !is_word(second, word[1], size[1])))
            continue;
        if (!said)
            snprintf(info, sizeof info, "$%zu\r\n" INFO "\r\n", strlen(INFO));
        said = said ? said : info;
        drive_say(number, said, strlen(said));
        return true;
    }
    return false;
}

/* "*3\r\n" or "$12\r\n": the number. */
static size_t take_count(const uint8_t **at, const uint8_t *end, char kind)
{
    char *after;
    size_t n;

    must(end - *at > 3 && **at == kind, "not the Redis protocol");
    n = strtoul((const char *)*at + 1, &after, 10);
    must(after[0] == '\r' && after[1] == '\n', "not the Redis protocol");
    *at = (const uint8_t *)after + 2;
    return n;
}

static void heard(size_t number, const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *end = data + size;

    while (at < end) {
        const uint8_t *word[2] = {at, at};
        size_t length[2] = {0};
        size_t words = take_count(&at, end, '*');
        for (size_t i = 0; i < words; i++) {
            size_t n = take_count(&at, end, '$');
            must((size_t)(end - at) >= n + 2, "not the Redis protocol");
            if (i < 2) {
                word[i] = at;
                length[i] = n;
            }
            at += n + 2;
        }
        if (!greets || !greet(number, word, length))
            answer(number);
    }
}

void redis_peer_drive(const char *url, const uint8_t *data, size_t size)
{
    static const drive_peer peer = {heard};
    fuzz_input in = {data, size};

    greets = fuzz_number(&in, 1) == 'g';
    answers = &in;
    alone_begin();
    net_begin(&alone_env, &peer, CONNECTIONS);
    drive(url, &alone_env, &in);
    alone_run_threads();
    net_end();
}
