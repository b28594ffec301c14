"""What a command gets, what it gives back, and who may hold together."""

import os
import signal
import subprocess
import sys
import time

from harness import DATABASES, ENGINES, ENSEMBLES, Process, alive, read, test, wait_for

HOLD = ('sh', '-c', 'echo held; exec sleep 60')


def hold(t, *args):
    """A holder that surely holds."""
    holder = t.start('run', *args, '--', *HOLD)
    wait_for(lambda: holder.out == b'held\n', 'the holder')
    return holder


@test(*ENGINES)
def exit_codes_of_the_command(t):
    assert t.run('run', 'a', '--', 'true')[0] == 0
    assert t.run('run', 'a', '--', 'sh', '-c', 'exit 7')[0] == 7
    assert t.run('run', 'a', '--', 'sh', '-c', 'kill -9 $$')[0] == 137
    assert t.run('run', 'a', '--', 'sh', '-c', 'kill -TERM $$')[0] == 143
    code, _, err = t.run('run', 'a', '--', '/no/such/command')
    assert code == 127 and b"cannot run '/no/such/command'" in err, (code, err)
    assert t.run('run', 'a', '--', 'no-such-command-anywhere')[0] == 127
    code, _, err = t.run('run', 'a', '--', t.folder)
    assert code == 126 and b'cannot run' in err, (code, err)
    assert t.lock('a')['holders'] == [], 'given back every time'


@test(*ENGINES)
def environment_of_the_command(t):
    script = 'printf "%s|%s|%s" "$DIBS_NAME" "$DIBS_FENCE" "$DIBS_OWNER"'
    env = dict(t.env, DIBS_FENCE='7', DIBS_NAME='x', DIBS_OWNER='y')
    code, out, _ = t.run('run', 'a', '--', 'sh', '-c', script, env=env)
    name, fence, owner = out.decode().split('|')
    assert code == 0 and name == 'a' and fence.isdigit() and int(fence) > 7 and owner not in ('', 'y'), out
    _, out, _ = t.run('run', '--owner', 'me', 'a', '--', 'sh', '-c', script)
    assert int(out.decode().split('|')[1]) > int(fence) and out.endswith(b'|me'), out
    _, out, _ = t.run('run', 'b', 'a', '--', 'sh', '-c', script)
    names, fences, _ = out.decode().split('|')
    assert names == 'b\na' and len(fences.split(' ')) == 2, out
    assert int(fences.split(' ')[1]) > int(fence), 'in the order of the names'


@test(*ENGINES)
def stdin_goes_to_the_command(t):
    done = subprocess.run([t.dibs, 'run', 'a', '--', 'cat'], input=b'hello\n' * 1000, env=t.env,
                          stdout=subprocess.PIPE, timeout=20)
    assert done.stdout == b'hello\n' * 1000


@test(*ENGINES)
def own_group_and_inherited_mask(t):
    code, out, _ = t.run('run', 'a', '--', 'sh', '-c', 'cat /proc/self/status; ps -o pid=,pgid= -p $$; echo $$')
    text = out.decode()
    blocked = [line.split()[1] for line in text.splitlines() if line.startswith('SigBlk')][0]
    pid, group = text.splitlines()[-2].split()
    assert code == 0 and int(blocked, 16) == 0, blocked
    assert pid == group == text.splitlines()[-1]


@test(*ENGINES, 'redlock', *DATABASES, *ENSEMBLES)
def nothing_of_the_engine_reaches_the_command(t):
    """Neither its descriptors nor what a client library does to signals."""
    look = 'import os; print(sorted(os.path.realpath("/proc/self/fd/" + f) for f in os.listdir("/proc/self/fd") ' \
           'if int(f) > 2 and os.path.exists("/proc/self/fd/" + f)))'
    script = '%s -c \'%s\'; grep -E "Sig(Blk|Ign)" /proc/self/status' % (sys.executable, look)
    code, out, _ = t.run('run', 'a', '--', 'sh', '-c', script)
    fds, *signals = out.decode().splitlines()
    assert code == 0 and fds == '[]', fds
    assert [int(line.split()[1], 16) for line in signals] == [0, 0], signals


