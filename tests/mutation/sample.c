/* A little program for test_mutator: it tests itself, and knows nothing of the mutants in it. */
#include <stdbool.h>
#include <stddef.h>

#define LIMIT (2 + 1) /* what a macro has inside is no site */

static const int table[3] = {1, 2, 3}; /* nor is what the compiler must know */
static int calls;

static void note(void)
{
    calls++;
}

static int clamp(int n)
{
    return n < LIMIT ? n : LIMIT; /* `<=` is the same function */
}

static bool is_between(int n, int low, int high)
{
    return n >= low && n <= high;
}

static int sum_up(const int *numbers, size_t count)
{
    int sum = 0;

    note();
    for (size_t i = 0; i < count; i++)
        sum += numbers[i];
    return sum;
}

static unsigned drain(unsigned n)
{
    while (n != 0)
        n--; /* `++` takes long */
    return n;
}

static void spell(char *at)
{
    *at++ = 0101; /* octal */
    *at = 'B';
}

int never_called(int n);

int never_called(int n)
{
    return n + 1;
}

int main(void)
{
    char text[4] = "....";
    bool good = clamp(2) == 2 && clamp(3) == 3 && clamp(9) == 3 && clamp(-1) == -1;

    good = good && is_between(1, 1, 2) && is_between(2, 1, 2);
    good = good && !is_between(0, 1, 2) && !is_between(3, 1, 2);
    spell(text + 1);
    good = good && text[0] == '.' && text[1] == 'A' && text[2] == 'B' && text[3] == '.';
    good = good && sum_up(table, 3) == 6 && sum_up(table, 0) == 0 && calls == 2 && drain(4) == 0;
    return good ? 0 : 1;
}
