/* URLs of engines, taken apart: what is accepted, what is refused, and that a password is never
 * repeated. */
#define _GNU_SOURCE
#include "core/span.h"
#include "core/url.h"
#include "support/env.h"
#include "support/scratch.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs__url url;
static dibs_error err;

static dibs_status parse(const char *text)
{
    dibs__url_fini(&url);
    memset(&err, 0, sizeof err);
    return dibs__url_parse(&url, text, &err);
}

static int teardown(void **state)
{
    (void)state;
    dibs__url_fini(&url);
    return 0;
}

static void takes_all_parts(void **state)
{
    (void)state;
    assert_int_equal(parse("redis://me:p%40ss@host.example:6380/7?prefix=a%20b&x=1"), DIBS_OK);
    assert_string_equal(url.scheme, "redis");
    assert_true(url.authority);
    assert_string_equal(url.user, "me");
    assert_string_equal(url.password, "p@ss");
    assert_int_equal(url.host_count, 1);
    assert_string_equal(url.host[0].name, "host.example");
    assert_int_equal(url.host[0].port, 6380);
    assert_string_equal(url.path, "/7");
    assert_string_equal(dibs__url_take(&url, "prefix"), "a b");
    assert_string_equal(dibs__url_take(&url, "x"), "1");
    assert_null(dibs__url_take(&url, "y"));
}

static void a_second_question_mark_is_no_value(void **state)
{
    static const char *const wrong[] = {"redis://h?prefix=two:?fence_above=7", "sqlite:a?b=1&?c=2",
                                        "etcd://h/p?session=1s?"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(parse(wrong[i]), DIBS_INVALID);
        assert_non_null(strstr(err.message, "separate parameters with &"));
    }
    assert_int_equal(parse("redis://h?prefix=two%3F&fence_above=7"), DIBS_OK);
    assert_string_equal(dibs__url_take(&url, "prefix"), "two?");
}

static void parts_may_be_absent(void **state)
{
    (void)state;
    assert_int_equal(parse("sqlite:"), DIBS_OK);
    assert_false(url.authority);
    assert_string_equal(url.path, "");
    assert_int_equal(url.host_count, 0);
    assert_null(url.user);
    assert_null(url.password);
    assert_int_equal(parse("sqlite:rel/path.db"), DIBS_OK);
    assert_string_equal(url.path, "rel/path.db");
    assert_int_equal(parse("sqlite:///abs/path.db"), DIBS_OK);
    assert_true(url.authority);
    assert_string_equal(url.path, "/abs/path.db");
    assert_string_equal(url.host[0].name, "");
    assert_int_equal(parse("redis://h"), DIBS_OK);
    assert_string_equal(url.path, "");
    assert_int_equal(url.host[0].port, 0);
    assert_int_equal(parse("redis://:secret@h"), DIBS_OK);
    assert_string_equal(url.user, "");
    assert_string_equal(url.password, "secret");
    assert_int_equal(parse("redis+unix:///run/redis.sock?db=2"), DIBS_OK);
    assert_string_equal(url.scheme, "redis+unix");
}

static void several_hosts(void **state)
{
    (void)state;
    assert_int_equal(parse("redlock://a:1,b,[::1]:3,[fe80::2]/x"), DIBS_OK);
    assert_int_equal(url.host_count, 4);
    assert_string_equal(url.host[0].name, "a");
    assert_int_equal(url.host[0].port, 1);
    assert_string_equal(url.host[1].name, "b");
    assert_int_equal(url.host[1].port, 0);
    assert_string_equal(url.host[2].name, "::1");
    assert_int_equal(url.host[2].port, 3);
    assert_string_equal(url.host[3].name, "fe80::2");
    assert_string_equal(url.path, "/x");
}

