"""The lab: what it lists, what it finds, what it leaves behind, and its shop. Small runs: that a scheme's figures
are right is seen in the full report."""

import concurrent.futures
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import xml.dom.minidom

from harness import DATABASES, ENGINES, HERE, PYTHON, Skip, alive, free_port, test, wait_for

SMALL = ('--threads', '8', '--loops', '25', '--stock', '150')
# The lab's names of what the other tests call by the URL's scheme.
NAMES = {'sqlite': 'sqlite', 'redis': 'redis', 'postgresql': 'postgresql', 'mysql': 'mariadb'}
PLAN = os.path.join(HERE, '..', '..', 'examples', 'lab', 'shop.jmx')


def need_lab(t):
    code, _, err = t.run('lab', 'list')
    if code == 64 and b'unknown command' in err:
        raise Skip('this build has no lab: a client library is missing')


def lab(t, *args, code=0, seconds=120.0):
    """What `dibs lab ARGS --json` says, on the engine of the test."""
    need_lab(t)
    where = ('--' + t.engine, t.url) if t.engine else ()
    got, out, err = t.run('lab', *args, '--json', *where, seconds=seconds)
    assert got == code, (got, err, out[-2000:])
    return json.loads(out)


def refused(t, *args, says):
    got, out, err = t.run('lab', *args)
    assert got == 64 and out == b'' and says in err.decode(), (args, got, err)


# ---- What there is ----------------------------------------------------------------------------------------------


@test()
def lab_list_is_one_strategy_a_line(t):
    need_lab(t)
    code, out, err = t.run('lab', 'list')
    lines = out.decode().splitlines()
    assert code == 0 and err == b''
    for line in lines:
        assert re.fullmatch(r'[A-Z][0-9]*[a-z]? +[a-z0-9-]+ +\S.*', line), line
    listed = lab(t, 'list')
    strategies = listed['strategies']
    assert [line.split()[:2] for line in lines] == [[s['id'], s['name']] for s in strategies]
    names = [s['name'] for s in strategies]
    assert len(set(names)) == len(names), 'a name means one thing'
    rows = {s['id'] for s in strategies}
    assert rows >= {'D%d' % i for i in range(9)} | {'R%d' % i for i in range(1, 11)} | {'P'}, rows
    shown = {e['id'] for e in listed['experiments']}
    assert shown >= {'F0', 'F3', 'F4', 'R11', 'R12', 'C1'} | {'F3' + c for c in 'abcde'} | {'R12' + c for c in 'bcd'}
    names += [e['name'] for e in listed['experiments']]
    assert len(set(names)) == len(names), 'a name means one thing'


@test()
def lab_help_fits_a_screen(t):
    need_lab(t)
    code, out, err = t.run('lab', '--help')
    lines = out.decode().splitlines()
    assert code == 0 and err == b'' and len(lines) <= 24 and max(map(len, lines)) <= 80, (len(lines), out)


@test()
def lab_wrong_arguments(t):
    need_lab(t)
    refused(t, says='list, run, hazards, report, shop or adapter')
    refused(t, 'frobnicate', says="unknown subcommand 'frobnicate'")
    for verb in ('run', 'hazards', 'report'):
        refused(t, verb, 'no-such-scheme', says="unknown strategy 'no-such-scheme'")
        refused(t, verb, '--frobnicate', says="unknown option '--frobnicate'")
    refused(t, 'list', 'D0', says='takes no operands')
    refused(t, 'run', '--threads', '0', says="--threads '0'")
    refused(t, 'run', '--redis', 'redis://' + 'x' * 600, says='longer than')
    refused(t, 'shop', says='--strategy')
    refused(t, 'shop', '--strategy', 'no-such-scheme', says="unknown strategy 'no-such-scheme'")
    refused(t, 'shop', '--strategy', 'D0', says='several strategies')
    refused(t, 'shop', '--strategy', 'redisson', '--url', 'gopher://x', says="'gopher://x'")
    refused(t, 'adapter', says='takes one strategy')
    refused(t, 'adapter', 'R3', 'R4', says='takes one strategy')
    refused(t, 'adapter', 'nothing-mariadb', says='is not a lock')
    refused(t, 'adapter', 'redisson', '--with-servers', says='share the servers')
    refused(t, 'adapter', 'redisson', '--url', 'gopher://x', says="'gopher://x'")
    refused(t, 'adapter', 'redisson', says='it needs --redis URL')
    refused(t, 'shop', '--strategy', 'redisson', says='it needs --redis URL, or --with-servers')


@test()
def lab_says_what_is_left_out(t):
    need_lab(t)
    for verb in ('run', 'hazards'):
        code, out, err = t.run('lab', verb, 'D0', 'R1')
        assert code == 1, 'nothing seen is no success'
        for words in ('nothing-mariadb is left out: it needs --mysql URL', 'setnx-spin is left out', 'nothing was run'):
            assert words in err.decode(), (verb, words, err)


# ---- As an adapter of torture -----------------------------------------------------------------------------------


