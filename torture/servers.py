"""Private servers of each engine for torture: each node in a place of its own (network.Place), its data on a small disk of
its own (a tmpfs, so that it can be filled), ended by pid and with whoever started them.

A setup has `url` (what clients open), `nodes`, and what faults need to know of that engine. A node can be signalled,
killed as a whole and started again on its data."""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import time

import network

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, 'tests', 'support'))
import databases  # noqa: E402: what the tests use
import ensembles  # noqa: E402

PASSWORD = 'torture'
SERVICE = '10.77.0.100'  # the address that moves in a failover
REDIS_PORT = 6379
SENTINEL_PORT = 26379
SETTLE_SECONDS = 30
MEGABYTE = 1 << 20


class Disk:
    """A folder with a size. Without root it is only a folder, and cannot be filled."""

    def __init__(self, folder, megabytes=400):
        self.folder, self.filler = folder, os.path.join(folder, 'filler')
        os.makedirs(folder, exist_ok=True)
        if os.geteuid() == 0:
            network.run('mount', '-t', 'tmpfs', '-o', 'size=%dm,mode=755' % megabytes, 'dibs-matrix', folder)

    def fill(self):
        fd = os.open(self.filler, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        size = MEGABYTE
        while size >= 512:  # to the last block: whatever is left would do for some more commits
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, size)
            except OSError:
                size //= 2
        os.close(fd)

    def free(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.filler)


class Clock:
    """The wall clock of servers that are started `with` it (clock.c); it can be moved while they run."""

    def __init__(self, folder, library):
        self.file, self.library = os.path.join(folder, 'clock'), library
        self.set(0)

    def set(self, seconds):
        fd = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(fd, struct.pack('=q', seconds), 0)
        os.close(fd)

    def __enter__(self):
        os.environ.update(DIBS_TORTURE_CLOCK=self.file, LD_PRELOAD=self.library)

    def __exit__(self, *_):
        del os.environ['DIBS_TORTURE_CLOCK'], os.environ['LD_PRELOAD']


