"""The guarded counters: what the resource stored, in its own order.

Fenced: every store that was accepted adds one to what was there, so the final value is their number. Plain: the same
without the fence; what is lost there is counted and is no violation.
"""

from . import history


class Resource:
    def __init__(self, run):
        self.run = run
        self.floor = {}     # lock -> (highest fence that was accepted, its event)
        self.last = {}      # (lock, fenced) -> (value, event of the last store)
        self.stores = {}    # (lock, fenced) -> accepted stores
        self.refusals = 0
        self.finals = {}

    def handlers(self):
        return {'resource': {'raise': self.raised, 'store': self.store, 'final': self.final}}

    def check_floor(self, e):
        """Was a lower fence than one that had been here accepted?"""
        fence = e['fence']
        floor, before = self.floor.get(e['lock'], (fence, None))
        if fence < floor:
            self.run.violation('fenced.old-fence', 'lock %s: the resource accepted fence %d of %s after fence %d of %s'
                               % (e['lock'], fence, e['a'], floor, before['a']), before, e)
        elif fence > floor or not before:
            self.floor[e['lock']] = fence, e

    def raised(self, e):
        if e['answer'] == 'ok':
            self.check_floor(e)
        else:
            self.refusals += 1

    def store(self, e):
        fenced, lock = bool(e['fenced']), e['lock']
        if e['answer'] != 'ok':
            self.refusals += fenced
            return
        key = lock, fenced
        self.stores[key] = self.stores.get(key, 0) + 1
        value, before = self.last.get(key, (0, None))
        if fenced:
            self.check_floor(e)
            if e['value'] != value + 1:
                self.run.violation('fenced.lost', 'lock %s: %s stored %s where %s was: an update is lost'
                                   % (lock, e['a'], e['value'], value), before, e)
        self.last[key] = e['value'], e

    def final(self, e):
        self.finals[e['lock']] = e
        stored = self.stores.get((e['lock'], True), 0)
        if e['fenced'] != stored:
            self.run.violation('fenced.final', 'lock %s: %d fenced stores were accepted and the final value is %s'
                               % (e['lock'], stored, e['fenced']), e)

    def plain_losses(self):
        return sum(self.stores.get((lock, False), 0) - e['plain'] for lock, e in self.finals.items())

    def done(self):
        """A run that was ended before the coordinator read the final values decides nothing."""
        missing = [lock for lock, _ in self.stores if lock not in self.finals]
        if missing:
            raise history.Unusable('resource.jsonl has no "final" of lock %s: the run did not end' % missing[0])