class Adapter:
    """`dibs lab adapter`, spoken to."""

    def __init__(self, t, scheme):
        self.process = subprocess.Popen([t.dibs, 'lab', 'adapter', scheme, '--url', t.url], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, universal_newlines=True)
        self.greeting = self.process.stdout.readline()

    def ask(self, request):
        self.process.stdin.write(request + '\n')
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def quit(self):
        self.process.stdin.write('quit\n')
        self.process.stdin.close()
        code = self.process.wait(30)
        assert code == 0 and self.process.stdout.read() == '', code
        self.process.stdout.close()


@test('redis')
def lab_adapter_speaks_the_protocol(t):
    need_lab(t)
    for scheme, fenced in (('set-nx-px', False), ('lua-eval', False), ('redisson', False), ('redisson-fenced', True),
                           ('dibs-redis', True)):
        one, two, name = Adapter(t, scheme), Adapter(t, scheme), 'adapter-' + scheme
        assert re.fullmatch(r'dibs-adapter 1 lab-%s \S+\n' % scheme, one.greeting), one.greeting
        answer = one.ask('lock %s 0 5000' % name)
        assert re.fullmatch(r'granted \d+' if fenced else 'granted -', answer), (scheme, answer)
        assert two.ask('lock %s 0 5000' % name) == 'busy', scheme
        assert two.ask('lock %s 200 5000' % name) == 'busy', scheme
        assert one.ask('held ' + name) == 'yes' and two.ask('held ' + name) == 'no', scheme
        assert one.ask('unlock ' + name) == 'released', scheme
        later = two.ask('lock %s 2000 5000' % name)
        assert later.startswith('granted ') and (not fenced or int(later[8:]) > int(answer[8:])), (scheme, later)
        assert two.ask('unlock ' + name) == 'released', scheme
        for wrong in ('', 'lock', 'lock x', 'lock x 1', 'lock x 1 0', 'frobnicate x', 'unlock ' + name, "held x'y"):
            assert one.ask(wrong).startswith('error '), (scheme, wrong)
        one.quit()
        two.quit()


# ---- What it finds ----------------------------------------------------------------------------------------------


@test(*DATABASES)
def lab_catches_the_scheme_without_a_lock(t):
    name = 'nothing-' + NAMES[t.engine]
    [run] = lab(t, 'run', name, *SMALL)['runs']
    assert run['id'] == 'D0' and run['verdict'] == 'oversold' and run['oversold'] > 0, run
    assert run['oversold'] == run['sold'] - (150 - run['left']), run


@test(*ENGINES, *DATABASES)
def lab_product_sells_what_is_there(t):
    [run] = lab(t, 'run', 'dibs-' + NAMES[t.engine], '--processes', '2', *SMALL)['runs']
    assert run['product'] and run['verdict'] == 'correct', run
    assert (run['sold'], run['left'], run['oversold'], run['lost'], run['failed']) == (150, 0, 0, 0, 0), run
    assert run['asked'] == 2 * 8 * 25 and run['per_second'] > 0 and run['p99_us'] >= run['p50_us'] > 0


@test('redis')
def lab_hazards_of_a_lock_with_a_constant_value(t):
    """It has a lease, so that the dead block nobody for ever; but everybody deletes everybody's lock."""
    found = {f['hazard']: f for f in lab(t, 'hazards', 'set-nx-px')['hazards']}
    killed, late = found['holder-killed'], found['late-release']
    assert killed['outcome'] == 'survived' and killed['stuck_ms'] >= 500, killed
    assert late['outcome'] == 'BROKE', late
    assert found['long-work']['outcome'] == 'BROKE' and found['release-gap']['outcome'] == 'survived', found


def subscriptions(t):
    """How many connections listen for the release of the lab's lock."""
    return int(re.search(rb'\r\n:(\d+)\r\n', t.server.ask('PUBSUB NUMSUB released:goods:1')).group(1))


@test('redis')
def lab_redisson_subscribes_once_for_each_process(t):
    """As published: all waiting threads of a process share one subscription, and a message wakes one of them."""
    need_lab(t)
    for processes, threads in ((1, 12), (3, 4)):
        run = t.start('lab', 'run', 'redisson', '--redis', t.url, '--processes', str(processes), '--threads', str(threads),
                      '--loops', '100000', '--stock', '100000000', '--json')
        wait_for(lambda: subscriptions(t) >= processes or run.popen.poll() is not None, 'all processes to wait', 60)
        most = max(subscriptions(t) for _ in range(300))
        assert most <= processes and run.popen.poll() is None, (most, processes, run.err)
        run.signal(signal.SIGKILL)
        run.wait()
        wait_for(lambda: subscriptions(t) == 0, 'the end of the buyers')
        t.server.ask('DEL lock:goods:1')
    [one] = lab(t, 'run', 'redisson', *SMALL)['runs']
    [five] = lab(t, 'run', 'redisson-processes', '--threads', '20', '--loops', '20', '--stock', '400')['runs']
    assert (one['processes'], one['threads'], five['processes'], five['threads']) == (1, 8, 5, 4), (one, five)
    assert one['verdict'] == five['verdict'] == 'correct' and one['tries_per_sale'] < 6 > five['tries_per_sale'] / 2


