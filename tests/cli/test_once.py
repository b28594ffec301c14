"""`dibs once`: one effect a key, the same answer for everybody; runners that die, stop, fail or say too much."""

import json
import os
import signal
import subprocess
import time

from harness import (DATABASES, ENGINES, ENSEMBLES, PYTHON, Process, alive, children, free_port, read, test,
                     wait_for)

SOME = (*ENGINES, *DATABASES)  # for what shows nothing more on the others
ALL = (*SOME, *ENSEMBLES)
LEASE = '2s'
BYTES = bytes(range(256)) * 40

# Says every byte on both streams, and leaves a mark of each run.
SPEAKER = '''
import os, sys
os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), b'x')
sys.stdout.buffer.write(bytes(range(256)) * 40)
sys.stderr.buffer.write(bytes(reversed(range(256))) * 40)
sys.exit(int(sys.argv[2]))
'''


def speaker(t, code=0):
    return [PYTHON, '-S', '-c', SPEAKER, t.path('marks'), str(code)]


def marks(t):
    return len(read(t.path('marks')))


def begin(t, key, *options, label='old', lease=LEASE, worker=()):
    """A run of a key whose command surely runs."""
    process = t.start('once', '--lease', lease, *options, key, '--', *t.worker(label, *worker))
    t.wait_started(label)
    return process


# ---- The same answer for everybody ------------------------------------------------------------------------------


@test(*ALL)
def run_once_and_replayed_byte_by_byte(t):
    first = t.run('once', 'a', '--', *speaker(t))
    assert first == (0, BYTES, bytes(reversed(range(256))) * 40), first[0]
    for command in (speaker(t), ['false'], ['/no/such/command']):
        assert t.run('once', 'a', '--', *command) == first, 'whatever is asked for under this key'
    assert marks(t) == 1
    assert t.run('once', 'b', '--', 'true') == (0, b'', b''), 'another key'
    assert t.run('once', 'b', '--', 'echo', 'x') == (0, b'', b''), 'nothing said is kept too'
    assert t.run('once', '--scope', 's', 'a', '--', 'echo', 'x') == (0, b'x\n', b''), 'the scope is part of the key'


@test(*ENGINES)
def failure_is_forgotten_or_kept(t):
    for i in range(2):
        assert t.run('once', 'a', '--', *speaker(t, 7))[0] == 7
        assert marks(t) == i + 1, 'it can be tried again'
    assert t.run('once', 'a', '--', *speaker(t))[0] == 0
    assert t.run('once', 'a', '--', *speaker(t, 7))[0] == 0, 'success stays'
    kept = t.run('once', '--on-fail', 'keep', 'b', '--', *speaker(t, 9))
    assert kept[0] == 9 and kept[1] == BYTES
    assert t.run('once', 'b', '--', 'true') == kept


@test('sqlite')
def command_that_cannot_be_run_is_forgotten(t):
    code, _, err = t.run('once', '--on-fail', 'keep', 'a', '--', '/no/such/command')
    assert code == 127 and b'cannot run' in err, (code, err)
    assert t.run('once', '--on-fail', 'keep', 'a', '--', t.folder)[0] == 126
    assert t.run('once', 'a', '--', 'echo', 'ran') == (0, b'ran\n', b'')


@test(*ALL)
def many_at_once_have_one_effect(t):
    for i in range(3):
        command = ['sh', '-c', 'echo x >>%s; echo said; echo %s >&2' % (t.path('marks'), i)]
        crowd = [t.start('once', '--wait', '60s', 'key%d' % i, '--', *command) for _ in range(64)]
        codes = [p.wait(90) for p in crowd]
        assert codes == [0] * 64, (sorted(set(codes)), [p.err for p in crowd if p.popen.returncode][:3])
        assert {p.out for p in crowd} == {b'said\n'} and {p.err for p in crowd} == {b'%d\n' % i}
        assert read(t.path('marks')) == b'x\n' * (i + 1)


