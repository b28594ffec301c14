/* libFuzzer on Redlock: three nodes that answer whatever they like. */
#include "fuzz/redis_peer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    redis_peer_drive("redlock://user:" DRIVE_SECRET "@a:1,b:2,c:3", data, size);
    return 0;
}
