/* libFuzzer on the records of `once`: any bytes are a record or are refused with a reason, and a record that was
 * read is written and read again as the same. */
#include "fuzz/fuzz.h"
#include "recipes/record.h"

static void check_fields(const dibs__run_record *r, size_t size)
{
    must(r->state >= DIBS__RUN_RUNNING && r->state <= DIBS__RUN_FREE, "a state that is none");
    must(r->lease >= 0 && r->keep >= 0 && r->tombstone >= 0, "a span below zero");
    must(dibs__record_life(r) >= 0, "a record that ends before it begins");
    must(dibs__record_load(r) <= 2 * size, "more load than bytes");
    for (const dibs__step *s = r->steps; s; s = s->next)
        must(((const char *)s->data)[s->size] == '\0', "a step's data has no end");
}

/* Written anew, it says the same. */
static void check_round_trip(const dibs__run_record *r)
{
    size_t size, again_size;
    void *bytes = dibs__record_encode(r, &size), *again;
    dibs__run_record copy;

    must(dibs__record_decode(bytes, size, &copy, NULL) == DIBS_OK, "what we write is no record");
    again = dibs__record_encode(&copy, &again_size);
    must(size == again_size && memcmp(bytes, again, size) == 0, "written twice, and not the same");
    must(copy.state == r->state && copy.runs == r->runs && copy.code == r->code &&
             copy.lease == r->lease && copy.keep == r->keep && copy.fence == r->fence &&
             strcmp(copy.attempt, r->attempt) == 0 && strcmp(copy.crashed, r->crashed) == 0,
         "a field has changed");
    must(copy.has_result == r->has_result &&
             (!r->has_result || (copy.result_size == r->result_size &&
                                 memcmp(copy.result, r->result, r->result_size) == 0)),
         "the result has changed");
    dibs__steps_free(copy.steps);
    free(again);
    free(bytes);
}

/* A list reads the same, without steps and result. */
static void check_peek(const dibs__run_record *r, const uint8_t *data, size_t size)
{
    dibs__record_sizes sizes;
    dibs__run_record seen;
    size_t steps = 0;

    for (const dibs__step *s = r->steps; s; s = s->next)
        steps++;
    must(dibs__record_peek(data, size, size, &seen, &sizes, NULL) == DIBS_OK,
         "a list calls it damaged");
    must(seen.state == r->state && sizes.steps == steps &&
             (steps > 0 || sizes.result == r->result_size),
         "a list counts something else");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dibs__run_record r;
    dibs_error err = {0};
    dibs__record_sizes sizes;
    dibs_status status = dibs__record_peek(data, size, size, &r, &sizes, &err);

    must(status == DIBS_OK || status == DIBS_ENGINE_FAILED, "a look that is no answer");
    status = dibs__record_decode(data, size, &r, &err);
    must(status == DIBS_OK || status == DIBS_ENGINE_FAILED, "an answer that is none");
    fuzz_check_message(&err, status);
    if (status != DIBS_OK)
        return 0;
    check_fields(&r, size);
    check_round_trip(&r);
    check_peek(&r, data, size);
    dibs__steps_free(r.steps);
    return 0;
}
