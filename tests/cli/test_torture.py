"""`dibs torture`: what it records, which faults it makes, what it leaves behind, and that the verdict reaches the user.

Runs are as short as their faults allow. How long calls took and waited is not judged here: the machine may be busy
with other tests."""

import glob
import json
import os
import signal

from harness import HERE, PYTHON, alive, children, free_port, read, test, wait_for

TIMING = {'progress', 'deadlines'}
QUICK = ('--lease', '1s', '--processes', '4', '--gap', '0.1-0.3', '--fault-seconds', '0.5-1')


def environment(t, **more):
    return dict(t.env, TMPDIR=t.folder, **more)


def torture(t, *args, env=None, seconds=120.0):
    """(exit code, the report, stderr) of a run."""
    code, out, err = t.run('torture', '--json', *args, seconds=seconds, env=env or environment(t))
    return code, json.loads(out) if out else None, err.decode()


def events(folder, pattern):
    """All events of these files, with the file's name."""
    for path in sorted(glob.glob(os.path.join(folder, pattern))):
        for line in read(path).rpartition(b'\n')[0].splitlines():
            assert line.startswith(b'{"t":'), line
            yield dict(json.loads(line), file=os.path.basename(path))


def broken(report):
    return {check for check in report['counts'] if check.split('.')[0] not in TIMING}


def left_over(t):
    return glob.glob(t.path('dibs-torture-*'))


def refused(t, *args, says, code=64):
    got, out, err = t.run('torture', *args, env=environment(t))
    assert got == code and out == b'' and says in err.decode(), (args, got, err)
    assert not left_over(t)


# ---- Using it ---------------------------------------------------------------------------------------------------


@test()
def torture_refuses_what_it_cannot_do(t):
    refused(t, '--url', 'memory:', says='torture needs several')
    refused(t, '--url', 'redis://127.0.0.1:%d' % free_port(), says='cannot connect', code=69)
    refused(t, '--faults', 'stop,storm', says="there is no 'storm'")
    refused(t, '--work', 'locks,sleep', says="there is no 'sleep'")
    refused(t, '--work', '', says='the list is empty')
    refused(t, '--fault', 'storm', says='write NAME=COMMAND')
    refused(t, '--fault', 'kill=true', says='is taken')
    refused(t, '--gap', '3-1', says='write LO-HI')
    refused(t, '--fault-seconds', 'x', says='write LO-HI')
    refused(t, 'more', says='takes no operands')
    url = 'sqlite://' + t.path('store.db')
    refused(t, '--url', url, '--seconds', '5', says='too short')
    refused(t, '--url', url, '--faults', 'cut', says='no connections to cut')
    refused(t, '--url', url, '--history', HERE, says='not empty')
    refused(t, '--url', url, '--history', t.path('a/b'), says='cannot make the folder', code=74)


@test('sqlite', 'redis')
def torture_passes_and_records_all(t):
    folder = t.path('history')
    code, report, err = torture(t, '--seconds', '14', '--seed', '11', '--history', folder, *QUICK)
    assert code in (0, 1) and not broken(report), (report, err)
    assert code == bool(report['violations']), report
    meta = json.loads(read(os.path.join(folder, 'meta.json')))
    assert meta['seed'] == 11 and meta['engine'] == t.engine and meta['lease_ms'] == 1000 and len(meta['locks']) == 2, meta
    assert meta['work'] == ['locks', 'once', 'tokens', 'counters'], meta
    assert meta['begin'] < meta['calm'] < meta['end'], meta
    seen = {e['ev'] for e in events(folder, 'worker-*')}
    for kind in ('start', 'opened', 'ask', 'got', 'held', 'release', 'write', 'begin', 'finish', 'issue', 'redeem', 'add', 'end'):
        assert kind in seen, (kind, seen)
    seen = {e['ev'] for e in events(folder, 'resource*')}
    assert {'raise', 'read', 'store', 'effect', 'final', 'final_counter', 'final_key'} <= seen, seen
    assert report['faults'] and report['grants'] > 20 and not left_over(t), report
    t.note('%s: %d operations, %d grants, faults %s', t.engine, report['total_operations'], report['grants'], report['faults'])