@test(*ALL)
def another_fingerprint_is_refused(t):
    assert t.run('once', '--fingerprint', 'one', 'a', '--', 'echo', 'x')[0] == 0
    assert t.run('once', '--fingerprint', 'one', 'a', '--', 'false') == (0, b'x\n', b'')
    for other in (('--fingerprint', 'two'), ()):
        code, out, err = t.run('once', *other, 'a', '--', 'echo', 'ran')
        assert code == 65 and out == b'' and b"'a'" in err and b'fingerprint' in err, (other, code, out, err)


@test(*ALL)
def kept_for_a_time_or_for_ever(t):
    assert t.run('once', '--keep', '1s', 'a', '--', *speaker(t))[0] == 0
    assert t.run('once', '--keep-forever', 'b', '--', 'echo', 'x')[0] == 0
    wait_for(lambda: t.run('once', '--keep', '1s', 'a', '--', *speaker(t))[0] == 0 and marks(t) == 2,
             'the end of a key')
    assert t.run('once', 'b', '--', 'false') == (0, b'x\n', b'')


@test(*ENGINES)
def environment_of_the_command(t):
    script = 'printf "%s|%s|%s|%s|%s|%s" "$DIBS_SCOPE" "$DIBS_KEY" "$DIBS_FENCE" "$DIBS_OWNER" ' \
             '"${DIBS_AGAIN-no}" "${DIBS_NAME-no}"'
    env = dict(t.env, DIBS_FENCE='7', DIBS_NAME='x', DIBS_OWNER='y', DIBS_AGAIN='1')
    _, out, err = t.run('once', '--scope', 's', '--owner', 'me', 'a', '--', 'sh', '-c', script, env=env)
    scope, key, fence, owner, again, name = out.decode().split('|')
    assert (scope, key, owner, again, name) == ('s', 'a', 'me', 'no', 'no') and int(fence) > 7, (out, err)


@test(*ALL)
def keys_of_any_bytes(t):
    for i, key in enumerate((b'with space', b'\x01\x1b[31m\n', b'\xff\xfe', b'%s{}"\\', b'x' * 512, b'-dash')):
        for scope in (b'', b'\xff:' + key[:500]):
            answer = b'%d %d' % (i, len(scope))
            for _ in range(2):
                got = t.run('once', '--scope', scope, '--', key, '--', 'printf', answer)
                assert got == (0, answer, b''), (key, scope, got)
    for bad in (('', ), ('x' * 513, ), ('--scope', 'x' * 513, 'a'), ('--fingerprint', 'x' * 256, 'a')):
        code, out, err = t.run('once', *bad, '--', 'echo', 'ran')
        assert code == 64 and out == b'' and err.startswith(b'dibs: ') and len(err) < 3000, (bad, code, err[:200])


# ---- While another runs it --------------------------------------------------------------------------------------


@test(*ALL)
def running_elsewhere_is_reported_or_waited_for(t):
    runner = t.start('once', '--owner', 'somebody', 'a', '--', 'sh', '-c', 'touch %s; read x; echo said'
                     % t.path('up'), stdin=subprocess.PIPE)
    wait_for(lambda: os.path.exists(t.path('up')), 'the command')
    for more in ((), ('--wait', '0s'), ('--wait', '300ms'), ('--on-crash', 'rerun')):
        start = time.monotonic()
        code, out, err = t.run('once', *more, 'a', '--', 'echo', 'ran')
        assert code == 75 and out == b'', (more, code, out, err)
        assert time.monotonic() - start < 5
        for word in (b"'a'", b'somebody', os.uname().nodename.encode(), b'pid %d' % runner.pid):
            assert word in err, (word, err)
    waiters = [t.start('once', '--wait', '60s', 'a', '--', 'echo', 'ran') for _ in range(3)]
    other = t.start('once', '--wait', '60s', '--fingerprint', 'other', 'a', '--', 'echo', 'ran')
    assert other.wait() == 65, 'no need to wait for that'
    runner.popen.stdin.close()
    assert runner.wait() == 0
    ended = time.monotonic()
    assert [p.wait() for p in waiters] == [0] * 3 and {p.out for p in waiters} == {b'said\n'}
    t.note('three waiters were told within %.0f ms', (time.monotonic() - ended) * 1000)


