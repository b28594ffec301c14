/* The SQLite engine in processes that fork and exec: a child opens a store that its parent has open and
 * works on; a process becomes another program and leaves its locks behind. Without the core. */
#define _GNU_SOURCE
#include "lite.h"
#include "support/clock.h"
#include "support/helper.h"
#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHILDREN 40 /* forks are slow there */
#else
#define CHILDREN 200
#endif
#define AT_ONCE     8     /* children that run at the same time */
#define WORKERS     3     /* threads of the parent that use the store meanwhile */
#define HANG_S      30    /* a child that takes longer hangs */
#define CHILD_MS    20000 /* what a child may take to get a lock, on the slowest machine */
#define MUCH_SOONER 8000  /* than DESK_LEASE */

/* ---- A parent that works --------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    fixture *d;
    char name[16];
} worker;

static atomic_bool stop;

static void *work(void *arg)
{
    worker *w = arg;
    dibs__reply reply;

    while (!atomic_load(&stop)) {
        dibs__deadline until = dibs__after(w->d->env, 30 * DIBS__SECOND);
        if (fixture_try_enter(w->d, w->name, w->name, 0, 0, until, &reply, NULL) == DIBS_OK)
            fixture_try_release(w->d, w->name, w->name, reply.fence, &reply, NULL);
    }
    return NULL;
}

/* Says what was wrong by its exit code. */
static int use_store(void)
{
    fixture d;
    dibs__reply reply;
    dibs_error err;

    alarm(HANG_S);
    if (fixture_open(&d, lite_url, NULL, &err) != DIBS_OK) {
        fprintf(stderr, "# %s\n", err.message);
        return 1;
    }
    if (fixture_try_enter(&d, "child", "child", 3, FIXTURE_WINDOW,
                          dibs__after(d.env, CHILD_MS * DIBS__MS), &reply, &err) != DIBS_OK) {
        fprintf(stderr, "# %s\n", err.message);
        return 2;
    }
    fixture_close(&d);
    return 0;
}

static void children_can_open_what_their_parent_uses(void **state)
{
    static worker w[WORKERS];
    static fixture d;
    int refused = 0, hung = 0;

    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* a fork leaves the locks of its allocator as they are: children hang in malloc */
#endif
    lite_open(&d);
    atomic_store(&stop, false);
    for (int i = 0; i < WORKERS; i++) {
        w[i].d = &d;
        snprintf(w[i].name, sizeof w[i].name, "parent%d", i);
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < CHILDREN; i += AT_ONCE) {
        int status;
        for (int k = 0; k < AT_ONCE; k++)
            if (fork() == 0)
                _exit(use_store());
        for (int k = 0; k < AT_ONCE; k++) {
            assert_true(wait(&status) > 0);
            refused += WIFEXITED(status) && WEXITSTATUS(status) != 0;
            hung += WIFSIGNALED(status);
        }
        if (hung > 0)
            break; /* each takes its time */
    }
    atomic_store(&stop, true);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(w[i].thread, NULL);
    fixture_close(&d);
    if (refused || hung)
        fail_msg("%d children could not use the store, %d hung or crashed", refused, hung);
}

/* ---- A child with threads -------------------------------------------------------------------- */

#define INHERITED 8 /* handles that the child has from its parent */
#define OPENERS   4

typedef struct opener {
    pthread_t thread;
    pthread_barrier_t *together;
    fixture *inherited; /* left to the process, as dibs_close does it; NULL: opens one */
    int failed;
} opener;

static void *open_or_abandon(void *arg)
{
    opener *o = arg;

    pthread_barrier_wait(o->together);
    if (o->inherited)
        o->inherited->class->abandon(o->inherited->engine);
    else
        o->failed = use_store();
    return NULL;
}

static int open_in_threads(fixture *inherited)
{
    pthread_barrier_t together;
    opener o[2 * OPENERS] = {{0}};
    int failed = 0;

    alarm(HANG_S);
    pthread_barrier_init(&together, NULL, 2 * OPENERS);
    for (int i = 0; i < 2 * OPENERS; i++) {
        o[i].together = &together;
        o[i].inherited = i < OPENERS ? &inherited[i] : NULL;
        if (pthread_create(&o[i].thread, NULL, open_or_abandon, &o[i]) != 0)
            return 3;
    }
    for (int i = 0; i < 2 * OPENERS; i++) {
        pthread_join(o[i].thread, NULL);
        failed = o[i].failed ? o[i].failed : failed;
    }
    return failed;
}

/* Each inherited connection is closed once, and before any is opened. */
static void threads_of_a_child_open_at_the_same_moment(void **state)
{
    static fixture d[INHERITED];
    int wrong = 0;

    (void)state;
    for (int i = 0; i < INHERITED; i++)
        lite_open(&d[i]);
    for (int i = 0; i < CHILDREN / 4; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(open_in_threads(d));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        wrong += status != 0;
    }
    for (int i = 0; i < INHERITED; i++)
        fixture_close(&d[i]);
    if (wrong)
        fail_msg("%d of %d children crashed, hung or were refused", wrong, CHILDREN / 4);
}

/* ---- A child of its own ---------------------------------------------------------------------- */

/* Opens, forks a child that opens too, and is gone when the child has. The child then does a round of work
 * for each byte that it reads, and says how each went. */
