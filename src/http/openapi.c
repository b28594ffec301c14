/* The OpenAPI 3.1 document, from the tables that dispatch and check. */
#define _GNU_SOURCE
#include "inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *ref(const char *schema)
{
    char text[96];

    snprintf(text, sizeof text, "#/components/schemas/%s", schema);
    return json_pack("{s:s}", "$ref", text);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* "Party[]?" */
static json_t *type_schema(const char *type)
{
    char name[48];
    size_t size = strcspn(type, "[?");
    bool array = strstr(type, "[]") != NULL, maybe = type[strlen(type) - 1] == '?';
    json_t *one;

    snprintf(name, sizeof name, "%.*s", (int)size, type);
    one = name[0] >= 'A' && name[0] <= 'Z' ? ref(name) : json_pack("{s:s}", "type", name);
    if (array)
        one = json_pack("{s:s, s:o}", "type", "array", "items", one);
    return maybe ? json_pack("{s:[o, {s:s}]}", "anyOf", one, "type", "null") : one;
}

static json_t *schema_of(const http_schema *schema)
{
    json_t *properties = json_object(), *required = json_array();

    for (const http_member *m = schema->members; m->name; m++) {
        json_t *type = type_schema(m->type);
        if (m->about)
            json_object_set_new(type, "description", json_string(m->about));
        json_object_set_new(properties, m->name, type);
        if (!m->optional)
            json_array_append_new(required, json_string(m->name));
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required",
                     required, "additionalProperties", false);
}

static json_t *answer_of(const http_route *r, const http_answer *a)
{
    const char *type = !a->schema                          ? NULL
                       : r->stream && a->status == 200     ? "text/event-stream"
                       : strcmp(a->schema, "*") == 0       ? "*/*"
                       : strcmp(a->schema, "Problem") == 0 ? "application/problem+json"
                                                           : "application/json";
    json_t *answer = json_pack("{s:s}", "description", a->schema ? a->schema : "no body");

    if (type)
        json_object_set_new(answer, "content",
                            json_pack("{s:{s:o}}", type, "schema",
                                      strcmp(a->schema, "*") == 0
                                          ? json_pack("{s:s}", "type", "string")
                                          : ref(a->schema)));
    return answer;
}

/* Any route may fail with a problem. */
static json_t *answers_of(const http_route *r)
{
    static const http_answer any = {0, "Problem"};
    json_t *answers = json_object();
    char code[16];

    for (const http_answer *a = r->answers; a && a->status; a++) {
        snprintf(code, sizeof code, "%d", a->status);
        json_object_set_new(answers, code, answer_of(r, a));
    }
    json_object_set_new(answers, "default", answer_of(r, &any));
    return answers;
}

/* ---- Requests -------------------------------------------------------------------------------- */

static json_t *field_schema(const http_field *f)
{
    switch (f->kind) {
    case HTTP_INTEGER:
        return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)f->low,
                         "maximum", (json_int_t)f->high);
    case HTTP_BOOLEAN:
        return json_pack("{s:s}", "type", "boolean");
    case HTTP_NAMES:
        return json_pack("{s:s, s:I, s:I, s:{s:s}}", "type", "array", "minItems",
                         (json_int_t)f->low, "maxItems", (json_int_t)f->high, "items", "type",
                         "string");
    default: /* lengths are in bytes, those of the schema in characters: only the upper one holds */
        return json_pack("{s:s, s:I}", "type", "string", "maxLength", (json_int_t)f->high);
    }
}

static json_t *parameter(const char *in, const http_field *f, bool required)
{
    json_t *p = json_pack("{s:s, s:s, s:b, s:o}", "name", f->name, "in", in, "required", required,
                          "schema", field_schema(f));

    if (f->about)
        json_object_set_new(p, "description", json_string(f->about));
    return p;
}

static void add_path_parameters(json_t *list, const char *path)
{
    char name[32];

    for (const char *at = strchr(path, '{'); at; at = strchr(at + 1, '{')) {
        http_field f = {.name = name, .kind = HTTP_TEXT, .high = DIBS_NAME_MAX};
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "}"), at + 1);
        json_array_append_new(list, parameter("path", &f, true));
    }
}

static json_t *body_of(const http_route *r)
{
    json_t *properties = json_object(), *required = json_array(), *schema;

    for (const http_field *f = r->body; f && f->name; f++) {
        json_t *one = field_schema(f);
        json_object_set_new(one, "description", json_string(f->about ? f->about : ""));
        json_object_set_new(properties, f->name, one);
        if (f->required)
            json_array_append_new(required, json_string(f->name));
    }
    schema = json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties,
                       "required", required, "additionalProperties", false);
    return json_pack("{s:{s:{s:o}}}", "content",
                     r->raw ? "application/octet-stream" : "application/json", "schema",
                     r->raw ? (json_decref(schema), json_object()) : schema);
}

static json_t *operation_of(const http_route *r)
{
    json_t *operation = json_object(), *parameters = json_array();

    json_object_set_new(operation, "summary", json_string(r->summary ? r->summary : ""));
    add_path_parameters(parameters, r->path);
    for (const http_field *f = r->query; f && f->name; f++)
        json_array_append_new(parameters, parameter("query", f, f->required));
    json_object_set_new(operation, "parameters", parameters);
    if (r->body || r->raw)
        json_object_set_new(operation, "requestBody", body_of(r));
    json_object_set_new(operation, "responses", answers_of(r));
    if (r->verb == HTTP_OPEN)
        json_object_set_new(operation, "security", json_array());
    return operation;
}

/* ---- The document ---------------------------------------------------------------------------- */

static json_t *paths_of(const http_server *s)
{
    json_t *paths = json_object();
    char method[8];

    for (const http_route *const *table = s->o.routes; *table; table++)
        for (const http_route *r = *table; r->method; r++) {
            json_t *path = json_object_get(paths, r->path);
            if (!path) {
                path = json_object();
                json_object_set_new(paths, r->path, path);
            }
            for (size_t i = 0; i <= strlen(r->method) && i < sizeof method; i++)
                method[i] = (char)(r->method[i] | (r->method[i] ? 0x20 : 0));
            json_object_set_new(path, method, operation_of(r));
        }
    return paths;
}

static json_t *document(const http_server *s)
{
    json_t *schemas = json_object();

    for (const http_schema *schema = s->o.schemas; schema && schema->name; schema++)
        json_object_set_new(schemas, schema->name, schema_of(schema));
    return json_pack("{s:s, s:{s:s, s:s}, s:[{s:[]}], s:o, s:{s:o, s:{s:{s:s, s:s}}}}", "openapi",
                     "3.1.0", "info", "title", s->o.api_title, "version", dibs_version(),
                     "security", "token", "paths", paths_of(s), "components", "schemas", schemas,
                     "securitySchemes", "token", "type", "http", "scheme", "bearer");
}

void http_reply_openapi(http_exchange *x)
{
    http_server *s = x->server;

    if (!s->openapi) {
        json_t *all = document(s);
        s->openapi = json_dumps(all, JSON_COMPACT);
        json_decref(all);
    }
    if (s->openapi)
        http_reply_static(x, 200, "application/json", s->openapi, strlen(s->openapi));
    else
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "%s", dibs_status_text(DIBS_NO_MEMORY));
}
