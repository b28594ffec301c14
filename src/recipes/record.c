/* Records of `once` to bytes and back; see the header. */
#include "recipes/record.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT     3
#define STEP_EXTRA 8 /* bytes that a step takes beside its name and data */
#define DAY        ((int64_t)24 * 3600 * 1000000)

/* ---- Writing --------------------------------------------------------------------------------- */

/* Counts first (`at` NULL), then writes. */
typedef struct writer {
    unsigned char *at;
    size_t size;
} writer;

static void write_bytes(writer *w, const void *data, size_t size)
{
    if (w->at && size)
        memcpy(w->at + w->size, data, size);
    w->size += size;
}

static void write_number(writer *w, uint64_t value, size_t bytes)
{
    unsigned char le[8];

    for (size_t i = 0; i < bytes; i++)
        le[i] = (unsigned char)(value >> (8 * i));
    write_bytes(w, le, bytes);
}

static void write_sized(writer *w, const void *data, size_t size)
{
    write_number(w, size, 4);
    write_bytes(w, data, size);
}

static bool replaced(const dibs__run_record *r, const dibs__step *s)
{
    return r->fresh && strcmp(s->name, r->fresh->name) == 0;
}

static void write_step(writer *w, const dibs__step *s)
{
    write_sized(w, s->name, strlen(s->name));
    write_sized(w, s->data, s->size);
}

static void write_steps(writer *w, const dibs__run_record *r)
{
    uint32_t count = r->fresh != NULL;

    for (const dibs__step *s = r->steps; s; s = s->next)
        count += !replaced(r, s);
    write_number(w, count, 4);
    for (const dibs__step *s = r->steps; s; s = s->next)
        if (!replaced(r, s))
            write_step(w, s);
    if (r->fresh)
        write_step(w, r->fresh);
}

static void write_record(writer *w, const dibs__run_record *r)
{
    write_number(w, FORMAT, 1);
    write_number(w, r->state, 1);
    write_number(w, r->runs, 4);
    write_number(w, (uint32_t)r->code, 4);
    write_number(w, (uint64_t)r->pid, 8);
    write_number(w, (uint64_t)r->since, 8);
    write_number(w, (uint64_t)r->lease, 8);
    write_number(w, (uint64_t)r->keep, 8);
    write_number(w, (uint64_t)r->tombstone, 8);
    write_number(w, r->fence, 8);
    write_sized(w, r->fingerprint, r->fingerprint_size);
    write_sized(w, r->owner, strlen(r->owner));
    write_sized(w, r->host, strlen(r->host));
    write_sized(w, r->attempt, strlen(r->attempt));
    write_sized(w, r->crashed, strlen(r->crashed));
    write_sized(w, r->decided_by, strlen(r->decided_by));
    write_steps(w, r);
    write_number(w, r->has_result, 1);
    write_sized(w, r->result, r->has_result ? r->result_size : 0);
}

void *dibs__record_encode(const dibs__run_record *r, size_t *size)
{
    writer w = {0};
    void *room;

    write_record(&w, r);
    room = malloc(w.size);
    if (!room)
        return NULL;
    w = (writer){.at = room};
    write_record(&w, r);
    *size = w.size;
    return room;
}

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct reader {
    const unsigned char *at;
    size_t left;
    bool bad;
} reader;

static const void *read_bytes(reader *r, size_t size)
{
    const void *data = r->at;

    if (r->bad || size > r->left) {
        r->bad = true;
        return NULL;
    }
    r->at += size;
    r->left -= size;
    return data;
}

static uint64_t read_number(reader *r, size_t bytes)
{
    const unsigned char *le = read_bytes(r, bytes);
    uint64_t value = 0;

    for (size_t i = 0; le && i < bytes; i++)
        value |= (uint64_t)le[i] << (8 * i);
    return value;
}

static const void *read_sized(reader *r, size_t *size)
{
    *size = (size_t)read_number(r, 4);
    return read_bytes(r, *size);
}

static void read_text(reader *r, char *out, size_t room)
{
    size_t size;
    const void *text = read_sized(r, &size);

    if (!text || size >= room) {
        r->bad = true;
        return;
    }
    memcpy(out, text, size);
    out[size] = '\0';
}

static dibs__step *step_of(const void *name, size_t name_size, const void *data, size_t size)
{
    dibs__step *s = malloc(sizeof *s + name_size + size + 2);

    if (!s)
        return NULL;
    memcpy(s->text, name, name_size);
    s->text[name_size] = '\0';
    s->next = NULL;
    s->name = s->text;
    s->data = s->text + name_size + 1;
    s->size = size;
    if (size)
        memcpy(s->data, data, size);
    ((char *)s->data)[size] = '\0';
    return s;
}

/* false: out of memory. */
static bool read_steps(reader *r, dibs__step **out)
{
    uint32_t count = (uint32_t)read_number(r, 4);

    for (; count > 0 && !r->bad; count--) {
        size_t name_size, size;
        const void *name = read_sized(r, &name_size);
        const void *data = read_sized(r, &size);
        if (!name || !data)
            break;
        *out = step_of(name, name_size, data, size);
        if (!*out)
            return false;
        out = &(*out)->next;
    }
    return true;
}

