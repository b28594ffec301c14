"""`dibs doctor` on databases and ensembles; see test_doctor.py."""

import contextlib
import json
import os
import shutil
import socket
import subprocess

import databases
import ensembles
from harness import Skip, free_port, test, wait_for
from test_doctor import clock_is_judged, examine, hour_ahead, planted, silent

# ---- Databases -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def database(kind, *arguments):
    try:
        server = databases.KINDS[kind](*arguments)
    except databases.Missing as e:
        raise Skip(str(e))
    try:
        yield server
    finally:
        server.stop()


def with_user(url, user):
    scheme, rest = url.split('//')
    return '%s//%s@%s' % (scheme, user, rest.split('@')[1])


@contextlib.contextmanager
def system(server, **values):
    """ALTER SYSTEM, seen by new sessions, and back."""

    key, value = next(iter(values.items()))
    server.ask(*("ALTER SYSTEM SET %s = '%s'" % v for v in values.items()), 'SELECT pg_reload_conf()')
    wait_for(lambda: server.ask('SHOW ' + key) == [value], 'the setting')
    yield
    server.ask(*('ALTER SYSTEM RESET ' + k for k in values), 'SELECT pg_reload_conf()')
    wait_for(lambda: server.ask('SHOW ' + key) != [value], 'the old setting')


def greet(port):
    """A connection to PostgreSQL that stays."""
    s = socket.create_connection(('127.0.0.1', port))
    s.sendall(b'\0\0\0\x17\0\3\0\0user\0postgres\0\0')
    s.recv(1)
    return s


@contextlib.contextmanager
def pgbouncer(t, server):
    if not shutil.which('pgbouncer'):
        raise Skip('pgbouncer is not installed')
    port, path = free_port(), os.path.join(server.folder, 'pgbouncer.ini')
    with open(path, 'w') as f:
        f.write('[databases]\n* = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n'
                'listen_port = %d\nauth_type = any\npool_mode = transaction\nunix_socket_dir =\n'
                'ignore_startup_parameters = extra_float_digits\n' % (server.port, port))
    process = subprocess.Popen(server.as_account('pgbouncer', path), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: process.poll() is None and not socket.socket().connect_ex(('127.0.0.1', port)), 'pgbouncer')
        yield port
    finally:
        process.kill()
        process.wait()


def postgresql_settings(t, server, url):
    assert server.ask("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'dibs%'", database='locks') == ['0']
    with system(server, fsync='off'):
        planted(t, url, env=hour_ahead(t), postgresql_fsync='danger', postgresql_clock='warning')
    with system(server, full_page_writes='off', autovacuum='off', synchronous_commit='off'):
        planted(t, url, postgresql_full__page__writes='warning', postgresql_autovacuum='warning',
                postgresql_synchronous__commit='note')
    with system(server, statement_timeout='100ms', idle_session_timeout='10s'):
        planted(t, url, postgresql_statement__timeout='warning', postgresql_idle__timeout='warning')
    guests = [greet(server.port) for _ in range(9)]
    planted(t, url, postgresql_connections='warning')
    for guest in guests:
        guest.close()


def postgresql_rights(t, server, url):
    server.ask('CREATE ROLE guest LOGIN CONNECTION LIMIT 3', 'CREATE ROLE reader LOGIN')
    planted(t, with_user(url, 'guest'), postgresql_tables='danger', postgresql_cell__tables='warning',
            postgresql_role__limit='warning')
    assert t.run('run', '--url', url, 'job', '--', 'true')[0] == 0
    assert t.run('counter', 'set', '--url', url, 'n', '1')[0] == 0
    silent(t, url)
    server.ask('GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader', database='locks')
    server.ask('REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC', database='locks')
    planted(t, with_user(url, 'reader'), postgresql_rights='danger', postgresql_cell__rights='warning',
            postgresql_end__sessions='warning')
    server.ask('ALTER TABLE dibs_waiter SET UNLOGGED', "COMMENT ON TABLE dibs_lock IS 'dibs 9'", database='locks')
    planted(t, url, postgresql_unlogged='danger', postgresql_layout='danger')


