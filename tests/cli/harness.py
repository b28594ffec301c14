"""What the command tests share: scratch folders, private servers, processes that are surely ended, waiting for
events within a bound, and the list of tests."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
import databases  # noqa: E402: it lies beside what C tests use
import ensembles  # noqa: E402

PYTHON = sys.executable
ENGINES = ('sqlite', 'redis')
DATABASES = tuple(databases.KINDS)
ENSEMBLES = tuple(ensembles.KINDS)
TESTS = []


class Skip(Exception):
    """The test cannot run here; the text says why."""


def test(*engines):
    """Declares a test; with engines, one for each."""

    def declare(function):
        name = function.__name__
        if not engines:
            TESTS.append((name, function, None))
        for engine in engines:
            TESTS.append(('%s: %s' % (engine, name), function, engine))
        return function

    return declare


def boottime():
    """The clock that dibs counts leases on, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait_for(condition, what, seconds=10.0):
    """Looks until `condition` gives something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError('waited %.1f s in vain for %s' % (seconds, what))
        time.sleep(0.005)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def alive(pid):
    """Runs or sleeps; a zombie is dead."""
    try:
        with open('/proc/%d/stat' % pid) as f:
            return f.read().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except OSError:
        return False


def children(pid):
    try:
        with open('/proc/%d/task/%d/children' % (pid, pid)) as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def read(path):
    try:
        with open(path, 'rb') as f:
            return f.read()
    except FileNotFoundError:
        return b''


class Redis:
    """A private server on a free port; it can be killed and started again with nothing in it."""

    def __init__(self, folder):
        if not shutil.which('redis-server'):
            raise FileNotFoundError('redis-server')
        self.folder = folder
        self.port = free_port()
        self.url = 'redis://127.0.0.1:%d' % self.port
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ['redis-server', '--port', str(self.port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no',
             '--dir', self.folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_for(self.answers, 'redis-server')

    def answers(self):
        try:
            return b'PONG' in self.ask('PING')
        except OSError:
            return False

    def ask(self, command):
        with socket.create_connection(('127.0.0.1', self.port), timeout=2) as s:
            s.sendall(command.encode() + b'\r\n')
            return s.recv(4096)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Redlock:
    """Five private servers as one lock; they are new, and somebody vouches for them at every opening."""

    def __init__(self, folder):
        self.nodes = []
        for i in range(5):
            os.makedirs(os.path.join(folder, 'node%d' % i), exist_ok=True)
            self.nodes.append(Redis(os.path.join(folder, 'node%d' % i)))
        hosts = ','.join('127.0.0.1:%d' % n.port for n in self.nodes)
        self.url = 'redlock://%s?guard=off' % hosts

    def kill(self):
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()


class Servers:
    """Each is started when the first test asks for it; tests that follow share it."""

    def __init__(self, folder):
        self.folder, self.running, self.count = folder, {}, 0

    def get(self, engine):
        if engine not in self.running:
            try:
                self.running[engine] = self.start(engine)
            except (FileNotFoundError, databases.Missing) as e:
                raise Skip('%s: %s' % (engine, e))
        return self.running[engine]

    def start(self, engine):
        if engine in ('redis', 'redlock'):
            return {'redis': Redis, 'redlock': Redlock}[engine](self.folder)
        if engine in ENSEMBLES:
            kind = ensembles.KINDS[engine]
            return kind(1, kind.quick)
        kind = databases.KINDS[engine]
        return kind(*kind.quick)

    def clean_url(self, engine):
        """Leads to a place on the engine's server that nobody has used."""
        server = self.get(engine)
        if engine == 'redis':
            server.ask('FLUSHALL')
            return server.url
        if engine == 'redlock':
            return server.url
        self.count += 1
        return server.make_database('test%d' % self.count)

    def stop(self):
        for engine, server in self.running.items():
            server.kill() if engine in ('redis', 'redlock') else server.stop()


