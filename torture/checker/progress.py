"""Progress: in the last part of the run, when all faults are over, everything works again.

A lock must be granted, within a lease and a bound after it could be; workers must be connected; calls that begin after
that time must not fail for want of an engine; no worker dies by itself or hangs.

Where the lease is a session with a cluster, a new leader begins every session anew, also a dead client's, and etcd's adds
an election timeout. It is elected when a majority is back, which may be when the last fault ends: so the election and a
whole lease from then on, two leases in all, are waited for if a fault of the servers was among those of the run.
"""

from . import history
from .run import MS

OF_CLIENTS = ('stop', 'kill', 'cut', 'break')
BROKEN = ('UNAVAILABLE', 'UNKNOWN', 'DENIED', 'ENGINE_FAILED', 'NO_MEMORY')
CALLS = ('not', 'release', 'begin', 'finish', 'fail', 'abandon', 'issue', 'redeem', 'add', 'take')


def union(pieces):
    """Sorted, without overlaps."""
    merged = []
    for begin, end in sorted(pieces):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        elif end > begin:
            merged.append([begin, end])
    return merged


def longest_outside(pieces, covers):
    """(length, begin) of the longest part of `pieces` that nothing in `covers` covers."""
    longest, covers = (0, None), union(covers)[::-1]
    for begin, end in union(pieces):
        while covers and covers[-1][0] < end:
            cover_begin, cover_end = covers[-1]
            if cover_begin > begin:
                longest = max(longest, (cover_begin - begin, begin))
            begin = max(begin, cover_end)
            if cover_end > end:
                break
            covers.pop()
        longest = max(longest, (end - begin, begin))
    return longest


class Progress:
    def __init__(self, run, locks):
        self.run, self.locks = run, locks
        self.limit = run.lease + run.bound
        self.wait_limit = self.limit + (run.lease if self.leader_may_change(run.meta) else 0)
        self.worst_wait = 0

    @staticmethod
    def leader_may_change(meta):
        return bool(meta.get('lease_of_handle')) and any(f not in OF_CLIENTS for f in meta['faults'])

    def handlers(self):
        return {'worker': dict({call: self.call for call in CALLS}, open_failed=self.open_failed)}

    def in_a_hurry(self, e):
        """Its wait is over and was shorter than what the machine may add to one exchange."""
        wait = self.locks.attempts[e['a']].ask['wait_ms'] if e['ev'] == 'not' else e.get('wait_ms', -1)
        return 0 <= wait * MS < self.run.tolerance and e['t'] - e['call'] >= wait * MS

    def call(self, e):
        if e['status'] in BROKEN and e['call'] > self.run.calm + self.limit and not self.in_a_hurry(e):
            self.run.violation('progress.works', '%s returned %s, %.1f s after the last fault'
                               % (e['ev'], e['status'], (e['call'] - self.run.calm) / 1e9), e)

    def open_failed(self, e):
        if e['call'] > self.run.calm + self.limit:
            self.run.violation('progress.open', 'a worker could not connect, %.1f s after the last fault'
                               % ((e['call'] - self.run.calm) / 1e9), e)

    def done(self):
        if 'locks' in self.run.meta['work']:
            for lock in self.run.meta['locks']:
                self.check_lock(lock, self.locks.by_lock.get(lock, []))
        self.check_workers()
        for e in self.run.died:
            self.run.violation('progress.died', 'worker %d %s' % (e['worker'], 'did not end in time' if e.get('overdue')
                               else 'died by itself'), e)

    def check_workers(self):
        """The last worker of every slot was connected."""
        last = {w['slot']: w for _, w in sorted(self.run.workers.items())}
        for worker in last.values():
            number = worker['spawn']['worker']
            if not worker['opened'] and number not in self.run.killed:
                self.run.violation('progress.open', 'worker %d never connected' % number,
                                   worker['spawn'], *worker['failed'][-1:])

    def waits(self, attempts):
        """(begin, end, attempt) of every wait in the calm part."""
        for attempt in attempts:
            outcome = attempt.got or attempt.refused
            worker = history.worker_of(attempt.ask)
            end = outcome['t'] if outcome else self.run.killed.get(worker, self.run.end)
            begin = max(attempt.ask['t'], self.run.calm)
            if end > begin:
                yield begin, end, attempt

    def check_lock(self, lock, attempts):
        granted = [a for a in attempts if a.got]
        if not any(a.got['t'] >= self.run.calm for a in granted):
            last = max(granted, key=lambda a: a.got['t']).got if granted else None
            self.run.violation('progress.lock', 'lock %s was never granted after the last fault' % lock,
                               last, *(a.ask for _, _, a in list(self.waits(attempts))[:1]))
            return
        waits = list(self.waits(attempts))
        self.check_waits(lock, waits)
        held = [(a.got['t'], max(a.until or 0, a.release['t'] if a.release else 0)) for a in granted]
        idle, since = longest_outside([w[:2] for w in waits], held)
        if idle > self.wait_limit:
            waiting = [a.ask for begin, end, a in waits if begin <= since < end][:3]
            self.run.violation('progress.gap', 'lock %s was free for %.0f ms while somebody waited for it'
                               % (lock, idle / MS), *waiting)

    def check_waits(self, lock, waits):
        for begin, end, attempt in waits:
            self.worst_wait = max(self.worst_wait, end - begin)
            if end - begin > self.wait_limit and self.run.meta.get('first_come'):
                self.run.violation('progress.wait', 'lock %s: %s waited for %.0f ms after the last fault'
                                   % (lock, attempt.ask['a'], (end - begin) / MS), attempt.ask,
                                   attempt.got or attempt.refused)
