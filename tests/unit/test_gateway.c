/* The gateway's parts without connections: keys, fences, fingerprints, paths, patterns, what is kept of an answer, and
 * which configurations are errors. What a client sees is tested through the command (tests/gateway). */
#include "gateway/config.h"
#include "gateway/key.h"
#include "gateway/stored.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wire_text text_of(const char *text)
{
    return (wire_text){text, strlen(text)};
}

static void a_key_is_a_quoted_string_or_a_word(void **state)
{
    static const char *const good[][2] = {{"\"a\"", "a"},
                                          {"a", "a"},
                                          {"\"a b,c\"", "a b,c"},
                                          {"\"\\\"\\\\\"", "\"\\"},
                                          {"a=b/c", "a=b/c"}};
    static const char *const bad[] = {
        "",    "\"\"", "\"a",     "a\"",          "\"a\"b",   "\"a\", \"b\"", "a,b",
        "a b", "a;b",  "\"\\a\"", "\"\xc3\xa9\"", "\"a\tb\"", "\xc3\xa9",     "\"a\";x=1"};
    char key[GATE_KEY_SIZE], most[300];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(gate_key_read(text_of(good[i][0]), key));
        assert_string_equal(key, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (gate_key_read(text_of(bad[i]), key))
            fail_msg("accepted: %s", bad[i]);
    memset(most, 'k', sizeof most);
    assert_true(gate_key_read((wire_text){most, 255}, key));
    assert_false(gate_key_read((wire_text){most, 256}, key));
    most[0] = most[256] = '"';
    assert_true(gate_key_read((wire_text){most, 257}, key));
    most[256] = 'k';
    most[257] = '"';
    assert_false(gate_key_read((wire_text){most, 258}, key));
}

static void a_fence_has_its_floor(void **state)
{
    static const char *const bad[] = {"",
                                      "0",
                                      "x",
                                      "1/",
                                      "1/2",
                                      "/1",
                                      "1/0",
                                      "-1",
                                      "1 ",
                                      "99999999999999999999",
                                      "9223372036854775808"};
    uint64_t fence, floor;

    (void)state;
    assert_true(gate_fence_read(text_of("42"), &fence, &floor) && fence == 42 && floor == 0);
    assert_true(gate_fence_read(text_of("42/40"), &fence, &floor) && fence == 42 && floor == 40);
    assert_true(gate_fence_read(text_of("9223372036854775807"), &fence, &floor) &&
                fence == INT64_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (gate_fence_read(text_of(bad[i]), &fence, &floor))
            fail_msg("accepted: %s", bad[i]);
}

/* Each part of it counts, and none can pass for a part of its neighbour. */
static void a_fingerprint_covers_all_parts(void **state)
{
    static const char *const parts[][3] = {{"POST", "/a", ""},
                                           {"PUT", "/a", ""},
                                           {"POST", "/b", ""},
                                           {"POST", "/a", "?b"},
                                           {"POST", "/a?b", ""}};
    unsigned char print[6][GATE_HASH_SIZE], body[GATE_HASH_SIZE] = {1}, other[GATE_HASH_SIZE] = {2};

    (void)state;
    for (size_t i = 0; i < 5; i++)
        gate_fingerprint(parts[i][0], parts[i][1], text_of(parts[i][2]), body, print[i]);
    gate_fingerprint("POST", "/a", text_of(""), other, print[5]);
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < i; k++)
            if (i != 4 || k != 3) /* a path has no question mark */
                assert_memory_not_equal(print[i], print[k], GATE_HASH_SIZE);
    gate_fingerprint("POST", "/a", text_of(""), body, print[1]);
    assert_memory_equal(print[0], print[1], GATE_HASH_SIZE);
}

static void a_path_has_one_normal_form(void **state)
{
    static const char *const forms[][2] = {
        {"/a/../b", "/b"},     {"/a/%2e%2E/b", "/b"}, {"/%61%7e", "/a~"},     {"/a%2fb", "/a%2Fb"},
        {"/a/./b/.", "/a/b/"}, {"/../../a", "/a"},    {"/a/..", "/"},         {"/a//b", "/a//b"},
        {"/...", "/..."},      {"/a/b/../..", "/"},   {"/%c3%a9", "/%C3%A9"}, {"*", "*"},
        {"/a/..b", "/a/..b"},  {"/a%25", "/a%25"},    {"/a;b/../c", "/c"},    {"/a;/b", "/a;/b"}};
    static const char *const bad[] = {"/%",   "/%4",   "/%zz",   "/%00",   "/%0a",
                                      "/%7f", "/a\\b", "/..;/a", "/a/.;x", "/%2E%2e;a=b/c"};
    static const char *const plain[][2] = {
        {"//a///b/", "/a/b/"},
        {"/a;b=c", "/a"},
        {"/a;x;y/b;", "/a/b"},
        {"/;a/b", "/b"},
        {"/a/;/;b", "/a/"},
        {"/;", "/"},
        {"/%21%24%26%27%28%29%2A%2B%2C%3D%3A%40", "/!$&'()*+,=:@"},
        {"/a%40b;c/d%5B%7C%7D", "/a@b/d[|}"},
        {"/%20%22%23%25%2F%3B%3F%5C%C3%B6", "/%20\"%23%25%2F%3B%3F%5C%C3%B6"}};
    char out[64];

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        assert_true(gate_path_normal(forms[i][0], strlen(forms[i][0]), out));
        assert_string_equal(out, forms[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(gate_path_normal(bad[i], strlen(bad[i]), out));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        gate_path_plain(strcpy(out, plain[i][0]));
        assert_string_equal(out, plain[i][1]);
    }
}

static void a_pattern_matches_segments(void **state)
{
    static const struct {
        const char *pattern, *path;
        bool matches;
    } all[] = {{"/a", "/a", true},     {"/a", "/a/", false},      {"/a/*", "/a/b", true},
               {"/a/*", "/a/", false}, {"/a/*", "/a/b/c", false}, {"/a/**", "/a/b/c", true},
               {"/a/**", "/a", false}, {"/a/**", "/ab/c", false}, {"/**", "/a", true},
               {"/**", "/", false},    {"/*/b", "/a/b", true},    {"/*/b", "/a/c", false},
               {"/", "/", true},       {"/a", "*", false},        {"/a/*/c", "/a//c", false}};
    static const char *const bad[] = {"a",    "",       "/a*",  "/**/a", "/a//b", "/a/../b",
                                      "/%61", "/a?b",   "/***", "/a b",  "/a;b",  "/\xc3\xb6",
                                      "/a\t", "/a%40b", "/%2A", "/a%7Bb"};
    static const char *const good[] = {"/", "/%C3%B6/*", "/a@b:c/[d]", "/a%2Fb/%25/**"};
    const char *first;
    size_t size;

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (gate_pattern_match(all[i].pattern, all[i].path, NULL, NULL) != all[i].matches)
            fail_msg("%s and %s", all[i].pattern, all[i].path);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (gate_pattern_valid(bad[i]))
            fail_msg("valid: %s", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!gate_pattern_valid(good[i]))
            fail_msg("not valid: %s", good[i]);
    assert_true(gate_pattern_match("/stock/*/*", "/stock/17/take", &first, &size));
    assert_int_equal(size, 2);
    assert_memory_equal(first, "17", 2);
}

static void a_pattern_covers_another(void **state)
{
    static const struct {
        const char *wide, *narrow;
        bool covers;
    } all[] = {{"/**", "/a", true},        {"/**", "/a/**", true},   {"/a/**", "/**", false},
               {"/a/*", "/a/b", true},     {"/a/b", "/a/*", false},  {"/a/**", "/a/*/c", true},
               {"/a/*", "/a/**", false},   {"/a/**", "/a/**", true}, {"/a/**", "/a", false},
               {"/a/*/**", "/a/**", false}};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (gate_pattern_covers(all[i].wide, all[i].narrow) != all[i].covers)
            fail_msg("%s and %s", all[i].wide, all[i].narrow);
}

/* ---- What is kept ------------------------------------------------------------------------------ */

static const char answer[] =
    "HTTP/1.1 201 All  right\r\nX-a: 1\r\nx-A:  2 \r\nConnection: close, X-Gone\r\nX-Gone: 1\r\n"
    "Date: now\r\nSet-Cookie: s=1\r\nWWW-Authenticate: Basic\r\nContent-Length: 3\r\n\r\n";

static void keep(http_buffer *all, bool set_cookie, bool body, const char *behind)
{
    http_buffer head = {0}, bytes = {0}, trailers = {0};
    wire_head h;
    const char *why;
    size_t seen = 0;

    assert_true(wire_answer(answer, sizeof answer - 1, &seen, 4096, false, &h, &why) > 0);
    gate_stored_head(&head, &h, set_cookie);
    http_buffer_add(&bytes, "a\0b", 3);
    http_buffer_text(&trailers, behind);
    gate_stored_encode(all, &head, body ? &bytes : NULL, &trailers);
    http_buffer_free(&head);
    http_buffer_free(&bytes);
    http_buffer_free(&trailers);
}

static void an_answer_comes_back(void **state)
{
    static const char *const names[] = {"X-a", "x-A", "Dibs-First-Date", "Content-Length"};
    http_buffer all = {0};
    gate_stored s;
    wire_head trailers;

    (void)state;
    keep(&all, false, true, "X-T: 1\r\n");
    assert_true(gate_stored_decode(http_buffer_start(&all), http_buffer_size(&all), &s) && s.kept);
    assert_int_equal(s.head.status, 201);
    assert_int_equal(s.head.reason.size, 10);
    assert_int_equal(s.head.count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_memory_equal(s.head.field[i].name.at, names[i], strlen(names[i]));
    assert_memory_equal(s.body.at, "a\0b", 3);
    assert_true(wire_trailers(&s.trailers, &trailers) && trailers.count == 1);
    for (size_t size = 0; size < http_buffer_size(&all); size++)
        assert_false(gate_stored_decode(http_buffer_start(&all), size, &s));
    http_buffer_free(&all);
}

static void an_answer_is_kept_in_part(void **state)
{
    http_buffer all = {0};
    gate_stored s;

    (void)state;
    keep(&all, true, false, "");
    assert_true(gate_stored_decode(http_buffer_start(&all), http_buffer_size(&all), &s));
    assert_false(s.kept);
    assert_non_null(wire_find(&s.head, "Set-Cookie", 0));
    assert_null(wire_find(&s.head, "WWW-Authenticate", 0));
    http_buffer_free(&all);
}

/* ---- Configurations ------------------------------------------------------------------------------ */

static void what_is_not_understood_is_an_error(void **state)
{
    static const char *const bad[][2] = {
        {"{\"routes\": [], \"x\": 1}", "x: no such member"},
        {"{\"routes\": [{}]}", "routes[0].path: is missing"},
        {"{\"routes\": [{\"path\": \"/a\", \"x\": 1}]}", "routes[0].x: no such member"},
        {"{\"routes\": [{\"path\": \"/a\", \"wait\": 5}]}", "routes[0].wait: must be a duration"},
        {"{\"routes\": [{\"path\": \"/a\", \"key\": \"yes\"}]}", "routes[0].key: must be one of"},
        {"{\"routes\": [{\"path\": \"/a\", \"method\": \"GET\"}]}",
         "routes[0].method: must be one of"},
        {"{\"routes\": [{\"path\": \"/a\", \"fence\": \"s:{segment}\"}]}",
         "routes[0].fence: {segment}"},
        {"{\"routes\": [{\"path\": \"/**\"}, {\"path\": \"/a\", \"method\": \"PUT\"}]}",
         "routes[1].path: can never match"},
        {"{\"routes\": [], \"limits\": {\"head\": 1}}", "limits.head: must be a number"},
        {"{\"routes\": [], \"limits\": {\"trusted\": [\"10.0.0.0/99\"]}}",
         "limits.trusted: must be"},
        {"{\"routes\": [], \"routes\": []}", "duplicate object key"},
        {"{", "line 1"}};
    char path[] = "/tmp/dibs-gateway-XXXXXX";
    int fd = mkstemp(path);
    dibs_error err;

    (void)state;
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, bad[i][0], strlen(bad[i][0]), 0), strlen(bad[i][0]));
        assert_null(gate_config_read(path, &err));
        if (!strstr(err.message, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], err.message);
    }
    close(fd);
    unlink(path);
}

