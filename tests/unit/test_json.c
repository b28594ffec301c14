/* JSON as text: the same bytes as jansson's own, for every kind of value and for many trees drawn at random; and what is
 * read without jansson means the same to it. */
#define _GNU_SOURCE
#include "http/json.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#define TREES 20000
#define SEED  16

static void assert_same(json_t *value)
{
    size_t size = 0;
    char *ours = http_json_text(value, &size),
         *theirs = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

    assert_string_equal(ours, theirs);
    assert_int_equal(size, strlen(theirs));
    free(ours);
    free(theirs);
    json_decref(value);
}

static void values_are_written_as_jansson_does(void **state)
{
    const json_int_t numbers[] = {0, 1, -1, 9, 10, 9007199254740993, INT64_MAX, INT64_MIN};

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_same(json_integer(numbers[i]));
    assert_same(json_true());
    assert_same(json_false());
    assert_same(json_null());
    assert_same(json_real(0.5));
    assert_same(json_real(-1.25e-300));
    assert_same(json_real(3));
    assert_same(json_object());
    assert_same(json_array());
    assert_same(json_string(""));
}

static void every_character_is_written_as_jansson_does(void **state)
{
    char text[16];

    (void)state;
    for (int c = 1; c < 0x80; c++) {
        text[0] = text[2] = (char)c;
        text[1] = 'x';
        text[3] = '\0';
        assert_same(json_string(text));
    }
    assert_same(json_stringn("a\0b", 3));
    assert_same(json_string("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x94\x92 \xed\x9f\xbf"));
}

static json_t *draw(int depth)
{
    static const char *const texts[] = {"", "a", "lock:\"1\"", "\\\n\t", "\xc3\xa4", "</script>"};
    int kind = (int)(random() % (depth > 0 ? 8 : 6)), count = (int)(random() % 5);
    json_t *value;

    switch (kind) {
    case 0:
        return json_integer((json_int_t)(random() << 20) - random());
    case 1:
        return json_real((double)random() / 7 - 1e8);
    case 2:
        return json_boolean(count % 2);
    case 3:
        return json_null();
    case 4:
    case 5:
        return json_string(texts[random() % 6]);
    case 6:
        value = json_array();
        while (count-- > 0)
            json_array_append_new(value, draw(depth - 1));
        return value;
    default:
        value = json_object();
        while (count-- > 0)
            json_object_set_new(value, texts[random() % 6], draw(depth - 1));
        return value;
    }
}

static void trees_are_written_as_jansson_does(void **state)
{
    (void)state;
    srandom(SEED);
    for (int i = 0; i < TREES; i++)
        assert_same(draw(4));
}

/* ---- Reading --------------------------------------------------------------------------------- */

enum { MEMBERS = 16 };

static void assert_member(const json_t *object, const http_json_member *m)
{
    char name[256] = "";
    const json_t *value;

    memcpy(name, m->name, m->name_size);
    value = json_object_get(object, name);
    assert_non_null(value);
    assert_int_equal(json_typeof(value), m->type);
    if (m->type == JSON_STRING) {
        assert_int_equal(json_string_length(value), m->size);
        assert_memory_equal(json_string_value(value), m->text, m->size);
    } else if (m->type == JSON_INTEGER) {
        assert_true(json_integer_value(value) == m->number);
    }
}

/* What is taken for plain is JSON, and means the same to jansson. */
static bool read_plain(const char *text, size_t size)
{
    http_json_member members[MEMBERS];
    size_t count;
    bool plain = http_json_plain(text, size, members, MEMBERS, &count);
    json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);

    if (plain) {
        if (!object)
            fail_msg("no JSON: %.*s", (int)size, text);
        assert_int_equal(json_object_size(object), count);
        for (size_t i = 0; i < count; i++)
            assert_member(object, &members[i]);
    }
    json_decref(object);
    return plain;
}

static void what_requests_send_is_plain(void **state)
{
    static const char *const plain[] = {
        "{}",
        " {\t} \r\n",
        "{\"name\":\"lock:1\"}",
        "{\"name\": \"a b\", \"wait_ms\": 0, \"lease_ms\": 30000, \"shared\": false, \"n\": -1}",
        "{\"a\":true,\"b\":null,\"c\":999999999999999,\"d\":-999999999999999,\"e\":\"\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        assert_true(read_plain(plain[i], strlen(plain[i])));
}

static void what_is_not_plain_is_left_to_jansson(void **state)
{
    static const char *const other[] = {
        "",
        "{",
        "}",
        "[]",
        "{} {}",
        "{}x",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":01}",
        "{\"a\":-}",
        "{\"a\":+1}",
        "{\"a\":1.0}",
        "{\"a\":1e3}",
        "{\"a\":0x1}",
        "{\"a\":9999999999999999}",
        "{\"a\":tru}",
        "{\"a\":truely}",
        "{\"a\":NaN}",
        "{\"a\":[]}",
        "{\"a\":{}}",
        "{\"a\":\"\\n\"}",
        "{\"a\":\"\xc3\xa4\"}",
        "{\"a\":\"\x7f\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"b}",
        "{\"a\":1,\"a\":2}",
        "{'a':1}",
        "{a:1}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (read_plain(other[i], strlen(other[i])))
            fail_msg("taken for plain: %s", other[i]);
    assert_false(read_plain("{\"a\":\"x\0y\"}", 12));
    assert_false(read_plain("{}\0", 3));
}

/* Documents with a few bytes changed: cut, doubled, replaced. */
static void damaged_ones_are_read_as_jansson_does(void **state)
{
    static const char document[] =
        "{\"name\": \"lock:1\", \"wait_ms\": 250, \"shared\": true, \"x\":null}";
    static const char bytes[] = "{}[]\":,\\ 019-+.eEtfn\n\t\x80\x7f";
    char text[2 * sizeof document];
    int plain = 0;

    (void)state;
    srandom(SEED);
    for (int i = 0; i < 10 * TREES; i++) {
        size_t size = sizeof document - 1;
        memcpy(text, document, size);
        for (long n = random() % 3; n >= 0; n--) {
            size_t at = (size_t)random() % size;
            if (random() % 3 == 0)
                memmove(text + at, text + at + 1, --size - at);
            else
                text[at] = bytes[(size_t)random() % (sizeof bytes - 1)];
        }
        plain += read_plain(text, size);
    }
    assert_true(plain > TREES / 10); /* most changes inside of a text leave it plain */
}

static void nothing_has_no_text(void **state)
{
    size_t size;

    (void)state;
    assert_null(http_json_text(NULL, &size));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_written_as_jansson_does),
        cmocka_unit_test(every_character_is_written_as_jansson_does),
        cmocka_unit_test(trees_are_written_as_jansson_does),
        cmocka_unit_test(nothing_has_no_text),
        cmocka_unit_test(what_requests_send_is_plain),
        cmocka_unit_test(what_is_not_plain_is_left_to_jansson),
        cmocka_unit_test(damaged_ones_are_read_as_jansson_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
