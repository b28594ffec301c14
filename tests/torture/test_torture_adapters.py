#!/usr/bin/env python3
"""`dibs torture --adapter`, and its checker checked: it reports an adapter that lies and the schemes of the lab that are known
to be broken, and passes dibs itself behind the same protocol with the same faults."""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
sys.dont_write_bytecode = True
import databases  # noqa: E402
import ensembles  # noqa: E402
import scratch_stores  # noqa: E402
import tap  # noqa: E402

ADAPTERS = os.path.join(HERE, '..', '..', 'torture', 'adapters')
CHECK = os.path.join(HERE, '..', '..', 'torture', 'check.py')
# Holders are stopped for longer than their lease, again and again, while others wait for the same lock.
OFTEN = ('--seconds', '12', '--fault-seconds', '0.7-1', '--gap', '0.1-0.4', '--locks', '1', '--lease', '500ms', '--seed', '7')
STOPS = (*OFTEN, '--faults', 'stop')
KILLS = (*OFTEN, '--faults', 'kill')
# Of the lab: the scheme, the faults, and the only rule that it breaks under them.
BROKEN = [
    ('set-nx-px', 'stop', 'exclusion.overlap'),  # no renewal: a stopped holder goes on believing while another has the lock
    ('lua-eval', 'stop', 'exclusion.overlap'),   # the same: giving back safely does not make holding safe
    ('redisson', 'stop', 'exclusion.overlap'),   # our model: the watchdog is stopped with its holder
    ('setnx-sleep', 'kill', 'progress.lock'),    # no lease: what a dead holder had is never free again
]
dibs = None


def torture(url, adapter, *args):
    """(exit code, report): `dibs torture` run as a user would, its history kept until the end."""
    folder = tempfile.mkdtemp(prefix='dibs-torture-')
    try:
        done = subprocess.run([dibs, 'torture', '--url', url, '--adapter', adapter, '--json', '--history', folder, *args],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=150,
                              env=dict(os.environ, DIBS_TORTURE_CHECK=CHECK))
        assert done.stdout, (done.returncode, done.stderr)
        report = json.loads(done.stdout)
        assert report['verdict'] in ('pass', 'fail'), (report, done.stderr)
        with open(os.path.join(folder, 'meta.json')) as f:
            assert json.load(f)['adapter'] == adapter
        return done.returncode, report
    finally:
        shutil.rmtree(folder)


def python_adapter(name, *args):
    return ' '.join(["'%s'" % sys.executable, "'%s'" % os.path.join(ADAPTERS, name), *args])


def lab_adapter(scheme):
    return "'%s' lab adapter %s" % (dibs, scheme)


def check_worked(report, lost='LOST'):
    """The adapter answered as it should: no request failed, and the locks were taken and given back. `lost`: its answer
    when it gives back what it has lost."""
    assert report['grants'] > 20, report['operations']
    statuses = {s for kind in report['operations'].values() for s in kind} - {lost}
    assert statuses <= {'OK', 'BUSY', 'LOST'}, report['operations']


def test_liar(redis):
    code, report = torture(redis.url, python_adapter('liar.py'), '--seconds', '9', '--faults', 'none')
    assert code == 1, report
    assert {'exclusion.overlap', 'fences.twice', 'fenced.lost', 'fenced.final'} <= set(report['counts']), report['counts']
    assert report['fenced_losses'] > 0 and report['plain_losses'] > 0, report
    shown = [f for f in report['found'] if f['check'] == 'exclusion.overlap'][0]
    assert [json.loads(e['text'])['ev'] for e in shown['events']] == ['got', 'got', 'held', 'held'], shown


def run_scheme(redis, scheme, fault):
    return torture(redis.url, lab_adapter(scheme), *(STOPS if fault == 'stop' else KILLS))


