"""Private PostgreSQL and MariaDB servers for scripts, as database.h is for C: on a free loopback port, in a folder
of their own, as the account of the package when we are root. They can be killed like a machine that lost power,
started again on the same data, and end with whoever started them."""

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

START_SECONDS = 30


class Missing(Exception):
    """That server is not installed."""


def find(name, *places):
    found = sorted(p for place in places for p in glob.glob(os.path.join(place, name)))
    if not found:
        raise Missing(name + ' is not installed')
    return found[-1]


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def children(pid):
    with contextlib.suppress(OSError), open('/proc/%d/task/%d/children' % (pid, pid)) as f:
        return [int(p) for p in f.read().split()]
    return []


class Database:
    """What both have in common. A subclass says how data are made, how it is started and how it is asked."""

    account = pdeathsig = port = None

    def __init__(self, *extra):
        self.extra = list(extra)
        self.process = None
        self.look_for_programs()
        self.folder = self.make_folder()
        self.data = os.path.join(self.folder, 'data')
        self.port = self.port or free_port()
        try:
            self.make_place()
            self.start()
        except BaseException:
            self.stop()
            raise

    def make_folder(self):
        return tempfile.mkdtemp(prefix='dibs-%s-' % self.account)

    def as_account(self, *argv):
        """Servers refuse root; whoever is not root runs them as itself."""
        become = ['--reuid=' + self.account, '--regid=' + self.account, '--init-groups'] if os.geteuid() == 0 else []
        return ['setpriv', '--pdeathsig=' + self.pdeathsig, *become, *argv]

    def make_place(self):
        os.mkdir(self.data, 0o700)
        if os.geteuid() == 0:
            for path in (self.folder, self.data):
                shutil.chown(path, self.account, self.account)
        done = subprocess.run(self.as_account(*self.maker()), cwd='/', stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise AssertionError('no data folder: ' + done.stdout.decode(errors='replace')[-2000:])

    def start(self):
        """Starts it on the data that are there. Workers of a killed server may still be ending: then again."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:
                with open(os.path.join(self.folder, 'log'), 'ab') as log:
                    self.process = subprocess.Popen(self.as_account(*self.command(), *self.extra), cwd='/',
                                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            with contextlib.suppress(OSError):
                if self.answers():
                    return
            time.sleep(0.02)
        with open(os.path.join(self.folder, 'log'), errors='replace') as f:
            raise AssertionError('%s did not start: %s' % (type(self).__name__, f.read()[-2000:]))

    def dial(self):
        return socket.create_connection(('127.0.0.1', self.port), timeout=2)

    def kill(self):
        """SIGKILL to the server and all its workers."""
        workers = children(self.process.pid)
        self.process.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def cpu(self):
        """Seconds that the server and its workers, those of today and those that ended, have used."""
        ticks = 0
        for pid in [self.process.pid, *children(self.process.pid)]:
            with contextlib.suppress(OSError), open('/proc/%d/stat' % pid) as f:
                fields = f.read().rsplit(')', 1)[1].split()
                ticks += sum(map(int, fields[11:15] if pid == self.process.pid else fields[11:13]))
        return ticks / os.sysconf('SC_CLK_TCK')

    def stop(self):
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *statements, database=None):
        """Runs each, as the administrator; the first column of what they give."""
        return self.run_script('\n'.join(s + ';' for s in statements), database).split('\n')[:-1]

    def run_script(self, text, database=None):
        done = subprocess.run(self.client(database or self.system), input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=30, text=True)
        assert done.returncode == 0, (text, done.stderr)
        return done.stdout

    def url(self, database):
        return '%s://%s@127.0.0.1:%d/%s' % (self.scheme, self.user, self.port, database)

    def make_database(self, name):
        """A new, empty database: its URL."""
        self.ask('CREATE DATABASE ' + name)
        return self.url(name)


class Postgresql(Database):
    # For what is not about a crash: nobody waits for the disk, and on a busy machine the connections of those who
    # went are still there when the next ones come.
    quick = ('-c', 'fsync=off', '-c', 'max_connections=300')
    account, pdeathsig, scheme, user, system = 'postgres', 'QUIT', 'postgresql', 'postgres', 'postgres'

    def look_for_programs(self):
        places = ('/usr/lib/postgresql/*/bin', '/usr/local/bin', '/usr/bin')
        self.initdb, self.postgres, self.psql = (find(n, *places) for n in ('initdb', 'postgres', 'psql'))

    def maker(self):
        return [self.initdb, '-D', self.data, '-U', self.user, '-A', 'trust', '--no-sync']

    def command(self):
        return [self.postgres, '-D', self.data, '-p', str(self.port), '-c', 'listen_addresses=127.0.0.1',
                '-c', 'unix_socket_directories=' + self.folder]

    def answers(self):
        """To a start-up message: R when it serves, E while it recovers."""
        with self.dial() as s:
            s.sendall(b'\0\0\0\x17\0\3\0\0user\0postgres\0\0')
            return s.recv(1) == b'R'

    def client(self, database):
        return [self.psql, '-qAtX', '-v', 'ON_ERROR_STOP=1', '-h', '127.0.0.1', '-p', str(self.port), '-U', self.user,
                database]


class Mariadb(Database):
    quick = ('--innodb-flush-log-at-trx-commit=0', '--max-connections=300')
    account, pdeathsig, scheme, user, system = 'mysql', 'KILL', 'mysql', 'root', 'mysql'

    def look_for_programs(self):
        places = ('/usr/bin', '/usr/sbin', '/usr/local/bin', '/usr/local/sbin')
        self.install, self.mariadbd, self.mariadb = (
            find(n, *places) for n in ('mariadb-install-db', 'mariadbd', 'mariadb'))

    def maker(self):
        # A server that starts removes what it takes for its own in the folder for temporary files: each has one.
        return [self.install, '--no-defaults', '--datadir=' + self.data, '--tmpdir=' + self.folder, '--skip-test-db',
                '--auth-root-authentication-method=normal']

    def command(self):
        return [self.mariadbd, '--no-defaults', '--datadir=' + self.data, '--tmpdir=' + self.folder, '--bind-address=127.0.0.1',
                '--port=%d' % self.port, '--socket=' + os.path.join(self.folder, 'socket'),
                '--pid-file=' + os.path.join(self.folder, 'pid')]

    def answers(self):
        """It greets with the number of its protocol."""
        with self.dial() as s:
            return s.recv(5)[4:] == b'\n'

    def client(self, database):
        return [self.mariadb, '--no-defaults', '-h', '127.0.0.1', '-P', str(self.port), '-u', self.user, '-N', '-B',
                database]


KINDS = {'postgresql': Postgresql, 'mysql': Mariadb}