@test('redis')
def lab_fence_is_what_helps_a_stopped_holder(t):
    """With the same books that check it, RFencedLock's token does what dibs' does; without the check neither is safe."""
    listed = lab(t, 'hazards', 'redisson', 'redisson-fenced', 'dibs-redis', 'dibs-redis-unfenced')['hazards']
    found = {(f['strategy'], f['hazard']): f['outcome'] for f in listed}
    assert len(found) == len(listed) == 4 * len({f['hazard'] for f in listed}), 'every hazard is named for every strategy'
    for f in listed:
        assert f['outcome'] in ('survived', 'BROKE', 'not applicable') and f['text'], f
    assert found['dibs-redis', 'killed-before-expire'] == found['redisson', 'wrong-clock'] == 'not applicable', found
    assert [found[s, 'holder-paused'] for s in ('redisson', 'redisson-fenced', 'dibs-redis', 'dibs-redis-unfenced')] == [
        'BROKE', 'survived', 'survived', 'BROKE'], found


@test('redis')
def lab_server_that_goes_away(t):
    """The server dies in the middle of a run: it ends, soon, and is no success."""
    need_lab(t)
    run = t.start('lab', 'run', 'dibs-redis', 'setnx-sleep', '--redis', t.url, '--threads', '4', '--loops', '100000',
                  '--stock', '100000', '--limit', '8s', '--json')
    try:
        left = lambda: int((t.server.ask('GET stock:goods:1').split() + [b'100000'])[1])
        wait_for(lambda: left() < 99990, 'some sales')
        t.server.kill()
        assert run.wait(60) == 1, run.err
        runs = json.loads(run.out)['runs']
        assert [r['verdict'] in ('errors', 'stuck', 'not run') for r in runs] == [True, True], runs
    finally:
        if not t.server.answers():
            t.server.start()


# ---- Experiments ------------------------------------------------------------------------------------------------


def experiments(t, *names, seconds=120.0):
    """What they found, by the name without the engine; `cells` are the rows of the table."""
    suffix = '-' + NAMES[t.engine] if t.engine in DATABASES else ''
    return read_experiments(lab(t, 'hazards', *(n + suffix for n in names), seconds=seconds), suffix, names)


def read_experiments(answer, suffix, names):
    found = {}
    for e in answer['experiments']:
        assert e['outcome'] != 'not run', e
        e['cells'] = [line.split('\t') for line in (e['table'] or '').splitlines()[1:]]
        found[e['experiment'][:len(e['experiment']) - len(suffix)]] = e
    assert set(found) == set(names), found
    return found


@test(*DATABASES)
def lab_lock_row_by_insert(t):
    """D7: not reentrant, no waiting, no order; and what duplicates do in open transactions."""
    found = experiments(t, 'insert-lock-again', 'insert-lock-polls', 'insert-lock-order', 'insert-lock-duplicates')
    again = [row[1] for row in found['insert-lock-again']['cells']]
    assert again == ['refused', 'waits for itself', 'waits for itself and gives up', 'obtains it again (reentry)']
    [scheme, dibs] = found['insert-lock-polls']['cells']
    assert int(scheme[1]) > 2 and int(dibs[1]) == 1, found
    [scheme, dibs] = found['insert-lock-order']['cells']
    assert sorted(scheme[2].split()) == sorted(dibs[2].split()) == list('12345678') and dibs[3] == '0', found
    committed, _, three = found['insert-lock-duplicates']['cells']
    assert committed[1] == 'B waits' and 'uplicate' in committed[4] and three[1] == 'B and C wait', found
    words = 'Deadlock found' if t.engine == 'mysql' else 'lock timeout'
    assert three[4].startswith('1 obtains it') and words in three[4], three


@test(*DATABASES)
def lab_row_a_method(t):
    """D8: it waits, also for itself; a connection for every lock; one lock for two methods of one name."""
    found = experiments(t, 'method-row-waits', 'method-row-connections', 'method-row-overloads')
    assert [row[1] for row in found['method-row-waits']['cells']] == [
        'waits, then obtains it', 'obtains it again', 'waits for itself', 'obtains it: everything was released'], found
    scheme, dibs = re.search(r'(\d+) more connections .*: (\d+)$', found['method-row-connections']['text']).groups()
    assert int(scheme) == 8 and int(dibs) < 8, found
    assert [row[1:3] for row in found['method-row-overloads']['cells']] == [
        ['1', 'waits for the other'], ['2', 'goes on']], found


