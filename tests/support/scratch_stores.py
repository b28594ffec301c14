"""A store of each engine that has cells, for scripts: a scratch file or a private server, and its URL."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import databases
import ensembles

ENGINES = ('sqlite', 'redis', 'postgresql', 'mysql', 'zookeeper', 'etcd')


class Sqlite:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix='dibs-sqlite-')
        self.url = 'sqlite://%s/dibs.db' % self.folder

    def stop(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis:
    def __init__(self):
        if not shutil.which('redis-server'):
            raise databases.Missing('redis-server is not installed')
        self.folder = tempfile.mkdtemp(prefix='dibs-redis-')
        self.process = None
        for _ in range(5):  # the port may be taken by another in between
            self.port = databases.free_port()
            self.process = subprocess.Popen(
                ['setpriv', '--pdeathsig=KILL', 'redis-server', '--port', str(self.port), '--bind', '127.0.0.1',
                 '--dir', self.folder, '--save', '', '--appendonly', 'no'],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if self.wait():
                break
        self.url = 'redis://127.0.0.1:%d' % self.port

    def wait(self):
        end = time.monotonic() + databases.START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask('PING') == 'PONG':
                    return True
            time.sleep(0.02)
        return False

    def ask(self, *words):
        """One request; the reply if it is text."""
        request = ''.join(['*%d\r\n' % len(words)] + ['$%d\r\n%s\r\n' % (len(w), w) for w in words])
        with socket.create_connection(('127.0.0.1', self.port), timeout=10) as s, s.makefile('rb') as f:
            s.sendall(request.encode())
            line = f.readline().decode().rstrip('\r\n')
            return f.read(int(line[1:])).decode() if line.startswith('$') else line[1:]

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redlock:
    """Three servers of Redis as one lock; it has no cells."""

    def __init__(self):
        self.nodes = [Redis() for _ in range(3)]
        self.url = 'redlock://%s?guard=off' % ','.join('127.0.0.1:%d' % node.port for node in self.nodes)

    def stop(self):
        for node in self.nodes:
            node.stop()


class Sql:
    """A database server with a database of ours."""

    def __init__(self, kind, *extra):
        self.server = databases.KINDS[kind](*databases.KINDS[kind].quick, *extra)
        self.port = self.server.port
        self.url = self.server.make_database('cells')

    def ask(self, *statements):
        return self.server.ask(*statements, database='cells')

    def stop(self):
        self.server.stop()


class Ensemble:
    """One node of ZooKeeper or etcd."""

    def __init__(self, kind):
        self.server = ensembles.KINDS[kind](1, ensembles.KINDS[kind].quick)
        self.port = self.server.port
        self.url = self.server.url('cells')

    def stop(self):
        self.server.stop()


def make(engine, *extra):
    """Raises databases.Missing when it is not installed."""
    if engine == 'sqlite':
        return Sqlite()
    if engine in ensembles.KINDS:
        return Ensemble(engine)
    if engine in ('redis', 'redlock'):
        return Redis() if engine == 'redis' else Redlock()
    return Sql(engine, *extra)


def run_all(tests, title):
    """TAP for (name, function) pairs. What is not installed is skipped, unless it is required."""
    strict = os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS')
    failed = False
    print('1..%d' % len(tests))
    for number, (name, test) in enumerate(tests, 1):
        outcome, remark = 'ok', ''
        try:
            test()
        except databases.Missing as e:
            outcome, remark = ('not ok', '') if strict else ('ok', ' # SKIP %s' % e)
        except Exception as e:  # a test that breaks is a test that failed
            outcome = 'not ok'
            print('# %s: %s' % (type(e).__name__, str(e).replace('\n', '\n# ')))
        failed |= outcome == 'not ok'
        print('%s %d - %s: %s%s' % (outcome, number, title, name, remark), flush=True)
    return 1 if failed else 0


def main(engine, *command):
    """Runs the command with $DIBS_URL, and $PORT where there is one; 77: that engine is not installed."""
    try:
        store = make(engine)
    except databases.Missing as e:
        print(e, file=sys.stderr)
        return 77
    try:
        return subprocess.run(command, env={**os.environ, 'DIBS_URL': store.url,
                                            'PORT': str(getattr(store, 'port', ''))}).returncode
    finally:
        store.stop()


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
