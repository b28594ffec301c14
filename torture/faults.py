"""The table of faults: what each does, to which engines, and what dibs promises under it.

A fault is one of
  - built in: `dibs torture` does it to its own processes;
  - rules: what the router does to packets while it lasts;
  - a victim and an action: nodes that are stopped, or killed and started again;
  - a pair of functions.

`excuses` names the checker's rules that an engine does not promise to keep under that fault, with the reason as its
page in docs/engines says it. Every other rule is promised, and its violation fails the run. Fences and the fenced
counter are promised under every fault."""

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request

ALL = ('sqlite', 'redis', 'redlock', 'postgresql', 'mysql', 'zookeeper', 'etcd', 'sentinel', 'cluster')
REMOTE = ALL[1:-2]
GUARDED = ('sentinel', 'cluster')
REACHED = (*REMOTE, *GUARDED)  # over a network
REDIS = ('redis', 'redlock')
SQL = ('postgresql', 'mysql')
CONSENSUS = ('zookeeper', 'etcd')
COUNTED = ('unguarded', 'unguarded-cluster')  # what is not promised there is counted: only run when it is asked for
WATCHED = ('sentinel', 'cluster', 'unguarded', 'unguarded-cluster')  # Redis that fails over; without the guard
ONE = ('redis', 'postgresql', 'mysql')
DATA = ('exclusion', 'once', 'tokens', 'counters')


class Fault:
    def __init__(self, name, title, engines, builtin=None, rules=None, victim=None, action=None, begin=None, end=None,
                 seconds='1-4', clock=False, proxy=False, excuses=None, not_run=None):
        self.name, self.title, self.engines, self.builtin, self.rules = name, title, engines, builtin, rules
        self.victim, self.action, self.begin, self.end = victim, action, begin, end
        self.seconds, self.clock, self.proxy = seconds, clock, proxy
        self.excuses = excuses or {}  # engine: (rules, reason)
        self.not_run = not_run or {}  # engine: reason

    def needs_root(self):
        return not self.builtin


# ---- Who: nodes that are hit ------------------------------------------------------------------------------------

def serving(environment):
    """The server; of several, any one."""
    return [environment.setup.master] if environment.engine == 'redis' else [environment.chance.choice(environment.setup.nodes)]


def everyone(environment):
    return list(environment.setup.nodes)


def leader(environment):
    return [environment.setup.leader()]


def follower(environment):
    if environment.engine == 'redlock':
        return serving(environment)
    leads = environment.setup.leader()
    return [environment.chance.choice([n for n in environment.setup.nodes if n is not leads])]


def server_to_stop(environment):
    """Not etcd's leader: that has a row of its own."""
    return follower(environment) if environment.engine == 'etcd' else serving(environment)


# ---- What: to nodes ---------------------------------------------------------------------------------------------

class Stop:
    @staticmethod
    def begin(node):
        node.signal(signal.SIGSTOP)

    @staticmethod
    def end(node):
        node.signal(signal.SIGCONT)


class Kill:
    @staticmethod
    def begin(node):
        node.kill()

    @staticmethod
    def end(node):
        if not node.running():
            node.start()


class KillAndForget(Kill):
    @staticmethod
    def begin(node):
        node.kill()
        node.forget()


# ---- Rules: (from, to, words) -----------------------------------------------------------------------------------

def to_all(words):
    return lambda environment: [('clients', s.name, words) for s in environment.servers] + [(s.name, 'clients', words) for s in environment.servers]


def requests_cut(environment):
    return [('clients', s.name, 'drop') for s in environment.servers]


def answers_cut(environment):
    return [(s.name, 'clients', 'drop') for s in environment.servers]


def cut_from_others(environment, node):
    return [(a, b, 'drop') for s in environment.servers if s.name != node for a, b in ((node, s.name), (s.name, node))]


def one_way(environment):
    """The others do not hear one server, which hears them; or it does not hear them."""
    rules = one_server_from_the_others(environment)
    return rules[::2] if environment.chance.random() < 0.5 else rules[1::2]