@test('sqlite')
def descriptors_that_dibs_was_given_reach_the_command(t):
    ends = os.pipe()
    done = subprocess.run([t.dibs, 'run', 'a', '--', 'sh', '-c', 'echo given >&%d' % ends[1]], env=t.env,
                          pass_fds=(ends[1],), timeout=20)
    os.close(ends[1])
    with os.fdopen(ends[0]) as f:
        assert done.returncode == 0 and f.read() == 'given\n'


@test('sqlite')
def signals_are_passed_on(t):
    script = 'for s in HUP INT QUIT TERM USR1 USR2; do trap "echo $s" $s; done; echo ready; ' \
             'while :; do sleep 0.02; done'
    process = t.start('run', 'a', '--', 'bash', '-c', script, preexec_fn=os.setpgrp)  # a job that can be stopped
    wait_for(lambda: b'ready' in process.out, 'the command')
    for name in ('HUP', 'INT', 'QUIT', 'TERM', 'USR1', 'USR2'):
        process.signal(getattr(signal, 'SIG' + name))
        wait_for(lambda n=name: n.encode() + b'\n' in process.out, name)
    assert process.popen.poll() is None
    process.signal(signal.SIGTSTP)
    wait_for(lambda: open('/proc/%d/stat' % process.pid).read().rsplit(')', 1)[1].split()[0] == 'T',
             'the stop of the job')
    process.signal(signal.SIGCONT)
    process.signal(signal.SIGUSR1)
    wait_for(lambda: process.out.count(b'USR1\n') == 2, 'the job after SIGCONT')


@test('sqlite')
def term_ends_the_command_and_gives_back(t):
    holder = hold(t, 'a')
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 143
    assert t.held_by('a') == []


