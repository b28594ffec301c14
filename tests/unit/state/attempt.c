/* What attempts are to each other, and whose an owner is: asked directly. */
#include "talk.h"

#include "state/attempt.h"

static void kin_is_recognized_by_handle_and_number(void **state)
{
    static const struct {
        const char *attempt, *other;
        dibs__kin kin;
    } is[] = {
        {"h-1", "h-1", DIBS__SAME},
        {"h-f", "h-e", DIBS__NEWER},
        {"h-e", "h-f", DIBS__OLDER},
        {"h-2", "h-1", DIBS__NEWER},
        {"h-1", "h-2", DIBS__OLDER},
        {"h-10", "h-9", DIBS__NEWER},
        {"h-a", "h-9", DIBS__NEWER},
        {"h-f", "h-10", DIBS__OLDER},
        {"h-1f", "h-20", DIBS__OLDER},
        {"h-20", "h-1f", DIBS__NEWER},
        {"k-2", "h-1", DIBS__FOREIGN},
        {"h-2", "hh-1", DIBS__FOREIGN},
        {"hh-2", "h-1", DIBS__FOREIGN},
        {"2", "1", DIBS__FOREIGN},
        {"h", "h-1", DIBS__FOREIGN},
        {"h-1", "h", DIBS__FOREIGN},
        {"a-b-2", "a-b-1", DIBS__NEWER},
        {"a-c-2", "a-b-1", DIBS__FOREIGN},
        {"h-02", "h-2", DIBS__OLDER}, /* never newer than itself */
        {"h-fe", "h-ff", DIBS__OLDER},
        {"h-g", "h-0", DIBS__OLDER},
        {"h-0", "h-g", DIBS__OLDER},
        {"h-1g", "h-1", DIBS__OLDER},
        {"h-1", "h-1g", DIBS__OLDER},
        {"h.x~-2", "h.x~-1", DIBS__NEWER}, /* of one portable grant */
        {"h.x~-1", "h.x~-2", DIBS__OLDER},
        {"h.y-2", "h.x-1", DIBS__FOREIGN}, /* of another */
        {"h-2", "h.x-1", DIBS__FOREIGN},
        {"h.x-2", "h-1", DIBS__FOREIGN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof is / sizeof is[0]; i++)
        if (dibs__attempt_kin(is[i].attempt, is[i].other) != is[i].kin)
            fail_msg("%s and %s: not %d", is[i].attempt, is[i].other, is[i].kin);
}

static void an_owner_is_private_by_the_name_of_its_handle(void **state)
{
    static const struct {
        const char *owner, *attempt;
        bool is;
    } of[] = {
        {"h/1", "h-1", true},   {"h-1", "h-1", true},    {"h-7", "h-1", true},
        {"h", "h-1", false},    {"hh", "h-1", false},    {"h1/2", "h-1", false},
        {"job", "h-1", false},  {"k/1", "h-1", false},   {"k-1", "h-1", false},
        {"/1", "-1", false},    {"-1", "-1", false},     {"x/", "hh-1", false},
        {"ab/1", "ab-c", true}, {"ab/1", "ac-1", false}, {"a", "ab-1", false},
        {"job/1", "h", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (dibs__owner_is_private(of[i].owner, of[i].attempt) != of[i].is)
            fail_msg("%s with %s: not %d", of[i].owner, of[i].attempt, of[i].is);
}

static const struct CMUnitTest tests[] = {
    TEST(kin_is_recognized_by_handle_and_number),
    TEST(an_owner_is_private_by_the_name_of_its_handle),
};
TESTS(attempt_tests, tests);