@test(*DATABASES)
def lab_rows_of_a_database(t):
    """D1 to D5: what a mutex is worth in three processes, what an UPDATE does not tell, what versions cost."""
    found = experiments(t, 'mutex-processes', 'value-before', 'small-table', 'version-crowds', 'mostly-read',
                        'same-second')
    nothing, one, _, three = found['mutex-processes']['cells']
    assert int(nothing[3]) > 0 and one[1:4] == ['1', '960', '0'] and int(three[3]) > 0, found
    assert 'before the UPDATE had read 10, one after it 7' in found['value-before']['text'], found
    scans = [row[1:3] for row in found['small-table']['cells']]
    assert scans == ([['uses the index', 'goes on'], ['scans the table', 'waits']] if t.engine == 'mysql' else
                     [['scans the table', 'goes on'], ['scans the table', 'goes on']]), scans
    crowds = found['version-crowds']['cells']
    assert all(row[1] == row[2] == '400' for row in crowds), crowds
    assert float(crowds[0][3]) == 1.0 < float(crowds[3][3]), crowds
    mostly, _, always, _ = found['mostly-read']['cells']
    assert 1.0 <= float(mostly[3]) < float(always[3]), found['mostly-read']
    assert 'in seconds the late write lands (stock 9), in microseconds it is refused (stock 7)' in \
        found['same-second']['text'], found['same-second']


@test(*DATABASES)
def lab_rows_that_an_update_locks(t):
    """D2: isolation level x index: who waits, and what the engine says about it."""
    matrix = experiments(t, 'row-locks-update')['row-locks-update']['cells']
    if t.engine == 'mysql':
        waits = [['waits', 'waits'], ['goes on', 'waits'], ['goes on', 'goes on'], ['goes on', 'goes on']]
        assert [row[2:4] for row in matrix] == waits, matrix
        assert [re.search(r'(\d+) row lock', row[4]).group(1) for row in matrix] == ['4', '3', '1', '2'], matrix
    else:
        assert [row[2:4] for row in matrix] == [['goes on'] * 2] * 4, matrix
        assert all('RowExclusiveLock on lab_rows' in row[4] for row in matrix), matrix


@test('redis')
def lab_rows_of_redis(t):
    """F3, R6, R7, R9, R10: tokens, GETSET's flaws, who is let in again and who may release."""
    found = experiments(t, 'token-dibs', 'token-delete-first', 'token-mutex', 'getset-flaws', 'manners')
    assert found['token-dibs']['outcome'] == 'survived' and found['token-dibs']['cells'] == [
        ['redis', '1', 'one new token, which passes']], found['token-dibs']
    assert 'the token is spent' in found['token-delete-first']['text'], found
    assert '1 of 16 passed in one process' in found['token-mutex']['text'], found
    moved = int(re.search(r'expiry by (\d+) ms', found['getset-flaws']['text']).group(1))
    assert moved >= 200 and 'was skipped, and the key remains' in found['getset-flaws']['text'], found
    manners = {row[0].split()[1]: row[1:] for row in found['manners']['cells']}
    assert manners['setnx-sleep'][:2] == ['waits for itself', 'releases it'], manners
    assert manners['lua-evalsha'][:2] == ['waits for itself', 'changes nothing'], manners
    assert manners['hash-reentrant'][:2] == ['obtains it', 'changes nothing'], manners
    assert manners['redisson'][1:3] == ['changes nothing', 'attempt to unlock lock, not locked by this owner']
    assert all(250 <= int(m[3].split()[0]) < 5000 for m in manners.values()), manners


@test()
def lab_nodes_of_redlock(t):
    """R12, R12c: dibs serves while a majority is up, and a node that restarted empty does not vote."""
    need_programs('redis-server')
    found = experiments(t, 'nodes-down', 'node-restarts-dibs')
    assert [row[1] for row in found['nodes-down']['cells']] == ['serves'] * 3 + ['refuses'], found
    assert found['node-restarts-dibs']['outcome'] == 'survived' and found['node-restarts-dibs']['at_once'] == 1


@test()
def lab_partitions(t):
    """C1: Redis with a replica goes on on both sides; of three that decide together, one alone grants nothing."""
    need_lab(t)
    need_programs('redis-server', 'java', '/usr/share/java/zookeeper.jar', 'etcd')
    found = {}  # side by side: they mostly wait
    for name, process in [(n, t.start('lab', 'hazards', n, '--json'))
                          for n in ('partition-redis', 'partition-zookeeper', 'partition-etcd')]:
        assert process.wait(240) == 0, (process.out, process.err)
        found.update(read_experiments(json.loads(process.out), '', [name]))
    redis = found['partition-redis']
    assert redis['outcome'] == 'BROKE' and redis['at_once'] == 2, redis
    assert redis['cells'][2][1].endswith('a fence that is higher'), redis
    for name in ('partition-zookeeper', 'partition-etcd'):
        one = found[name]
        assert one['outcome'] == 'survived' and one['at_once'] == 1 and one['claimed'], one
        assert one['cells'][3][1] == 'the engine cannot be reached', one


# ---- The report -------------------------------------------------------------------------------------------------