class Node:
    """A server that is one process, perhaps with workers."""

    process = None

    def __init__(self, place, disk):
        self.place, self.disk = place, disk

    def running(self):
        return self.process is not None and self.process.poll() is None

    def settle(self):
        """Waits until it serves again, where starting it did not."""

    def signal(self, number):
        if self.running():
            for pid in [self.process.pid, *databases.children(self.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


class RedisConnection:
    def __init__(self, address, password):
        self.socket = socket.create_connection(address, timeout=3)
        self.file = self.socket.makefile('rb')
        self.ask('AUTH', password)

    def ask(self, *words):
        """One request; the reply if it is text or a number."""
        self.socket.sendall(''.join(['*%d\r\n' % len(words)] + ['$%d\r\n%s\r\n' % (len(w), w) for w in words]).encode())
        line = self.file.readline().decode().rstrip('\r\n')
        if line.startswith('-') and not line.startswith('-LOADING'):
            raise OSError('redis: %s: %s' % (words[0], line[1:]))
        return self.file.read(int(line[1:]) + 2).decode()[:-2] if line.startswith('$') else line[1:]

    def close(self):
        self.file.close()
        self.socket.close()


class Redis(Node):
    def __init__(self, place, disk, clock, *extra):
        super().__init__(place, disk)
        self.clock, self.extra, self.password = clock, extra, PASSWORD
        self.start()

    def start(self):
        argv = ['setpriv', '--pdeathsig=KILL', 'redis-server', '--port', str(REDIS_PORT), '--bind', '0.0.0.0',
                '--dir', self.disk.folder, '--save', '', '--requirepass', self.password, '--masterauth', PASSWORD,
                '--repl-diskless-sync-delay', '0', '--logfile', self.disk.folder + '.log', *self.extra]
        with self.place.inside(), self.clock:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + databases.START_SECONDS
        while time.monotonic() < end and self.running():
            with contextlib.suppress(OSError):
                if self.ask('PING') == 'PONG':
                    return
            time.sleep(0.02)
        self.kill()
        with open(self.disk.folder + '.log', errors='replace') as f:
            raise OSError('redis-server did not start: ' + f.read()[-1000:])

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def forget(self):
        """What it has on disk."""
        for name in os.listdir(self.disk.folder):
            shutil.rmtree(os.path.join(self.disk.folder, name))

    def hold(self):
        """A connection of the administrator's."""
        with self.place.inside():
            return RedisConnection((self.place.address, REDIS_PORT), self.password)

    def ask(self, *words):
        with contextlib.closing(self.hold()) as c:
            return c.ask(*words)


class Setup:
    """The environment knows it before it starts, so that what has started is stopped when the rest fails."""

    def __init__(self, environment):
        self.environment, self.nodes = environment, []
        environment.setup = self
        self.start(environment)

    def stop(self):
        for node in self.nodes:
            node.kill()


class Sqlite(Setup):
    """A file; its machine is this one."""

    def start(self, environment):
        self.disk = Disk(os.path.join(environment.folder, 'disk'), 32)
        self.url = 'sqlite://%s/dibs.db' % self.disk.folder


class OneRedis(Setup):
    """A master that writes through and a replica, behind one address that leads to the master."""

    persistent = ('--appendonly', 'yes', '--appendfsync', 'always', '--auto-aof-rewrite-percentage', '0')

    def start(self, environment):
        for p in environment.servers:
            self.nodes.append(Redis(p, Disk(os.path.join(environment.folder, p.name)), environment.clock, *self.persistent))
        self.master, self.replica = self.nodes
        for node in self.nodes:
            network.run('ip', '-n', node.place.namespace, 'addr', 'add', SERVICE + '/32', 'dev', 'dibs0')
        self.replica.ask('REPLICAOF', self.master.place.address, str(REDIS_PORT))
        environment.network.tell('alias %s %s' % (SERVICE, self.master.place.name))
        self.url = 'redis://:%s@%s' % (PASSWORD, environment.front(SERVICE, REDIS_PORT))

    def fail_over(self):
        """The replica, with what it has got so far, becomes the master; the old one follows it."""
        self.master, self.replica = self.replica, self.master
        self.master.ask('REPLICAOF', 'NO', 'ONE')
        self.environment.network.tell('alias %s %s' % (SERVICE, self.master.place.name))
        self.replica.ask('REPLICAOF', self.master.place.address, str(REDIS_PORT))

    def stop(self):
        super().stop()
        for node in self.nodes:
            subprocess.run(['ip', '-n', node.place.namespace, 'addr', 'del', SERVICE + '/32', 'dev', 'dibs0'],
                           stderr=subprocess.DEVNULL)


class Sentinel(Node):
    """It writes its configuration itself, so that it comes back with what it has learned."""

    def __init__(self, place, folder, master):
        super().__init__(place, None)
        os.makedirs(folder)
        self.file = os.path.join(folder, 'sentinel.conf')
        with open(self.file, 'w') as f:
            f.write('port %d\nprotected-mode no\ndir %s\nlogfile %s.log\nsentinel monitor torture %s %d 2\n'
                    'sentinel auth-pass torture %s\nsentinel down-after-milliseconds torture 1000\n'
                    'sentinel failover-timeout torture 3000\nsentinel parallel-syncs torture 2\n' % (
                        SENTINEL_PORT, folder, folder, master.address, REDIS_PORT, PASSWORD))
        with place.inside():
            self.process = subprocess.Popen(['setpriv', '--pdeathsig=KILL', 'redis-server', self.file, '--sentinel'],
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, *words):
        with self.place.inside(), contextlib.closing(socket.create_connection((self.place.address, SENTINEL_PORT), 1)) as s:
            s.sendall((' '.join(words) + '\r\n').encode())
            return s.recv(65536).decode()


class Watched(Setup):
    """A master and two replicas that write nothing to disk, a sentinel beside each. Clients need one replica's
    acknowledgement. A server that comes back without its data is a replica by then, or quiet."""

    parameters = 'wait=1&max_lease=2000'

    def start(self, environment):
        for p in environment.servers:
            self.nodes.append(Redis(p, Disk(os.path.join(environment.folder, p.name)), environment.clock, '--appendonly', 'no',
                                    '--repl-timeout', '5', '--hz', '50'))
        for node in self.nodes[1:]:
            node.ask('REPLICAOF', self.nodes[0].place.address, str(REDIS_PORT))
        self.sentinels = []
        for p in environment.servers:
            self.sentinels.append(Sentinel(p, os.path.join(environment.folder, 'sentinel' + p.name), environment.servers[0]))
        self.wait_for('slaves=2,sentinels=3')
        self.url = 'redis+sentinel://:%s@%s/torture?%s' % (
            PASSWORD, ','.join('%s:%d' % (p.address, SENTINEL_PORT) for p in environment.servers), self.parameters)

    def wait_for(self, text):
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if all(text in s.ask('INFO', 'sentinel') for s in self.sentinels):
                    return
            time.sleep(0.1)
        raise OSError('the sentinels do not find each other')

    def leader(self):
        """By the account of most sentinels."""
        said = [s.ask('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', 'torture').split('\r\n')[2] for s in self.sentinels]
        return next(n for n in self.nodes if n.place.address == max(said, key=said.count))

    def take_back(self, node):
        """As a replica from the beginning, which its configuration file would say. A sentinel takes ten seconds for that, and
        the other replica may be gone by then."""
        node.ask('REPLICAOF', self.leader().place.address, str(REDIS_PORT))
        end = time.monotonic() + SETTLE_SECONDS
        while 'master_link_status:up' not in node.ask('INFO', 'replication'):
            if time.monotonic() > end:
                raise OSError('the replica does not find its master')
            time.sleep(0.05)

    def stop(self):
        for node in getattr(self, 'sentinels', []):
            node.kill()
        super().stop()


class Unguarded(Watched):
    """The same, as other clients use it: what is promised then is published as counted."""

    parameters = 'guard=off'


class Clustered(Setup):
    """Three masters and a replica of each that write nothing to disk. A replica takes over after 1.5 seconds without its
    master; with one replica for each, nothing is granted there until the lost node is back."""

    parameters = 'wait=1&max_lease=2000'

    def start(self, environment):
        for p in environment.servers:
            self.nodes.append(Redis(p, Disk(os.path.join(environment.folder, p.name)), environment.clock, '--appendonly', 'no',
                                    '--repl-timeout', '5', '--hz', '50', '--cluster-enabled', 'yes', '--cluster-node-timeout', '1500',
                                    '--cluster-allow-replica-migration', 'no', '--cluster-require-full-coverage', 'no'))
        with environment.servers[0].inside():
            network.run('redis-cli', '--no-auth-warning', '-a', PASSWORD, '--cluster', 'create',
                        *('%s:%d' % (p.address, REDIS_PORT) for p in environment.servers), '--cluster-replicas', '1', '--cluster-yes')
        self.wait_for_replicas()
        self.url = 'redis+cluster://:%s@%s?%s' % (
            PASSWORD, ','.join('%s:%d' % (p.address, REDIS_PORT) for p in environment.servers), self.parameters)

    def is_whole(self):
        said = [n.ask('INFO', 'replication') for n in self.nodes]
        return sum('role:master' in s and 'state=online' in s for s in said) == 3

    def wait_for_replicas(self):
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if self.is_whole() and all('cluster_state:ok' in n.ask('CLUSTER', 'INFO') for n in self.nodes):
                    return
            time.sleep(0.1)
        raise OSError('the cluster does not become whole')

    def take_back(self, node):
        """It knows whom it follows."""
        self.wait_for_replicas()

    def leader(self):
        """Any master, once it has its replica again."""
        self.wait_for_replicas()
        masters = [n for n in self.nodes if 'role:master' in n.ask('INFO', 'replication')]
        return self.environment.chance.choice(masters)


    def redis_cli(self, *words):
        """A process, in the first server's place."""
        with self.nodes[0].place.inside():
            return subprocess.Popen(['redis-cli', '--no-auth-warning', '-a', PASSWORD, '--cluster', *words], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def begin_reshard(self, slots):
        """From any master to any other; the process, and who gives."""
        self.wait_for_replicas()
        masters = [n for n in self.nodes if 'role:master' in n.ask('INFO', 'replication')]
        giver, taker = self.environment.chance.sample(masters, 2)
        address = '%s:%d' % (taker.place.address, REDIS_PORT)
        return self.redis_cli('reshard', address, '--cluster-from', giver.ask('CLUSTER', 'MYID'), '--cluster-to',
                              taker.ask('CLUSTER', 'MYID'), '--cluster-slots', str(slots), '--cluster-yes'), giver

    @staticmethod
    def said_by(process):
        """What redis-cli printed until it ended. A server that was killed may keep it waiting."""
        try:
            return process.communicate(timeout=SETTLE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise OSError('redis-cli did not end: ' + process.communicate()[0][-300:])

    def reshard(self, slots):
        process, _ = self.begin_reshard(slots)
        said = self.said_by(process)
        if process.returncode != 0:
            raise OSError('redis-cli --cluster reshard: ' + said[-300:])

    def repair(self):
        """Slots that were on their way."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            process = self.redis_cli('fix', '%s:%d' % (self.nodes[0].place.address, REDIS_PORT))
            said = self.said_by(process)
            if process.returncode == 0:
                return self.wait_for_replicas()
            if time.monotonic() > end:
                raise OSError('redis-cli --cluster fix: ' + said[-300:])
            time.sleep(0.5)


class UnguardedCluster(Clustered):
    parameters = 'guard=off'


class Redlock(Setup):
    """Nodes without persistence: after a restart they are empty, and quiet for the longest lease."""

    max_lease = 4000

    def start(self, environment):
        for p in environment.servers:
            self.nodes.append(Redis(p, Disk(os.path.join(environment.folder, p.name)), environment.clock, '--appendonly', 'no'))
        self.url = 'redlock://:%s@%s?max_lease=%d' % (
            PASSWORD, ','.join(environment.front(n.place.address, REDIS_PORT) for n in self.nodes), self.max_lease)
        self.peer_url = 'redlock://' + ','.join(
            ':%s@%s' % (PASSWORD, environment.front(n.place.address, REDIS_PORT)) for n in self.nodes)
        time.sleep(self.max_lease / 1000)  # a new node does not vote before that


class SqlNode(Node):
    """One of databases.py, in a place. A replica starts from a copy of its `source`."""

    def __init__(self, place, disk, clock, kind, extra, maker=(), source=None):
        super().__init__(place, disk)

        class Placed(kind):
            port = source and source.server.port

            def make_folder(self):
                return disk.folder

            def maker(self):
                return self.copier(source.place.address) if source else [*super().maker(), *maker]

        self.clock = clock
        with place.inside(), clock:
            self.server = Placed(*extra)

    @property
    def process(self):
        return self.server.process

    def start(self):
        with self.place.inside(), self.clock:
            self.server.start()

    def kill(self):
        if self.server.process is not None:
            self.server.kill()

    def ask(self, *statements):
        with self.place.inside():
            return self.server.ask(*statements)


class Sql(Setup):
    """One server, a database and an account with a password. Where a failover is to come, a replica as well, and one
    address that leads to the primary."""

    replica, made = None, 0

    def start(self, environment):
        self.place, self.spare = environment.servers
        self.node = SqlNode(self.place, self.new_disk(self.place), environment.clock, self.kind, self.all_extra(), self.maker)
        self.nodes = [self.node]
        self.make_account()
        address = self.place.address
        if self.has_replica():
            address = SERVICE
            for place in environment.servers:
                network.run('ip', '-n', place.namespace, 'addr', 'add', SERVICE + '/32', 'dev', 'dibs0')
            environment.network.tell('alias %s %s' % (SERVICE, self.place.name))
            self.make_replica()
        self.url = '%s://torture:%s@%s/torture' % (self.kind.scheme, PASSWORD, environment.front(address, self.node.server.port))

    def has_replica(self):
        return any(name.startswith(('failover', 'replica')) for name in self.environment.names)

    def all_extra(self):
        self.made += 1
        return (*self.extra, *(self.replicating(self.made) if self.has_replica() else ()))

    def new_disk(self, place):
        """Empty, whatever an earlier server left there."""
        folder = os.path.join(self.environment.folder, place.name)
        network.unmount_below(self.environment.folder + '/' + place.name)
        shutil.rmtree(folder, ignore_errors=True)
        return Disk(folder, 600)

    def make_replica(self):
        """On the place that has no server, unless there is one. Returns when it has caught up."""
        if self.replica is None:
            self.replica = SqlNode(self.spare, self.new_disk(self.spare), self.environment.clock, self.kind, self.all_extra(),
                                   source=self.node)
            self.follow()
        self.wait_for(self.caught_up, 'the replica has not caught up')

    @staticmethod
    def wait_for(condition, what):
        end = time.monotonic() + SETTLE_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise OSError(what)
            time.sleep(0.05)

    def fail_over(self):
        """The replica, with what it has got, becomes the primary. The old one is killed: its data are not used again."""
        self.promote(self.replica)
        self.environment.network.tell('alias %s %s' % (SERVICE, self.spare.name))
        self.node.kill()
        self.node, self.replica = self.replica, None
        self.nodes = [self.node]
        self.place, self.spare = self.spare, self.place

    def stop(self):
        super().stop()
        if self.replica is not None:
            self.replica.kill()
        for place in self.environment.servers if self.has_replica() else ():
            subprocess.run(['ip', '-n', place.namespace, 'addr', 'del', SERVICE + '/32', 'dev', 'dibs0'],
                           stderr=subprocess.DEVNULL)


class Postgresql(Sql):
    maker = ('--wal-segsize=1',)  # small, so that a full disk is felt at once
    extra = ('-c', 'listen_addresses=*', '-c', 'min_wal_size=2MB', '-c', 'max_wal_size=16MB', '-c', 'max_connections=100')

    class kind(databases.Postgresql):
        def copier(self, address):
            return [databases.find('pg_basebackup', '/usr/lib/postgresql/*/bin', '/usr/bin'), '-D', self.data, '-R', '-X', 'stream',
                    '-c', 'fast', '--no-sync', '-d', 'host=%s port=%d user=%s' % (address, self.port, self.user)]

    def replicating(self, number):
        return '-c', 'wal_keep_size=64MB'

    def make_account(self):
        with open(os.path.join(self.node.server.data, 'pg_hba.conf'), 'a') as f:
            f.write('host all torture 10.77.0.0/24 scram-sha-256\nhost replication postgres 10.77.0.0/24 trust\n')
        self.node.ask("CREATE ROLE torture LOGIN PASSWORD '%s'" % PASSWORD, 'CREATE DATABASE torture OWNER torture',
                      'SELECT pg_reload_conf()')

    def set_password(self, password):
        self.node.ask("ALTER ROLE torture PASSWORD '%s'" % password)

    def kill_sessions(self):
        self.node.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'torture'")

    def follow(self):
        """The copy knows its source."""

    def caught_up(self):
        return self.node.ask('SELECT sync_state FROM pg_stat_replication WHERE state = \'streaming\'')

    def synchronise(self):
        """From now on nothing is committed that the replica has not got."""
        self.node.ask("ALTER SYSTEM SET synchronous_standby_names = '*'", 'SELECT pg_reload_conf()')
        self.wait_for(lambda: self.caught_up() == ['sync'], 'the replica is not synchronous')

    def rejoin(self):
        """The replica that was away is synchronous again."""
        self.wait_for(lambda: self.caught_up() == ['sync'], 'the replica is not synchronous')

    @staticmethod
    def promote(node):
        if node.ask('SELECT pg_promote()') != ['t']:
            raise OSError('the replica was not promoted')


class Mysql(Sql):
    maker = ()
    extra = ('--bind-address=0.0.0.0', '--skip-name-resolve', '--max-connections=100', '--innodb-log-file-size=16M')

    class kind(databases.Mariadb):
        def copier(self, address):
            """It starts empty and reads everything from the beginning of the source's log."""
            return databases.Mariadb.maker(self)

    def replicating(self, number):
        """Never a number that an earlier server had: a replica leaves out what it takes for its own."""
        return '--log-bin=bin', '--sync-binlog=1', '--log-slave-updates', '--server-id=%d' % number

    def make_account(self):
        self.node.ask('CREATE DATABASE torture', "CREATE USER 'torture'@'%%' IDENTIFIED BY '%s'" % PASSWORD,
                      "GRANT ALL ON torture.* TO 'torture'@'%'",
                      "CREATE USER 'copy'@'%%' IDENTIFIED BY '%s'" % PASSWORD, "GRANT REPLICATION SLAVE ON *.* TO 'copy'@'%'")

    def set_password(self, password):
        self.node.ask("SET PASSWORD FOR 'torture'@'%%' = PASSWORD('%s')" % password)

    def kill_sessions(self):
        self.node.ask("KILL CONNECTION USER 'torture'")

    def follow(self):
        self.replica.ask("CHANGE MASTER TO MASTER_HOST='%s', MASTER_PORT=%d, MASTER_USER='copy', MASTER_PASSWORD='%s', "
                         'MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1' % (
                             self.node.place.address, self.node.server.port, PASSWORD), 'START SLAVE')

    def caught_up(self):
        position = self.node.ask('SELECT @@gtid_binlog_pos')[0]
        return self.replica.ask("SELECT MASTER_GTID_WAIT('%s', 5)" % position) == ['0']

    def synchronise(self):
        """The same, by semi-synchronous replication that waits before the commit, and without end."""
        self.node.ask("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
                      'SET GLOBAL rpl_semi_sync_master_timeout = 3600000', 'SET GLOBAL rpl_semi_sync_master_enabled = 1')
        self.replica.ask('SET GLOBAL rpl_semi_sync_slave_enabled = 1', 'STOP SLAVE IO_THREAD', 'START SLAVE IO_THREAD')
        self.wait_for(lambda: self.node.ask("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'") ==
                      ['Rpl_semi_sync_master_clients\t1'] and self.caught_up(), 'the replica is not synchronous')

    def rejoin(self):
        """MariaDB waits for ever for an acknowledgement of what the replica had received before it was killed: an operator
        lets go what waits, and demands it again."""
        self.node.ask('SET GLOBAL rpl_semi_sync_master_enabled = 0')
        self.wait_for(self.caught_up, 'the replica has not caught up')
        self.synchronise()

    def promote(self, node):
        node.ask('STOP SLAVE IO_THREAD')
        self.wait_for(lambda: 'Slave has read all relay log' in node.ask('SHOW SLAVE STATUS')[0],
                      'the replica does not get to the end of its log')
        node.ask('STOP SLAVE', 'RESET SLAVE ALL')


class EnsembleNode(Node):
    """One of ensembles.py: it serves when a majority is there, so starting it does not wait. Until it does, no other
    node may be killed: the majority would be gone."""

    def __init__(self, node, disk):
        super().__init__(node.place, disk)
        self.node = node

    @property
    def process(self):
        return self.node.process

    def start(self):
        if not self.running():
            self.node.launch()

    def settle(self):
        """Not for ever: another fault may keep the majority away."""
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end and self.running():
            with contextlib.suppress(OSError), self.place.inside():
                if self.node.owner.serves(self.node):
                    return
            time.sleep(0.05)

    def kill(self):
        self.node.kill()


class Ensemble(Setup):
    def start(self, environment):
        disks = [Disk(os.path.join(environment.folder, str(n + 1)), 400) for n in range(len(environment.servers))]
        self.ensemble = self.kind(len(environment.servers), (*self.kind.quick, *self.extra), environment.servers, environment.folder)
        self.nodes = [EnsembleNode(n, d) for n, d in zip(self.ensemble.nodes, disks)]
        self.url = '%s://%s/torture' % (
            self.kind.scheme, ','.join(environment.front(n.place.address, n.port) for n in self.ensemble.nodes))

    def leader(self):
        leads = self.ensemble.leader(10)
        return next(n for n in self.nodes if n.node is leads)


class Zookeeper(Ensemble):
    # A leader that does not hear from a majority for syncLimit ticks stands down.
    kind, extra = ensembles.Zookeeper, ('syncLimit=10',)


class Etcd(Ensemble):
    kind, extra = ensembles.Etcd, ()


# How many places its servers need.
ENGINES = {'sqlite': (Sqlite, 0), 'redis': (OneRedis, 2), 'redlock': (Redlock, 3), 'postgresql': (Postgresql, 2),
           'mysql': (Mysql, 2), 'sentinel': (Watched, 3), 'unguarded': (Unguarded, 3),
           'cluster': (Clustered, 6), 'unguarded-cluster': (UnguardedCluster, 6), 'zookeeper': (Zookeeper, 3),
           'etcd': (Etcd, 3)}