def cut_from_all(node):
    return [(node, '*', 'drop'), ('*', node, 'drop')]


def one_server_from_the_others(environment):
    """Clients still reach it; it is the leader as often as not."""
    return cut_from_others(environment, (leader if environment.chance.random() < 0.5 else follower)(environment)[0].place.name)


def one_server_from_everybody(environment):
    return cut_from_all(environment.chance.choice(environment.servers).name)


# ---- Functions: they get the environment, and the same dictionary at the beginning and at the end -----------------------

def cut_sockets(environment, state):
    """Three times in a row: the second and third hit what is just being connected again."""
    for pause in (0.05, 0.05, 0):
        with environment.clients.inside():
            subprocess.run(['ss', '-t', '-K', 'dst', '10.77.0.0/24'], stdout=subprocess.DEVNULL, check=True)
        time.sleep(pause)


def fail_over_begin(environment, state):
    """What is written from now on does not reach the replica."""
    if environment.engine in SQL:
        environment.setup.make_replica()
    environment.add_rules('failover', [('1', '2', 'drop'), ('2', '1', 'drop')])


def fail_over_end(environment, state):
    """Before the old one can send what it still has to send: promoted first where the old one is not killed by that."""
    if environment.engine in SQL:
        environment.setup.fail_over()
        environment.drop_rules('failover')
    else:
        environment.drop_rules('failover')
        environment.setup.fail_over()


def safe_fail_over_begin(environment, state):
    """It works for a while with the replica at its side, then it dies."""
    environment.setup.make_replica()
    environment.setup.synchronise()
    time.sleep(environment.chance.uniform(0.5, 2))
    environment.setup.node.kill()


def safe_fail_over_end(environment, state):
    environment.setup.fail_over()


def kill_replica(environment, state):
    """Nothing is committed without it, and then it is gone."""
    environment.setup.make_replica()
    environment.setup.synchronise()
    environment.setup.replica.kill()


def start_replica(environment, state):
    environment.setup.replica.start()
    environment.setup.rejoin()


def kill_follower(environment, state):
    state['node'] = environment.chance.choice([n for n in environment.setup.nodes if 'role:slave' in n.ask('INFO', 'replication')])
    state['node'].kill()


def start_follower(environment, state):
    Kill.end(state['node'])
    environment.setup.take_back(state['node'])


def set_clock(seconds):
    return lambda environment, state: environment.clock.set(seconds)


def redis_command(*words):
    def send(environment, state):
        for node in [environment.setup.master] if environment.engine == 'redis' else environment.setup.nodes:
            node.ask(*words)
    return send


def evict(environment, state):
    node = environment.setup.master
    used = dict(line.split(':', 1) for line in node.ask('INFO', 'memory').split('\r\n') if ':' in line)['used_memory']
    node.ask('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-random')
    node.ask('CONFIG', 'SET', 'maxmemory', str(int(used) - 100000))


def evict_end(environment, state):
    environment.setup.master.ask('CONFIG', 'SET', 'maxmemory', '0')
    environment.setup.master.ask('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')


def kill_sessions(environment, state):
    if environment.engine in SQL:
        environment.setup.kill_sessions()
    else:
        redis_command('CLIENT', 'KILL', 'TYPE', 'normal')(environment, state)


def revoke_leases(environment, state):
    node = environment.setup.ensemble.nodes[0]

    def post(path, body):
        with node.place.inside():
            url = 'http://%s:%d/v3/lease/%s' % (node.place.address, node.port, path)
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=5) as answer:
                return json.load(answer)

    for lease in post('leases', {}).get('leases', []):
        with contextlib.suppress(OSError):  # it has just ended by itself
            post('revoke', {'ID': lease['ID']})


def revoke_sessions(environment, state):
    """ZooKeeper has no command for it. A client that resumes a session may close it; so that is what we are."""
    ensemble = environment.setup.ensemble
    with ensemble.leader(10).place.inside():
        sessions = ensemble.sessions(ensemble.leader(10))
    for session in sessions:
        with ensemble.nodes[0].place.inside(), contextlib.suppress(OSError):  # it has just ended by itself
            ensemble.close_session(ensemble.nodes[0], session)