@test('sqlite')
def torture_faults_begin_and_end_before_the_calm_part(t):
    folder = t.path('history')
    torture(t, '--seconds', '16', '--history', folder, *QUICK)
    meta = json.loads(read(os.path.join(folder, 'meta.json')))
    begun = {}
    for e in events(folder, 'faults*'):
        if e['ev'] == 'begin':
            begun[e['id']] = e
        elif e['ev'] == 'end':
            begin = begun.pop(e['id'])
            assert begin['fault'] == e['fault'] and begin['worker'] == e['worker'] and begin['t'] < e['t'] <= meta['calm'], e
            if e['fault'] == 'stop':
                assert e['t'] - begin['t'] > meta['lease_ms'] * 10**6, 'stopped for longer than the lease'
                said = [o for o in events(folder, 'worker-%04d*' % e['worker']) if o['t'] > begin['t'] + 5 * 10**8]
                assert all(o['t'] >= e['t'] - 10**7 for o in said), 'a stopped worker does nothing'
    assert not begun and meta['end'] - meta['calm'] >= 6 * 10**9, (begun, meta)


@test('sqlite')
def torture_keeps_the_history_without_a_checker(t):
    code, report, err = torture(t, '--seconds', '7', '--faults', 'none', env=environment(t, DIBS_TORTURE_CHECK=t.path('none')))
    assert code == 2 and report is None and 'no checker at' in err, (code, err)
    assert len(left_over(t)) == 1 and left_over(t)[0] in err and os.path.exists(left_over(t)[0] + '/meta.json'), err


# ---- Faults -----------------------------------------------------------------------------------------------------


def fault_of(t, body='true'):
    """A declared fault that logs what it was asked to do."""
    path = t.path('fault.sh')
    with open(path, 'w') as f:
        f.write('#!/bin/sh\necho "$1" >>%s\necho said\n%s\n' % (t.path('asked'), body))
    os.chmod(path, 0o755)
    return 'storm=' + path


def asked(t):
    return read(t.path('asked')).decode().split()


@test('sqlite')
def torture_runs_declared_faults(t):
    folder = t.path('history')
    code, report, err = torture(t, '--seconds', '14', '--history', folder, '--fault', fault_of(t), '--faults', 'storm', *QUICK)
    assert code in (0, 1) and not broken(report) and 'said' in err, (report, err)
    assert len(asked(t)) >= 4 and asked(t).count('begin') == asked(t).count('end') == report['faults']['storm']['count'], asked(t)
    noted = [e for e in events(folder, 'faults*') if e.get('fault') == 'storm']
    assert all(e['failed'] is False and e['worker'] is None for e in noted) and len(noted) == len(asked(t)), noted


@test('sqlite')
def torture_ends_when_a_declared_fault_fails(t):
    folder = t.path('history')
    code, report, err = torture(t, '--seconds', '14', '--history', folder, '--fault', fault_of(t, 'exit 3'), '--faults', 'storm', *QUICK)
    assert code == 71 and report is None and "fault 'storm' failed" in err and 'exit code 3' in err, (code, err)
    assert any(e['failed'] for e in events(folder, 'faults*') if e.get('fault') == 'storm')


@test('redis')
def torture_cuts_connections(t):
    """What a worker's TCP connections notice, and nothing else of it: seen by an adapter that has one."""
    script = t.path('adapter.py')
    with open(script, 'w') as f:
        f.write('''import os, socket, sys, threading
def watch():
    s = socket.create_connection(('127.0.0.1', %d))
    s.recv(1)
    open(%r, 'a').write('%%d\\n' %% os.getpid())
threading.Thread(target=watch, daemon=True).start()
print('dibs-adapter 1 nothing 1', flush=True)
for line in sys.stdin:
    word = line.split()[0]
    if word == 'quit':
        break
    print({'lock': 'busy', 'held': 'no', 'unlock': 'lost'}[word], flush=True)
''' % (t.server.port, t.path('cut')))
    process = t.start('torture', '--faults', 'cut', '--seconds', '12', '--adapter', '%s -S %s' % (PYTHON, script), *QUICK,
                      env=environment(t, DIBS_TORTURE_CHECK='/dev/null'))
    wait_for(lambda: read(t.path('cut')), 'a cut connection', 60)
    assert alive(int(read(t.path('cut')).split()[0])), 'it lives on'
    process.signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM


