"""Other lock libraries, through their adapters (torture/adapters), on the same servers and under some of the same faults.
They promise less than dibs, or nothing, under most of them: what they violate is reported and fails nothing."""

import os
import shlex
import subprocess
import sys

import cell as cells

ADAPTERS = os.path.join(cells.HERE, 'adapters')
FAULTS = ('none', 'client-stop', 'client-kill', 'server-stop', 'server-kill', 'failover', 'partition', 'late', 'sockets',
          'delay', 'flushall', 'clock-forward', 'leader-kill', 'leader-stop', 'minority-kill')


class Peer:
    """`probe`: a command that succeeds where the library is installed."""

    def __init__(self, name, engine, adapter, probe, package):
        self.name, self.engine, self.adapter, self.probe, self.package = name, engine, adapter, probe, package

    def is_there(self):
        try:
            return subprocess.run(self.probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            return False


def python(name, engine, file, module, package):
    return Peer(name, engine, [sys.executable, os.path.join(ADAPTERS, file)], [sys.executable, '-c', 'import ' + module], package)


def node(name, engine, build):
    """ioredis and redlock come from the build folder, see `./dev torture`."""
    modules = os.path.join(build, 'adapters', 'node_modules')
    return Peer(name, engine, ['env', 'NODE_PATH=' + modules, 'node', os.path.join(ADAPTERS, 'redlock.js')],
                ['env', 'NODE_PATH=' + modules, 'node', '-e', 'require("redlock"); require("ioredis")'],
                'npm install --prefix build/adapters ioredis redlock@5.0.0-beta.2')


def all_peers(build):
    return [python('redis-py', 'redis', 'redis_py.py', 'redis', 'apt-get install python3-redis'),
            node('npm redlock', 'redlock', build),
            python('kazoo', 'zookeeper', 'kazoo_lock.py', 'kazoo', 'apt-get install python3-kazoo')]


def plan(options):
    """{peer: [cells]}; says what is left out."""
    table = {}
    for peer in all_peers(options.build):
        if peer.engine not in options.engines or options.plain:
            continue
        if not peer.is_there():
            print('matrix: %s is left out: not installed (%s)' % (peer.name, peer.package), file=sys.stderr)
            continue
        table[peer.name] = [cells.Cell(peer.engine, [n], options.seconds, peer.name, shlex.join(peer.adapter))
                            for n in FAULTS if n in options.faults and peer.engine in cells.faults.BY_NAME[n].engines]
    return table