@test('sqlite')
def ignored_signals_stay_ignored(t):
    """As under nohup."""
    process = Process([t.dibs, 'run', 'a', '--', *HOLD], t.folder, env=t.env,
                      preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    t.started.append(process)
    wait_for(lambda: process.out == b'held\n', 'the holder')
    process.signal(signal.SIGHUP)
    process.signal(signal.SIGUSR1)
    assert process.wait() == 128 + signal.SIGUSR1


@test(*ENGINES, *DATABASES)
def not_obtained_names_the_holder(t):
    holder = hold(t, '--owner', 'somebody', 'a')
    for args in (('--no-wait',), ('--wait', '200ms'), ('--wait', '0s')):
        start = time.monotonic()
        code, out, err = t.run('run', *args, 'a', '--', 'echo', 'ran')
        text = err.decode()
        assert code == 75 and out == b'', (code, text)
        assert time.monotonic() - start < 15
        for word in ("'a'", 'somebody', os.uname().nodename, 'pid %d' % holder.pid, time.strftime('%Y-')):
            assert word in text, (word, text)
    assert t.run('run', '--no-wait', '-E', '9', 'a', '--', 'true')[0] == 9
    assert t.run('run', '--no-wait', '-E0', 'a', '--', 'true')[0] == 0
    assert t.lock('a')['waiter_count'] == 0


@test(*ENGINES, *DATABASES)
def interrupt_in_the_queue(t):
    hold(t, 'a')
    for number in (signal.SIGINT, signal.SIGTERM):
        waiter = t.start('run', 'a', '--', 'touch', t.path('ran'))
        t.wait_queued('a')
        start = time.monotonic()
        waiter.signal(number)
        assert waiter.wait() == 128 + number
        assert time.monotonic() - start < 10
        assert t.lock('a')['waiter_count'] == 0, 'its place is given up'
    assert not os.path.exists(t.path('ran'))


@test('redis')
def interrupt_while_opening(t):
    import socket
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(8)
        process = t.start('run', '--url', 'redis://127.0.0.1:%d' % s.getsockname()[1], 'a', '--', 'true')
        s.settimeout(5)
        with s.accept()[0]:  # it is open, and says nothing
            process.signal(signal.SIGINT)
            assert process.wait(4) == 130, 'it waited for the 5 s of opening'


@test('sqlite')
def many_make_the_store_at_once(t):
    for i in range(12):
        url = 'sqlite://%s/new-%d.db' % (t.folder, i)
        crowd = [t.start('run', '--url', url, 'a', '--', 'true') for _ in range(6)]
        assert [p.wait(30) for p in crowd] == [0] * 6, [p.err for p in crowd]


@test(*ENGINES, *DATABASES)
def names_of_any_bytes(t):
    for name in (b'with space', b'tab\tnew\nline', b'\x01\x7f\x1b[31m', b'\xff\xfe', 'späße 鎖'.encode(), b'%s{}"\\',
                 b'x' * 512, b'-dash', b'--'):
        code, out, err = t.run('run', '--', name, '--', 'sh', '-c', 'printf %s "$DIBS_NAME"')
        assert (code, out) == (0, name), (name, code, err)
    for bad in (b'', b'x' * 513, b'x' * 100000):
        code, out, err = t.run('run', bad, '--', 'echo', 'ran')
        assert code == 64 and out == b'' and err.startswith(b'dibs: ') and len(err) < 3000, (len(bad), code, err[:200])
    try:
        subprocess.run([t.dibs, 'run', 'x' * 10_000_000, '--', 'true'])
        raise AssertionError('ten megabytes went through')
    except OSError:
        pass  # the kernel refuses such an argument before dibs sees it


@test(*ENGINES)
def shared_and_exclusive(t):
    hold(t, '--shared', 'a')
    hold(t, '--shared', 'a')
    assert len(t.held_by('a')) == 2
    assert t.run('run', '--no-wait', 'a', '--', 'true')[0] == 75
    assert t.run('run', '--no-wait', '--shared', 'a', '--', 'true')[0] == 0


@test(*ENGINES)
def slots_and_weights(t):
    hold(t, '--slots', '3', 'pool')
    assert t.run('run', '--no-wait', '--slots', '3', '--weight', '2', 'pool', '--', 'true')[0] == 0
    assert t.run('run', '--no-wait', '--slots', '3', '--weight', '3', 'pool', '--', 'true')[0] == 75
    hold(t, '--slots', '3', '--weight', '2', 'pool')
    assert t.run('run', '--no-wait', '--slots', '3', 'pool', '--', 'true')[0] == 75
    code, _, err = t.run('run', '--no-wait', '--slots', '4', 'pool', '--', 'true')
    assert code == 65 and b'3' in err, (code, err)


@test(*ENGINES)
def min_hold_keeps_it_taken(t):
    start = time.monotonic()
    assert t.run('run', '--min-hold', '4s', 'a', '--', 'true')[0] == 0
    assert time.monotonic() - start < 3.9, 'dibs itself does not wait'
    code, _, err = t.run('run', '--no-wait', 'a', '--', 'true')
    assert code == 75 and b'min-hold' in err, (code, err)
    assert t.run('run', '--wait', '30s', 'a', '--', 'true')[0] == 0
    assert time.monotonic() - start >= 3.95


def end_by_max_hold(t, hold, *options, worker=()):
    """Ended at the end of the time, not long before, and gone when it is over. A shell starts sooner than Python."""
    begin = ('sh', '-c', 'read up idle < /proc/uptime; echo "$up" > "$0"; exec "$@"', t.path('begun'))
    code, _, err = t.run('run', '--max-hold', '%ds' % hold, *options, 'a', '--', *begin, *t.worker('held', *worker))
    lived = t.last_log_time('held') - float(read(t.path('begun')))
    t.note('--max-hold %ds: the command lived for %.3f s', hold, lived)
    assert code == 76 and b'--max-hold' in err, (code, err)
    assert 0.8 * hold < lived < hold + 0.5, lived  # it is gone by then, on a machine that has time for it
    assert t.held_by('a') == [], 'given back at once'


@test(*ENGINES, 'redlock', *DATABASES, *ENSEMBLES)
def max_hold_ends_the_command(t):
    end_by_max_hold(t, 1)


@test(*ENGINES)
def max_hold_is_longer_than_the_lease(t):
    end_by_max_hold(t, 3, '--lease', '1500ms', worker=('ignore-term', 'child'))


@test(*ENGINES)
def several_names_in_opposite_order(t):
    """Two loops that want the same two locks, each in its own order."""
    script = 'for i in 1 2 3 4 5 6 7 8 9 10; do %s run %s -- true || exit 1; done'
    one = Process(['sh', '-c', script % (t.dibs, 'a b c')], t.folder, env=t.env)
    two = Process(['sh', '-c', script % (t.dibs, 'c b a')], t.folder, env=t.env)
    t.started += [one, two]
    assert one.wait(30) == 0 and two.wait(30) == 0
    hold(t, 'b')
    code, _, err = t.run('run', '--no-wait', 'a', 'b', '--', 'true')
    assert code == 75 and b"'b'" in err and b"'a'" not in err, err
    assert t.held_by('a') == [], 'all or nothing'
    assert t.run('run', '--no-wait', 'a', 'a', '--', 'true')[0] == 0


@test('sqlite')
def leftovers_of_the_group_keep_the_lock(t):
    start = time.monotonic()
    code, _, _ = t.run('run', 'a', '--', 'sh', '-c', 'sleep 0.7 & exit 3')
    assert code == 3 and time.monotonic() - start >= 0.7
    stray = t.path('stray')
    code, _, _ = t.run('run', 'a', '--', 'sh', '-c',
                       'setsid sh -c "echo \\$\\$ >%s.new; mv %s.new %s; exec sleep 60" & '
                       'while ! [ -e %s ]; do :; done; exit 4' % (stray, stray, stray, stray))
    pid = int(read(stray))
    t.pids.add(pid)
    assert code == 4 and alive(pid), 'what left the group may go on'


@test('sqlite')
def ignored_child_signal_does_no_harm(t):
    """A parent that ignores SIGCHLD hands that down."""
    process = Process([t.dibs, 'run', 'a', '--', 'sh', '-c', 'exit 5'], t.folder, env=t.env,
                      preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert process.wait() == 5


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def nested_runs_of_one_lock(t):
    """What would wait for ever for the run around it is refused at once; what would not is run."""

    def nested(outer, inner, code, text=b''):
        start = time.monotonic()
        got = t.run('run', *outer, '--', t.dibs, 'run', *inner, '--', 'echo', 'in')
        assert got[0] == code and got[1] == (b'in\n' if code == 0 else b'') and text in got[2], (outer, inner, got)
        assert time.monotonic() - start < 15

    held = b'that this command runs under, so waiting for it would never end'
    nested(['a'], ['a'], 64, held)
    nested(['a'], ['--shared', 'a'], 64, held)
    nested(['a'], ['--no-wait', 'a'], 75, b'held by')
    nested(['x y%', 'b'], ['c', 'x y%'], 64, b"'x y%' is held by the dibs run")
    nested(['a'], ['aa'], 0)
    nested(['aa'], ['a'], 0)
    nested(['--shared', 's'], ['--shared', 's'], 0)
    nested(['--shared', 's'], ['s'], 64, held)
    nested(['--slots', '2', 'n'], ['--slots', '2', 'n'], 0)
    nested(['--slots', '2', 'n'], ['--slots', '2', '--weight', '2', 'n'], 64, held)
    nested(['--slots', '3', '--weight', '2', 'm'], ['--slots', '3', '--weight', '2', 'm'], 64, held)
    nested(['a'], ['--url', 'sqlite://' + t.path('other.db'), 'a'], 0)
    deep = [t.dibs, 'run', 'b', '--', t.dibs, 'once', 'k', '--', 'sh', '-c', '"$0" run a -- echo in', t.dibs]
    assert t.run('run', 'a', '--', *deep)[:2] == (64, b''), 'over other runs'
    assert t.run('run', '--owner', 'o', 'a', '--', t.dibs, 'run', '--owner', 'o', 'a', '--', 'true')[0] == 64
    assert t.run('run', 'a', '--', 'sh', '-c', 'exec 1>&2; env -u DIBS_HELD "$0" run --wait 200ms a -- true', t.dibs)[0] == 75