@test(*SOME)
def interrupt_while_waiting(t):
    begin(t, 'a', lease='30s')
    for number in (signal.SIGINT, signal.SIGTERM):
        waiter = t.start('once', '--wait', '60s', 'a', '--', 'touch', t.path('ran'))
        wait_for(lambda w=waiter: len(os.listdir('/proc/%d/task' % w.pid)) > 1, 'its threads')
        waiter.signal(number)
        start = time.monotonic()
        assert waiter.wait() == 128 + number, waiter.err
        assert time.monotonic() - start < 5
    assert not os.path.exists(t.path('ran'))


@test(*ENGINES)
def renewed_for_longer_than_the_lease(t):
    assert t.run('once', '--lease', '600ms', 'a', '--', 'sh', '-c', 'sleep 2; echo done') == (0, b'done\n', b'')


# ---- Runners that die -------------------------------------------------------------------------------------------


@test(*ALL)
def kill_9_then_refuse_then_rerun(t):
    runner = begin(t, 'a', worker=('child', 'stray'))
    runner.signal(signal.SIGKILL)
    runner.wait()
    code, _, err = t.run('once', '--wait', '20s', 'a', '--', 'touch', t.path('ran'))
    assert code == 79 and b'--on-crash rerun' in err and b'pid %d' % runner.pid in err, (code, err)
    assert t.run('once', 'a', '--', 'touch', t.path('ran'))[0] == 79, 'the answer stays'
    assert not os.path.exists(t.path('ran'))
    again = t.start('once', '--on-crash', 'rerun', 'a', '--', 'sh', '-c', 'echo $DIBS_AGAIN; exec "$@"', 'sh',
                    *t.worker('next', 'seconds=0.2'))
    assert again.wait() == 0 and again.out == b'1\n', (again.out, again.err)
    old, new = t.started_at('old'), t.started_at('next')
    assert int(new[4]) > int(old[4]), 'a higher fence'
    for entry in t.log():
        assert not alive(entry[3]), entry
        assert entry[1] == 'next' or entry[0] < new[0], 'the old command was dead before'
    assert t.run('once', 'a', '--', 'false') == (0, b'1\n', b''), 'done now'


@test(*ALL)
def take_over_that_starts_nothing_leaves_the_crash(t):
    runner = begin(t, 'a')
    runner.signal(signal.SIGKILL)
    runner.wait()
    assert t.run('once', '--wait', '20s', 'a', '--', 'touch', t.path('ran'))[0] == 79
    assert t.run('once', '--on-crash', 'rerun', 'a', '--', '/no/such/command')[0] == 127
    code, _, err = t.run('once', 'a', '--', 'touch', t.path('ran'))
    assert code == 79 and b'pid %d' % runner.pid in err, (code, err)
    assert t.run('once', '--on-crash', 'rerun', 'a', '--', 'sh', '-c', 'exit 5')[0] == 5
    assert t.run('once', 'a', '--', 'touch', t.path('ran'))[0] == 79, 'a rerun that failed settles nothing'
    assert not os.path.exists(t.path('ran'))
    assert t.run('once', '--on-crash', 'rerun', 'a', '--', 'sh', '-c', 'echo $DIBS_AGAIN') == (0, b'1\n', b'')


@test(*ENGINES)
def stopped_on_the_way_means_crashed(t):
    """Every deploy sends TERM, every user Ctrl-C: whoever comes next must not run it again."""
    trapped = 'trap "exit %d" TERM; echo up >%s; while :; do sleep 0.02; done'
    cases = [(number, 'echo up >%s; exec sleep 60', ()) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                                                                       signal.SIGQUIT)]
    cases += [(signal.SIGTERM, trapped.replace('%d', '0'), ('--on-fail', 'keep')),
              (signal.SIGTERM, trapped.replace('%d', '9'), ('--on-fail', 'keep'))]
    for i, (number, script, options) in enumerate(cases):
        key, up = 'k%d' % i, t.path('up%d' % i)
        runner = t.start('once', *options, key, '--', 'sh', '-c', script % up)
        wait_for(lambda f=up: os.path.exists(f), 'the command')
        runner.signal(number)
        assert runner.wait() == (9 if 'exit 9' in script else 128 + number), (number, script, runner.err)
        assert b'unknown' in runner.err, runner.err
        code, out, err = t.run('once', key, '--', 'echo', 'ran')
        assert (code, out) == (79, b''), (number, script, code, out, err)
        assert t.run('once', '--on-crash', 'rerun', key, '--', 'echo', 'ran')[:2] == (0, b'ran\n')


