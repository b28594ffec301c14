/* libFuzzer on the Redis engine: whatever a server answers, every call of the engine's table keeps its contract. */
#include "fuzz/redis_peer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    redis_peer_drive("redis://user:" DRIVE_SECRET "@host:1/3", data, size);
    return 0;
}
