/* A Redis server of the fuzzer's: greets as a real one does, and answers what matters with pieces of the input. */
#ifndef DIBS_TESTS_FUZZ_REDIS_PEER_H
#define DIBS_TESTS_FUZZ_REDIS_PEER_H

#include "fuzz/drive.h"

/* The first byte: 'g' greets; with anything else also the greeting comes from the input. Then calls, see drive.c;
 * then answers, each after its size in two bytes. When there are none left the server hangs up. */
void redis_peer_drive(const char *url, const uint8_t *data, size_t size);

#endif
