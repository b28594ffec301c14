"""What is counted and measured, whether or not it is a violation."""

import bisect

from .run import MS

CALLS = ('not', 'release', 'begin', 'finish', 'fail', 'abandon', 'issue', 'redeem', 'add', 'take')


class Figures:
    def __init__(self, run, locks):
        self.run, self.locks = run, locks
        self.operations = {}
        self.losses = {}
        self.samples = self.writes = 0

    def handlers(self):
        return {'worker': dict({kind: self.call for kind in CALLS}, got=self.got, lost=self.lost, held=self.held,
                               write=self.write)}

    def count(self, kind, status):
        statuses = self.operations.setdefault(kind, {})
        statuses[status] = statuses.get(status, 0) + 1

    def call(self, e):
        self.count('lock' if e['ev'] == 'not' else e['ev'], e['status'])

    def got(self, e):
        self.count('lock', 'OK')

    def lost(self, e):
        self.losses[e['why']] = self.losses.get(e['why'], 0) + 1

    def held(self, e):
        self.samples += 1

    def write(self, e):
        self.writes += 1

    def done(self):
        pass

    def faults(self):
        """{name: {count, seconds}}"""
        table = {}
        for begin, end, _, name in self.run.faults:
            row = table.setdefault(name, {'count': 0, 'seconds': 0.0})
            row['count'] += 1
            row['seconds'] = round(row['seconds'] + ((end or self.run.end) - begin) / 1e9, 3)
        return table

    def waits_after_faults(self):
        """{fault: worst ms from its end to the next grant of a lock}. A fault that ends while another lasts is left out,
        and so is a wait into which another fault falls: the end of that one is measured."""
        spans = sorted((begin, end or self.run.end, name) for begin, end, _, name in self.run.faults)
        grants = {lock: [a.got['t'] for a in attempts] for lock, attempts in self.locks.granted().items()}
        worst = {}
        for begin, end, name in spans:
            if any(b < end < e for b, e, _ in spans):
                continue
            following = min((b for b, _, _ in spans if b >= end and b > begin), default=self.run.end)
            for times in grants.values():
                after = bisect.bisect_left(times, end)
                if after < len(times) and times[after] <= following:
                    worst[name] = max(worst.get(name, 0), round((times[after] - end) / MS, 1))
        return worst