@test('sqlite')
def torture_breaks_locks(t):
    folder = t.path('history')
    code, report, err = torture(t, '--seconds', '16', '--faults', 'break', '--locks', '1', '--work', 'locks', '--history', folder, *QUICK)
    assert code in (0, 1) and not broken(report), (report, err)
    assert report['losses'].get('BROKEN', 0) > 0, report


# ---- Ends -------------------------------------------------------------------------------------------------------


def workers_of(t, process):
    return wait_for(lambda: (lambda c: c if len(c) >= 4 else None)(children(process.pid)), 'workers')


@test('sqlite')
def torture_ends_in_order_on_ctrl_c(t):
    process = t.start('torture', '--seconds', '60', '--fault', fault_of(t), '--faults', 'storm', '--lease', '1s',
                      '--processes', '4', '--fault-seconds', '20', '--gap', '0', env=environment(t))
    pids = workers_of(t, process)
    wait_for(lambda: 'begin' in asked(t), 'a declared fault', 60)
    process.signal(signal.SIGINT)
    assert process.wait(40) == 128 + signal.SIGINT, process.err
    assert b'interrupted' in process.err and asked(t).count('end') == asked(t).count('begin'), (process.err, asked(t))
    assert not any(map(alive, pids)) and not left_over(t), pids


@test()
def torture_leaves_no_process_when_it_is_killed(t):
    """Neither workers nor adapters: here they would wait for each other for half a minute."""
    folder = t.path('history')
    process = t.start('torture', '--seconds', '60', '--faults', 'none', '--processes', '4', '--history', folder, '--adapter',
                      'echo dibs-adapter 1 mute 1; exec sleep 60', env=environment(t))
    workers = workers_of(t, process)
    wait_for(lambda: [e['ev'] for e in events(folder, 'worker-*')].count('ask') == 4, 'questions')
    adapters = wait_for(lambda: (lambda all: all if len(all) == 4 else None)([a for w in workers for a in children(w)]), 'adapters')
    process.signal(signal.SIGKILL)
    process.wait(10)
    wait_for(lambda: not any(map(alive, workers + adapters)), 'the end of all', 5)


# ---- Adapters ---------------------------------------------------------------------------------------------------


ADAPTER = '''import fcntl, os, sys, time
print('dibs-adapter 1 flock 1', flush=True)
held = {}
for line in sys.stdin:
    word, *more = line.split()
    answer = {'held': 'yes', 'lock': 'busy', 'unlock': 'released'}.get(word)
    if word == 'quit':
        break
    if word == 'unlock':
        held.pop(more[0]).close()
    until = time.monotonic() + int(more[1]) / 1000 if word == 'lock' else 0
    f = open(os.environ['DIBS_TORTURE_URL'][5:] + more[0].replace(':', '-'), 'a') if word == 'lock' else None
    while word == 'lock' and answer == 'busy' and time.monotonic() < until + 0.01:
        try:
            if HONEST:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held[more[0]] = f
            answer = 'granted -'
        except OSError:
            time.sleep(0.01)
    print(answer, flush=True)
'''


def adapter(t, honest, *args):
    path = t.path('adapter-%s.py' % honest)
    with open(path, 'w') as f:
        f.write('HONEST = %r\n%s' % (honest, ADAPTER))
    return torture(t, '--url', 'file:' + t.path('lock-'), '--adapter', '%s -S %s' % (PYTHON, path), '--seconds', '12', *QUICK, *args)


@test()
def torture_of_an_honest_lock_passes(t):
    """flock(2) has no lease: a stopped holder keeps it, and a dead one does not."""
    code, report, err = adapter(t, True)
    assert code in (0, 1) and not broken(report) and report['grants'] > 5, (report, err)
    assert report['adapter'] and report['engine'] == 'file' and set(report['operations']) == {'lock', 'release'}, report


@test()
def torture_of_a_lock_that_is_none_fails(t):
    code, report, err = adapter(t, False, '--faults', 'none', '--locks', '1')
    assert code == 1 and 'exclusion.overlap' in broken(report), (code, report, err)
    assert len(left_over(t)) == 1 and left_over(t)[0] in err, err


@test()
def torture_of_an_adapter_that_does_not_start(t):
    code, report, err = torture(t, '--adapter', 'exit 1', '--seconds', '7', '--faults', 'none', '--lease', '1s')
    assert code == 69 and report is None and 'no worker could reach' in err and not left_over(t), (code, err)
