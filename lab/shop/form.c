/* Fields of a body; see the header. */
#include "form.h"

#include <stdlib.h>
#include <string.h>

#define BODY_MAX   8192
#define FIELDS_MAX 12
#define PIECE      1024 /* of the reader's buffer */

typedef struct field {
    char name[16];
    char value[128];
} field;

struct lab_input {
    struct MHD_PostProcessor *reader; /* NULL: not a form */
    size_t size;
    unsigned fault;
    size_t count;
    field fields[FIELDS_MAX];
};

/* The value comes in pieces; `offset` says where this one belongs. A field of a longer name is none of ours. */
static enum MHD_Result read_field(void *ctx, enum MHD_ValueKind kind, const char *name,
                                  const char *file, const char *type, const char *coding,
                                  const char *data, uint64_t offset, size_t size)
{
    lab_input *in = ctx;
    field *f;

    (void)kind;
    (void)file;
    (void)type;
    (void)coding;
    if (!name || strlen(name) >= sizeof f->name)
        return MHD_YES;
    if (offset == 0) {
        if (in->count == FIELDS_MAX) {
            in->fault = 400;
            return MHD_NO;
        }
        strcpy(in->fields[in->count++].name, name);
    }
    f = in->count > 0 ? &in->fields[in->count - 1] : NULL;
    if (!f || offset + size >= sizeof f->value || (size > 0 && memchr(data, '\0', size))) {
        in->fault = 400;
        return MHD_NO;
    }
    if (size > 0)
        memcpy(f->value + offset, data, size);
    return MHD_YES;
}

lab_input *lab_input_open(struct MHD_Connection *c)
{
    lab_input *in = calloc(1, sizeof *in);

    if (in)
        in->reader = MHD_create_post_processor(c, PIECE, read_field, in);
    return in;
}

void lab_input_close(lab_input *in)
{
    if (in && in->reader)
        MHD_destroy_post_processor(in->reader);
    free(in);
}

void lab_input_take(lab_input *in, const char *data, size_t size)
{
    if (!in->reader || in->fault)
        return;
    in->size += size;
    if (in->size > BODY_MAX)
        in->fault = 413;
    else if (MHD_post_process(in->reader, data, size) != MHD_YES)
        in->fault = 400;
}

unsigned lab_input_fault(const lab_input *in)
{
    return in->fault;
}

const char *lab_input_get(const lab_input *in, const char *name)
{
    for (size_t i = 0; i < in->count; i++)
        if (strcmp(in->fields[i].name, name) == 0)
            return in->fields[i].value;
    return NULL;
}