def test_broken_schemes():
    """All at once: they mostly wait. Each has a server of its own, because they would take each other's locks."""
    servers = []
    try:
        for _ in BROKEN:  # in this thread: they end with the thread that started them
            servers.append(scratch_stores.Redis())
        with concurrent.futures.ThreadPoolExecutor(len(BROKEN)) as pool:
            runs = [pool.submit(run_scheme, server, scheme, fault) for server, (scheme, fault, _) in zip(servers, BROKEN)]
        for (scheme, fault, rule), run in zip(BROKEN, runs):
            code, report = run.result()
            print('# %s: %s' % (scheme, report['counts']))
            check_worked(report, 'UNAVAILABLE' if scheme == 'redisson' else 'LOST')  # its unlock fails then
            assert report['faults'][fault]['count'] >= 1, (scheme, report['faults'])
            # That calls took long may be the machine's.
            assert code == 1 and {c for c in report['counts'] if not c.startswith('deadlines.')} == {rule}, (scheme, report['counts'])
    finally:
        for server in servers:
            server.stop()


def test_dibs_behind_the_same_protocol(redis):
    code, report = torture(redis.url, lab_adapter('dibs-redis'), *STOPS)
    assert report['grants'] > 20, report['operations']  # a wait of 50 ms may end without an answer on a busy machine
    assert report['faults']['stop']['count'] >= 2, report['faults']
    assert code == 0 and report['counts'] == {}, report['found']
    assert report['fenced_writes'] > 20 and report['fenced_losses'] == 0, report


def test_documented_script():
    """The adapter in shell of docs/torture.md speaks the protocol."""
    with open(os.path.join(HERE, '..', '..', 'docs', 'torture.md'), encoding='utf-8') as f:
        page = f.read()
    script = page[page.index('    #!/bin/sh\n    echo dibs-adapter'):]
    script = script[:script.index('    done\n') + 9].replace('\n    ', '\n').strip()
    done = subprocess.run(['sh', '-c', script], input='lock a 0 500\nheld a\nunlock a\nquit\n', stdout=subprocess.PIPE,
                          universal_newlines=True, timeout=30)
    assert done.returncode == 0, done
    assert done.stdout == 'dibs-adapter 1 yes-man 1\ngranted 7\nyes\nreleased\n', done.stdout


def need(module):
    if subprocess.run([sys.executable, '-c', 'import ' + module], stderr=subprocess.DEVNULL).returncode:
        raise databases.Missing('python3-%s is not installed for %s' % (module, sys.executable))


def test_redis_py(redis):
    """Its lock is not renewed: a program that asks nothing believes on after a stop. Its owned() asks the server."""
    need('redis')
    code, report = torture(redis.url, python_adapter('redis_py.py', '--unasked'), *STOPS)
    check_worked(report)
    assert code == 1 and set(report['counts']) == {'exclusion.overlap'}, report['counts']
    code, report = torture(redis.url, python_adapter('redis_py.py'), '--seconds', '9', '--faults', 'none')
    check_worked(report)
    assert code == 0, report['found']


def test_kazoo():
    need('kazoo')
    server = ensembles.Zookeeper(1, ensembles.Zookeeper.quick)
    try:
        _, report = torture(server.url(''), python_adapter('kazoo_lock.py'), '--seconds', '9', '--faults', 'none')
        check_worked(report)
        assert report['counts'] == {}, report['found']
    finally:
        server.stop()


def main():
    global dibs
    parser = argparse.ArgumentParser()
    parser.add_argument('--dibs', required=True)
    dibs = os.path.abspath(parser.parse_args().dibs)
    tap.end_on_sigterm()
    redis = scratch_stores.Redis()
    try:
        return tap.run([
            ('an adapter that lies is reported', test_liar, redis),
            ('each broken scheme of the lab is reported', test_broken_schemes),
            ('dibs passes behind the same protocol', test_dibs_behind_the_same_protocol, redis),
            ('redis-py, with and without asking', test_redis_py, redis),
            ('kazoo, without faults', test_kazoo),
            ('the adapter in shell of the documentation', test_documented_script)])
    finally:
        redis.stop()


if __name__ == '__main__':
    sys.exit(main())