class Process:
    """A started command whose output goes to files."""

    def __init__(self, argv, folder, stdin=subprocess.DEVNULL, env=None, **more):
        self.out_path = tempfile.mktemp(prefix='out-', dir=folder)
        self.err_path = tempfile.mktemp(prefix='err-', dir=folder)
        with open(self.out_path, 'wb') as out, open(self.err_path, 'wb') as err:
            self.popen = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=err, env=env, **more)
        self.pid = self.popen.pid

    def wait(self, seconds=20.0):
        return self.popen.wait(timeout=seconds)

    def signal(self, number):
        os.kill(self.pid, number)

    @property
    def out(self):
        return read(self.out_path)

    @property
    def err(self):
        return read(self.err_path)


class Context:
    """One test's surroundings: the command, an engine's URL and a folder. Ends what the test left running."""

    def __init__(self, dibs, engine, servers, folder):
        self.dibs, self.engine, self.servers, self.folder = dibs, engine, servers, folder
        self.url = self.server = None
        if engine == 'sqlite':
            self.url = 'sqlite://' + os.path.join(folder, 'locks.db')
        elif engine:
            self.server = servers.get(engine)
            self.url = servers.clean_url(engine)
        self.env = dict(os.environ, XDG_STATE_HOME=os.path.join(folder, 'state'), LC_ALL='C.UTF-8')
        self.env.pop('DIBS_URL', None)
        if self.url:
            self.env['DIBS_URL'] = self.url
        self.started = []
        self.pids = set()

    def note(self, text, *values):
        """A figure for whoever reads the log."""
        print('# ' + text % values)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *args, **more):
        """`dibs ARGS`, running beside the test."""
        more.setdefault('env', self.env)
        process = Process([self.dibs, *args], self.folder, **more)
        self.started.append(process)
        return process

    def run(self, *args, seconds=20.0, **more):
        """`dibs ARGS` to its end: (code, out, err)."""
        process = self.start(*args, **more)
        code = process.wait(seconds)
        return code, process.out, process.err

    def json(self, *args):
        code, out, err = self.run(*args)
        assert code == 0, (code, err)
        return json.loads(out.decode('utf-8'))

    def value_max(self):
        """Bytes of a value, as the engine declares them."""
        return next(e['value_max'] for e in self.json('engines', '--json')['engines'] if e['scheme'] == self.engine)

    def lock(self, name):
        """The lock as `dibs show --json` gives it; None when there is none."""
        code, out, err = self.run('show', '--json', name)
        assert code in (0, 1), (code, err)
        return json.loads(out) if code == 0 else None

    def held_by(self, name):
        lock = self.lock(name)
        return lock['holders'] if lock else []

    def wait_queued(self, name, count=1):
        wait_for(lambda: (self.lock(name) or {}).get('waiter_count', 0) >= count, '%d in the queue' % count)

    def worker(self, label, *options):
        """A command that writes its start and a beat every few milliseconds into one log."""
        return [PYTHON, '-S', os.path.join(HERE, 'worker.py'), self.path('log'), label, *options]

    def log(self):
        """[(time, label, what, pid, fence)] so far."""
        entries = []
        whole = read(self.path('log')).rpartition(b'\n')[0]  # a read may end inside a line
        for line in whole.decode().splitlines():
            at, label, what, pid, fence = line.split(' ', 4)
            entries.append((float(at), label, what, int(pid), fence))
            self.pids.add(int(pid))
        return entries

    def started_at(self, label):
        return next((e for e in self.log() if e[1] == label and e[2] == 'start'), None)

    def wait_started(self, label, seconds=10.0):
        return wait_for(lambda: self.started_at(label), 'the start of %s' % label, seconds)

    def last_log_time(self, label):
        return max(e[0] for e in self.log() if e[1] == label)

    def finish(self):
        """The test has passed: what it has to leave in order."""

    def close(self):
        self.log()
        for process in self.started:
            if process.popen.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGCONT)
                    process.signal(signal.SIGTERM)
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    process.popen.kill()
                    process.wait()
        for pid in self.pids:
            if alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
