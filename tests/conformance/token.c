/* Tokens: unguessable, scoped, redeemed once, reissued as one other. */
#define _GNU_SOURCE
#include "conformance/race.h"
#include "conformance/suite.h"
#include "support/lossy.h"

#include <string.h>

static dibs *open_tokens(void)
{
    if (!the.can.cells)
        skip();
    return open_handle();
}

static const char *issue(dibs *d, const char *scope, int64_t ttl_ms, char out[DIBS_TOKEN_SIZE])
{
    dibs_error err = {0};

    if (dibs_token_issue(d, &(dibs_token_options){.scope = scope, .ttl_ms = ttl_ms}, out, &err) !=
        DIBS_OK)
        fail_msg("%s", err.message);
    return out;
}

static void a_token_is_redeemed_once(void **state)
{
    dibs *a = open_tokens(), *b = open_handle();
    char one[DIBS_TOKEN_SIZE], two[DIBS_TOKEN_SIZE];
    dibs_error err = {0};

    (void)state;
    issue(a, NULL, 0, one);
    issue(a, NULL, 0, two);
    assert_true(strlen(one) >= 32);
    assert_string_not_equal(one, two);
    assert_status(dibs_token_redeem(b, one, NULL, NULL), DIBS_OK);
    assert_status(dibs_token_redeem(b, one, NULL, &err), DIBS_REFUSED);
    assert_non_null(strstr(err.message, "already used"));
    assert_status(dibs_token_redeem(a, one, NULL, NULL), DIBS_REFUSED);
    assert_status(dibs_token_redeem(a, two, NULL, NULL), DIBS_OK);
}

static void a_token_is_for_its_scope(void **state)
{
    dibs *d = open_tokens();
    char token[DIBS_TOKEN_SIZE], tall[DIBS_NAME_MAX + 2];

    (void)state;
    issue(d, "tenant 1", 0, token);
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "tenant 2"}, NULL),
                  DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, token, NULL, NULL), DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "tenant 1"}, NULL),
                  DIBS_OK);
    memset(tall, 's', sizeof tall);
    tall[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = tall}, NULL),
                  DIBS_INVALID);
    tall[DIBS_NAME_MAX] = '\0';
    issue(d, tall, 0, token);
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = tall}, NULL), DIBS_OK);
}

static void what_is_no_token_is_refused(void **state)
{
    static const char *const no[] = {
        "",
        "x",
        "0123456789abcdef0123456789abcdef",
        "0123456789ABCDEF0123456789ABCDEF",
        "0123456789abcdef0123456789abcde\n",
        "0123456789abcdef0123456789abcdef0",
    };
    dibs *d = open_tokens();
    char out[DIBS_TOKEN_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        assert_status(dibs_token_redeem(d, no[i], NULL, NULL), DIBS_REFUSED);
        assert_status(dibs_token_reissue(d, no[i], NULL, out, NULL), DIBS_REFUSED);
        assert_string_equal(out, "");
    }
    assert_status(dibs_token_redeem(d, NULL, NULL, NULL), DIBS_REFUSED);
    assert_status(dibs_token_issue(d, &(dibs_token_options){.ttl_ms = -1}, out, NULL),
                  DIBS_INVALID);
}

/* Nobody is asked for it. */
static void what_is_no_token_costs_no_request(void **state)
{
    dibs *d = open_tokens();
    char out[DIBS_TOKEN_SIZE];

    (void)state;
    lossy_put_in(d);
    assert_status(dibs_token_redeem(d, "0123", NULL, NULL), DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, "0123456789ABCDEF0123456789ABCDEF", NULL, NULL),
                  DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, "0123456789abcdef0123456789abcdefx", NULL, NULL),
                  DIBS_REFUSED);
    assert_status(dibs_token_reissue(d, "0123", NULL, out, NULL), DIBS_REFUSED);
    assert_int_equal(lossy_commands(), 0);
}

static void a_token_that_is_not_issued_says_why(void **state)
{
    dibs *d = open_tokens();
    char out[DIBS_TOKEN_SIZE] = "?";

    (void)state;
    lossy_put_in(d);
    lossy_lose(LOSSY_DENIED, 1, NULL, NULL);
    assert_status(dibs_token_issue(d, NULL, out, NULL), DIBS_DENIED);
    assert_string_equal(out, "");
}

static void a_token_expires(void **state)
{
    dibs *d = open_tokens();
    char token[DIBS_TOKEN_SIZE];
    int64_t begin = clock_ms();

    (void)state;
    issue(d, NULL, SHORT_MS, token);
    while (clock_ms() < begin + SHORT_MS + 200)
        sleep_ms(50); /* time itself is what is waited for */
    assert_status(dibs_token_redeem(d, token, NULL, NULL), DIBS_REFUSED);
}

static void a_spent_token_is_reissued_as_one_other(void **state)
{
    dibs *d = open_tokens();
    char token[DIBS_TOKEN_SIZE], second[DIBS_TOKEN_SIZE], again[DIBS_TOKEN_SIZE];
    dibs_token_options o = {.scope = "s"};
    dibs_error err = {0};

    (void)state;
    issue(d, "s", 0, token);
    assert_status(dibs_token_reissue(d, token, &o, second, &err), DIBS_REFUSED);
    assert_non_null(strstr(err.message, "not redeemed"));
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "s"}, NULL), DIBS_OK);
    assert_status(dibs_token_reissue(d, token, NULL, second, NULL), DIBS_REFUSED); /* scope */
    assert_status(dibs_token_reissue(d, token, &o, second, NULL), DIBS_OK);
    assert_string_not_equal(second, token);
    assert_status(dibs_token_reissue(d, token, &o, again, NULL), DIBS_OK);
    assert_string_equal(second, again);
    assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "s"}, NULL),
                  DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, second, &(dibs_token_options){.scope = "s"}, NULL), DIBS_OK);
    assert_status(dibs_token_reissue(d, token, &o, again, NULL), DIBS_OK);
    assert_string_equal(second, again); /* the same one, and it is spent */
    assert_status(dibs_token_redeem(d, again, &(dibs_token_options){.scope = "s"}, NULL),
                  DIBS_REFUSED);
}