@test('sqlite')
def lab_report_is_three_files(t):
    folder = t.path('out')
    report = lab(t, 'report', 'dibs-sqlite', 'F0', *SMALL, '-o', folder)
    assert sorted(os.listdir(folder)) == ['report.html', 'report.json', 'report.md']
    with open(os.path.join(folder, 'report.json')) as f:
        assert json.load(f) == report
    [run] = report['runs']
    assert run['name'] == 'dibs-sqlite' and run['oversold'] == 0
    for f in report['hazards']:
        assert f['claimed'] and f['outcome'] == 'survived' or f['outcome'] == 'not applicable' and f['text'], f
    with open(os.path.join(folder, 'report.md')) as f:
        text = f.read()
    assert '| P | dibs-sqlite | correct | 150 |' in text and text.index('## Hazards') < text.index('## Runs')
    [line] = [line for line in text.splitlines() if line.startswith('| P dibs-sqlite |')]
    assert all(c.strip() for c in line.strip('|').split('|')), 'no empty cell in the matrix'
    with open(os.path.join(folder, 'report.html')) as f:
        page = f.read()
    assert '/*REPORT*/null' not in page and '"dibs-sqlite"' in page
    assert not re.search(r'(src|href)\s*=\s*["\']?(https?:)?//', page), 'it needs no network'
    again = t.path('again')
    code, _, err = t.run('lab', 'report', '--from', os.path.join(folder, 'report.json'), '-o', again)
    assert code == 0, err
    with open(os.path.join(again, 'report.html')) as f:
        assert f.read() == page


@test()
def lab_report_that_cannot_be_written(t):
    need_lab(t)
    with open(t.path('report.json'), 'w') as f:
        f.write('{"about": "nothing", "runs": [], "hazards": [], "experiments": []}')
    code, _, err = t.run('lab', 'report', '--from', t.path('report.json'), '-o', '/proc/no/such/place')
    assert code == 74 and b'/proc/no/such/place' in err, (code, err)
    code, _, err = t.run('lab', 'report', '--from', t.path('missing.json'), '-o', t.path('out'))
    assert code == 64 and b'missing.json' in err, (code, err)


@test()
def lab_report_from_a_file_of_any_kind(t):
    need_lab(t)
    with open(t.path('report.json'), 'w') as f:
        json.dump({'experiments': [{'table': 'a\tb\n1\t2'}, {'table': 7}, 'x'], 'runs': [{}], 'hazards': {}}, f)
    code, _, err = t.run('lab', 'report', '--from', t.path('report.json'), '-o', t.path('out'))
    with open(os.path.join(t.path('out'), 'report.md')) as f:
        assert code == 0 and '| a | b |\n|---|---|\n| 1 | 2 |\n' in f.read(), err
    with open(t.path('report.json'), 'w') as f:
        f.write('no JSON')
    code, _, err = t.run('lab', 'report', '--from', t.path('report.json'), '-o', t.path('out'))
    assert code == 64 and b'report.json' in err, (code, err)