def postgresql_topology(t, server, url):
    """The last one on this server: it is a standby afterwards, then gone."""
    with pgbouncer(t, server) as port:
        planted(t, 'postgresql://postgres@127.0.0.1:%d/locks' % port, postgresql_pooler='warning')
    receiver = subprocess.Popen(
        server.as_account(databases.find('pg_receivewal', '/usr/lib/postgresql/*/bin', '/usr/bin'), '-D', server.folder,
                          '-h', '127.0.0.1', '-p', str(server.port), '-U', 'postgres'),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: server.ask('SELECT count(*) FROM pg_stat_replication') == ['1'], 'the standby')
    planted(t, url, postgresql_replication='warning')
    receiver.kill()
    receiver.wait()
    server.kill()
    with open(os.path.join(server.data, 'standby.signal'), 'w'):
        pass
    server.start()
    planted(t, url, postgresql_standby='danger')
    server.kill()
    code, out, err = t.run('doctor', '--url', url)
    assert code == 69 and out == b'' and b'127.0.0.1' in err, (code, err)


@test()
def postgresql_servers(t):
    with database('postgresql', '-c', 'max_connections=14') as server:
        url = server.make_database('locks')
        silent(t, url)
        postgresql_settings(t, server, url)
        postgresql_rights(t, server, url)
        postgresql_topology(t, server, url)


@contextlib.contextmanager
def variables(server, **values):
    before = {name: server.ask('SELECT @@GLOBAL.' + name)[0] for name in values}
    server.ask(*('SET GLOBAL %s = %s' % v for v in values.items()))
    yield
    server.ask(*('SET GLOBAL %s = %s' % (n, v if v.isdigit() else "'%s'" % v) for n, v in before.items()))


def mysql_settings(t, server, url):
    assert server.ask('SHOW TABLES FROM locks') == []
    with variables(server, innodb_flush_log_at_trx_commit=0):
        planted(t, url, env=hour_ahead(t), mysql_flush__log='danger', mysql_clock='warning')
    with variables(server, innodb_flush_log_at_trx_commit=2, sync_binlog=0):
        planted(t, url, mysql_flush__log__os='warning', mysql_sync__binlog='warning')
    with variables(server, read_only=1):
        planted(t, url, mysql_read__only='danger')
    with variables(server, wait_timeout=5, max_allowed_packet=1048576):
        planted(t, url, mysql_wait__timeout='warning', mysql_packet='warning')
    with variables(server, binlog_format="'STATEMENT'"):
        planted(t, url, mysql_refused='danger')
    guests = [server.dial() for _ in range(10)]
    wait_for(lambda: int(server.ask("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE "
                                    "VARIABLE_NAME = 'Threads_connected'")[0]) >= 10, 'the guests')
    planted(t, url, mysql_connections='warning')
    for guest in guests:
        guest.close()


def mysql_rights(t, server, url):
    for user, rights in (('guest', 'SELECT, INSERT, UPDATE, DELETE'), ('reader', 'SELECT'),
                         ('owner', 'SELECT, INSERT, UPDATE, DELETE, CREATE')):
        server.ask("CREATE USER %s@'127.0.0.1'" % user, "GRANT %s ON locks.* TO %s@'127.0.0.1'" % (rights, user))
    planted(t, with_user(url, 'guest'), mysql_tables='danger', mysql_cell__tables='warning')
    silent(t, with_user(url, 'owner'))
    assert t.run('run', '--url', url, 'job', '--', 'true')[0] == 0
    assert t.run('counter', 'set', '--url', url, 'n', '1')[0] == 0
    silent(t, with_user(url, 'guest'))
    planted(t, with_user(url, 'reader'), mysql_rights='danger', mysql_cell__rights='warning')
    server.ask('ALTER TABLE dibs_wake ENGINE = MyISAM', database='locks')
    planted(t, url, mysql_engine='danger')


@test()
def mysql_servers(t):
    with database('mysql', '--log-bin', '--sync-binlog=1', '--max-connections=12') as server:
        url = server.make_database('locks')
        silent(t, url)
        mysql_settings(t, server, url)
        wait_for(lambda: t.run('doctor', '--quiet', '--url', url)[0] == 0, 'the end of the guests')
        mysql_rights(t, server, url)


GALERA = '/usr/lib/galera/libgalera_smm.so'  # of Debian's galera-4, which mariadb-server depends on


@test()
def mysql_galera(t):
    """A cluster of one: a node all the same."""
    if not os.path.exists(GALERA):
        raise Skip('galera is not installed')
    with database('mysql', '--wsrep-on=ON', '--wsrep-provider=' + GALERA, '--wsrep-cluster-address=gcomm://', '--binlog-format=ROW',
                  '--innodb-autoinc-lock-mode=2', '--wsrep-node-address=127.0.0.1',
                  '--wsrep-provider-options=base_port=%d;gmcast.listen_addr=tcp://127.0.0.1:%d' % ((free_port(),) * 2)) as server:
        found = planted(t, server.make_database('locks'), mysql_galera='warning')['findings']
        assert any('cluster of 1' in f['what'] for f in found), found


