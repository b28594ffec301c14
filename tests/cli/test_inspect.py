"""ls, show, break, watch, engines: for people and as JSON."""

import json
import os
import signal
import time

from harness import DATABASES, ENGINES, ENSEMBLES, test, wait_for
from test_basics import hold


@test(*ENGINES, *DATABASES)
def ls_and_show(t):
    assert t.json('ls', '--json') == {'locks': []}
    holder = hold(t, '--owner', 'boss', 'job:1')
    hold(t, '--slots', '5', '--weight', '2', 'pool')
    waiter = t.start('run', '--owner', 'next', 'job:1', '--', 'true')
    t.wait_queued('job:1')
    locks = {lock['name']: lock for lock in t.json('ls', '--json')['locks']}
    assert set(locks) == {'job:1', 'pool'}
    assert (locks['pool']['slots'], locks['pool']['used']) == (5, 2)
    job = t.lock('job:1')
    who, = job['holders']
    assert (who['owner'], who['pid'], who['host']) == ('boss', holder.pid, os.uname().nodename), who
    assert who['fence'] == job['fence'] == locks['job:1']['fence'] > 10 ** 15
    assert abs(who['since_ms'] - time.time() * 1000) < 60000 and 0 < who['left_ms'] <= 30000, who
    assert not who['released'] and not who['breaking'] and not who['shared']
    behind, = job['waiters']
    assert (behind['owner'], behind['pid']) == ('next', waiter.pid) and job['waiter_count'] == 1
    assert [lock['name'] for lock in t.json('ls', '--json', 'job:')['locks']] == ['job:1']
    code, out, _ = t.run('ls')
    assert code == 0 and 'job:1' in out.decode() and 'boss' in out.decode() and '2 of 5' in out.decode(), out
    code, out, _ = t.run('show', 'job:1')
    for word in ('boss', 'pid %d' % holder.pid, 'next', 'fence', 'waiters: 1'):
        assert word in out.decode(), (word, out)
    assert t.run('ls', '--names')[1] == b'job:1\npool\n'


@test(*ENGINES)
def idle_locks(t):
    assert t.run('run', 'a', '--', 'true')[0] == 0
    assert t.json('ls', '--json')['locks'] == []
    lock, = t.json('ls', '--all', '--json')['locks']
    assert lock['name'] == 'a' and lock['holders'] == [] and lock['fence'] > 0
    code, out, err = t.run('show', 'never')
    assert code == 1 and out == b'' and b'never' in err, (code, err)


@test(*ENGINES, *DATABASES)
def odd_names_are_shown_safely(t):
    names = [b'a\x1b[31m\n', b'b\xff\\', 'c späße'.encode()]
    for name in names:
        assert t.run('run', name, '--', 'true')[0] == 0
    code, out, _ = t.run('ls', '--all')
    lines = out.split(b'\n')
    assert code == 0 and len(lines) == 5 and b'\x1b' not in out and b'\xff' not in out, out
    assert b'a\\x1b[31m\\n' in out and b'b\\xff\\\\' in out and 'c späße'.encode() in out
    locks = t.json('ls', '--all', '--json')['locks']
    exact = [bytes.fromhex(lock['name_hex']) if 'name_hex' in lock else lock['name'].encode() for lock in locks]
    assert exact == names, exact
    assert locks[1]['name'] == 'b\\xff\\\\'
    assert t.lock(names[1])['name_hex'] == names[1].hex()


@test(*ENGINES, *DATABASES)
def break_waits_for_the_holder(t):
    holder = hold(t, '--lease', '12s', 'a')
    fence = t.lock('a')['fence']
    start = time.monotonic()
    result = t.json('break', '--json', '--by', 'op', 'a')
    assert result['broken'] and result['by'] == 'op' and result['fence'] > fence, result
    assert time.monotonic() - start < 11, 'it is told at its next renewal at the latest, after a third of its lease'
    assert holder.wait() == 76 and b'broke' in holder.err, holder.err
    lock = t.lock('a')
    assert lock['broken_by'] == 'op' and abs(lock['broken_at_ms'] - time.time() * 1000) < 60000
    assert b'op' in t.run('show', 'a')[1]


@test(*ENGINES)
def break_now(t):
    holder = hold(t, '--lease', '3s', 'a')
    code, out, err = t.run('break', '--now', 'a')
    assert code == 0 and b'fence is now' in out, (code, err)
    assert t.run('run', '--no-wait', 'a', '--', 'true')[0] == 0
    assert holder.wait() == 76, holder.err
    assert '@' in t.lock('a')['broken_by']


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def a_broken_holder_learns_it_within_a_second(t):
    """Each of them, and not at its next renewal, a third of its lease later. The bound is for busy machines."""
    for how in ([], ['--now']):
        holders = [hold(t, '--shared', 'a') for _ in range(2)]
        start = time.monotonic()
        code, _, err = t.run('break', *how, 'a')
        assert code == 0, (code, err)
        for holder in holders:
            assert holder.wait() == 76, holder.err
        took = time.monotonic() - start
        t.note('%s: break %s: the command ended after %.2f s', t.engine, ' '.join(how), took)
        assert took < 4, took


@test(*ENGINES)
def break_with_a_bound(t):
    holder = hold(t, '--lease', '6s', 'a')
    holder.signal(signal.SIGSTOP)
    code, out, err = t.run('break', '--json', '--wait', '300ms', 'a')
    assert code == 75 and not json.loads(out)['broken'], (code, out, err)
    assert t.lock('a')['holders'][0]['breaking']
    holder.signal(signal.SIGCONT)
    assert holder.wait() == 76
    code, _, err = t.run('break', 'never')
    assert code == 1 and b'never' in err