# ---- What it leaves behind --------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_folder():
    """One that a database's own account can reach."""
    folder = tempfile.mkdtemp(prefix='dibs-test-lab-')
    os.chmod(folder, 0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def works_in(pid, folder):
    with contextlib.suppress(OSError):
        if os.readlink('/proc/%d/cwd' % pid).startswith(folder):
            return True
        with open('/proc/%d/cmdline' % pid, 'rb') as f:
            return folder.encode() in f.read()
    return False


def servers_in(folder):
    return [int(p) for p in os.listdir('/proc') if p.isdigit() and alive(int(p)) and works_in(int(p), folder)]


def need_programs(*patterns):
    for p in patterns:
        if not (shutil.which(p) or glob.glob(p)):
            raise Skip('%s is not on this machine' % p)


def check_nothing_left(folder, number, process):
    process.signal(number)
    code = process.wait(30)
    assert code in (-number, 128 + number), (number, code, process.err)
    wait_for(lambda: not servers_in(folder), 'the end of the servers after signal %d' % number, 30)
    wait_for(lambda: not os.listdir(folder), 'the folder to be removed after signal %d' % number, 30)


@test()
def lab_interrupted_leaves_nothing(t):
    need_lab(t)
    need_programs('redis-server', '/usr/sbin/mariadbd', '/usr/lib/postgresql/*/bin/postgres')
    with open_folder() as folder:
        for number, database in ((signal.SIGINT, 'nothing-mariadb'), (signal.SIGTERM, 'dibs-redis'),
                                 (signal.SIGKILL, 'nothing-postgresql')):
            process = t.start('lab', 'run', 'setnx-sleep', database, '--with-servers', '--threads', '4',
                              '--loops', '100000', '--stock', '1000000', env=dict(t.env, TMPDIR=folder))
            # The heading is printed when all servers are up and the first run begins.
            wait_for(lambda: b'STRATEGY' in process.out or process.popen.poll() is not None, 'the servers', 60)
            assert servers_in(folder), process.err
            check_nothing_left(folder, number, process)


# ---- The shop ---------------------------------------------------------------------------------------------------


def open_shop(t, strategy, *more, env=None):
    need_lab(t)
    shop = t.start('lab', 'shop', '--strategy', strategy, '--port', '0', *more, env=env or t.env)
    wait_for(lambda: b'\n' in shop.err or shop.popen.poll() is not None, 'the shop', 60)
    if b'libmicrohttpd' in shop.err:
        raise Skip('this build has no shop: libmicrohttpd is missing')
    found = re.search(rb'http://[0-9.:]+/', shop.err)
    assert found, shop.err
    return shop, found.group().decode()


def ask(url, method='GET'):
    """(status, text)"""
    request = urllib.request.Request(url, method=method, data=b'' if method == 'POST' else None)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


class Still(urllib.request.HTTPRedirectHandler):
    """Redirects are answers."""

    def redirect_request(self, *_):
        return None


def submit(url, form, path='buy', **headers):
    """What a client without a browser is told to a form: (status, text, headers)."""
    request = urllib.request.Request(url + path, data=urllib.parse.urlencode(form).encode(), headers=headers)
    try:
        with urllib.request.build_opener(Still).open(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode(), e.headers


def leave_on(url, *switches):
    assert submit(url, {name: 'on' for name in switches}, 'guards')[0] == 200


def hidden(page):
    """The fields of a form that people do not see."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="(\w+)">', page))


def stock(url):
    status, text = ask(url + 'stock')
    assert status == 200, text
    return json.loads(text)


def press(t, url, until):
    """50 connections order again and again, until `until` holds."""
    if not shutil.which('wrk'):
        raise Skip('wrk is not on this machine')
    script = t.path('order.lua')
    with open(script, 'w') as f:
        f.write('wrk.method = "POST"\n')
    for _ in range(15):
        done = subprocess.run(['wrk', '-t2', '-c50', '-d2s', '--timeout', '30s', '-s', script, url + 'order'],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        assert done.returncode == 0, done.stdout
        if until(stock(url)):
            return
    raise AssertionError('wrk did not buy enough: %r' % stock(url))


@test('redis')
def lab_shop_answers(t):
    shop, url = open_shop(t, 'dibs-redis', '--url', t.url, '--threads', '4', '--stock', '2')
    status, page = ask(url)
    assert status == 200 and '<b>2</b> of 2' in page and 'action="/buy"' in page and '>Order one</button>' in page, page
    assert [ask(url + 'order', 'POST')[0] for _ in range(3)] == [200, 200, 409]
    assert stock(url) == {'strategy': 'dibs-redis', 'stock': 2, 'left': 0, 'sold': 2, 'sold_out': 1, 'failed': 0,
                          'oversold': 0}
    assert 'disabled>Sold out</button>' in ask(url)[1]
    assert ask(url + 'reset?stock=5', 'POST')[0] == 200 and stock(url)['left'] == 5
    for wrong in ('', '?stock=', '?stock=x', '?stock=-1', '?stock=0', '?stock=5x', '?stock=99999999999999999999'):
        assert ask(url + 'reset' + wrong, 'POST')[0] == 400, wrong
    assert ask(url + 'order')[0] == 405 and ask(url + 'stock', 'POST')[0] == 405
    assert ask(url + 'nothing')[0] == 404 and stock(url)['left'] == 5
    port = re.search(r':(\d+)/', url).group(1)
    code, _, err = t.run('lab', 'shop', '--strategy', 'dibs-redis', '--url', t.url, '--port', port)
    assert code == 71 and b'--port' in err, (code, err)
    shop.signal(signal.SIGINT)
    assert shop.wait() == 130 and b'left 5 of 5' in shop.out, (shop.out, shop.err)


@test(*ENGINES, *DATABASES)
def lab_shop_sells_a_form_once(t):
    """Behind the token, and behind the key, which are on the strategy's server; without both each request is sold."""
    _, url = open_shop(t, 'dibs-' + NAMES[t.engine], '--url', t.url, '--threads', '16', '--stock', '100')
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        def crowd(*switches):
            leave_on(url, 'redirect', *switches)
            form, before = hidden(ask(url)[1]), stock(url)['sold']
            answers = list(pool.map(lambda _: submit(url, form), range(16)))
            return answers, stock(url)['sold'] - before

        answers, sold = crowd('token')
        placed = [a for a in answers if a[0] == 303]
        refused = {(a[0], a[1]) for a in answers if a[0] != 303}
        assert len(placed) == 1 and sold == 1, answers
        assert refused == {(409, 'The one-time token was used for order 1. Nothing was ordered again.\n')}, refused
        answers, sold = crowd('once')
        assert [a[0] for a in answers] == [303] * 16 and sold == 1, answers
        assert len([a for a in answers if a[2]['Idempotent-Replayed']]) == 15, answers
        assert {a[2]['Location'].split('?')[0] for a in answers} == {'/orders/2'}, answers
        answers, sold = crowd()
        assert [a[0] for a in answers] == [303] * 16 and sold == 16, answers
    assert 'Duplicates</dt><dd><b>15</b>' in ask(url + 'live')[1]


@test('redis')
def lab_shop_order_that_failed_is_tried_again(t):
    """Somebody else has the lock: the token is spent, and the answer has a new one for the same key."""
    _, url = open_shop(t, 'setnx-sleep', '--url', t.url, '--threads', '2')
    form = hidden(ask(url)[1])
    t.server.ask('SET lock:goods:1 stranger')
    status, page, _ = submit(url, form, Accept='text/html')
    again = hidden(page)
    assert status == 503 and 'not obtained in time' in page and 'Try again' in page, page
    assert again['key'] == form['key'] and again['token'] != form['token'], again
    t.server.ask('DEL lock:goods:1')
    assert submit(url, form)[0] == 409, 'the old token is spent'
    assert submit(url, again)[0] == 303 and submit(url, again)[0] == 409 and stock(url)['sold'] == 1


@test('redis')
def lab_shop_sale_that_fails_in_the_middle(t):
    """Then nobody knows whether it was sold: it is not offered again, and its key is refused."""
    _, url = open_shop(t, 'setnx-sleep', '--url', t.url, '--threads', '4')
    form = hidden(ask(url)[1])
    t.server.ask('DEL stock:goods:1')
    t.server.ask('LPUSH stock:goods:1 no-number')
    status, page, _ = submit(url, form, Accept='text/html')
    assert status == 503 and 'its outcome is unknown' in page and 'Try again' not in page, page
    t.server.ask('DEL stock:goods:1')
    assert ask(url + 'reset?stock=5', 'POST')[0] == 200
    leave_on(url, 'redirect', 'once')
    status, text, _ = submit(url, form)
    assert status == 409 and 'interrupted; its outcome is unknown' in text and stock(url)['sold'] == 0, text


@test('sqlite')
def lab_shop_refuses_what_is_no_form(t):
    _, url = open_shop(t, 'dibs-sqlite', '--url', t.url, '--threads', '2', '--stock', '5')
    form = hidden(ask(url)[1])
    assert submit(url, {**form, 'key': 'x' * 200})[0] == 400
    assert submit(url, {**form, 'key': 'a\0b'})[0] == 400
    assert submit(url, {**form, 'more': 'x' * 9000})[0] in (400, 413)
    assert submit(url, {**form, **{'f%d' % i: '' for i in range(20)}})[0] == 400
    assert submit(url, form, Origin='http://example.com')[0] == 403
    assert submit(url, form, **{'Idempotency-Key': '"not closed'})[0] == 400
    for wrong in ('orders/0', 'orders/1', 'orders/x', 'orders/99999999999999999999', 'orders/'):
        assert ask(url + wrong)[0] == 404, wrong
    assert stock(url)['sold'] == 0 and submit(url, form)[0] == 303, 'none of these has used the token'
    assert ask(url + 'orders/1') == (200, 'order 1: one blue mug\n')


@test('redis')
def lab_shop_whose_server_goes_away(t):
    shop, url = open_shop(t, 'setnx-sleep', '--url', t.url, '--threads', '2')
    t.server.kill()
    try:
        assert ask(url + 'order', 'POST')[0] == 503 and ask(url + 'stock')[0] == 503
        assert ask(url)[0] == 503 and 'cannot be read' in ask(url + 'live')[1]
        status, page, _ = submit(url, {'token': 'a' * 32, 'key': 'b'}, Accept='text/html')
        assert status == 503 and 'Nothing was ordered' in page and 'Try again' not in page, page
        shop.signal(signal.SIGTERM)
        assert shop.wait() == 143
    finally:
        t.server.start()
    port = free_port()
    code, _, err = t.run('lab', 'shop', '--strategy', 'redisson', '--redis', 'redis://127.0.0.1:%d' % port)
    assert code == 69 and b'%d' % port in err, (code, err)


@test(*ENGINES, *DATABASES)
def lab_shop_under_load(t):
    """50 connections at once, and the books are right afterwards."""
    _, url = open_shop(t, 'dibs-' + NAMES[t.engine], '--url', t.url, '--threads', '20', '--stock', '300')
    press(t, url, lambda s: s['left'] == 0 and s['sold_out'] > 0)
    books = stock(url)
    assert (books['sold'], books['left'], books['oversold'], books['failed']) == (300, 0, 0, 0), books


@test('postgresql')
def lab_shop_without_a_lock_oversells(t):
    _, url = open_shop(t, 'nothing-postgresql', '--url', t.url, '--threads', '20', '--stock', '100000')
    press(t, url, lambda s: s['oversold'] > 0)


@test()
def lab_shop_closed_leaves_nothing(t):
    need_programs('redis-server')
    with open_folder() as folder:
        for number in (signal.SIGINT, signal.SIGTERM):
            shop, url = open_shop(t, 'redisson', '--with-servers', '--threads', '4', '--json',
                                  env=dict(t.env, TMPDIR=folder))
            assert ask(url + 'order', 'POST')[0] == 200 and servers_in(folder)
            check_nothing_left(folder, number, shop)
            assert json.loads(shop.out)['sold'] == 1


def can_run_plans(jmeter, t):
    """Debian 12's cannot: its XStream forbids the classes of a plan."""
    done = subprocess.run([jmeter, '-n', '-t', PLAN, '-Jthreads=0', '-j', t.path('jmeter.log')], cwd=t.folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return b'Created the tree successfully' in done.stdout


@test('redis')
def lab_shop_by_the_plan(t):
    """JMeter's plan, 50 x 100. Where no JMeter can run it, wrk orders as much with as many connections."""
    text = xml.dom.minidom.parse(PLAN).documentElement.toxml()
    assert '${__P(threads,50)}' in text and '${__P(loops,100)}' in text and '/order' in text
    _, url = open_shop(t, 'redisson', '--url', t.url, '--stock', '4000')
    jmeter = shutil.which('jmeter')
    if jmeter and can_run_plans(jmeter, t):
        subprocess.run([jmeter, '-n', '-t', PLAN, '-Jport=' + re.search(r':(\d+)/', url).group(1),
                        '-l', t.path('result.jtl'), '-j', t.path('jmeter.log')], cwd=t.folder, check=True,
                       stdout=subprocess.DEVNULL, timeout=120)
    else:
        t.note('no JMeter that can read a plan: wrk instead')
        press(t, url, lambda s: s['sold'] + s['sold_out'] >= 5000)
    books = stock(url)
    assert (books['sold'], books['left'], books['oversold'], books['failed']) == (4000, 0, 0, 0), books
    assert books['sold_out'] >= 1000


@test()
def lab_pages_say_what_the_report_says(t):
    """Every figure of docs/choosing.md and docs/lab/rows.md is one of docs/lab/report.json."""
    root = os.path.join(HERE, '..', '..')
    script, report = os.path.join(root, 'scripts', 'choosing.py'), os.path.join(root, 'docs', 'lab', 'report.json')

    def check(name, page):
        template = os.path.join(root, 'docs', 'lab', name + '.in.md')
        return subprocess.run([PYTHON, script, report, template, '--check', page], stderr=subprocess.PIPE)

    for name, *path in (('choosing', 'choosing.md'), ('rows', 'lab', 'rows.md')):
        page = os.path.join(root, 'docs', *path)
        done = check(name, page)
        assert done.returncode == 0, done.stderr.decode()
        with open(page) as f, open(t.path('other.md'), 'w') as g:
            g.write(f.read().replace('oversold 0', 'oversold 1', 1))
        assert check(name, t.path('other.md')).returncode != 0, 'a changed figure is noticed'


@test()
def lab_readme_shows_what_the_report_says(t):
    """The corner of the matrix in README.md: survived, not run (why), or what was damaged; as in the report, never blank."""
    schemes = ('setnx-sleep', 'setnx-expire', 'set-nx-px', 'lua-evalsha', 'redisson', 'redisson-fenced', 'dibs-redis-unfenced',
               'dibs-redis')
    hazards = ('holder-killed', 'killed-before-expire', 'holder-paused', 'late-release', 'long-work', 'reply-lost')
    root = os.path.join(HERE, '..', '..')
    with open(os.path.join(root, 'docs', 'lab', 'report.json')) as f:
        outcome = {(h['strategy'], h['hazard']): h['outcome'] for h in json.load(f)['hazards']}
    with open(os.path.join(root, 'README.md')) as f:
        lines = f.read().split('| lock on Redis |')[1].splitlines()[2:2 + len(schemes)]
    for scheme, line in zip(schemes, lines):
        cells = [c.strip() for c in line.strip('|').split('|')[1:]]
        shown = ['survived' if c == 'survived' else 'not run' if re.fullmatch(r'not run \(.+\)', c) else 'BROKE' if c else ''
                 for c in cells]
        assert shown == [outcome[scheme, h].replace('not applicable', 'not run') for h in hazards], (scheme, line)


@test()
def lab_words_that_an_outsider_knows(t):
    """What is not Redisson is not called so, and nobody is sent to notes that he has never seen."""
    need_lab(t)
    root = os.path.join(HERE, '..', '..')
    pages = ['README.md', 'man/dibs-lab.1.scd', 'docs/choosing.md', 'docs/lab/choosing.in.md', 'docs/lab/rows.md',
             'docs/lab/rows.in.md', 'docs/lab/report.md', 'lab/report.html']
    texts = {}
    for page in pages:
        with open(os.path.join(root, page)) as f:
            texts[page] = f.read()
    texts['help'] = t.run('lab', '--help')[1].decode()
    texts['list'] = t.run('lab', 'list')[1].decode()
    for name, text in texts.items():
        assert not re.search(r'\b[Tt]he notes|\bnotes\'', text), name
    for name in ('README.md', 'man/dibs-lab.1.scd', 'docs/choosing.md', 'docs/lab/rows.md', 'lab/report.html', 'list'):
        assert "our model of Redisson's published scheme" in ' '.join(texts[name].split()), name
