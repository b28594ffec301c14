/* libFuzzer on durations: what is read is in range, and what is written is read again. */
#include "core/span.h"
#include "fuzz/fuzz.h"

static void write_and_read(int64_t ms)
{
    char text[32];

    must(dibs__span_write(text, ms) == text && strlen(text) < sizeof text, "not terminated");
    must(dibs__span_parse(text) == ms, "another duration was read than was written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int64_t number = (int64_t)(fuzz_number(&in, 8) & INT64_MAX);
    char text[64];
    int64_t ms;

    write_and_read(number);
    fuzz_text(&in, sizeof text, text, sizeof text);
    ms = dibs__span_parse(text);
    must(ms >= -1, "a duration below zero");
    must(ms < 0 || strspn(text, "0123456789.dhms") == strlen(text), "other letters were read");
    if (ms >= 0)
        write_and_read(ms);
    return 0;
}