def revoke(environment, state):
    {'etcd': revoke_leases, 'zookeeper': revoke_sessions}[environment.engine](environment, state)


def rotate_password(password):
    def rotate(environment, state):
        if environment.engine in SQL:
            environment.setup.set_password(password)
        else:
            for node in environment.setup.nodes:
                node.ask('CONFIG', 'SET', 'requirepass', password)
                node.password = password
        kill_sessions(environment, state)
    return rotate


def fill_disk(environment, state):
    state['node'] = environment.setup if environment.engine == 'sqlite' else serving(environment)[0]
    state['node'].disk.fill()


def free_disk(environment, state):
    state['node'].disk.free()
    if environment.engine != 'sqlite':
        Kill.end(state['node'])  # some servers end themselves
        state['node'].settle()


def limit_connections(environment, state):
    """Nobody is thrown out; nobody new gets in."""
    if environment.engine == 'postgresql':
        state['open'] = occupy(environment.setup.node)
    elif environment.engine == 'mysql':
        state['client'] = hold_client(environment, 'SET GLOBAL max_connections = 10; SELECT 1;')
    else:
        state['admin'] = [node.hold() for node in environment.setup.nodes]
        for admin in state['admin']:
            admin.ask('CONFIG', 'SET', 'maxclients', '1')


def unlimit_connections(environment, state):
    if environment.engine == 'postgresql':
        for s in state['open']:
            s.close()
    elif environment.engine == 'mysql':
        state['client'].communicate('SET GLOBAL max_connections = 100;\n')
    else:
        for admin in state['admin']:
            admin.ask('CONFIG', 'SET', 'maxclients', '10000')
            admin.close()


def occupy(node):
    """Takes every connection that PostgreSQL has left."""
    taken = []
    while True:
        with node.place.inside():
            s = socket.create_connection(('127.0.0.1', node.server.port), timeout=5)
        taken.append(s)
        s.sendall(b'\0\0\0\x17\0\3\0\0user\0postgres\0\0')
        if s.recv(1) != b'R':
            return taken


STRANGER = {'postgresql': 'BEGIN; SELECT count(*) FROM (SELECT 1 FROM dibs_lock FOR UPDATE) AS rows;',
            'mysql': 'BEGIN; SELECT COUNT(*) FROM (SELECT 1 FROM dibs_lock FOR UPDATE) AS taken;',
            'sqlite': 'BEGIN IMMEDIATE; SELECT 1;'}