static void bad_ones_are_refused(void **state)
{
    static const char *const bad[] = {
        "",          "redis",          "/path/only", "://x",        "1redis://x",
        "Redis://x", " redis://x",     "r://h:0",    "r://h:65536", "r://h:-1",
        "r://h:+1",  "r://h:1x",       "r://h:",     "r://h: 1",    "r://h:1:2",
        "r://[::1",  "r://[::1]x",     "r://%zz",    "r://h/%4",    "r://h/%00",
        "r://u%@h",  "r://h?",         "r://h?a",    "r://h?=1",    "r://h?a=1&a=2",
        "r://h?a=%", "r://h?a=1&&b=2",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dibs_status status = parse(bad[i]);
        if (strcmp(bad[i], "r://h?") == 0) { /* an empty query is none */
            assert_int_equal(status, DIBS_OK);
            continue;
        }
        if (status != DIBS_INVALID)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(err.status, DIBS_INVALID);
        assert_true(strlen(err.message) > 10);
        dibs__url_fini(&url);
        dibs__url_fini(&url);
    }
}

static void sizes_have_bounds(void **state)
{
    static char text[DIBS__URL_MAX + 2];
    char many[400] = "r://h?a0=1", *end = many + strlen(many);

    (void)state;
    memset(text, 'x', DIBS__URL_MAX + 1);
    memcpy(text, "sqlite:", 7);
    assert_int_equal(parse(text), DIBS_INVALID);
    text[DIBS__URL_MAX] = '\0';
    assert_int_equal(parse(text), DIBS_OK);
    for (int i = 1; i <= DIBS__PARAMS_MAX; i++) {
        assert_int_equal(parse(many), DIBS_OK);
        end += sprintf(end, "&a%d=1", i);
    }
    assert_int_equal(parse(many), DIBS_INVALID);
    assert_int_equal(parse("r://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a"), DIBS_OK);
    assert_int_equal(parse("r://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a"), DIBS_INVALID);
}

static void a_password_is_never_repeated(void **state)
{
    static const char *const bad[] = {
        "redis://u:s3cret@h:99999",
        "redis://u:s3cret%zz@h",
        "redis://u:s3cret@h?x",
        "Bad://u:s3cret@h",
        "redis://u:s3cret@[::1",
        "redis://u:s3cret@h/%zz",
        "redis//u:s3cret@h",
        "redis://:s3c?ret@h",
        "redis://:s3c/ret@h",
        "redis://u:s3c/ret@h/0",
        "redis://u:s3c?ret=@h",
        "redis://u:s3c@t/ret@h",
        "redis://u:s3c?x=ret@h",
        "redis://:/s3cret@h",
        "redis://:?s3cret@h",
        "redis://:123/s3cret@h",
        "redis://?:s3cret@h",
        "redis://u:1,2:s3cret@h:x",
        "redis://u@h:s3cret",
        "redis://:s3c%ret@h",
        "redis://:s3c/ret@h?db=1",
        "redis://:x@h?s3cret@",
        "redis:?:s3cret@h",
        "redis://h,i:s3c/ret@h",
        "s3c ret:x@h",
        ":s3cret@h",
        "redis:u:s3cret@h",
        "redis:///u:s3cret@h",
        "redis:/u:s3cret@h",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(bad[i]), DIBS_INVALID);
        if (strstr(err.message, "s3c") || strstr(err.message, "ret") || strstr(err.message, "123"))
            fail_msg("told a piece of the password: %s", err.message);
    }
    assert_int_equal(parse("sqlite:///a@b.db"), DIBS_OK); /* no host, and so no login */
    assert_int_equal(parse("sqlite:a@b.db"), DIBS_OK);
}

