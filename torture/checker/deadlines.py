"""Deadlines: a call with a wait returns 250 ms after it at the latest, one without within request_ms plus 250 ms.

The time during which the worker itself was stopped does not count. What is above the bound is an overrun: the worst is
reported, and it is a violation above the tolerance, which a loaded machine needs.
"""

from . import history
from .run import MS

GRACE = 250 * MS
CLOSING = 2000 * MS  # closing may take this and one request
PLAIN = ('release', 'begin', 'finish', 'fail', 'abandon', 'issue', 'redeem', 'add', 'take')


class Deadlines:
    def __init__(self, run, locks):
        self.run, self.locks = run, locks
        self.request = run.meta['request_ms'] * MS
        self.connect = run.meta.get('connect_ms', 5000) * MS
        self.worst, self.worst_at = None, None

    def handlers(self):
        return {'worker': dict({kind: self.plain for kind in PLAIN}, got=self.lock, opened=self.open,
                               open_failed=self.open, closed=self.close, **{'not': self.lock})}

    def bound(self, wait_ms):
        """None: the caller set no bound."""
        if wait_ms == 0:
            return None
        return (wait_ms * MS if wait_ms and wait_ms > 0 else self.request) + GRACE

    def lock(self, e):
        self.check(e, 'lock', self.bound(self.locks.attempts[e['a']].ask['wait_ms']))

    def plain(self, e):
        self.check(e, e['ev'], self.bound(e.get('wait_ms')))

    def open(self, e):
        self.check(e, 'open', self.connect + GRACE)

    def close(self, e):
        self.check(e, 'close', self.request + CLOSING + GRACE)

    def check(self, e, what, bound):
        took = e['t'] - e['call']
        if bound is None:
            return
        if took > bound:
            took -= self.run.stopped(history.worker_of(e), e['call'], e['t'])
        over = took - bound
        if over > 0 and (self.worst is None or over > self.worst):
            self.worst, self.worst_at = over, e['at']
        if over > self.run.tolerance:
            self.run.violation('deadlines.overrun', '%s took %.0f ms; its bound is %.0f ms'
                               % (what, took / MS, bound / MS), e)

    def done(self):
        pass