static void read_head(reader *r, uint64_t format, dibs__run_record *out)
{
    out->state = (dibs__run_state)read_number(r, 1);
    out->runs = (uint32_t)read_number(r, 4);
    out->code = (int32_t)(uint32_t)read_number(r, 4);
    out->pid = (int64_t)read_number(r, 8);
    out->since = (int64_t)read_number(r, 8);
    out->lease = (int64_t)read_number(r, 8);
    out->keep = (int64_t)read_number(r, 8);
    out->tombstone = (int64_t)read_number(r, 8);
    out->fence = read_number(r, 8);
    out->fingerprint = read_sized(r, &out->fingerprint_size);
    read_text(r, out->owner, sizeof out->owner);
    read_text(r, out->host, sizeof out->host);
    read_text(r, out->attempt, sizeof out->attempt);
    if (format > 1)
        read_text(r, out->crashed, sizeof out->crashed);
    if (format > 2)
        read_text(r, out->decided_by, sizeof out->decided_by);
    if (out->state < DIBS__RUN_RUNNING || out->state > DIBS__RUN_FREE || out->lease < 0 ||
        out->keep < 0 || out->tombstone < 0)
        r->bad = true;
}

static bool read_record(reader *r, uint64_t format, dibs__run_record *out)
{
    read_head(r, format, out);
    if (!read_steps(r, &out->steps))
        return false;
    out->has_result = read_number(r, 1);
    out->result = read_sized(r, &out->result_size);
    if (r->left > 0)
        r->bad = true;
    return true;
}

static dibs_status check_format(const reader *r, uint64_t format, dibs_error *err)
{
    if (r->bad || (format >= 1 && format <= FORMAT))
        return DIBS_OK;
    return dibs__fail(
        err, DIBS_ENGINE_FAILED,
        "the record has format %u, this version of dibs reads %d: use a newer version",
        (unsigned)format, FORMAT);
}

static dibs_status say_damaged(dibs_error *err)
{
    return dibs__fail(err, DIBS_ENGINE_FAILED, "the record is damaged or was not written by dibs");
}

dibs_status dibs__record_decode(const void *data, size_t size, dibs__run_record *out,
                                dibs_error *err)
{
    reader r = {.at = data, .left = size};
    uint64_t format = read_number(&r, 1);
    dibs_status status = check_format(&r, format, err);
    bool room;

    memset(out, 0, sizeof *out);
    if (status != DIBS_OK)
        return status;
    room = read_record(&r, format, out);
    if (room && !r.bad)
        return DIBS_OK;
    dibs__steps_free(out->steps);
    out->steps = NULL;
    return room ? say_damaged(err) : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
}

/* One with steps has no result yet, and one with a result has no steps: both are counted without going
 * through the data. */
dibs_status dibs__record_peek(const void *data, size_t size, size_t whole, dibs__run_record *out,
                              dibs__record_sizes *sizes, dibs_error *err)
{
    reader r = {.at = data, .left = size};
    uint64_t format = read_number(&r, 1);
    dibs_status status = check_format(&r, format, err);

    memset(out, 0, sizeof *out);
    *sizes = (dibs__record_sizes){0};
    if (status != DIBS_OK)
        return status;
    read_head(&r, format, out);
    sizes->steps = (size_t)read_number(&r, 4);
    if (sizes->steps == 0) {
        out->has_result = read_number(&r, 1);
        sizes->result = (size_t)read_number(&r, 4);
        r.bad |= whole - (size - r.left) != sizes->result;
    }
    return r.bad || sizes->steps > whole ? say_damaged(err) : DIBS_OK;
}

/* ---- Steps and sizes ------------------------------------------------------------------------- */

dibs__step *dibs__step_new(const char *name, const void *data, size_t size)
{
    return step_of(name, strlen(name), data, size);
}

dibs__step *dibs__step_find(dibs__step *steps, const char *name)
{
    while (steps && strcmp(steps->name, name) != 0)
        steps = steps->next;
    return steps;
}

static size_t step_load(const dibs__step *s)
{
    return strlen(s->name) + s->size + STEP_EXTRA;
}

void dibs__steps_free(dibs__step *steps)
{
    for (dibs__step *next; steps; steps = next) {
        next = steps->next;
        free(steps);
    }
}

size_t dibs__record_load(const dibs__run_record *r)
{
    size_t load = r->has_result ? r->result_size : 0;

    for (const dibs__step *s = r->steps; s; s = s->next)
        load += replaced(r, s) ? 0 : step_load(s);
    return r->fresh ? load + step_load(r->fresh) : load;
}

static int64_t plus(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

int64_t dibs__record_life(const dibs__run_record *r)
{
    int64_t life = plus(r->keep, r->tombstone);

    if (r->left)
        return r->left == INT64_MAX ? 0 : r->left;
    if (r->state == DIBS__RUN_FREE)
        return DAY;
    if (r->state == DIBS__RUN_RUNNING)
        life = plus(life, r->lease);
    return life == INT64_MAX ? 0 : life;
}
