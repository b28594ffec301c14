"""`dibs doctor`: each planted fault is found, on real servers, and a good server is met with silence.

Servers are shared between the cases of an engine: a fault is planted by a setting, looked for, and taken back."""

import contextlib
import glob
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess

import ensembles
from harness import HERE, Redis, Skip, free_port, test, wait_for

LOCAL = {'redlock.clock', 'etcd.clock', 'zookeeper.clock', 'sqlite.memory'}  # about this machine, not about the server


def examine(t, url, *options, env=None):
    """(exit code, {id: severity}, the whole document)"""
    code, out, err = t.run('doctor', '--json', '--url', url, *options, env=env or t.env)
    assert code in (0, 1, 2, 3), (code, err)
    found = json.loads(out)
    assert found['exit'] == code
    for f in found['findings']:
        assert f['what'] and '{' not in f['what'].replace('{doctor', ''), f
        assert f['severity'] == 'unseen' or (f['why'] and f['advice']), f
    return code, {f['id']: f['severity'] for f in found['findings'] if f['id'] not in LOCAL}, found


def planted(t, url, *options, env=None, **expected):
    """Finds these: redis_eviction='danger' is redis.eviction. The exit code is that of the worst of all."""
    code, found, whole = examine(t, url, *options, env=env)
    for name, severity in expected.items():
        assert found.get(name.replace('__', '-').replace('_', '.')) == severity, (name, whole)
    worst = 2 if 'danger' in found.values() else 1 if 'warning' in found.values() else 3 if 'unseen' in found else 0
    assert code == worst, (code, found)
    return whole


def silent(t, url, *options, but=()):
    """Nothing but notes about this machine, and `but`, which is known of this machine's packages."""
    code, found, whole = examine(t, url, *options)
    assert not set(found) - set(but), whole
    assert code == (0 if not found else 1), (code, found)
    if 'latency' in whole:
        t.note('%s: p50 %d us, p99 %d us', whole['engine'], whole['latency']['p50_us'], whole['latency']['p99_us'])
    if not found:
        code, out, err = t.run('doctor', '--quiet', '--url', url, *options)
        assert (code, out, err) == (0, b'', b''), (code, out, err)


def hour_ahead(t):
    """Our own clock is an hour ahead of the server's."""
    library = glob.glob('/usr/lib/*/faketime/libfaketimeMT.so.1')
    if not library:
        raise Skip('libfaketime is not installed')
    return dict(t.env, LD_PRELOAD=library[0], FAKETIME='+3600', FAKETIME_DONT_FAKE_MONOTONIC='1')


def clock_is_judged(t, url, name):
    """By the kernel's own flag, which belongs to the whole machine: a preloaded library says it."""
    library = os.path.join(os.path.dirname(t.dibs), '..', '..', 'tests', 'support', 'libadjtimex.so')
    if not os.path.exists(library):
        raise Skip('the build has no tests')
    for state, severity in (('unsynchronised', 'note'), ('synchronised', None)):
        env = dict(t.env, LD_PRELOAD=os.path.abspath(library), DIBS_TEST_CLOCK=state)
        found = {f['id']: f['severity'] for f in examine(t, url, env=env)[2]['findings']}
        assert found.get(name) == severity, (state, found)


# ---- Redis ---------------------------------------------------------------------------------------------------