# ---- Ensembles -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ensemble(kind, count, *arguments):
    try:
        servers = ensembles.KINDS[kind](count, [*ensembles.KINDS[kind].quick, *arguments])
    except databases.Missing as e:
        raise Skip(str(e))
    try:
        yield servers
    finally:
        servers.stop()


def etcd_flaw():
    """Debian 12's revokes leases that are alive."""
    version = subprocess.run(['etcd', '--version'], stdout=subprocess.PIPE).stdout.decode().split()[2].split('.')
    fixed = {('3', '4'): 31, ('3', '5'): 13}.get(tuple(version[:2]), 0)
    return {'etcd.version'} if int(version[2]) < fixed else set()


@test()
def etcd_clusters(t):
    with ensemble('etcd', 3) as three:
        silent(t, three.url(), '--lease', '40s', but=etcd_flaw())
        planted(t, three.url(nodes=three.nodes[:1]), etcd_unnamed='warning')
        three.nodes[2].kill()
        planted(t, three.url(), etcd_member__down='warning')
        three.nodes[1].kill()
        wait_for(lambda: 'etcd.no-leader' in examine(t, three.url(nodes=three.nodes[:1]))[1], 'the loss of the leader')
        three.nodes[0].kill()
        code, out, err = t.run('doctor', '--url', three.url())
        assert code == 69 and out == b'', (code, err)
    with ensemble('etcd', 2) as two, ensemble('etcd', 1) as other:
        planted(t, two.url(), etcd_even='warning')
        planted(t, two.url(nodes=two.nodes + other.nodes), etcd_split='danger')


@test()
def etcd_single(t):
    with ensemble('etcd', 1, '--quota-backend-bytes=200000') as one:
        def ctl(*words, user=()):
            done = subprocess.run(['etcdctl', '--endpoints', one.hosts, *user, *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, input=b'x' * 100000, env=dict(t.env, ETCDCTL_API='3'))
            return done.stdout.decode()

        planted(t, one.url(), etcd_single='warning')
        clock_is_judged(t, one.url(), 'etcd.clock')
        for words in ('user add root:r', 'user grant-role root root', 'role add app', 'user add app:geheim',
                      'user grant-role app app', 'auth enable'):
            ctl(*words.split())
        root = ('--user', 'root:r')
        app = one.url().replace('//', '//app:geheim@')
        assert 'geheim' not in json.dumps(planted(t, app, etcd_rights='danger'))
        ctl('role', 'grant-permission', 'app', '--prefix=true', 'readwrite', 'dibs/', user=root)
        assert 'etcd.rights' not in examine(t, app)[1]
        assert ctl('get', '--prefix', '--keys-only', 'dibs/', user=root).strip() == ''
        wait_for(lambda: 'space exceeded' in ctl('put', 'big', user=root), 'a full database')
        planted(t, app, etcd_alarm='danger')


@test()
def zookeeper_ensembles(t):
    with ensemble('zookeeper', 3) as three:
        silent(t, three.url('place'), '--lease', '40s')  # the machine may be busy
        planted(t, three.url('place', nodes=three.nodes[:1]), zookeeper_unnamed='warning')
        planted(t, three.url('place') + '?session=100ms', zookeeper_session='danger')
        three.nodes[2].kill()
        planted(t, three.url('place'), zookeeper_server__down='warning')
    with ensemble('zookeeper', 2) as two:
        planted(t, two.url('place'), zookeeper_even='warning')


@test()
def zookeeper_single(t):
    with ensemble('zookeeper', 1) as one, ensemble('zookeeper', 1) as other:
        planted(t, one.url('place', nodes=one.nodes + other.nodes), zookeeper_split='danger')
        planted(t, one.url('place'), zookeeper_standalone='warning')
        clock_is_judged(t, one.url('place'), 'zookeeper.clock')
        owner = one.url('mine').replace('//', '//me:geheim@')
        assert t.run('run', '--url', one.url('place'), 'job', '--', 'true')[0] == 0
        assert t.run('run', '--url', owner, 'job', '--', 'true')[0] == 0
        planted(t, one.url('place'), zookeeper_acl='note')
        assert 'zookeeper.acl' not in examine(t, owner)[1]
        assert 'geheim' not in json.dumps(planted(t, one.url('mine'), zookeeper_rights='danger'))