static void numbers_are_checked(void **state)
{
    int64_t n = 42;

    (void)state;
    parse("r://h?a=5&b=x&c=&d=999999999999999999999&e=-3&f=7x");
    assert_int_equal(dibs__url_take_number(&url, "absent", 0, 9, &n, &err), DIBS_OK);
    assert_int_equal(n, 42);
    assert_int_equal(dibs__url_take_number(&url, "a", 0, 9, &n, &err), DIBS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(dibs__url_take_number(&url, "a", 6, 9, &n, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "a=5"));
    assert_int_equal(dibs__url_take_number(&url, "b", 0, 9, &n, &err), DIBS_INVALID);
    assert_int_equal(dibs__url_take_number(&url, "c", 0, 9, &n, &err), DIBS_INVALID);
    assert_int_equal(dibs__url_take_number(&url, "d", 0, INT64_MAX, &n, &err), DIBS_INVALID);
    assert_int_equal(dibs__url_take_number(&url, "e", -5, 9, &n, &err), DIBS_OK);
    assert_int_equal(n, -3);
    assert_int_equal(dibs__url_take_number(&url, "f", 0, 9, &n, &err), DIBS_INVALID);
}

static void a_misspelt_parameter_is_named(void **state)
{
    (void)state;
    parse("redis://h?prefix=a&prefox=b");
    dibs__url_take(&url, "prefix");
    assert_int_equal(dibs__url_all_taken(&url, "prefix, db", &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "prefox"));
    assert_non_null(strstr(err.message, "prefix, db"));
    dibs__url_take(&url, "prefox");
    assert_int_equal(dibs__url_all_taken(&url, "prefix, db", &err), DIBS_OK);
}

/* No text, however odd, may crash it: run under the sanitizers, this is a small fuzzer. */
static void odd_texts_do_no_harm(void **state)
{
    static const char alphabet[] = "ab:/?&=@%,[]0129.\x80\n";
    uint64_t seed = 4;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        char text[40] = "r:";
        size_t n = sim_random(&seed) % 36;
        for (size_t k = 0; k < n; k++)
            text[2 + k] = alphabet[sim_random(&seed) % (sizeof alphabet - 1)];
        if (parse(text) == DIBS_OK)
            dibs__url_all_taken(&url, "nothing", &err);
    }
}

static void each_host_may_have_a_login(void **state)
{
    dibs__url parsed;
    dibs__url_login l[DIBS__HOSTS_MAX];
    char *room = NULL;
    size_t count = 0;

    (void)state;
    assert_int_equal(
        dibs__url_parse(&parsed, "x://ann:a%2Cb@h1:1,h2,:c%40d@[::1]:3,@h4/0?k=v", NULL), DIBS_OK);
    assert_int_equal(dibs__url_logins(&parsed, l, &count, &room, NULL), DIBS_OK);
    assert_int_equal(count, 4);
    assert_string_equal(l[0].at.name, "h1");
    assert_int_equal(l[0].at.port, 1);
    assert_string_equal(l[0].user, "ann");
    assert_string_equal(l[0].password, "a,b");
    assert_string_equal(l[1].at.name, "h2"); /* the login goes on */
    assert_int_equal(l[1].at.port, 0);
    assert_string_equal(l[1].password, "a,b");
    assert_null(l[2].user);
    assert_string_equal(l[2].password, "c@d");
    assert_string_equal(l[2].at.name, "::1");
    assert_int_equal(l[2].at.port, 3);
    assert_string_equal(l[3].at.name, "h4");
    assert_null(l[3].password);
    free(room);
    dibs__url_fini(&parsed);
    assert_int_equal(dibs__url_parse(&parsed, "x://:a%zz@h1,h2", NULL), DIBS_INVALID);
    dibs__url_fini(&parsed);
}

static void durations_are_read_and_written(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } of[] = {
        {"500ms", 500},
        {"5s", 5000},
        {"5", 5000},
        {"1.5s", 1500},
        {"0.001", 1},
        {"1h30m", 5400000},
        {"7d", 604800000},
        {"1d2h3m4s5ms", 93784005},
        {"0", 0},
        {"", -1},
        {"s", -1},
        {"5x", -1},
        {"5 s", -1},
        {"-5s", -1},
        {"1.s", -1},
        {".5s", -1},
        {"1.5ms", -1},
        {"0.0001s", -1},
        {"1.0000000000s", -1},
        {"1m1h", -1},
        {"1s1s", -1},
        {"1h5", -1},
        {"5sms", -1},
        {"99999999999999999999d", INT64_MAX},
    };
    char out[32];

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (dibs__span_parse(of[i].text) != of[i].ms)
            fail_msg("'%s': not %lld ms", of[i].text, (long long)of[i].ms);
    assert_string_equal(dibs__span_write(out, 0), "0ms");
    assert_string_equal(dibs__span_write(out, 1500), "1500ms");
    assert_string_equal(dibs__span_write(out, 90000), "90s");
    assert_string_equal(dibs__span_write(out, 120000), "2m");
    assert_string_equal(dibs__span_write(out, 86400000), "1d");
}

