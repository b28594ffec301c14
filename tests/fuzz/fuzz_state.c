/* libFuzzer on the lock's state machine: bytes become commands, the rules of support/rules.c are
 * the oracle. */
#include "fuzz/fuzz.h"
#include "support/machine.h"

/* Six bytes a command: kind and capacity, owner, handle and attempt, weight, lease and window, time,
 * wall time. */
static command make_command(const uint8_t *b, dibs__time *now)
{
    static const uint32_t capacities[] = {DIBS__PLAIN, DIBS__PLAIN, 4, 4};
    command c;

    memset(&c, 0, sizeof c);
    now->lease += b[4] % 16;
    now->wall += (int8_t)b[5];
    c.now = *now;
    c.kind = (command_kind)(b[0] % COMMAND_KINDS);
    c.capacity = capacities[b[0] / COMMAND_KINDS % 4];
    c.at_once = b[2] & 1;
    snprintf(c.who.owner, sizeof c.who.owner, "%c", 'a' + b[1] % 5);
    snprintf(c.who.attempt, sizeof c.who.attempt, "%c-%d", b[1] & 0x80 ? 'k' : 'h', b[1] / 5 % 3);
    c.who.weight = b[2] & 2 ? c.capacity : 1u + (b[2] >> 2) % 3;
    c.who.min_hold = b[2] & 0x80 ? 8 : 0;
    c.who.lease = 1 + b[3] % 32;
    c.window = b[3] / 32 * 3;
    c.fence = b[5];
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tiny t;
    dibs__time now = {.lease = 1000, .wall = 1000};

    memset(&t, 0, sizeof t);
    for (size_t i = 0; i + 6 <= size && i < 6 * 200; i += 6) {
        command c = make_command(data + i, &now);
        dibs__reply reply;
        const char *wrong = tiny_step(&t, &c, &reply);
        if (t.overflow)
            return 0;
        if (wrong) {
            fprintf(stderr, "%s, at command %zu\n", wrong, i / 6);
            abort();
        }
    }
    return 0;
}
