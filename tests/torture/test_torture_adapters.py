#!/usr/bin/env python3
"""`dibs torture --adapter`, and its checker checked: it reports an adapter that lies and a scheme of the lab that is known to
be broken, and passes dibs itself behind the same protocol with the same faults."""

import argparse
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
import places  # noqa: E402
import tap  # noqa: E402

ADAPTERS = os.path.join(HERE, '..', '..', 'torture', 'adapters')
CHECK = os.path.join(HERE, '..', '..', 'torture', 'check.py')
# Holders are stopped for longer than their lease, again and again, while others wait for the same lock.
STOPS = ('--seconds', '12', '--faults', 'stop', '--fault-seconds', '0.7-1', '--gap', '0.1-0.4', '--locks', '1',
         '--lease', '500ms', '--seed', '7')
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


def check_worked(report):
    """The adapter answered as it should: no request failed, and the locks were taken and given back."""
    assert report['grants'] > 20, report['operations']
    statuses = {s for kind in report['operations'].values() for s in kind}
    assert statuses <= {'OK', 'BUSY', 'LOST'}, report['operations']


def test_liar(redis):
    code, report = torture(redis.url, python_adapter('liar.py'), '--seconds', '9', '--faults', 'none')
    assert code == 1, report
    assert {'exclusion.overlap', 'fences.twice', 'fenced.lost', 'fenced.final'} <= set(report['counts']), report['counts']
    assert report['fenced_losses'] > 0 and report['plain_losses'] > 0, report
    shown = [f for f in report['found'] if f['check'] == 'exclusion.overlap'][0]
    assert [json.loads(e['text'])['ev'] for e in shown['events']] == ['got', 'got', 'held', 'held'], shown


def test_broken_scheme(redis):
    """SET NX PX without renewal: a stopped holder goes on believing while another has the lock."""
    code, report = torture(redis.url, lab_adapter('set-nx-px'), *STOPS)
    check_worked(report)
    assert report['faults']['stop']['count'] >= 2, report['faults']
    assert code == 1 and set(report['counts']) == {'exclusion.overlap'}, report['counts']


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
    redis = places.Redis()
    try:
        return tap.run([
            ('an adapter that lies is reported', test_liar, redis),
            ('a broken scheme of the lab is reported', test_broken_scheme, redis),
            ('dibs passes behind the same protocol', test_dibs_behind_the_same_protocol, redis),
            ('redis-py, with and without asking', test_redis_py, redis),
            ('kazoo, without faults', test_kazoo),
            ('the adapter in shell of the documentation', test_documented_script)])
    finally:
        redis.stop()


if __name__ == '__main__':
    sys.exit(main())
