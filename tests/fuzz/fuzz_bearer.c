/* libFuzzer on the texts of portable grants: any bytes are a grant or are refused, what is read is in range and has
 * one text, and what is written is read again as the same. */
#include "core/bearer.h"
#include "fuzz/fuzz.h"

static void check_read(const char *text)
{
    dibs__bearer b;
    char again[DIBS_GRANT_SIZE];

    if (!dibs__bearer_read(text, &b))
        return;
    must(b.engine[0] && b.name[0] && b.owner[0] && b.attempt[0], "an empty field");
    must(b.fence > 0 && b.lease > 0 && b.weight > 0 && b.weight <= b.capacity &&
             b.capacity <= DIBS__PLAIN,
         "a number is out of range");
    dibs__bearer_write(&b, again);
    must(strcmp(text, again) == 0, "two texts of one grant");
}

/* A text field of the input's, never empty. */
static void fill(fuzz_input *in, char *out, size_t size)
{
    fuzz_text(in, fuzz_number(in, 2) % size, out, size);
    if (!out[0])
        strcpy(out, "x");
}

static void write_and_read(fuzz_input *in, char text[DIBS_GRANT_SIZE])
{
    dibs__bearer b = {.fence = (fuzz_number(in, 8) & INT64_MAX) | 1,
                      .lease = (int64_t)(fuzz_number(in, 8) & INT64_MAX) | 1,
                      .capacity = 1 + (uint32_t)fuzz_number(in, 4) % DIBS__PLAIN},
                 copy;
    size_t n;

    b.weight = 1 + (uint32_t)fuzz_number(in, 4) % b.capacity;
    fill(in, b.engine, sizeof b.engine);
    fill(in, b.name, sizeof b.name);
    fill(in, b.owner, sizeof b.owner);
    fill(in, b.attempt, sizeof b.attempt - 1);
    n = strlen(b.attempt);
    b.attempt[n] = '.';
    dibs__bearer_write(&b, text);
    must(strlen(text) < DIBS_GRANT_SIZE, "a text is too long");
    must(dibs__bearer_read(text, &copy), "what we write is refused");
    must(strcmp(copy.engine, b.engine) == 0 && strcmp(copy.name, b.name) == 0 &&
             strcmp(copy.owner, b.owner) == 0 && strcmp(copy.attempt, b.attempt) == 0 &&
             copy.fence == b.fence && copy.lease == b.lease && copy.capacity == b.capacity &&
             copy.weight == b.weight,
         "a field has changed");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    char text[DIBS_GRANT_SIZE], raw[2 * DIBS_GRANT_SIZE];
    size_t at;

    fuzz_text(&in, sizeof raw - 1, raw, sizeof raw);
    check_read(raw);
    in = (fuzz_input){data, size};
    write_and_read(&in, text);
    at = fuzz_number(&in, 2) % strlen(text);
    text[at] = (char)(text[at] ^ (1 + fuzz_number(&in, 1) % 255)); /* one byte of it is damaged */
    check_read(text);
    return 0;
}