@test(*ENGINES)
def stopped_together_with_its_command_means_crashed(t):
    """As systemd does it: TERM for all. Whatever the runner hears of first, it was told to stop."""
    for code in (0, 9):
        key, up = 'k%d' % code, t.path('up%d' % code)
        runner = t.start('once', '--on-fail', 'keep', key, '--', 'sh', '-c',
                         'trap "exit %d" TERM; echo $$ >%s; while :; do sleep 0.02; done' % (code, up))
        command = int(wait_for(lambda f=up: os.path.exists(f) and read(f), 'the command'))
        guardian, = children(runner.pid)
        runner.signal(signal.SIGSTOP)
        runner.signal(signal.SIGTERM)
        os.kill(command, signal.SIGTERM)
        wait_for(lambda c=command, g=guardian: not alive(c) and not alive(g), 'its end')
        runner.signal(signal.SIGCONT)
        assert runner.wait() == (code or 128 + signal.SIGTERM), runner.err
        assert b'unknown' in runner.err, runner.err
        assert t.run('once', key, '--', 'echo', 'ran')[:2] == (79, b'')


@test(*ENGINES)
def ended_by_a_signal_means_crashed(t):
    for i, (script, code) in enumerate((('kill -KILL $$', 137), ('kill -SEGV $$', 139), ('exit 137', 137),
                                        ('sh -c "kill -TERM \\$\\$"; exit $?', 143))):
        for keep in ((), ('--on-fail', 'keep')):
            key = 'k%d%d' % (i, len(keep))
            assert t.run('once', *keep, key, '--', 'sh', '-c', script)[0] == code, script
            assert t.run('once', key, '--', 'touch', t.path('ran'))[0] == 79, script
    assert not os.path.exists(t.path('ran'))
    assert t.run('once', 'c', '--', 'sh', '-c', 'exit 128')[0] == 128
    assert t.run('once', 'c', '--', 'sh', '-c', 'exit 200')[0] == 200, 'these are failures of its own'
    code, out, _ = t.run('once', '--json', 'd', '--', 'sh', '-c', 'kill -KILL $$')
    assert code == 137 and json.loads(out)['outcome'] == 'crashed' and json.loads(out)['code'] is None, out


@test(*SOME)
def takes_over_when_the_lease_ends(t):
    runner = begin(t, 'a')
    waiter = t.start('once', '--wait', '30s', '--on-crash', 'rerun', 'a', '--', *t.worker('next', 'seconds=0.1'))
    killed = time.monotonic()
    runner.signal(signal.SIGKILL)
    assert waiter.wait(30) == 0, waiter.err
    t.note('taken over %.0f ms after the kill, lease 2 s', (time.monotonic() - killed) * 1000)
    assert t.started_at('next')[0] > t.last_log_time('old')


@test(*ALL)
def stopped_past_its_lease(t):
    """The guardian ends the command; another runs it; the one that wakes up has lost, and what it had is not kept."""
    runner = begin(t, 'a', worker=('ignore-term',))
    runner.signal(signal.SIGSTOP)
    code, out, err = t.run('once', '--wait', '30s', '--on-crash', 'rerun', 'a', '--', 'sh', '-c',
                           'echo $DIBS_FENCE', seconds=40)
    assert code == 0, err
    assert not alive(t.started_at('old')[3]) and int(out) > int(t.started_at('old')[4])
    runner.signal(signal.SIGCONT)
    assert runner.wait() == 76 and b'lost' in runner.err, runner.err
    assert t.run('once', 'a', '--', 'false') == (0, out, b''), 'the later one stands'


