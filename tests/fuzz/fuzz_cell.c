/* libFuzzer on the cell's state machine: bytes decide what the author of commands would leave to chance, the rules of
 * support/cell_rules.c are the oracle. */
#include "fuzz/fuzz.h"
#include "support/cell_rules.h"

#define SECOND   ((int64_t)1000000)
#define COMMANDS 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cell_watch w = {.now = {.lease = 1000 * SECOND, .wall = 1700000000 * SECOND}};
    cell_order order;

    if (size == 0)
        return 0;
    w.author = (cell_author){
        .drawn = data + 1, .left = size - 1, .counts = data[0] & 1, .moment = 1 + data[0] % 8};
    for (int i = 0; i < COMMANDS && w.author.left > 0; i++) {
        const char *broken = cell_watch_step(&w, &order);
        if (broken) {
            char text[256];
            cell_describe(&order.command, text, sizeof text);
            fprintf(stderr, "command %d: %s\n", i, text);
            must(!broken, broken);
        }
        w.now.lease += data[0] >> 6;
        w.now.wall += data[0] >> 6;
    }
    return 0;
}
