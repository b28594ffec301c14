"""The wrapper or the guardian dies or stops, the lock is lost: the command is dead before the next one starts.

The commands beat every few milliseconds into one log with CLOCK_BOOTTIME, so that "dead before" is seen."""

import os
import shutil
import signal
import time

from harness import DATABASES, ENGINES, ENSEMBLES, Process, Skip, alive, boottime, children, test, wait_for


def run_worker(t, label, *options, lease=None, worker=()):
    # A session lasts long enough that a slow disk of its servers does not end it.
    lease = lease or ('4s' if t.engine in ENSEMBLES else '1500ms')
    return t.start('run', '--lease', lease, *options, 'a', '--', *t.worker(label, *worker))


def next_in_queue(t, label='next'):
    process = run_worker(t, label, worker=('seconds=0.2',))
    t.wait_queued('a')
    return process


def check_order(t, old, new, *others):
    """Everybody of the old command was dead before the new one started, and the fence grew."""
    first, second = t.started_at(old), t.wait_started(new, 20)
    for label in (old, *others):
        assert t.last_log_time(label) < second[0], '%s lived on for %.3f s' % (label, t.last_log_time(label) - second[0])
    assert int(second[4]) > int(first[4]), (first, second)
    for entry in t.log():
        if entry[1] in (old, *others):
            assert not alive(entry[3]), entry
    return second[0]


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def kill_9_of_the_wrapper(t):
    at_once = t.engine == 'sqlite'  # elsewhere the lease has to pass first
    lease = 10 if at_once else 2
    wrapper = run_worker(t, 'old', worker=('child', 'stray'), lease='%ds' % lease)
    for label in ('old', 'old-child', 'old-stray'):
        t.wait_started(label)
    successor = next_in_queue(t)
    killed = boottime()
    wrapper.signal(signal.SIGKILL)
    started = check_order(t, 'old', 'next', 'old-child', 'old-stray')
    t.note('command dead %.1f ms, next one started %.1f ms after the kill', (t.last_log_time('old') - killed) * 1000,
           (started - killed) * 1000)
    if at_once:
        assert started - killed < lease / 2, 'ended and handed on at once, and not when the lease is over'
    assert successor.wait() == 0


@test(*ENGINES)
def kill_9_with_a_command_that_ignores_term(t):
    wrapper = run_worker(t, 'old', worker=('ignore-term', 'child', 'stray'), lease='2s')
    for label in ('old', 'old-child', 'old-stray'):
        t.wait_started(label)
    successor = next_in_queue(t)
    wrapper.signal(signal.SIGKILL)
    check_order(t, 'old', 'next', 'old-child', 'old-stray')
    assert successor.wait() == 0


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def stop_of_the_wrapper_past_its_lease(t):
    for round_number, worker in enumerate((('child', 'stray'), ('ignore-term', 'child', 'stray'))):
        old, new = 'old%d' % round_number, 'next%d' % round_number
        wrapper = run_worker(t, old, worker=worker)
        for label in (old, old + '-child', old + '-stray'):
            t.wait_started(label)
        successor = next_in_queue(t, new)
        wrapper.signal(signal.SIGSTOP)
        started = check_order(t, old, new, old + '-child', old + '-stray')
        t.note('%s: last sign of the command %.1f ms before the next one started', ' '.join(worker),
               (started - t.last_log_time(old)) * 1000)
        assert successor.wait() == 0
        wrapper.signal(signal.SIGCONT)
        assert wrapper.wait() == 76, wrapper.err


@test()
def flock_beside_it(t):
    """flock(1), for comparison: its command runs on when it is stopped, and when it is killed another gets in."""
    if not shutil.which('flock'):
        raise Skip('flock is not installed')
    wrapper = Process(['flock', '-o', t.path('lock'), *t.worker('old')], t.folder)
    t.started.append(wrapper)
    t.wait_started('old')
    wrapper.signal(signal.SIGSTOP)
    stopped = boottime()
    wait_for(lambda: boottime() > stopped + 1.5, 'the time of a lease')
    assert t.last_log_time('old') > stopped + 1.0, 'the command runs on'
    wrapper.signal(signal.SIGKILL)
    wrapper.signal(signal.SIGCONT)
    wrapper.wait()
    other = Process(['flock', '-o', t.path('lock'), *t.worker('next', 'seconds=0.2')], t.folder)
    t.started.append(other)
    assert other.wait() == 0
    t.note('flock: the old command ran on beside the next one')
    assert t.last_log_time('old') > t.started_at('next')[0], 'both run at the same time'


@test(*ENGINES)
def guardian_killed(t):
    for worker in ((), ('ignore-term', 'child', 'stray')):
        wrapper = run_worker(t, 'w%d' % len(worker), worker=worker)
        label = 'w%d' % len(worker)
        t.wait_started(label)
        if worker:
            t.wait_started(label + '-child')
            t.wait_started(label + '-stray')
        guardian, = children(wrapper.pid)
        os.kill(guardian, signal.SIGKILL)
        code = wrapper.wait()
        assert code in (137, 143), (code, wrapper.err)
        assert b'guardian' in wrapper.err
        assert not any(alive(e[3]) for e in t.log()), 'nothing is left'
        assert t.held_by('a') == []