static void addresses_are_trusted_by_their_bits(void **state)
{
    gate_config c = {.limits = {.trusted_count = 1, .trusted = {{.bits = 96 + 9}}}};
    struct in6_addr a;

    (void)state;
    assert_true(gate_address_parse("10.128.0.0", &c.limits.trusted[0].address));
    assert_true(gate_address_parse("10.255.1.2", &a) && gate_config_trusts(&c, &a));
    assert_true(gate_address_parse("10.127.1.2", &a) && !gate_config_trusts(&c, &a));
    assert_true(gate_address_parse("::1", &a) && !gate_config_trusts(&c, &a));
}

/* The bytes that wait, which all of the servers use. */
static void a_buffer_grows_and_moves(void **state)
{
    http_buffer b = {0};
    char *copy, long_text[2000];

    (void)state;
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    assert_null(http_buffer_copy(&b));
    http_buffer_text(&b, "front");
    http_buffer_format(&b, "<%s>", long_text); /* longer than there is room */
    assert_int_equal(http_buffer_size(&b), 5 + 2 + strlen(long_text));
    http_buffer_drop(&b, 5);
    assert_int_equal(http_buffer_start(&b)[0], '<');
    assert_int_equal(strlen(http_buffer_start(&b)), http_buffer_size(&b));
    for (int i = 0; i < 3000; i++) { /* from the front and at the end, past its room */
        http_buffer_add(&b, "y", 1);
        http_buffer_drop(&b, 1);
    }
    copy = http_buffer_copy(&b);
    assert_int_equal(strspn(copy, "y"), 2 + strlen(long_text));
    free(copy);
    http_buffer_clear(&b);
    assert_int_equal(http_buffer_size(&b), 0);
    http_buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_a_quoted_string_or_a_word),
        cmocka_unit_test(a_fence_has_its_floor),
        cmocka_unit_test(a_fingerprint_covers_all_parts),
        cmocka_unit_test(a_path_has_one_normal_form),
        cmocka_unit_test(a_pattern_matches_segments),
        cmocka_unit_test(a_pattern_covers_another),
        cmocka_unit_test(an_answer_comes_back),
        cmocka_unit_test(an_answer_is_kept_in_part),
        cmocka_unit_test(what_is_not_understood_is_an_error),
        cmocka_unit_test(addresses_are_trusted_by_their_bits),
        cmocka_unit_test(a_buffer_grows_and_moves),
    };

    return cmocka_run_group_tests_name("gateway", tests, NULL, NULL);
}
