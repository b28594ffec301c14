/* Hashes and random texts. */
#ifndef DIBS_SERVE_SECRET_H
#define DIBS_SERVE_SECRET_H

#include <stdbool.h>
#include <stddef.h>

/* The first 128 bits of SHA-256 over the texts (NULL ends them), each with its length, in hexadecimal. */
void serve_hash(char out[33], const char *const texts[]);
/* 128 random bits in hexadecimal. */
void serve_random(char out[33]);

#endif