@test('redis')
def guardian_stopped_while_the_lease_runs_out(t):
    wrapper = run_worker(t, 'old', '--max-hold', '1500ms')
    t.wait_started('old')
    guardian, = children(wrapper.pid)
    os.kill(guardian, signal.SIGSTOP)
    successor = next_in_queue(t)
    check_order(t, 'old', 'next')
    assert wrapper.wait() == 76, wrapper.err
    assert successor.wait() == 0


@test('sqlite')
def terminal_signals_do_not_end_the_guardian(t):
    wrapper = run_worker(t, 'old')
    t.wait_started('old')
    guardian, = children(wrapper.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(guardian, number)
    assert os.getpgid(guardian) not in (os.getpgid(wrapper.pid), os.getpgid(t.started_at('old')[3]))
    seen = len(t.log())
    wait_for(lambda: len(t.log()) > seen + 20, 'the command, unharmed')
    assert alive(guardian)


@test('redis')
def flushall_under_a_holder(t):
    wrapper = run_worker(t, 'old', lease='12s')
    t.wait_started('old')
    flushed = time.monotonic()
    t.server.ask('FLUSHALL')
    assert wrapper.wait() == 76
    took = time.monotonic() - flushed
    t.note('lost %.0f ms after FLUSHALL, lease 12 s', took * 1000)
    assert took < 11, 'at the next renewal, after a third of the lease, and not when the rest of it is over'
    assert b'lost' in wrapper.err, wrapper.err
    assert t.held_by('a') == [], 'never made anew'
    assert not alive(t.started_at('old')[3])


@test('redis')
def lost_while_the_command_ends_by_itself(t):
    wrapper = t.start('run', 'a', '--', 'sh', '-c', 'touch %s; read x' % t.path('up'), stdin=-1)
    wait_for(lambda: os.path.exists(t.path('up')), 'the command')
    t.server.ask('FLUSHALL')
    wrapper.popen.stdin.close()
    assert wrapper.wait() == 76, wrapper.err


@test('redis')
def server_killed_under_a_holder(t):
    """The command is ended before the lease can be over; nobody can say more without a server."""
    wrapper = run_worker(t, 'old')
    t.wait_started('old')
    t.server.kill()
    killed = boottime()
    try:
        assert wrapper.wait() == 76, wrapper.err
        assert t.last_log_time('old') < killed + 1.5
    finally:
        t.server.start()


@test('redis')
def server_restarted_while_waiting(t):
    """The holder's lock is gone with the server's memory; the waiter stands in the queue again and gets it."""
    wrapper = run_worker(t, 'old')
    t.wait_started('old')
    successor = next_in_queue(t)
    t.server.kill()
    t.server.start()
    t.wait_started('next')
    assert successor.wait() == 0, successor.err
    assert wrapper.wait() == 76, wrapper.err


@test('redis')
def server_down_while_waiting_ends_with_the_wait(t):
    wrapper = run_worker(t, 'old')
    t.wait_started('old')
    start = time.monotonic()
    waiter = t.start('run', '--wait', '2s', 'a', '--', 'true')
    t.wait_queued('a')
    t.server.kill()
    try:
        assert waiter.wait() == 69, waiter.err
        assert 1.9 < time.monotonic() - start < 15
        assert wrapper.wait() == 76
    finally:
        t.server.start()


@test(*ENGINES)
def renewed_for_longer_than_the_lease(t):
    code, out, err = t.run('run', '--lease', '1500ms', 'a', '--', 'sh', '-c', 'sleep 3.5; echo done')
    assert (code, out) == (0, b'done\n'), err


@test('redis')
def handed_over_grants_last(t):
    """A waiter is granted what is left of its own liveness first; the guardian must not take that for the end."""
    first = t.start('run', '--lease', '30s', 'a', '--', 'sleep', '1')
    wait_for(lambda: t.held_by('a'), 'the first')
    code, out, err = t.run('run', '--lease', '30s', 'a', '--', 'sh', '-c', 'sleep 7; echo done')
    assert first.wait() == 0
    assert (code, out) == (0, b'done\n'), err


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def never_two_commands_of_one_owner(t):
    """A second run of the same owner waits; the first is asked to stop, and is gone before the second starts."""
    lease = '12s' if t.engine in ENSEMBLES else '4s'  # it must not be lost for another reason
    old = run_worker(t, 'old', '--owner', 'me', worker=('child',), lease=lease)
    t.wait_started('old')
    t.wait_started('old-child')
    code, _, err = t.run('run', '--owner', 'me', '--no-wait', 'a', '--', *t.worker('try'))
    assert code == 75, err
    new = run_worker(t, 'next', '--owner', 'me', worker=('seconds=0.2',), lease=lease)
    assert old.wait() == 76, old.err
    assert b'the same owner' in old.err, old.err
    check_order(t, 'old', 'next', 'old-child')
    assert new.wait() == 0, new.err
    assert not t.started_at('try')