@test(*ENGINES)
def watch_shows_changes(t):
    lines = t.start('watch', '--interval', '20ms')
    objects = t.start('watch', '--interval', '20ms', '--json', 'job')

    def events():
        return [json.loads(line) for line in objects.out.decode().split('\n')[:-1]]

    holder = hold(t, '--owner', 'boss', 'job')
    wait_for(lambda: [e['event'] for e in events()] == ['held'], 'held')
    wait_for(lambda: b'job  held by boss (host ' in lines.out, 'held, as a line')
    waiter = t.start('run', 'job', '--', 'sleep', '60')
    wait_for(lambda: [e['event'] for e in events()] == ['held', 'waiting'], 'waiting')
    holder.signal(signal.SIGTERM)
    wait_for(lambda: len(events()) == 5, 'released, held, waiting')
    wait_for(lambda: lines.out.count(b'job  held by ') == 2, 'the next holder, as a line')
    told = events()
    assert told[0]['holder']['owner'] == 'boss' and told[0]['name'] == 'job', told
    assert told[1]['waiter_count'] == 1
    assert {e['event'] for e in told[2:]} == {'released', 'held', 'waiting'}, told
    assert told[3]['holder']['fence'] > told[0]['holder']['fence']
    waiter.signal(signal.SIGTERM)
    wait_for(lambda: len(events()) == 6, 'the end')
    wait_for(lambda: lines.out.count(b'job  released by ') == 2, 'the end, as a line')
    for process in (lines, objects):
        process.signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


@test('redis')
def watch_survives_its_server(t):
    watch = t.start('watch', '--interval', '50ms')
    hold(t, '--lease', '1s', 'a')
    wait_for(lambda: b'held by' in watch.out, 'held')
    t.server.kill()
    try:
        wait_for(lambda: b'retrying' in watch.err, 'the complaint')
    finally:
        t.server.start()
    wait_for(lambda: b'released by' in watch.out, 'the next look')


POOR = {'postgresql': ('CREATE USER poor', 'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO poor'),
        'mysql': ("CREATE USER poor@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE, DELETE ON %s.* TO poor@'127.0.0.1'")}


@test(*DATABASES)
def schema_makes_the_tables(t):
    """An account that may make no tables is told what to do; after an administrator has done it, it works."""
    database = t.url.rsplit('/', 1)[1]
    create, grant = POOR[t.engine]
    grant = grant.replace('%s', database)
    poor = t.url.replace(t.server.user + '@', 'poor@')
    t.server.ask(create, grant, database=database)
    code, _, err = t.run('run', '--url', poor, 'a', '--', 'true')
    assert code == 69 and b'`dibs schema --url' in err, (code, err)
    code, out, err = t.run('schema', '--url', poor)
    assert code == 0 and err == b'' and b'CREATE TABLE' in out, (code, err)
    t.server.run_script(out.decode(), database)
    t.server.run_script(out.decode(), database)  # a second time does no harm
    t.server.ask(grant, database=database)
    code, _, err = t.run('run', '--url', poor, 'a', '--', 'true')
    assert code == 0, err
    out = t.run('schema', '--url', t.url + '?table_prefix=other_')[1]
    assert b'other_lock' in out and b'dibs_lock' not in out, out


@test(*DATABASES)
def holding_a_lock_makes_no_tables_of_cells(t):
    """Only whoever breaks a lock makes them."""
    database = t.url.rsplit('/', 1)[1]
    code, _, err = t.run('run', 'a', '--', 'sleep', '2')
    found = t.server.ask("SELECT count(*) FROM information_schema.tables WHERE table_name = 'dibs_cell' AND '%s' IN (table_schema, table_catalog)" % database,
                         database=database)
    assert code == 0 and found == ['0'], (code, err, found)


@test()
def schema_of_others(t):
    for url in ('sqlite:', 'redis://nowhere', 'zookeeper://nowhere', 'etcd://nowhere', 'memory:'):
        code, out, err = t.run('schema', '--url', url)
        assert code == 64 and out == b'' and b'has no tables to create' in err, (url, code, err)


@test()
def engines_are_listed(t):
    engines = {e['scheme']: e for e in t.json('engines', '--json')['engines']}
    assert not engines['memory']['across_processes'] and engines['memory']['available']
    assert engines['redis']['across_processes'] and engines['redis']['first_come']
    assert engines['sqlite']['notices_death']
    for scheme in ('postgresql', 'mysql'):
        assert engines[scheme]['across_processes'] and engines[scheme]['first_come'], engines[scheme]
    for scheme in ('zookeeper', 'etcd'):
        assert engines[scheme]['first_come'] and engines[scheme]['lease_of_handle'], engines[scheme]
    for engine in engines.values():
        assert engine['available'] == (engine['missing'] is None)
    code, out, _ = t.run('engines', '--url', 'redis://nowhere')
    assert code == 0 and b'sqlite' in out


@test(*ENGINES)
def json_of_nothing(t):
    code, out, err = t.run('show', '--json', 'nothing')
    assert code == 1 and err.startswith(b'dibs: '), (code, err)
    lock = json.loads(out)
    assert lock == {'name': 'nothing', 'slots': 0, 'used': 0, 'fence': None, 'holders': [], 'waiter_count': 0, 'waiters': [], 'notes': [],
                    'broken_by': None}, lock
    code, out, err = t.run('break', '--json', 'nothing')
    broken = json.loads(out)
    assert code == 1 and (broken['name'], broken['broken'], broken['fence']) == ('nothing', False, None), (code, broken)
