"""Network namespaces joined by the router (router.c): one for the clients, one for each server.

Addresses (10.77.0.x) exist only inside the namespaces, so that several networks live side by side and none can reach
the machine's own. Everything that outlives a process by nature, namespaces and mounts, carries the pid of whoever made
it in its name; what dead processes left is removed before anything new is made."""

import contextlib
import ctypes
import os
import re
import shutil
import socket
import subprocess
import tempfile

NETNS = '/run/netns'
PREFIX = 'dibs-matrix-'
CLONE_NEWNET = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine, or this account, cannot have namespaces."""


def run(*argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise OSError('%s: %s' % (' '.join(argv), done.stdout.strip()))
    return done.stdout


def is_dead(name):
    """Whether `name` carries the pid of a process that is no more."""
    found = re.match(PREFIX + r'(\d+)-', name)
    return bool(found) and not os.path.exists('/proc/' + found.group(1))


def unmount_below(folder):
    """Also what is mounted twice; the deepest first."""
    with open('/proc/self/mounts') as f:
        places = [line.split()[1] for line in f]
    for place in sorted((p for p in places if (p + '/').startswith(folder + '/')), reverse=True):
        subprocess.run(['umount', '-l', place], stderr=subprocess.DEVNULL)


def sweep():
    """Removes what dead processes left behind. Their servers ended with them (PR_SET_PDEATHSIG)."""
    if os.geteuid() != 0:
        return
    for name in filter(is_dead, os.listdir(NETNS) if os.path.isdir(NETNS) else []):
        subprocess.run(['ip', 'netns', 'del', name], stderr=subprocess.DEVNULL)
    for name in filter(is_dead, os.listdir(tempfile.gettempdir())):
        folder = os.path.join(tempfile.gettempdir(), name)
        unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def inside_namespace(name):
    """This thread, and what it starts meanwhile, is in that namespace."""
    home = os.open('/proc/thread-self/ns/net', os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(os.path.join(NETNS, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(there, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), 'cannot enter namespace ' + name)
        yield
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(there)
        os.close(home)


class Place:
    """One end of the network: an address in a namespace."""

    def __init__(self, name, namespace, address):
        self.name, self.namespace, self.address = name, namespace, address

    def inside(self):
        return inside_namespace(self.namespace)


class Network:
    """`places['clients']`, `places['1']`... `places[str(servers)]`, and rules between them."""

    def __init__(self, router, label, servers):
        self.places, self.process = {}, None
        names = ['clients'] + [str(n + 1) for n in range(servers)]
        try:
            for number, name in enumerate(names, 1):
                namespace = '%s%d-%s-%s' % (PREFIX, os.getpid(), label, name)
                run('ip', 'netns', 'add', namespace)
                self.places[name] = Place(name, namespace, '10.77.0.%d' % number)
            self.connect(router)
        except BaseException:
            self.stop()
            raise

    def connect(self, router):
        self.process = subprocess.Popen(
            ['setpriv', '--pdeathsig=KILL', router,
             *('%s=%s=%s' % (p.name, p.namespace, p.address) for p in self.places.values())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.expect('ready')
        for p in self.places.values():
            run('ip', '-n', p.namespace, 'link', 'set', 'lo', 'up')
            run('ip', '-n', p.namespace, 'addr', 'add', p.address + '/24', 'dev', 'dibs0')
            run('ip', '-n', p.namespace, 'link', 'set', 'dibs0', 'up', 'txqueuelen', '1000')

    def expect(self, word):
        line = self.process.stdout.readline().strip()
        if line.split(' ')[0] != word:
            raise OSError('router: ' + (line or 'ended'))
        return line

    def tell(self, command):
        self.process.stdin.write(command + '\n')
        return self.expect('ok')

    def rule(self, source, target, *words):
        """From one place, to another: '' is clean, else 'drop', 'delay_ms=100', 'loss=10', 'rate=1000000'."""
        self.tell(' '.join(['rule', source, target, *words]))

    def both(self, a, b, *words):
        self.rule(a, b, *words)
        self.rule(b, a, *words)

    def clear(self):
        self.tell('clear')

    def stop(self):
        if self.process is not None:
            with contextlib.suppress(OSError):  # it may have ended before us
                self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
        for p in self.places.values():
            subprocess.run(['ip', 'netns', 'del', p.namespace], stderr=subprocess.DEVNULL)


def destroys_sockets():
    """Whether `ss -K` does what it says: without INET_DIAG_DESTROY in the kernel it does nothing, and says nothing."""
    with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()) as s:
        subprocess.run(['ss', '-t', '-K', 'dst', '127.0.0.1', 'dport', '=', str(server.getsockname()[1])],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        s.setblocking(False)
        try:
            s.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True


def check():
    """Raises Unavailable, with the reason, unless this account can make namespaces and TUN devices, and destroy sockets."""
    if os.geteuid() != 0:
        raise Unavailable('network namespaces need root')
    for program in ('ip', 'ss', 'setpriv'):
        if not shutil.which(program):
            raise Unavailable('%s is not installed' % program)
    name = '%s%d-check' % (PREFIX, os.getpid())
    try:
        run('ip', 'netns', 'add', name)
        run('ip', '-n', name, 'tuntap', 'add', 'dev', 'dibs0', 'mode', 'tun')
        run('ip', '-n', name, 'link', 'set', 'lo', 'up')
        with inside_namespace(name):
            destroyed = destroys_sockets()
    except OSError as e:
        raise Unavailable('no network namespaces here: %s' % e) from e
    finally:
        subprocess.run(['ip', 'netns', 'del', name], stderr=subprocess.DEVNULL)
    if not destroyed:
        raise Unavailable('ss -K destroys no socket here: the kernel lacks INET_DIAG_DESTROY')