def stop_while_the_command_ends(t):
    """A runner that is stopped while its command comes to its end, in time."""
    runner = t.start('once', '--lease', LEASE, 'a', '--', 'sh', '-c', 'echo $$; read x; echo old',
                     stdin=subprocess.PIPE)
    command = int(wait_for(lambda: runner.out, 'the command'))
    guardian, = children(runner.pid)
    runner.signal(signal.SIGSTOP)
    runner.popen.stdin.close()
    wait_for(lambda: not alive(command) and not alive(guardian), 'its end')
    return runner, b'%d\nold\n' % command


@test(*ALL)
def finish_of_a_late_runner_is_refused(t):
    """It slept, another ran, it wakes up and says what its command had said."""
    runner, _ = stop_while_the_command_ends(t)
    later = t.run('once', '--wait', '30s', '--on-crash', 'rerun', 'a', '--', 'echo', 'new', seconds=40)
    assert later == (0, b'new\n', b''), later
    runner.signal(signal.SIGCONT)
    assert runner.wait() == 76 and b'not stored' in runner.err, runner.err
    assert t.run('once', 'a', '--', 'false') == later, 'the later one stands'


@test(*SOME)
def late_finish_counts_while_nobody_has_taken_over(t):
    runner, said = stop_while_the_command_ends(t)
    assert t.run('once', '--wait', '30s', 'a', '--', 'echo', 'ran', seconds=40)[0] == 79, 'its lease is over'
    runner.signal(signal.SIGCONT)
    assert runner.wait() == 0, runner.err
    assert t.run('once', 'a', '--', 'false') == (0, said, b''), 'it was done, and in time'


@test(*ENGINES)
def stopped_past_its_lease_and_nobody_came(t):
    runner = begin(t, 'a')
    runner.signal(signal.SIGSTOP)
    wait_for(lambda: not alive(t.started_at('old')[3]), 'the end of the command', 20)
    runner.signal(signal.SIGCONT)
    assert runner.wait() == 76, runner.err
    assert t.run('once', '--wait', '20s', 'a', '--', 'true')[0] == 79, 'nobody knows how far it came'


@test('redis')
def record_gone_under_a_runner(t):
    runner = t.start('once', 'a', '--', 'sh', '-c', 'touch %s; read x' % t.path('up'), stdin=subprocess.PIPE)
    wait_for(lambda: os.path.exists(t.path('up')), 'the command')
    t.server.ask('FLUSHALL')
    runner.popen.stdin.close()
    assert runner.wait() == 76 and b'lost' in runner.err, runner.err
    assert t.run('once', 'a', '--', 'echo', 'x') == (0, b'x\n', b''), 'its finish made nothing anew'


@test('redis')
def record_gone_ends_the_command(t):
    runner = begin(t, 'a')
    t.server.ask('FLUSHALL')
    assert runner.wait() == 76 and not alive(t.started_at('old')[3])


@test('redis')
def server_gone_while_it_runs(t):
    runner = begin(t, 'a')
    t.server.kill()
    try:
        assert runner.wait(30) == 76, runner.err
        assert not alive(t.started_at('old')[3])
    finally:
        t.server.start()


@test('redis')
def server_back_before_the_lease_is_over(t):
    """The end of the command could not be told at first."""
    runner = t.start('once', '--lease', '20s', 'a', '--', 'sh', '-c', 'touch %s; read x; echo said; exit 3'
                     % t.path('up'), stdin=subprocess.PIPE)
    wait_for(lambda: os.path.exists(t.path('up')), 'the command')
    os.kill(t.server.process.pid, signal.SIGSTOP)
    try:
        runner.popen.stdin.close()
        wait_for(lambda: runner.out == b'said\n', 'its output, which does not wait for the server')
    finally:
        os.kill(t.server.process.pid, signal.SIGCONT)
    assert runner.wait() == 3, runner.err
    assert t.run('once', 'a', '--', 'echo', 'ran') == (0, b'ran\n', b''), 'forgotten, as failures are'


