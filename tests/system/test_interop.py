#!/usr/bin/env python3
"""Locks that kazoo and etcdctl hold are respected, and they respect ours: the same folder, the same queue.

usage: test_interop.py --dibs DIBS
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import databases  # noqa: E402: it lies beside what C tests use
import ensembles  # noqa: E402
import tap  # noqa: E402

BUSY = 75


class Store:
    """A server, and dibs on it. Whatever was started there ends with it."""

    def __init__(self, args, engine):
        kind = ensembles.KINDS[engine]
        self.dibs, self.server = args.dibs, kind(1, kind.quick)
        self.url = self.server.url('locks')
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()
        self.server.stop()

    def start(self, *argv):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.stack.callback(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def run(self, *words):
        """The exit code of `dibs run OPTION... NAME -- true`."""
        return subprocess.run([self.dibs, 'run', '--url', self.url, *words, '--', 'true'], timeout=60,
                              stderr=subprocess.PIPE).returncode

    def hold(self, *words):
        """`dibs run OPTION... NAME` that holds (or waits) until its input ends; says `held` when it holds."""
        return self.start(self.dibs, 'run', '--url', self.url, *words, '--', 'sh', '-c', 'echo held; cat')

    def show(self, name):
        done = subprocess.run([self.dibs, 'show', '--url', self.url, '--json', name], stdout=subprocess.PIPE, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_for_queue(self, name, holders, waiters):
        def is_so():
            lock = self.show(name)
            return lock and (len(lock['holders']), lock['waiter_count']) == (holders, waiters)
        tap.wait_for(is_so, '%d who hold and %d who wait' % (holders, waiters))


def held(process):
    """Waits until it holds."""
    assert process.stdout.readline() == b'held\n', process.stderr.read()


def let_go(process):
    process.stdin.close()
    process.stdin = None
    assert process.wait(30) == 0, process.stderr.read()


# ---- kazoo --------------------------------------------------------------------------------------


def kazoo_at(store):
    try:
        import kazoo.client
    except ImportError:
        raise databases.Missing('python3-kazoo is not installed')
    client = kazoo.client.KazooClient(hosts=store.server.hosts, timeout=5)
    client.start(20)
    store.stack.callback(client.close)
    store.stack.callback(client.stop)
    return client


def background(function, *args, **kwargs):
    """(thread, [result])"""
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*args, **kwargs)), daemon=True)
    thread.start()
    return thread, result


def kazoo_first(args):
    with Store(args, 'zookeeper') as store:
        theirs = kazoo_at(store).Lock('/locks/stock', 'a stranger')
        assert theirs.acquire(timeout=20)
        assert store.run('--no-wait', 'stock') == BUSY
        assert store.run('--no-wait', '--shared', 'stock') == BUSY
        waiter = store.hold('stock')
        store.wait_for_queue('stock', 1, 1)
        theirs.release()
        held(waiter)
        let_go(waiter)


def kazoo_second(args):
    with Store(args, 'zookeeper') as store:
        ours = store.hold('stock')
        held(ours)
        client = kazoo_at(store)
        theirs, last = client.Lock('/locks/stock', 'a stranger'), None
        assert not theirs.acquire(blocking=False)
        thread, result = background(theirs.acquire, timeout=60)
        store.wait_for_queue('stock', 1, 1)
        last = store.hold('stock')
        store.wait_for_queue('stock', 1, 2)
        let_go(ours)
        thread.join(60)
        assert result == [True]
        assert store.run('--no-wait', 'stock') == BUSY, 'the stranger came before us'
        theirs.release()
        held(last)
        let_go(last)


def kazoo_shared(args):
    with Store(args, 'zookeeper') as store:
        client = kazoo_at(store)
        reader, writer = client.ReadLock('/locks/page'), client.WriteLock('/locks/page')
        ours = store.hold('--shared', 'page')
        held(ours)
        assert reader.acquire(timeout=20), 'both share'
        assert not writer.acquire(blocking=False)
        assert store.run('--no-wait', 'page') == BUSY
        let_go(ours)
        assert store.run('--no-wait', 'page') == BUSY, 'the stranger still reads'
        assert store.run('--no-wait', '--shared', 'page') == 0
        reader.release()
        assert writer.acquire(timeout=20)
        assert store.run('--no-wait', '--shared', 'page') == BUSY
        writer.release()
        assert store.run('--no-wait', 'page') == 0


def kazoo_breaks_nothing(args):
    """A stranger's lock is shown, and its session's end frees it."""
    with Store(args, 'zookeeper') as store:
        client = kazoo_at(store)
        assert client.Lock('/locks/odd', 'a stranger').acquire(timeout=20)
        lock = store.show('odd')
        assert len(lock['holders']) == 1 and lock['holders'][0]['fence'] > 0, lock
        waiter = store.hold('odd')
        store.wait_for_queue('odd', 1, 1)
        client.stop()
        held(waiter)
        let_go(waiter)


# ---- etcdctl ------------------------------------------------------------------------------------


def etcdctl(store, *words):
    if not shutil.which('etcdctl'):
        raise databases.Missing('etcdctl is not installed')
    return ['env', 'ETCDCTL_API=3', 'etcdctl', '--endpoints=' + store.server.hosts, *words]


class Etcdctl:
    """`etcdctl lock`, until it is let go. Its command has no input of ours: it reads a pipe."""

    def __init__(self, store, name):
        self.fifo = os.path.join(store.server.folder, 'fifo-%s' % os.path.basename(name))
        os.mkfifo(self.fifo)
        self.process = store.start(*etcdctl(store, 'lock', name, '--', 'sh', '-c', 'echo held; cat ' + self.fifo))

    def held(self):
        held(self.process)

    def let_go(self):
        with open(self.fifo, 'w'):
            pass
        assert self.process.wait(30) == 0, self.process.stderr.read()


def etcdctl_first(args):
    with Store(args, 'etcd') as store:
        theirs = Etcdctl(store, 'locks/stock')
        theirs.held()
        assert store.run('--no-wait', 'stock') == BUSY
        assert store.run('--no-wait', '--shared', 'stock') == BUSY
        lock = store.show('stock')
        assert len(lock['holders']) == 1 and lock['holders'][0]['fence'] > 0, lock
        waiter = store.hold('stock')
        store.wait_for_queue('stock', 1, 1)
        theirs.let_go()
        held(waiter)
        let_go(waiter)


def etcdctl_second(args):
    with Store(args, 'etcd') as store:
        ours = store.hold('stock')
        held(ours)
        theirs = Etcdctl(store, 'locks/stock')
        store.wait_for_queue('stock', 1, 1)
        last = store.hold('stock')
        store.wait_for_queue('stock', 1, 2)
        let_go(ours)
        theirs.held()
        assert store.run('--no-wait', 'stock') == BUSY, 'the stranger came before us'
        theirs.let_go()
        held(last)
        let_go(last)


def etcdctl_names(args):
    """A name with a slash is one lock, and nothing is left when nobody uses it."""
    with Store(args, 'etcd') as store:
        for name in ('a/b', 'plain'):
            ours = store.hold(name)
            held(ours)
            let_go(ours)
        theirs = Etcdctl(store, 'locks/plain')
        theirs.held()
        theirs.let_go()
        done = subprocess.run(etcdctl(store, 'get', '', '--prefix', '--keys-only'), stdout=subprocess.PIPE, timeout=30)
        assert done.stdout.split() == [b'locks/%c/=base'], done.stdout  # what the store's fences are counted from


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--dibs', required=True)
    args = parser.parse_args()
    tap.end_on_sigterm()
    tests = [('kazoo holds, dibs waits', kazoo_first, args),
             ('dibs holds, kazoo waits, dibs waits behind it', kazoo_second, args),
             ("kazoo's read and write locks and dibs share", kazoo_shared, args),
             ("a stranger's lock is shown and goes with its session", kazoo_breaks_nothing, args),
             ('etcdctl holds, dibs waits', etcdctl_first, args),
             ('dibs holds, etcdctl waits, dibs waits behind it', etcdctl_second, args),
             ('nothing is left of locks that nobody uses', etcdctl_names, args)]
    return tap.run(tests)


if __name__ == '__main__':
    sys.exit(main())
