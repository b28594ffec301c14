/* See other.h. */
#define _GNU_SOURCE
#include "other.h"

#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t fork_child(fixture *d, int from, bool stands_in)
{
    int ready[2];
    char done = 0;
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) < 0 || (pid = fork()) < 0)
        return 0;
    if (pid > 0) {
        close(ready[1]);
        done = read(ready[0], &done, 1) == 1;
        close(ready[0]);
        return done ? (uint64_t)pid : 0;
    }
    alarm(20); /* if the test forgets it */
    close(from);
    if (!stands_in || d->class->stand_in(d->engine) == DIBS_OK)
        done = write(ready[1], "!", 1) == 1;
    for (;;)
        pause();
}

static void obey(const other *o, int from, int to, fixture *d)
{
    uint64_t fence = 0, answer;
    char what;

    while (read(from, &what, 1) == 1 && what != 'q') {
        int64_t window = what == 'w' ? FIXTURE_WINDOW : 0;
        if (what == 'e' || what == 'w')
            answer = fence = fixture_enter(d, o->name, o->owner, o->capacity, window).fence;
        else if (what == 'r')
            answer = fixture_release(d, o->name, o->owner, fence) == DIBS__RELEASED;
        else
            answer = fork_child(d, from, what == 's');
        if (write(to, &answer, sizeof answer) != sizeof answer)
            break;
    }
    fixture_close(d);
    _exit(0);
}

void other_start(other *o)
{
    int down[2], up[2];
    fixture d;
    dibs_error err;

    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    o->pid = fork();
    assert_true(o->pid >= 0);
    if (o->pid == 0) {
        close(down[1]);
        close(up[0]);
        if (fixture_open(&d, o->url, NULL, &err) != DIBS_OK)
            _exit(1);
        d.owner_named = o->owner_named;
        d.min_hold = o->min_hold;
        obey(o, down[0], up[1], &d);
    }
    close(down[0]);
    close(up[1]);
    o->to = down[1];
    o->from = up[0];
}

uint64_t other_order(other *o, char what)
{
    uint64_t answer = 0;

    assert_int_equal(write(o->to, &what, 1), 1);
    if (what != 'q')
        assert_int_equal(read(o->from, &answer, sizeof answer), sizeof answer);
    return answer;
}

void other_end(other *o, int signal)
{
    if (signal)
        kill(o->pid, signal);
    waitpid(o->pid, NULL, 0);
    close(o->to);
    close(o->from);
}