@test(*ENGINES)
def guardian_killed_means_crashed(t):
    runner = begin(t, 'a')
    guardian, = children(runner.pid)
    os.kill(guardian, signal.SIGKILL)
    assert runner.wait() == 79 and b'guardian' in runner.err, runner.err
    assert not alive(t.started_at('old')[3])
    assert t.run('once', 'a', '--', 'true')[0] == 79, 'nobody knows how far it came'


@test('sqlite')
def guardian_killed_about_the_end(t):
    """Whatever the moment: we say what those who ask later are told."""
    for i in range(20):
        runner = t.start('once', 'a%d' % i, '--', 'sh', '-c', 'echo $PPID')
        guardian = int(wait_for(lambda r=runner: r.out, 'the command'))
        try:
            os.kill(guardian, signal.SIGKILL)
        except ProcessLookupError:
            pass
        code = runner.wait()
        assert code in (0, 79), (code, runner.err)
        code_2, out, _ = t.run('once', 'a%d' % i, '--', 'echo', 'again')
        assert (code_2, out) == ((0, b'%d\n' % guardian) if code == 0 else (79, b'')), (code, code_2, out)


@test('sqlite')
def signals_go_to_the_command(t):
    process = t.start('once', 'a', '--', 'bash', '-c', 'trap "echo got; exit 4" USR1; echo ready; '
                      'while :; do sleep 0.02; done')
    wait_for(lambda: process.out == b'ready\n', 'the command')
    process.signal(signal.SIGUSR1)
    assert process.wait() == 4 and process.out == b'ready\ngot\n'
    process = begin(t, 'a')
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    assert t.run('once', 'a', '--', 'echo', 'x')[:2] == (79, b''), 'at once'


# ---- What the command says --------------------------------------------------------------------------------------


@test(*ALL)
def a_mebibyte_is_kept_and_no_more(t):
    """Or what the engine declares."""
    most = t.value_max()
    limit = b'1 MiB' if most == 2 ** 20 else b'%d bytes' % most
    write = 'import sys; n = int(sys.argv[1]); sys.stdout.write(("0123456789abcdef" * (n // 16 + 1))[:n])'
    for size in (most, most + 1):
        first = t.run('once', str(size), '--', PYTHON, '-S', '-c', write, str(size))
        assert first[0] == 0 and len(first[1]) == size and first[2] == b'', 'passed on'
        code, out, err = t.run('once', str(size), '--', 'false')
        if size == most:
            assert (code, out, err) == first
        else:
            assert code == 0 and out == b'' and limit in err and b'too long to be stored' in err, (code, len(out), err)


@test('sqlite')
def both_streams_count_together(t):
    write = 'import sys; sys.stdout.write("o" * 700000); sys.stderr.write("e" * 700000)'
    code, out, err = t.run('once', 'a', '--', PYTHON, '-S', '-c', write)
    assert (code, len(out), len(err)) == (0, 700000, 700000), 'passed on'
    code, out, err = t.run('once', 'a', '--', 'false')
    assert code == 0 and out == b'' and b'too long to be stored' in err


@test('sqlite')
def output_that_looks_like_ours(t):
    for i, text in enumerate((b'\x7fdibs', b'\x7fdibs\x01\x00\x00\xff\xff\xff\xffx', b'\x7fdib')):
        for _ in range(2):
            assert t.run('once', 'a%d' % i, '--', 'printf', ''.join('\\%03o' % b for b in text)) == (0, text, b'')


@test('sqlite')
def live_output(t):
    process = t.start('once', 'a', '--', 'sh', '-c', 'echo out; echo err >&2; read x', stdin=subprocess.PIPE)
    wait_for(lambda: process.out == b'out\n' and process.err == b'err\n', 'what it says while it runs')
    process.popen.stdin.close()
    process.wait()