/* ---- When no URL is given --------------------------------------------------------------------- */

static void expect_default(const char *expected)
{
    char *out = NULL;

    memset(&err, 0, sizeof err);
    assert_int_equal(dibs__url_default(&out, &err), expected ? DIBS_OK : DIBS_INVALID);
    if (expected)
        assert_string_equal(out, expected);
    else
        assert_null(out);
    dibs__url_forget(out);
}

static void write_file(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void the_environment_names_the_engine(void **state)
{
    scratch place;
    char path[SCRATCH_MAX], *out = NULL;

    (void)state;
    assert_int_equal(scratch_make(&place), 0);
    scratch_file(&place, "url", path, sizeof path);
    write_file(path, "etcd://h\r\n", 10);
    unsetenv("DIBS_URL");
    unsetenv("DIBS_URL_FILE");
    expect_default("sqlite:");
    setenv("DIBS_URL", "redis://h", 1);
    expect_default("redis://h");
    setenv("DIBS_URL_FILE", path, 1);
    expect_default(NULL);
    assert_non_null(strstr(err.message, "both set"));
    setenv("DIBS_URL", "", 1);
    expect_default("etcd://h");
    unsetenv("DIBS_URL_FILE");
    assert_int_equal(dibs_url_read(place.path, &out, &err), DIBS_INVALID); /* a folder */
    assert_non_null(strstr(err.message, "cannot read the URL from"));
    scratch_remove(&place);
}

static void a_file_has_one_line(void **state)
{
    static const struct {
        const char *text;
        size_t size;
        const char *why;
    } wrong[] = {{"", 0, "does not contain a URL"},
                 {"\n\n", 2, "does not contain a URL"},
                 {"redis://a\nredis://b\n", 20, "does not contain a URL"},
                 {"redis://a\0b\n", 12, "does not contain a URL"}};
    scratch place;
    char path[SCRATCH_MAX], *out = NULL, longest[DIBS__URL_MAX + 3];

    (void)state;
    assert_int_equal(scratch_make(&place), 0);
    scratch_file(&place, "url", path, sizeof path);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        write_file(path, wrong[i].text, wrong[i].size);
        assert_int_equal(dibs_url_read(path, &out, &err), DIBS_INVALID);
        assert_non_null(strstr(err.message, wrong[i].why));
        assert_null(out);
    }
    memset(longest, 'x', sizeof longest);
    write_file(path, longest, sizeof longest);
    assert_int_equal(dibs_url_read(path, &out, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "longer than"));
    write_file(path, longest, DIBS__URL_MAX);
    assert_int_equal(dibs_url_read(path, &out, &err), DIBS_OK);
    assert_int_equal(strlen(out), DIBS__URL_MAX);
    dibs__url_forget(out);
    scratch_remove(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_all_parts),
        cmocka_unit_test(parts_may_be_absent),
        cmocka_unit_test(several_hosts),
        cmocka_unit_test(bad_ones_are_refused),
        cmocka_unit_test(sizes_have_bounds),
        cmocka_unit_test(a_password_is_never_repeated),
        cmocka_unit_test(numbers_are_checked),
        cmocka_unit_test(a_misspelt_parameter_is_named),
        cmocka_unit_test(a_second_question_mark_is_no_value),
        cmocka_unit_test(odd_texts_do_no_harm),
        cmocka_unit_test(each_host_may_have_a_login),
        cmocka_unit_test(durations_are_read_and_written),
        cmocka_unit_test(the_environment_names_the_engine),
        cmocka_unit_test(a_file_has_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, teardown);
}
