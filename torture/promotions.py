"""When servers of Redis were promoted, and when their quiet periods ended: beside the history of a run.

Each server is asked from its own namespace, by a thread of its own, so that no fault hides what it does. The times are of
the boot clock, as in the history."""

import contextlib
import glob
import json
import os
import threading
import time

PAUSE = 0.05
MS = 1e6
# How long the marker (docs/engines/redis.md, Failover) still forbids grants; it may be another server's, or wait for replicas.
LEFT = ("local k = redis.call('KEYS', 'dibs*:server')[1] if not k then return 0 end local t = redis.call('TIME') "
        "return struct.unpack('>d', redis.call('GETRANGE', k, 0, 7)) - (t[1] * 1000000 + t[2])")
MOST_LEFT = 60e6  # microseconds


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Watch:
    """`moments`: (what, when), what being "promotion" or "quiet"."""

    def __init__(self, nodes):
        self.moments, self.over = [], threading.Event()
        self.threads = [threading.Thread(target=self.watch, args=(node,)) for node in nodes]
        for thread in self.threads:
            thread.start()

    def watch(self, node):
        role, quiet = 'master', False
        while not self.over.wait(PAUSE):
            with contextlib.suppress(OSError, ValueError):
                said = node.ask('INFO', 'replication')
                if 'role:' not in said:  # it is being killed, or loads its data
                    continue
                before, role = role, 'master' if 'role:master' in said else 'slave'
                if role == 'master' and before == 'slave':
                    self.moments.append(('promotion', now()))
                    quiet = True
                if role == 'master' and quiet:
                    left = float(node.ask('EVAL', LEFT, '0'))
                    if 0 < left < MOST_LEFT:
                        self.moments.append(('quiet', now() + int(left * 1000)))
                        quiet = False

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return sorted(self.moments, key=lambda m: m[1])


def lines_of(path):
    with open(path, encoding='utf-8') as f:
        for line in f:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def figures(history, moments):
    """{what: {count, worst_ms, median_ms}}: from each moment to the next grant of each lock, and the longest of these. A moment
    after which another fault begins before a lock is granted is left out for that lock."""
    grants = {}
    for path in glob.glob(os.path.join(history, 'worker-*.jsonl')):
        for e in lines_of(path):
            if e.get('ev') == 'got':
                grants.setdefault(e['lock'], []).append(e['t'])
    begins = sorted(e['t'] for e in lines_of(os.path.join(history, 'faults.jsonl')) if e.get('ev') == 'begin')
    table = {}
    for what, at in moments:
        limit = next((b for b in begins if b > at), float('inf'))
        waits = [after - at for times in grants.values() for after in [min((t for t in times if t >= at), default=limit)]
                 if after < limit]
        table.setdefault(what, []).append(max(waits) / MS if waits else None)
    return {what: {'count': len(found), 'seen': len(seen), 'worst_ms': max(seen, default=None) and round(max(seen)),
                   'median_ms': sorted(seen)[len(seen) // 2] and round(sorted(seen)[len(seen) // 2]) if seen else None}
            for what, found in table.items() for seen in [[w for w in found if w is not None]]}