@test('sqlite')
def slow_reader_holds_up_the_command_alone(t):
    """Nobody reads for longer than the lease: the run goes on, and its end is written down before all is read."""
    process = subprocess.Popen([t.dibs, 'once', '--lease', '600ms', 'a', '--', PYTHON, '-S', '-c',
                                'import sys; sys.stdout.write("x" * 500000)'], stdout=subprocess.PIPE, env=t.env)
    try:
        time.sleep(2.0)  # the point: time passes and nobody reads
        assert process.poll() is None
        assert t.run('once', 'a', '--', 'true')[0] == 75, 'it is still at it'
        got = process.stdout.read(500000 - 150000)  # the rest fits into two pipes and the chunk in between
        code, out, _ = t.run('once', '--wait', '20s', 'a', '--', 'false')
        assert code == 0 and len(out) == 500000, 'written down while the reader takes its time'
        assert len(got) + len(process.stdout.read()) == 500000 and process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


# A command whose pipes are larger than ours were, and who fills them after its reader has fallen asleep.
FILLER = '''
import fcntl, os, sys
os.close(os.open(sys.argv[2], os.O_CREAT, 0o600))
for fd in (1, 2):
    fcntl.fcntl(fd, 1031, 1048576)  # F_SETPIPE_SZ
os.write(1, b'o' * 400000)
os.write(2, b'e' * int(sys.argv[1]))
'''


@test('sqlite')
def all_that_is_in_the_pipe_is_kept(t):
    for size in (300000, 900000):
        key, up = 'k%d' % size, t.path('up%d' % size)
        process = subprocess.Popen([t.dibs, 'once', key, '--', PYTHON, '-S', '-c', FILLER, str(size), up],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=t.env)
        try:  # nobody reads until its end is written down
            wait_for(lambda f=up: os.path.exists(f), 'the command')
            code, out, err = t.run('once', '--wait', '20s', key, '--', 'false')
            if size == 300000:
                assert (code, out, err) == (0, b'o' * 400000, b'e' * size), (code, len(out), len(err))
            else:
                assert code == 0 and out == b'' and b'too long to be stored' in err, (code, len(out), err)
            out, err = process.communicate(timeout=20)
            assert (process.returncode, len(out), len(err)) == (0, 400000, size), (len(out), len(err))
        finally:
            process.kill()
            process.wait()


@test('sqlite')
def reader_gone(t):
    """As without dibs: the command gets SIGPIPE."""
    process = subprocess.Popen([t.dibs, 'once', 'a', '--', 'yes'], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=t.env)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(20) == 128 + signal.SIGPIPE, process.stderr.read()
    assert b'unknown' in process.stderr.read()
    process.stderr.close()
    out, into = os.pipe()
    os.close(out)
    write = 'import fcntl, os; fcntl.fcntl(1, 1031, 1048576); os.write(1, b"x" * 100000)'
    assert subprocess.run([t.dibs, 'once', 'c', '--', PYTHON, '-S', '-c', write], stdout=into, env=t.env,
                          timeout=20).returncode == 0
    os.close(into)
    assert t.run('once', 'c', '--', 'false') == (0, b'x' * 100000, b''), 'all that it could write'
    with open('/dev/full', 'wb') as full:
        done = subprocess.run([t.dibs, 'once', 'b', '--', 'echo', 'x'], stdout=full, stderr=subprocess.PIPE,
                              env=t.env, timeout=20)
    assert done.returncode == 74 and b'cannot write' in done.stderr, done
    assert t.run('once', 'b', '--', 'false') == (0, b'x\n', b''), 'it was done all the same'


@test('sqlite')
def stray_does_not_keep_us(t):
    """What left the group may go on, with our pipe in its hands."""
    script = 'setsid sh -c "echo \\$\\$ >%s; exec sleep 60" & while ! [ -s %s ]; do :; done; echo said' \
             % (t.path('stray'), t.path('stray'))
    assert t.run('once', 'a', '--', 'sh', '-c', script)[:2] == (0, b'said\n')
    pid = int(read(t.path('stray')))
    t.pids.add(pid)
    assert alive(pid)