/* The old token's time is longer than the new one's: the new one must not come back. */
static void an_heir_that_has_ended_stays_gone(void **state)
{
    dibs *d = open_tokens();
    char token[DIBS_TOKEN_SIZE], heir[DIBS_TOKEN_SIZE], again[DIBS_TOKEN_SIZE];
    dibs_token_options brief = {.ttl_ms = 3 * SHORT_MS};
    int64_t begin;

    (void)state;
    issue(d, NULL, 60000, token);
    assert_status(dibs_token_redeem(d, token, NULL, NULL), DIBS_OK);
    assert_status(dibs_token_reissue(d, token, &brief, heir, NULL), DIBS_OK);
    begin = clock_ms();
    assert_status(dibs_token_redeem(d, heir, NULL, NULL), DIBS_OK);
    while (clock_ms() < begin + 3 * SHORT_MS + 200)
        sleep_ms(50);
    if (dibs_token_reissue(d, token, &brief, again, NULL) == DIBS_OK)
        assert_status(dibs_token_redeem(d, again, NULL, NULL), DIBS_REFUSED);
}

/* At every command of the exchange. */
static void lost_answers_spend_once(void **state)
{
    dibs *d = open_tokens();

    (void)state;
    lossy_put_in(d);
    for (int way = LOSSY_ANSWER; way <= LOSSY_REQUEST; way++) {
        for (int times = 1; times <= 3; times++) {
            char token[DIBS_TOKEN_SIZE], heir[DIBS_TOKEN_SIZE], again[DIBS_TOKEN_SIZE];
            lossy_lose((lossy_way)way, times, NULL, NULL);
            issue(d, "lost", 0, token);
            lossy_lose((lossy_way)way, times, NULL, NULL);
            assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "lost"}, NULL),
                          DIBS_OK);
            assert_status(dibs_token_redeem(d, token, &(dibs_token_options){.scope = "lost"}, NULL),
                          DIBS_REFUSED);
            lossy_lose((lossy_way)way, times, NULL, NULL);
            assert_status(
                dibs_token_reissue(d, token, &(dibs_token_options){.scope = "lost"}, heir, NULL),
                DIBS_OK);
            assert_status(
                dibs_token_reissue(d, token, &(dibs_token_options){.scope = "lost"}, again, NULL),
                DIBS_OK);
            assert_string_equal(heir, again);
        }
    }
    lossy_stop();
}

typedef struct rival {
    dibs *d;
    const char *token;
    dibs_status status;
} rival;

static void redeem_meanwhile(void *data)
{
    rival *r = data;

    r->status = dibs_token_redeem(r->d, r->token, NULL, NULL);
}

/* Another comes between the look and the write: the swap must name what was looked at. */
static void who_comes_in_between_wins(void **state)
{
    dibs *d = open_tokens();
    char token[DIBS_TOKEN_SIZE];
    rival r = {open_handle(), token, DIBS_BUSY};

    (void)state;
    lossy_put_in(d);
    issue(d, "", 0, token);
    lossy_lose(LOSSY_LATE, 1, redeem_meanwhile, &r);
    assert_status(dibs_token_redeem(d, token, NULL, NULL), DIBS_REFUSED);
    assert_status(r.status, DIBS_OK);
    lossy_stop();
}

/* ---- Many at once ---------------------------------------------------------------------------- */

static char prize[DIBS_TOKEN_SIZE];

static void new_prize(race *r)
{
    issue(r->d[0], "race", 0, prize);
}

static dibs_status grab(race *r, dibs *d)
{
    (void)r;
    return dibs_token_redeem(d, prize, &(dibs_token_options){.scope = "race"}, NULL);
}

static void sixty_four_redeem_and_one_wins(void **state)
{
    race r = {.prepare = new_prize, .run = grab};

    (void)state;
    if (!the.can.cells)
        skip();
    for (int i = 0; i < RACE_HANDLES; i++)
        r.d[i] = open_handle();
    race_run(&r);
    for (int round = 0; round < RACE_ROUNDS; round++) {
        assert_int_equal(r.count[round][DIBS_OK], 1);
        assert_int_equal(r.count[round][DIBS_REFUSED], RACE_THREADS - 1);
    }
}

static const struct CMUnitTest tests[] = {
    CASE(a_token_is_redeemed_once),
    CASE(a_token_is_for_its_scope),
    CASE(what_is_no_token_is_refused),
    CASE(what_is_no_token_costs_no_request),
    CASE(a_token_that_is_not_issued_says_why),
    CASE(a_token_expires),
    CASE(a_spent_token_is_reissued_as_one_other),
    CASE(an_heir_that_has_ended_stays_gone),
    CASE(lost_answers_spend_once),
    CASE(who_comes_in_between_wins),
    CASE(sixty_four_redeem_and_one_wins),
};

CASES(token_cases, tests);