static void leave_a_child(int from, int to)
{
    fixture d, e;
    dibs__reply reply;
    char byte;

    if (fixture_open(&d, lite_url, NULL, NULL) != DIBS_OK)
        _exit(1);
    if (fork() != 0) {
        pause(); /* until the child ends us */
        _exit(0);
    }
    byte = fixture_open(&e, lite_url, NULL, NULL) == DIBS_OK ? '+' : '-';
    kill(getppid(), SIGKILL);
    while (write(to, &byte, 1) == 1 && byte == '+' && read(from, &byte, 1) == 1) {
        dibs__deadline until = dibs__after(e.env, 5 * DIBS__SECOND);
        byte = '-';
        if (fixture_try_enter(&e, "grandchild", "grandchild", 0, 0, until, &reply, NULL) ==
                DIBS_OK &&
            fixture_try_release(&e, "grandchild", "grandchild", reply.fence, &reply, NULL) ==
                DIBS_OK)
            byte = '+';
    }
    _exit(0);
}

/* SQLite's sign that somebody uses the index of the log; without it the next who opens empties the index. */
static bool index_is_in_use(void)
{
    char file[sizeof lite_path + 8];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd;

    snprintf(file, sizeof file, "%s-shm", lite_path);
    fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
    close(fd);
    return lock.l_type != F_UNLCK;
}

static void a_child_lives_without_its_parent(void **state)
{
    int down[2], up[2];
    char byte = 0;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        alarm(HANG_S);
        close(down[1]);
        close(up[0]);
        leave_a_child(down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_int_equal(byte, '+');
    assert_true(index_is_in_use()); /* by the child alone */
    for (int i = 0; i < 3; i++) {
        fixture d;
        lite_open(&d);
        assert_int_equal(fixture_enter(&d, "mine", "mine", 0, 0).verdict, DIBS__GRANTED);
        assert_int_equal(write(down[1], "!", 1), 1);
        assert_int_equal(read(up[0], &byte, 1), 1); /* 0: it crashed */
        assert_int_equal(byte, '+');
        fixture_close(&d);
    }
    close(down[1]);
    close(up[0]);
}

/* ---- Exec ------------------------------------------------------------------------------------ */

/* A process that takes "x" and, when it reads a byte, becomes `holder` on the same store. */
static void start_to_exec(helper *h)
{
    int down[2], up[2];
    char byte;
    fixture d;

    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    h->pid = fork();
    if (h->pid == 0) {
        alarm(2 * HANG_S);
        if (fixture_open(&d, lite_url, NULL, NULL) != DIBS_OK ||
            fixture_enter(&d, "x", "before", 0, 0).verdict != DIBS__GRANTED ||
            write(up[1], "!", 1) != 1 || read(down[0], &byte, 1) != 1)
            _exit(1);
        dup2(down[0], 0);
        dup2(up[1], 1);
        execl(getenv("DIBS_TEST_HOLDER"), "holder", lite_url, (char *)NULL);
        _exit(1);
    }
    close(down[0]);
    close(up[1]);
    h->to = down[1];
    h->from = up[0];
    assert_int_equal(read(h->from, &byte, 1), 1); /* it has the lock */
}

static void exec(helper *h)
{
    assert_int_equal(write(h->to, "!", 1), 1);
    assert_string_equal(helper_hear(h, HANG_S * 1000), "ready");
}

static void after_exec_a_process_is_not_in_its_own_way(void **state)
{
    helper h;
    int64_t start;
    char command[64];
    const char *said;

    (void)state;
    start_to_exec(&h);
    exec(&h);
    start = clock_ms();
    snprintf(command, sizeof command, "lock x 0 %d -", MUCH_SOONER);
    said = helper_ask(&h, command);
    if (strncmp(said, "OK ", 3) != 0)
        fail_msg("after %lld ms it got '%s'", (long long)(clock_ms() - start), said);
    assert_string_equal(helper_ask(&h, "unlock"), "OK");
    helper_end(&h);
}

static void others_notice_an_exec(void **state)
{
    helper h;
    fixture d;

    (void)state;
    start_to_exec(&h);
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "me", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    assert_int_equal(write(h.to, "!", 1), 1);
    assert_true(fixture_wait(&d, "me", FIXTURE_WINDOW / DIBS__MS - 1000) > 0);
    fixture_close(&d);
    helper_end(&h);
}

/* Handles that this process still has are not taken for dead, whatever they are called. */
static void handles_of_this_process_stay_alive(void **state)
{
    fixture a, b, c;

    (void)state;
    lite_open(&a);
    assert_int_equal(fixture_enter(&a, "x", "a", 0, 0).verdict, DIBS__GRANTED);
    lite_open(&b);
    lite_open(&c);
    fixture_close(&c);
    assert_int_equal(fixture_enter(&b, "x", "b", 0, 0).verdict, DIBS__BUSY);
    fixture_close(&b);
    fixture_close(&a);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, lite_setup, lite_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_child_lives_without_its_parent),
        TEST(children_can_open_what_their_parent_uses),
        TEST(threads_of_a_child_open_at_the_same_moment),
        TEST(after_exec_a_process_is_not_in_its_own_way),
        TEST(others_notice_an_exec),
        TEST(handles_of_this_process_stay_alive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