@test(*ENGINES)
def no_replay_only_skips(t):
    assert t.run('once', '--no-replay', 'a', '--', *speaker(t))[:2] == (0, BYTES)
    assert t.run('once', '--no-replay', 'a', '--', *speaker(t)) == (0, b'', b'')
    code, out, err = t.run('once', 'a', '--', *speaker(t))
    assert code == 0 and out == b'' and b'not stored' in err and b'--no-replay' in err, err
    assert marks(t) == 1
    assert t.run('once', 'b', '--', 'echo', 'x')[0] == 0
    assert t.run('once', '--no-replay', 'b', '--', 'false') == (0, b'', b'')
    assert t.run('once', '--on-fail', 'keep', '--no-replay', 'c', '--', 'sh', '-c', 'exit 6')[0] == 6
    assert t.run('once', '--no-replay', 'c', '--', 'true')[0] == 6, 'the code is the answer all the same'


# ---- JSON and complaints ----------------------------------------------------------------------------------------


@test(*ENGINES)
def as_json(t):
    def ask(*args, code=0):
        got, out, err = t.run('once', '--json', *args)
        assert got == code, (got, err)
        return json.loads(out), err

    first, err = ask('--scope', 's', 'a', '--', 'sh', '-c', 'echo out; echo err >&2')
    assert err in (b'out\nerr\n', b'err\nout\n'), 'seen live'
    fence = first.pop('fence')
    runner = first.pop('runner')
    assert fence > 0 and runner['pid'] > 0 and runner['host'] == os.uname().nodename
    assert first == {'scope': 's', 'key': 'a', 'outcome': 'done', 'code': 0, 'output': 'kept', 'stdout': 'out\n',
                     'stderr': 'err\n'}, first
    again, err = ask('--scope', 's', 'a', '--', 'false')
    assert again.pop('outcome') == 'replayed' and again.pop('fence') is None and err == b''
    assert again.pop('runner')['pid'] == runner['pid'], again
    assert again == {k: v for k, v in first.items() if k != 'outcome'}, again
    assert ask('b', '--', 'sh', '-c', 'exit 3', code=3)[0]['outcome'] == 'failed'
    assert ask('--fingerprint', 'x', '--scope', 's', 'a', '--', 'true', code=65)[0]['outcome'] == 'mismatch'
    document = ask('c', '--', 'printf', '\\377\\0x')[0]
    assert document['stdout'] is None and document['stdout_hex'] == 'ff0078', document
    document = ask('--no-replay', 'd', '--', 'echo', 'x')[0]
    assert document['output'] == 'not kept' and document['stdout'] is None
    runner = begin(t, 'e')
    document = ask('e', '--', 'true', code=75)[0]
    assert document['outcome'] == 'running' and document['code'] is None and document['runner']['pid'] == runner.pid
    runner.signal(signal.SIGKILL)
    assert ask('--wait', '20s', 'e', '--', 'true', code=79)[0]['outcome'] == 'crashed'


@test()
def server_down(t):
    url = 'redis://127.0.0.1:%d' % free_port()
    for args in (('once', 'a', '--', 'true'), ('token', 'issue'), ('token', 'redeem', 'x'), ('counter', 'get', 'a'),
                 ('cell', 'get', 'a')):
        start = time.monotonic()
        code, out, err = t.run(args[0], '--url', url, *args[1:])
        assert code == 69 and out == b'' and err.count(b'\n') == 1, (args, code, err)
        assert time.monotonic() - start < 6


@test('sqlite')
def closed_descriptors(t):
    """Our own files and sockets must not take the place of a stdout that was closed."""
    for script, code in (('once a -- echo x >&-', 74), ('once a -- echo x >&-', 74), ('once b -- echo x 2>&-', 0),
                         ('counter add n 1 >&-', 74), ('ls >&- 2>&-', 74), ('run l -- true <&-', 0)):
        process = Process(['sh', '-c', '%s %s' % (t.dibs, script)], t.folder, env=t.env)
        assert process.wait() == code, (script, process.popen.returncode, process.err)
    assert t.run('once', 'a', '--', 'false')[:2] == (0, b'x\n')
