/* JSON as text: the same bytes as jansson's own, for every kind of value and for many trees drawn at random. */
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
