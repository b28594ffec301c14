"""Private ZooKeeper ensembles and etcd clusters for scripts, as ensemble.h is for C: on loopback, in a folder of their
own, one node or three. Nodes can be killed, stopped and started again on their data; they end with whoever started
them."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

import databases

START_SECONDS = 60


def quiet_port():
    """A free port below those that the kernel gives to clients: one that tries to reach a killed node would at last
    be given that node's own port, connect to itself and keep the node from coming back."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(('127.0.0.1', random.randrange(12000, 32000)))
            return s.getsockname()[1]


class Loopback:
    """Where nodes are unless told otherwise: an address, and how a process or socket gets to be there."""

    address = '127.0.0.1'
    inside = contextlib.nullcontext


class Node:
    def __init__(self, owner, number, place):
        self.owner, self.number, self.place = owner, number, place
        self.port, self.peer_port, self.other_port = quiet_port(), quiet_port(), quiet_port()
        self.folder = os.path.join(owner.folder, str(number))
        self.process = None

    def launch(self):
        os.makedirs(self.folder, exist_ok=True)
        with open(self.folder + '.log', 'ab') as log, self.place.inside():
            self.process = subprocess.Popen(['setpriv', '--pdeathsig=KILL', *self.owner.command(self)], cwd='/',
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self):
        self.launch()
        self.wait()

    def wait(self):
        """Until it serves, for which a majority must be there."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError), self.place.inside():
                if self.owner.serves(self):
                    return
            time.sleep(0.02)
        with open(self.folder + '.log', errors='replace') as f:
            raise AssertionError('%s did not start: %s' % (type(self.owner).__name__, f.read()[-2000:]))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def running(self):
        return self.process is not None


class Ensemble:
    """What both have in common. A subclass says how a node is started and how it is asked."""

    scheme = None

    def __init__(self, count=1, extra=(), places=None, folder=None):
        """`places`: one for each node, where they are not all on loopback; `folder`: empty, and ours."""
        self.extra = list(extra)
        self.look_for_programs()
        self.folder = folder or tempfile.mkdtemp(prefix='dibs-%s-' % self.scheme)
        self.nodes = [Node(self, i + 1, places[i] if places else Loopback) for i in range(count)]
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.stop()
            raise

    @property
    def hosts(self):
        return ','.join('%s:%d' % (n.place.address, n.port) for n in self.nodes)

    @property
    def port(self):
        return self.nodes[0].port

    def url(self, place='', nodes=None):
        """Leads to a place of its own; `nodes`: through these only."""
        hosts = ','.join('%s:%d' % (n.place.address, n.port) for n in nodes or self.nodes)
        return '%s://%s/%s' % (self.scheme, hosts, place)

    make_database = url

    def leader(self, seconds=60):
        """The node that leads, waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for node in self.nodes:
                with contextlib.suppress(OSError), node.place.inside():
                    if node.running() and self.leads(node):
                        return node
            time.sleep(0.02)
        raise AssertionError('nobody leads')

    def cpu(self):
        """Seconds that the nodes have used."""
        ticks = 0
        for node in self.nodes:
            with contextlib.suppress(OSError, AttributeError), open('/proc/%d/stat' % node.process.pid) as f:
                ticks += sum(map(int, f.read().rsplit(')', 1)[1].split()[11:13]))
        return ticks / os.sysconf('SC_CLK_TCK')

    def kill(self):
        for node in self.nodes:
            node.kill()

    def start(self):
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait()

    def stop(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


CLOSE_SESSION = -11  # the type of that request
SECRET = 0xB3415C00  # of ZooKeeperServer


def session_password(session):
    """What ZooKeeper makes of a session's id: `new Random(id ^ secret).nextBytes(16)` of Java."""
    seed, password = ((session ^ SECRET) ^ 0x5DEECE66D) & (1 << 48) - 1, b''
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        password += struct.pack('<I', seed >> 16)
    return password


class Zookeeper(Ensemble):
    """`extra`: lines of zoo.cfg or, with a dash, options of the JVM."""

    scheme = 'zookeeper'
    # Short ticks for short sessions, and nobody waits for the disk: a killed process loses nothing by that.
    quick = ('tickTime=200', 'initLimit=50', 'syncLimit=50', 'minSessionTimeout=400', 'maxSessionTimeout=60000',
             '-Dzookeeper.forceSync=no', '-XX:TieredStopAtLevel=1')

    def look_for_programs(self):
        self.java = shutil.which('java')
        self.jar = databases.find('zookeeper.jar', '/usr/share/java')
        if not self.java:
            raise databases.Missing('java is not installed')

    def command(self, node):
        with open(os.path.join(node.folder, 'myid'), 'w') as f:
            f.write('%d\n' % node.number)
        lines = ['tickTime=2000', 'initLimit=10', 'syncLimit=5', 'dataDir=' + node.folder,
                 'clientPortAddress=' + node.place.address, 'clientPort=%d' % node.port, 'maxClientCnxns=0',
                 'admin.enableServer=false', '4lw.commands.whitelist=*']
        if len(self.nodes) > 1:
            lines += ['server.%d=%s:%d:%d' % (n.number, n.place.address, n.peer_port, n.other_port) for n in self.nodes]
        with open(os.path.join(node.folder, 'zoo.cfg'), 'w') as f:
            f.write('\n'.join(lines + [e for e in self.extra if not e.startswith('-')]) + '\n')
        return [self.java, '-Xmx512m', '-XX:+UseSerialGC', '-Dzookeeper.jmx.log4j.disable=true',
                '-Dzookeeper.log.dir=' + node.folder, *(e for e in self.extra if e.startswith('-')), '-cp',
                '%s:%s' % (node.folder, self.jar), 'org.apache.zookeeper.server.quorum.QuorumPeerMain',
                os.path.join(node.folder, 'zoo.cfg')]

    def word(self, node, word):
        """One of the four-letter commands, answered."""
        with socket.create_connection((node.place.address, node.port), timeout=1) as s:
            s.sendall(word.encode())
            return b''.join(iter(lambda: s.recv(65536), b'')).decode()

    def counters(self, node=None):
        """`mntr` of a node, as a dictionary."""
        lines = self.word(node or self.nodes[0], 'mntr').splitlines()
        return dict(line.split('\t', 1) for line in lines if '\t' in line)

    def sessions(self, leader):
        """The ids of all sessions. Only the leader knows them all."""
        known = self.word(leader, 'dump').split('ephemeral nodes dump')[0]
        return [int(i, 16) for i in re.findall(r'^\t?0x([0-9a-f]+)$', known, re.M)]

    def close_session(self, node, session):
        """Resumes that session at this node and closes it. Its password is a function of its id."""
        with socket.create_connection((node.place.address, node.port), timeout=3) as s:
            for request in (struct.pack('>iqiq', 0, 0, 10000, session) + struct.pack('>i', 16) + session_password(session) + b'\0',
                            struct.pack('>ii', 1, CLOSE_SESSION)):
                s.sendall(struct.pack('>i', len(request)) + request)
                s.recv(4096)

    def serves(self, node):
        return 'Mode: ' in self.word(node, 'srvr')

    def leads(self, node):
        answer = self.word(node, 'srvr')
        return 'Mode: leader' in answer or 'Mode: standalone' in answer


class Etcd(Ensemble):
    """`extra`: arguments."""

    scheme = 'etcd'
    # Leases of one second are granted when one and a half election timeouts fit into it.
    quick = ('--heartbeat-interval=60', '--election-timeout=600')

    def look_for_programs(self):
        self.etcd = databases.find('etcd', '/usr/bin', '/usr/local/bin')

    def command(self, node):
        host = 'http://%s:' % node.place.address
        client, peer = host + str(node.port), host + str(node.peer_port)
        return [self.etcd, '--name=n%d' % node.number, '--data-dir=' + node.folder, '--listen-client-urls=' + client,
                '--advertise-client-urls=' + client, '--listen-peer-urls=' + peer,
                '--initial-advertise-peer-urls=' + peer,
                '--listen-metrics-urls=%s%d' % (host, node.other_port),
                '--initial-cluster=' + ','.join('n%d=http://%s:%d' % (n.number, n.place.address, n.peer_port)
                                                for n in self.nodes),
                '--logger=zap', *self.extra]

    def page(self, node, path):
        with urllib.request.urlopen('http://%s:%d%s' % (node.place.address, node.other_port, path), timeout=5) as r:
            return r.read().decode()

    def counters(self, node=None):
        """/metrics of a node: {name or name with labels: number}."""
        lines = self.page(node or self.nodes[0], '/metrics').splitlines()
        return {k: float(v) for k, v in (line.rsplit(' ', 1) for line in lines if not line.startswith('#'))}

    def serves(self, node):
        return json.loads(self.page(node, '/health'))['health'] == 'true'

    def leads(self, node):
        return self.counters(node)['etcd_server_is_leader'] == 1


KINDS = {'zookeeper': Zookeeper, 'etcd': Etcd}
