#!/usr/bin/env python3
"""redis-py's Lock behind the adapter protocol: Redis.lock(name, timeout=lease), acquire(blocking_timeout=wait), release.

The library renews nothing by itself (extend and reacquire are calls of the program's) and has no fence. "held" is its
owned(), which asks the server each time. With --unasked the answer is always yes: a program that runs its work in
`with client.lock(...)`, as the documentation shows, asks nothing.
"""

import os
import sys

import redis
import redis.exceptions
from adapter import NO_FENCE, Busy, serve


class Lock:
    def __init__(self, client, name, lease_ms, unasked):
        self.client, self.name, self.lease, self.unasked = client, name, lease_ms / 1000, unasked

    def lock(self, wait_ms):
        self.inner = self.client.lock(self.name, timeout=self.lease)
        if not self.inner.acquire(blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000 if wait_ms > 0 else None):
            raise Busy
        return NO_FENCE

    def held(self):
        return self.unasked or self.inner.owned()

    def unlock(self):
        try:
            self.inner.release()
        except redis.exceptions.LockError:
            return False
        return True


if __name__ == '__main__':
    if sys.argv[1:] not in ([], ['--unasked']):
        sys.exit('usage: redis_py.py [--unasked]')
    to = redis.Redis.from_url(os.environ.get('DIBS_TORTURE_URL') or 'redis://127.0.0.1')
    serve('redis-py', redis.__version__, lambda name, lease_ms: Lock(to, name, lease_ms, '--unasked' in sys.argv))
