/* D5: a time of change as version, in whole seconds. Two changes within a second bear the same time: the
 * late write finds what it knew and lands. In microseconds it is refused. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The time as the row has it, as text. */
static char *read_time(lab_sessions *x)
{
    char *text = lab_sql_text(&x->buyer, x->a, "SELECT changed FROM lab_second WHERE id = 1");

    if (text)
        text[strcspn(text, "\n")] = '\0';
    return text;
}

static bool make(lab_sessions *x, int digits)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_second") &&
           lab_sql_run(&x->buyer, x->a,
                       "CREATE TABLE lab_second (id INT PRIMARY KEY, stock INT NOT NULL, changed "
                       "TIMESTAMP(%d) NOT NULL)",
                       digits) >= 0;
}

/* Not at the end of a second, by the server's clock: what follows takes milliseconds. */
static bool early_in_a_second(lab_sessions *x)
{
    int64_t us = 0;

    for (int64_t until = lab_now_us() + 5 * 1000000; lab_now_us() < until; usleep(20000))
        if (lab_sql_read(
                &x->buyer, x->a, &us, 1,
                x->server == LAB_MARIADB
                    ? "SELECT MICROSECOND(CURRENT_TIMESTAMP(6))"
                    : "SELECT CAST(EXTRACT(MICROSECONDS FROM clock_timestamp()) AS BIGINT) "
                      "%% 1000000") == 1 &&
            us < 300000)
            return true;
    return false;
}

/* A reads 10; B sells three; A sells one. Returns what is left, which should be 6 or 7. -1: not run. */
static int64_t story(lab_sessions *x, int digits, bool *landed)
{
    char *time = NULL;
    int64_t stock = -1, changed = -1;

    if (make(x, digits) && early_in_a_second(x) &&
        lab_sql_run(&x->buyer, x->a, "INSERT INTO lab_second VALUES (1, 10, CURRENT_TIMESTAMP(%d))",
                    digits) == 1 &&
        (time = read_time(x)) &&
        lab_sql_run(&x->buyer, x->b,
                    "UPDATE lab_second SET stock = 7, changed = CURRENT_TIMESTAMP(%d) WHERE id = 1",
                    digits) == 1)
        changed = lab_sql_run(&x->buyer, x->a,
                              "UPDATE lab_second SET stock = 9, changed = CURRENT_TIMESTAMP(%d) "
                              "WHERE id = 1 AND changed = '%s'",
                              digits, time);
    *landed = changed > 0;
    if (changed >= 0)
        lab_sql_read(&x->buyer, x->a, &stock, 1, "SELECT stock FROM lab_second WHERE id = 1");
    free(time);
    return stock;
}

static void same_second(const lab_site *site, lab_server server, lab_finding *out)
{
    bool coarse = false, fine = false;
    int64_t seconds, micros;
    lab_sessions x;

    if (!lab_sessions_open(&x, site, server)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
        return;
    }
    seconds = story(&x, 0, &coarse);
    micros = story(&x, 6, &fine);
    if (seconds < 0 || micros < 0)
        lab_found(out, LAB_NOT_RUN, "%s", x.buyer.note);
    else
        lab_found(out, LAB_SHOWN,
                  "10 in stock, 3 sold, and 1 sold by a client that had read before: with times in "
                  "seconds "
                  "the late write %s (stock %lld), in microseconds it %s (stock %lld)",
                  coarse ? "lands" : "is refused", (long long)seconds,
                  fine ? "lands" : "is refused", (long long)micros);
    lab_a(&x, "DROP TABLE IF EXISTS lab_second");
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_same_second, "D5", "same-second", "two changes at the same time", same_second);
