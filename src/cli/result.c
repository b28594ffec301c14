/* The bytes of a result; see the header. */
#include "result.h"

#include <stdlib.h>
#include <string.h>

#define MARK \
    "\x7f"   \
    "dibs"
#define MARK_SIZE (sizeof MARK - 1)
#define VERSION   1
#define HEAD_SIZE (MARK_SIZE + 3 + 4)

static bool is_marked(const void *bytes, size_t size)
{
    return size >= MARK_SIZE && memcmp(bytes, MARK, MARK_SIZE) == 0;
}

static unsigned char *write_head(unsigned char *at, const cli_result *result)
{
    memcpy(at, MARK, MARK_SIZE);
    at += MARK_SIZE;
    *at++ = VERSION;
    *at++ = (unsigned char)result->kind;
    *at++ = 0;
    for (int i = 0; i < 4; i++)
        *at++ = (unsigned char)(result->size[0] >> (8 * i));
    return at;
}

void *cli_result_encode(const cli_result *result, size_t *size)
{
    size_t out_size = result->size[0], err_size = result->size[1];
    unsigned char *bytes = malloc(HEAD_SIZE + out_size + err_size), *at = bytes;

    if (!bytes)
        return NULL;
    if (result->kind != CLI_OUTPUT_KEPT || err_size > 0 || is_marked(result->data[0], out_size))
        at = write_head(at, result);
    if (out_size)
        memcpy(at, result->data[0], out_size);
    if (err_size)
        memcpy(at + out_size, result->data[1], err_size);
    *size = (size_t)(at - bytes) + out_size + err_size;
    return bytes;
}

bool cli_result_decode(const void *bytes, size_t size, cli_result *out)
{
    const unsigned char *at = bytes;
    size_t out_size = 0;

    *out = (cli_result){.data = {bytes ? bytes : "", ""}, .size = {size, 0}};
    if (!is_marked(bytes, size))
        return true;
    if (size < HEAD_SIZE || at[MARK_SIZE] != VERSION || at[MARK_SIZE + 1] > CLI_OUTPUT_NOT_ASKED)
        return false;
    for (int i = 0; i < 4; i++)
        out_size |= (size_t)at[MARK_SIZE + 3 + i] << (8 * i);
    if (out_size > size - HEAD_SIZE)
        return false;
    *out = (cli_result){.kind = (cli_output_kind)at[MARK_SIZE + 1],
                        .data = {at + HEAD_SIZE, at + HEAD_SIZE + out_size},
                        .size = {out_size, size - HEAD_SIZE - out_size}};
    return true;
}
