#!/usr/bin/env python3
"""kazoo's Lock recipe behind the adapter protocol: one client (one session) per worker, client.Lock(path).acquire(timeout).

The session's timeout is the lease; the client keeps the session alive by itself. "held" is what kazoo's documentation asks a
program to watch: the state of the connection. Once it was SUSPENDED or LOST while the lock was held, the answer is no. The
recipe has no fence.
"""

import logging
import os

import kazoo.exceptions
import kazoo.version
from adapter import NO_FENCE, Busy, serve
from kazoo.client import KazooClient, KazooState


class Session:
    """The client of this process, started with the first lease that is asked for."""

    def __init__(self, url):
        hosts, _, self.root = url.partition('://')[2].partition('/')
        self.hosts, self.client, self.breaks = hosts or '127.0.0.1:2181', None, 0

    def listen(self, state):
        if state != KazooState.CONNECTED:
            self.breaks += 1

    def lock(self, name, lease_ms):
        if not self.client:
            client = KazooClient(hosts=self.hosts, timeout=lease_ms / 1000)
            client.add_listener(self.listen)
            client.start(timeout=10)
            self.client = client
        return Lock(self, '/'.join(['', self.root or 'kazoo', name]))


class Lock:
    def __init__(self, session, path):
        self.session, self.path = session, path

    def lock(self, wait_ms):
        self.inner = self.session.client.Lock(self.path)
        self.breaks = self.session.breaks
        try:
            got = self.inner.acquire(blocking=wait_ms > 0, timeout=wait_ms / 1000 if wait_ms > 0 else None)
        except kazoo.exceptions.LockTimeout:
            got = False
        if not got:
            raise Busy
        if not self.held():  # it was waiting through a break of the connection: the entry may be a new one
            self.breaks = self.session.breaks
        return NO_FENCE

    def held(self):
        return self.session.breaks == self.breaks and self.inner.is_acquired

    def unlock(self):
        return bool(self.inner.release()) and self.session.breaks == self.breaks


if __name__ == '__main__':
    logging.disable(logging.CRITICAL)
    serve('kazoo', kazoo.version.__version__, Session(os.environ.get('DIBS_TORTURE_URL') or 'zookeeper://').lock)