def hold_client(environment, statements):
    """The command-line client of that database, connected until its input ends. The last statement gives a line."""
    if environment.engine == 'sqlite':
        argv, place = ['sqlite3', '-cmd', '.timeout 5000', environment.setup.disk.folder + '/dibs.db'], environment.clients
    else:
        argv, place = environment.setup.node.server.client('torture'), environment.setup.node.place
    with place.inside():
        client = subprocess.Popen(argv + (['--unbuffered'] if environment.engine == 'mysql' else []), text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    client.stdin.write(statements + '\n')
    client.stdin.flush()
    if not client.stdout.readline():
        raise OSError('no answer to ' + statements)
    return client


def lock_rows(environment, state):
    """A client of somebody else's in the middle of a transaction."""
    state['client'] = hold_client(environment, STRANGER[environment.engine])


def unlock_rows(environment, state):
    state['client'].communicate()


def proxy_mode(mode):
    def switch(environment, state):
        environment.proxy.mode = mode
    return switch


def reshard(environment, state):
    """As an operator does it; a master may be killed meanwhile."""
    environment.setup.reshard(500)


def reshard_and_kill(environment, state):
    """The master that gives is killed while it does."""
    state['process'], state['node'] = environment.setup.begin_reshard(500)
    time.sleep(environment.chance.uniform(0.05, 0.5))
    state['node'].kill()


def repair(environment, state):
    environment.setup.said_by(state['process'])
    state['node'].start()
    environment.setup.repair()


def nothing(environment, state):
    pass


# ---- The table --------------------------------------------------------------------------------------------------

LOST = 'the data are gone: the fence decides'
CLOCK = 'leases run on the server\'s clock: the fence decides'
BROKEN_LEASES = 'etcd revokes live leases when a stopped leader continues (etcd-io/etcd#15247): the fence decides'
MONOTONIC = {'sqlite': 'leases run on the boot clock', 'zookeeper': 'its sessions run on a monotonic clock',
             'etcd': 'its leases run on a monotonic clock'}

ANNOUNCED = 'clients dial the addresses that the servers announce, and so go past the proxy that makes this fault'
AS_REDIS = 'run on redis; not written for several servers yet'
NO_ACCOUNTS = 'the servers are run without accounts here'
NO_LIMIT = 'it has no limit of connections'
NO_CHANGE = 'its limit (maxClientCnxns) is read when a server starts, and cannot be changed while it runs'

LAGS = 'a replica may be promoted that lacks what another one has acknowledged'
ALONE = 'guard=off: replication is asynchronous, the fence decides'
EMPTY = 'a master that writes nothing to disk and restarts before its replica takes over is empty'
FAILOVER = {'sentinel': (('once', 'counters'), LAGS), 'cluster': (('once', 'tokens', 'counters'), EMPTY), **{e: (DATA, ALONE) for e in COUNTED}}

FAULTS = [
    Fault('none', 'no fault', (*ALL, *COUNTED), builtin='none'),
    Fault('client-stop', 'a client is stopped (SIGSTOP) for longer than its lease, then continued', ALL, builtin='stop'),
    Fault('client-kill', 'a client is killed (SIGKILL)', ALL, builtin='kill'),
    Fault('client-cut', 'all TCP connections of one client, or of all, are shut down', (*REMOTE, 'sentinel', 'cluster'), builtin='cut'),
    Fault('break', 'an operator breaks a lock through the library', ALL, builtin='break'),
    Fault('sockets', 'all sockets of all clients are destroyed at once (ss -K), three times in a row', (*REMOTE, 'sentinel', 'cluster'),
          begin=cut_sockets, end=cut_sockets, seconds='0.2-1'),

    Fault('server-stop', 'a server is stopped (SIGSTOP) and continued', REMOTE, victim=server_to_stop, action=Stop,
          not_run=dict.fromkeys(GUARDED, 'the row master-stop does it')),
    Fault('server-kill', 'a server is killed (SIGKILL) and started again on its data', REMOTE, victim=serving, action=Kill,
          not_run=dict.fromkeys(GUARDED, 'the row master-kill does it: these servers keep nothing on disk')),
    Fault('server-empty', 'the server is killed and started again without its data', ('redis',), victim=serving,
          action=KillAndForget, excuses={'redis': (DATA, LOST)}),
    Fault('all-kill', 'all servers are killed at once and started again', CONSENSUS, victim=everyone, action=Kill),
    Fault('leader-kill', 'the leader is killed and started again', CONSENSUS, victim=leader, action=Kill),
    Fault('minority-kill', 'a server that does not lead is killed and started again', ('redlock', *CONSENSUS),
          victim=follower, action=Kill),
    Fault('leader-stop', 'the leader is stopped for two sessions and continued', CONSENSUS, victim=leader, action=Stop,
          seconds='4-5', excuses={'etcd': (('exclusion',), BROKEN_LEASES)}),
    Fault('failover', 'the replica takes over, without the writes of the last seconds', ONE,
          begin=fail_over_begin, end=fail_over_end,
          excuses={e: (DATA, 'replication is asynchronous: the fence decides') for e in ONE}),
    Fault('failover-sync', 'the primary is killed and a synchronous replica takes over', SQL,
          begin=safe_fail_over_begin, end=safe_fail_over_end, not_run={'redis': 'its replication is asynchronous'}),

    Fault('replica-kill', 'the only replica, without which nothing is committed, is killed and started again', SQL,
          begin=kill_replica, end=start_replica, seconds='2-4'),
    Fault('follower-kill', 'a replica is killed and comes back empty; the master needs the acknowledgement of one', GUARDED,
          begin=kill_follower, end=start_follower, seconds='2-4'),
    Fault('master-kill', 'the master is killed and comes back empty, as a replica', WATCHED, victim=leader, action=Kill,
          seconds='4-6', excuses=FAILOVER),
    Fault('master-stop', 'the master is stopped until another one was promoted, and continued', WATCHED, victim=leader,
          action=Stop, seconds='4-6', excuses=FAILOVER),
    Fault('master-cut', 'the master is cut off from the other servers; clients reach all', WATCHED,
          rules=lambda environment: cut_from_others(environment, leader(environment)[0].place.name), seconds='4-7', excuses=FAILOVER),
    Fault('master-alone', 'the master is cut off from everybody', WATCHED,
          rules=lambda environment: cut_from_all(leader(environment)[0].place.name), seconds='4-7', excuses=FAILOVER),

    Fault('reshard', '500 slots are moved from one master to another (redis-cli --cluster reshard)', ('cluster',), begin=reshard,
          end=nothing, seconds='0.2-1'),
    Fault('reshard-kill', 'a master is killed while its slots are being moved; the cluster is repaired (redis-cli --cluster fix)', ('cluster',),
          begin=reshard_and_kill, end=repair, seconds='4-6', excuses=FAILOVER),

    Fault('partition', 'clients and servers do not reach each other', REACHED, rules=to_all('drop')),
    Fault('partition-requests', 'packets from clients to servers are dropped', REACHED, rules=requests_cut),
    Fault('partition-answers', 'packets from servers to clients are dropped', REACHED, rules=answers_cut),
    Fault('partition-servers', 'one server is cut off from the others; clients reach all', CONSENSUS,
          rules=one_server_from_the_others, seconds='2-5'),
    Fault('partition-one-way', 'what one server sends to the others is dropped, or what they send to it; clients reach all', CONSENSUS,
          rules=one_way, seconds='2-5'),
    Fault('partition-minority', 'one server is cut off from everybody', ('redlock', *CONSENSUS),
          rules=one_server_from_everybody, seconds='2-5'),
    Fault('late', 'a partition just longer than a request may take: abandoned requests arrive afterwards', REACHED,
          rules=to_all('drop'), seconds='2.05-2.5'),
    Fault('delay', 'every packet takes 150 ms', REACHED, rules=to_all('delay_ms=150')),
    Fault('loss', '15 % of the packets are lost', REACHED, rules=to_all('loss=15')),
    Fault('slow', 'each direction has 1 Mbit/s', REACHED, rules=to_all('rate=1000000')),

    Fault('clock-forward', 'the server\'s wall clock jumps 30 s ahead, and back', (*REDIS, *SQL), clock=True,
          begin=set_clock(30), end=set_clock(0),
          excuses={e: (('exclusion',), CLOCK) for e in (*REDIS, *SQL)},
          not_run={**MONOTONIC, **dict.fromkeys(GUARDED, AS_REDIS)}),
    Fault('clock-back', 'the server\'s wall clock jumps 30 s back, and ahead again', (*REDIS, *SQL), clock=True,
          begin=set_clock(-30), end=set_clock(0),
          excuses={e: (('exclusion',), CLOCK) for e in (*REDIS, *SQL)},
          not_run={**MONOTONIC, **dict.fromkeys(GUARDED, AS_REDIS)}),

    Fault('connections', 'the server takes no more connections', (*REDIS, *SQL), begin=limit_connections,
          end=unlimit_connections, not_run={'etcd': NO_LIMIT, 'zookeeper': NO_CHANGE, **dict.fromkeys(GUARDED, AS_REDIS)}),
    Fault('sessions', 'the server ends all sessions (CLIENT KILL, KILL, pg_terminate_backend)', (*REDIS, *SQL, *GUARDED),
          begin=kill_sessions, end=kill_sessions, seconds='0.2-1', not_run=dict.fromkeys(CONSENSUS, 'the row revoke does it')),
    Fault('revoke', 'an operator ends all sessions (etcd: revokes all leases)', CONSENSUS, begin=revoke, end=revoke,
          excuses={e: (('exclusion',), 'the next waiter may hold before the holder is notified') for e in CONSENSUS}),
    Fault('password', 'the password is changed and all sessions ended; later it is changed back', (*REDIS, *SQL),
          begin=rotate_password('rotated'), end=rotate_password('torture'),
          not_run={**dict.fromkeys(CONSENSUS, NO_ACCOUNTS), **dict.fromkeys(GUARDED, AS_REDIS)}),
    Fault('flushall', 'FLUSHALL', REDIS, begin=redis_command('FLUSHALL'), end=redis_command('FLUSHALL'),
          excuses={e: (DATA, LOST) for e in REDIS}, not_run=dict.fromkeys(GUARDED, AS_REDIS)),
    Fault('script-flush', 'SCRIPT FLUSH', (*REDIS, *GUARDED), begin=redis_command('SCRIPT', 'FLUSH'),
          end=redis_command('SCRIPT', 'FLUSH'), seconds='0.1-0.5'),
    Fault('eviction', 'memory is full and any key may be evicted', ('redis',), begin=evict, end=evict_end,
          excuses={'redis': (DATA, LOST)}, not_run=dict.fromkeys(('redlock', *GUARDED), AS_REDIS)),
    Fault('disk-full', 'the disk of a server, or of the file, is full', ('sqlite', *ONE, *CONSENSUS), begin=fill_disk, end=free_disk,
          not_run=dict.fromkeys(('redlock', *GUARDED), 'its servers keep nothing on disk here')),
    Fault('stranger', 'another program keeps all rows locked in an open transaction', ('sqlite', *SQL), begin=lock_rows,
          end=unlock_rows, seconds='2-4'),
    Fault('drip', 'answers arrive byte by byte, 50 in a second', REMOTE, proxy=True, begin=proxy_mode('drip'),
          end=proxy_mode('pass'), not_run=dict.fromkeys(GUARDED, ANNOUNCED)),
    Fault('cut-answers', 'connections end in the middle of an answer: after 1, 2, 3... bytes', REMOTE, proxy=True,
          begin=proxy_mode('cut'), end=proxy_mode('pass'), not_run=dict.fromkeys(GUARDED, ANNOUNCED)),
]
BY_NAME = {f.name: f for f in FAULTS}

# A handful at once, for short runs: those that hit most, with restarts that are quick.
MIXED = {
    'sqlite': ('client-stop', 'client-kill', 'break', 'stranger', 'disk-full'),
    'redis': ('client-stop', 'client-kill', 'client-cut', 'server-kill', 'server-stop', 'partition', 'late', 'sockets'),
    'redlock': ('client-stop', 'client-kill', 'client-cut', 'minority-kill', 'partition-minority', 'sockets', 'loss'),
    'postgresql': ('client-stop', 'client-kill', 'client-cut', 'server-kill', 'partition', 'sessions', 'late'),
    'mysql': ('client-stop', 'client-kill', 'client-cut', 'server-kill', 'partition', 'sessions', 'late'),
    'zookeeper': ('client-stop', 'client-kill', 'client-cut', 'leader-kill', 'partition-servers', 'partition', 'sockets'),
    'sentinel': ('client-stop', 'client-kill', 'client-cut', 'master-kill', 'master-stop', 'master-cut', 'sockets'),
    'cluster': ('client-stop', 'client-kill', 'client-cut', 'master-kill', 'master-stop', 'master-cut', 'sockets'),
    'etcd': ('client-stop', 'client-kill', 'client-cut', 'leader-kill', 'partition-servers', 'partition', 'sockets'),
}


def excuses(names, engine):
    """{rule: reason} of what is not promised when these happen."""
    return {rule: BY_NAME[n].excuses[engine][1] for n in names if engine in BY_NAME[n].excuses
            for rule in BY_NAME[n].excuses[engine][0]}
