"""What all rules share: the run's figures from meta.json, who was stopped and killed when, and the violations found."""

import bisect

from . import history

MS = 1000 * 1000  # nanoseconds

# Every check, by rule and name. A check that is missing here cannot report anything.
CHECKS = {
    'exclusion': ['overlap'],
    'fences': ['order', 'twice'],
    'fenced': ['lost', 'old-fence', 'final'],
    'once': ['effects', 'runs', 'result', 'forgotten', 'crashed', 'no-effect', 'late-finish', 'fingerprint', 'mismatch',
             'final'],
    'tokens': ['redeemed'],
    'counters': ['request', 'final', 'negative'],
    'progress': ['lock', 'wait', 'gap', 'open', 'works', 'died'],
    'deadlines': ['overrun'],
    'belief': ['again', 'released', 'lost'],
}


class Violation:
    def __init__(self, check, what, events):
        self.check = check
        self.what = what
        self.places = [e['at'] for e in events if e]


class Run:
    """`skip`: names of rules or checks that are left out. `most`: how many violations of a check are kept whole."""

    def __init__(self, meta, tolerance_ms, skip, most):
        self.meta = meta
        self.lease = meta['lease_ms'] * MS
        self.calm, self.end = meta['calm'], meta['end']
        self.tolerance = tolerance_ms * MS
        self.bound = 250 * MS + self.tolerance
        self.skip, self.most = set(skip), most
        self.lines = 0
        self.unknown_events = {}
        self.counts, self.violations = {}, []
        self.faults = []       # [begin, end or None, event, name]
        self.stops = {}        # worker (None: all) -> [(begin, end)]
        self.killed = {}       # worker -> time of its death
        self.died = []         # exits that no fault explains
        self.workers = {}      # worker -> {'spawn', 'opened', 'failed', 'end'}

    def violation(self, check, what, *events):
        if check in self.skip or check.split('.')[0] in self.skip:
            return
        rule, name = check.split('.')
        assert name in CHECKS[rule], check
        self.counts[check] = self.counts.get(check, 0) + 1
        if self.counts[check] <= self.most:
            self.violations.append(Violation(check, what, events))

    def faults_read(self):
        """Everything that the coordinator did is known: order it."""
        for begin, end, event, name in self.faults:
            if name == 'stop':
                self.stops.setdefault(event.get('worker'), []).append((begin, end or self.end))
        for windows in self.stops.values():
            windows.sort()

    def stopped(self, worker, since, until):
        """For how long of this time the worker was stopped."""
        total = 0
        for who in (worker, None):
            windows = self.stops.get(who, ())
            first = max(0, bisect.bisect_left(windows, (since, since)) - 1) if windows else 0
            for begin, end in windows[first:]:
                if begin >= until:
                    break
                total += max(0, min(end, until) - max(begin, since))
        return total

    def killed_before(self, moment):
        """Was a worker ended before this moment, so that a call of it may have left no line?"""
        return any(t < moment for t in self.killed.values())


class Coordinator:
    """Reads faults.jsonl into the Run, and which workers came and went."""

    def __init__(self, run):
        self.run = run
        self.open = {}
        self.victims = set()  # workers that a fault killed

    def handlers(self):
        return {'faults': {'begin': self.begin, 'end': self.finish, 'spawn': self.spawn, 'exit': self.exit},
                'worker': {'opened': self.opened, 'open_failed': self.failed, 'end': self.closed}}

    def begin(self, e):
        fault = [e['t'], None, e, e['fault']]
        self.open[e['id']] = fault
        if e['fault'] == 'kill':
            self.victims.add(e['worker'])
        self.run.faults.append(fault)

    def finish(self, e):
        if e['id'] not in self.open:
            raise history.Unusable('the end of a fault that never began')
        self.open.pop(e['id'])[1] = e['t']

    def spawn(self, e):
        self.run.workers[e['worker']] = {'spawn': e, 'slot': e.get('slot'), 'opened': None, 'failed': [], 'end': None}

    def exit(self, e):
        if e.get('signal') is not None or e.get('code') not in (0, None):
            self.run.killed[e['worker']] = e['t']
            if e['worker'] not in self.victims or e.get('overdue'):
                self.run.died.append(e)

    def worker(self, e):
        number = history.worker_of(e)
        if number not in self.run.workers:
            raise history.Unusable('faults.jsonl has no "spawn" of worker %d' % number)
        return self.run.workers[number]

    def opened(self, e):
        self.worker(e)['opened'] = e

    def failed(self, e):
        self.worker(e)['failed'].append(e)

    def closed(self, e):
        self.worker(e)['end'] = e

    def done(self):
        pass