class Configured(Redis):
    """A server with arguments of its own."""

    def __init__(self, folder, *arguments, host='127.0.0.1'):
        self.arguments, self.host = arguments, host
        os.makedirs(folder, exist_ok=True)
        super().__init__(folder)

    def start(self):
        """A server that finds its port taken ends at once: then another port."""
        for _ in range(5):
            self.port = ensembles.quiet_port()  # 10,000 above it is the cluster's, which a client may have just now
            self.url = 'redis://%s:%d' % (self.host, self.port)
            self.process = subprocess.Popen(
                ['redis-server', '--port', str(self.port), '--bind', self.host, '--dir', self.folder,
                 *self.arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            wait_for(lambda: self.process.poll() is not None or self.answers(), 'redis-server')
            if self.process.poll() is None:
                return
        raise AssertionError('redis-server does not start')

    def answers(self):
        with contextlib.suppress(OSError):
            return self.ask('PING')[:1] in (b'+', b'-')

    def ask(self, command):
        with socket.create_connection((self.host, self.port), timeout=2) as s:
            s.sendall(command.encode() + b'\r\n')
            return s.recv(65536)

    def set(self, key, value):
        answer = self.ask('CONFIG SET %s %s' % (key, value))
        assert b'+OK' in answer, (key, value, answer)

    @contextlib.contextmanager
    def setting(self, **values):
        before = {}
        for key, value in values.items():
            key = key.replace('_', '-')
            before[key] = self.ask('CONFIG GET ' + key).decode().split('\r\n')[4] or '""'
            self.set(key, value)
        yield
        for key, value in before.items():
            wait_for(lambda: b'+OK' in self.ask('CONFIG SET %s %s' % (key, value)), 'the old setting')


GOOD_REDIS = ('--save', '', '--appendonly', 'yes', '--appendfsync', 'always')


@contextlib.contextmanager
def redis_of(t, name, *arguments, **more):
    if not shutil.which('redis-server'):
        raise Skip('redis-server is not installed')
    server = Configured(t.path(name), *(arguments or GOOD_REDIS), **more)
    try:
        yield server
    finally:
        server.kill()


@test()
def redis_settings(t):
    with redis_of(t, 'main') as r:
        keys = r.ask('DBSIZE')
        silent(t, r.url)
        with r.setting(maxmemory='100mb', maxmemory_policy='allkeys-lru'):
            planted(t, r.url, redis_eviction='danger')
        with r.setting(maxmemory_policy='volatile-ttl'):
            planted(t, r.url, redis_eviction__latent='note')
        with r.setting(maxmemory='1'):
            planted(t, r.url, redis_memory__full='danger', redis_memory='warning')
        with r.setting(appendfsync='everysec'):
            planted(t, r.url, redis_persistence_everysec='warning')
        with r.setting(no_appendfsync_on_rewrite='yes'):
            planted(t, r.url, redis_persistence_rewrite='warning')
        with r.setting(timeout='10'):
            planted(t, r.url, redis_timeout='warning')
            assert 'redis.timeout' not in examine(t, r.url, '--lease', '5s')[1]
        with r.setting(maxclients='11'), contextlib.ExitStack() as stack:
            for _ in range(9):
                stack.enter_context(socket.create_connection((r.host, r.port)))
            planted(t, r.url, redis_clients='warning')
        with r.setting(min_replicas_to_write='3'):
            planted(t, r.url, redis_min__replicas__missing='danger')
        r.ask('REPLICAOF 127.0.0.1 1')
        planted(t, r.url, redis_replica='danger')
        r.ask('REPLICAOF NO ONE')
        planted(t, r.url, env=hour_ahead(t), redis_clock='warning')
        silent(t, r.url)
        assert r.ask('DBSIZE') == keys  # it has left nothing behind
        with r.setting(appendonly='no'):
            planted(t, r.url, redis_persistence_none='danger')
            with r.setting(save='"60 1"'):
                planted(t, r.url, redis_persistence_snapshots='danger')


@test()
def redis_rights(t):
    enough = '~dibs:* &dibs:* +@read +@write +@scripting +@connection +@pubsub +time +info'
    users = {
        'whole': enough + ' +config|get',
        'documented': enough,
        'stranger': enough.replace('~dibs', '~other'),
        'unscripted': enough + ' -@scripting',
        'deaf': enough.replace('&dibs:*', 'resetchannels'),
        'timeless': enough + ' -time',
        'harmless': enough + ' -client|kill',
        'blind': enough + ' -info',
    }
    with redis_of(t, 'main') as r:
        for name, rights in users.items():
            answer = r.ask('ACL SETUSER %s on >geheim %s' % (name, rights))
            assert b'+OK' in answer, (name, answer)
        url = r.url.replace('//', '//%s:geheim@')
        silent(t, url % 'whole')
        assert t.run('run', '--url', url % 'documented', 'job', '--', 'true')[0] == 0
        assert 'appendfsync' in planted(t, url % 'documented', unseen='unseen')['findings'][0]['what']
        planted(t, url % 'stranger', redis_rights_keys='danger')
        planted(t, url % 'unscripted', redis_rights_scripts='danger')
        planted(t, url % 'deaf', redis_rights_channels='warning')
        planted(t, url % 'timeless', redis_rights_time='danger')
        planted(t, url % 'harmless', redis_rights_kill='warning')
        planted(t, url % 'blind', redis_rights_kill='warning', unseen='unseen')
        for json_too in ((), ('--json',)):
            code, out, err = t.run('doctor', *json_too, '--url', url % 'stranger')
            assert code == 2 and b'geheim' not in out + err
        code, out, err = t.run('doctor', '--url', r.url.replace('//', '//whole:wrong-geheim@'))
        assert code == 69 and out == b'' and b'geheim' not in err, (code, err)


@test()
def redis_topology(t):
    with redis_of(t, 'main') as r, redis_of(t, 'other', *GOOD_REDIS, '--cluster-enabled', 'yes') as cluster:
        planted(t, cluster.url, redis_cluster='danger', redis_cluster__down='danger')
        assert b'+OK' in cluster.ask('CLUSTER ADDSLOTSRANGE 0 16383')
        wait_for(lambda: b'cluster_state:ok' in cluster.ask('CLUSTER INFO'), 'the cluster')
        planted(t, cluster.url, redis_cluster='danger')
        silent(t, cluster.url.replace('redis:', 'redis+cluster:'))
        with open(t.path('sentinel.conf'), 'w') as f:
            f.write('sentinel monitor main 127.0.0.1 %d 1\n' % r.port)
        with redis_of(t, 'replica', *GOOD_REDIS, '--replicaof', '127.0.0.1 %d' % r.port):
            wait_for(lambda: b'connected_slaves:1' in r.ask('INFO replication'), 'the replica')
            planted(t, r.url, redis_replicas='warning')
            planted(t, r.url + '?guard=on', redis_guard__alone='warning')
            planted(t, r.url + '?guard=on&wait=2', redis_wait='danger')
            silent(t, r.url + '?guard=on&wait=1')
            with r.setting(appendonly='no'):
                planted(t, r.url + '?guard=on&wait=1', redis_guard__persistence='note')
        sentinel = free_port()
        process = subprocess.Popen(['redis-server', t.path('sentinel.conf'), '--sentinel', '--port', str(sentinel)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_for(lambda: b':1' in r.ask('PUBSUB NUMSUB __sentinel__:hello'), 'the sentinel')
            planted(t, r.url, redis_sentinel='warning')
            silent(t, 'redis+sentinel://127.0.0.1:%d/main' % sentinel)
            planted(t, 'redis://127.0.0.1:%d' % sentinel, redis_sentinel__process='danger')
        finally:
            process.kill()
            process.wait()
    with redis_of(t, 'slow', '--save', '', '--enable-debug-command', 'yes') as r:
        assert b'+OK' in r.ask('DEBUG POPULATE 10000') and b'+OK' in r.ask('SAVE')
        r.kill()
        r.arguments += ('--key-load-delay', '1000', '--loading-process-events-interval-bytes', '1024')  # ten seconds
        r.start()
        planted(t, r.url, redis_loading='danger')


@test()
def redlock_nodes(t):
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(redis_of(t, 'n%d' % i, host='127.0.0.%d' % (i + 1))) for i in range(4)]
        hosts = ['%s:%d' % (n.host, n.port) for n in nodes]
        good = 'redlock://' + ','.join(hosts[:3])
        silent(t, good)
        clock_is_judged(t, good, 'redlock.clock')
        planted(t, 'redlock://' + ','.join(hosts), redlock_even='warning')
        planted(t, 'redlock://' + ','.join(hosts[:2]), redlock_two__nodes='warning')
        planted(t, 'redlock://127.0.0.1:%d,localhost:%d,%s' % (nodes[0].port, nodes[0].port, hosts[1]),
                redlock_same__server='danger', redlock_same__host='warning')
        planted(t, good + '?guard=off', redlock_guard='warning')
        with nodes[0].setting(appendonly='no'):
            planted(t, good + '?guard=off', redlock_node__persistence='danger')
            planted(t, good, redlock_node__restarts='note')
        with nodes[1].setting(maxmemory='100mb', maxmemory_policy='allkeys-lru'):
            found = planted(t, good, redis_eviction='danger')['findings']
            assert any('node 2 of 3' in f['what'] for f in found), found
        nodes[2].kill()
        planted(t, good, redlock_node__down='warning')
        nodes[1].kill()
        planted(t, good, redlock_majority='danger')
        code, out, err = t.run('doctor', '--url', 'redlock://' + ','.join(hosts[1:3]))
        assert code == 69 and out == b'', (code, err)


# ---- SQLite --------------------------------------------------------------------------------------------------


def as_nobody(t, *args):
    """As a user who is nobody in particular; (code, {id: severity})."""
    if os.geteuid() != 0:
        raise Skip('only root can become somebody else')
    dibs = t.path('dibs')
    shutil.copy(t.dibs, dibs)
    done = subprocess.run(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', dibs, *args],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=t.env)
    assert done.returncode in (0, 1, 2), (done.returncode, done.stderr)
    return done.returncode, {f['id']: f['severity'] for f in json.loads(done.stdout)['findings']}


@test('sqlite')
def sqlite_stores(t):
    path = t.path('locks.db')
    planted(t, t.url, sqlite_absent='note')
    assert not os.path.exists(path)
    code, out, _ = t.run('doctor', '--json', env={k: v for k, v in t.env.items() if k != 'DIBS_URL'})
    assert code == 0 and not os.path.exists(t.path('state')), out  # the default store is not made either
    assert t.run('run', 'job', '--', 'true')[0] == 0

    def state():
        names = [n for n in os.listdir(t.folder) if 'locks' in n]
        return {n: os.stat(t.path(n)).st_mtime_ns if n != 'locks.db-shm' else None for n in names}  # the log's index

    before = state()
    silent(t, t.url)
    assert state() == before
    os.chmod(path, 0o666)
    planted(t, t.url, sqlite_open__file='warning')
    os.chmod(path, 0o644)
    os.chmod(t.folder, 0o777)
    planted(t, t.url, sqlite_open__folder='warning')
    os.chmod(t.folder, 0o755)
    planted(t, 'sqlite://' + t.path('missing/locks.db'), sqlite_folder='danger')
    planted(t, 'sqlite://' + t.folder, sqlite_not__a__file='danger')
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute('PRAGMA journal_mode = DELETE')
    planted(t, t.url, sqlite_journal='warning')
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute('PRAGMA user_version = 99')
    planted(t, t.url, sqlite_database='danger')
    with contextlib.closing(sqlite3.connect(t.path('other.db'))) as db:
        db.execute('CREATE TABLE mine (x)')
        db.commit()
    planted(t, 'sqlite://' + t.path('other.db'), sqlite_database='danger')


@test('sqlite')
def sqlite_of_another_user(t):
    assert t.run('run', 'job', '--', 'true')[0] == 0
    for folder in (t.folder, os.path.dirname(t.folder)):
        os.chmod(folder, 0o755)
    code, found = as_nobody(t, 'doctor', '--json')
    assert code == 2 and found['sqlite.owner'] == 'warning', found
    assert found['sqlite.file-rights'] == found['sqlite.folder-rights'] == 'danger', found


@test('sqlite')
def sqlite_on_a_full_disk(t):
    os.mkdir(t.path('small'))
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$0" doctor --json --url "sqlite://$1/locks.db"'
    done = subprocess.run(['unshare', '-m', 'sh', '-c', script, t.dibs, t.path('small')],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=t.env)
    if not done.stdout:
        raise Skip('cannot mount here: ' + done.stderr.decode()[-100:])
    found = {f['id']: f['severity'] for f in json.loads(done.stdout)['findings']}
    assert done.returncode == 2 and found['sqlite.disk-full'] == 'danger', found
    assert found['sqlite.memory'] == 'note', found


# ---- The command ---------------------------------------------------------------------------------------------


@test()
def doctor_text_and_latency(t):
    with redis_of(t, 'main', '--save', '', '--appendonly', 'no') as r:
        code, out, err = t.run('doctor', '--url', r.url)
        lines = out.decode().splitlines()
        assert code == 2 and len(lines) == 2 and err == b'', (code, out, err)
        assert lines[0].startswith('danger   redis.persistence.none: ') and ' Why: ' in lines[0] and ' Do: ' in lines[0]
        assert 'danger 1, warning 0, note 0, unseen 0' in lines[1] and 'p99 of 100' in lines[1], lines[1]
        code, out, _ = t.run('doctor', '--quiet', '--url', r.url)
        assert code == 2 and out.decode().splitlines() == lines[:1], out
        code, found, whole = examine(t, r.url, '--lease', '10ms')
        latency = whole['latency']
        share = latency['p99_us'] * 100 // 10000
        assert latency['exchanges'] == 100 and latency['lease_ms'] == 10
        assert ('latency.too-slow' in found, 'latency.slow' in found) == (share > 33, 5 < share < 34), (share, found)
    code, out, err = t.run('doctor', '--url', 'memory:')
    assert code == 64 and out == b'' and b'no server' in err, (code, err)


@test()
def every_check_is_documented(t):
    source = os.path.join(HERE, '..', '..')
    with open(os.path.join(source, 'docs', 'doctor.md')) as f:
        listed = re.findall(r'^\| `([a-z.-]+)` \| (\w+) \|', f.read(), re.M)
    checks = []
    for path in glob.glob(os.path.join(source, 'src', 'doctor', '*.c')):
        with open(path) as f:
            text = f.read()
        checks += re.findall(r'^    \{"([a-z.-]+)",\s+DIBS__(\w+),', text, re.M)
        for shared, severity in (('SERVER_CLOCK', 'warning'), ('CLIENT_CLOCK', 'note')):
            checks += [(name, severity) for name in re.findall(r'DIBS__%s\("([a-z.-]+)"\)' % shared, text)]
    assert set(listed) == {(name, severity.lower()) for name, severity in checks} and len(listed) > 100
