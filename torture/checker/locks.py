"""Locks: exclusion, fences and belief.

A holder believes from the moment that its call returned until the last moment at which it asked and was told that it
still holds: [t of "got", t of the last "held": true]. Without such a sample it never believed anything.
"""

from .run import MS


class Attempt:
    __slots__ = ('ask', 'got', 'refused', 'until', 'until_at', 'false', 'lost', 'release')

    def __init__(self, ask):
        self.ask = ask
        self.got = self.refused = self.until = self.until_at = self.false = self.lost = self.release = None


class Locks:
    def __init__(self, run):
        self.run = run
        self.attempts = {}
        self.by_lock = {}

    def handlers(self):
        return {'worker': {'ask': self.ask, 'got': self.got, 'not': self.refused, 'held': self.held, 'lost': self.lost,
                           'release': self.release}}

    def ask(self, e):
        attempt = self.attempts[e['a']] = Attempt(e)
        self.by_lock.setdefault(e['lock'], []).append(attempt)

    def got(self, e):
        attempt = self.attempts[e['a']]
        attempt.got = e
        e['call'], e['kind']  # both are needed below

    def refused(self, e):
        self.attempts[e['a']].refused = e

    def held(self, e):
        attempt = self.attempts[e['a']]
        if not e['held']:
            attempt.false = e
            return
        if attempt.false:
            self.run.violation('belief.again', '%s was told that the lock is lost, and later that it holds it'
                               % e['a'], attempt.got, attempt.false, e)
        attempt.until, attempt.until_at = e['t'], e['at']

    def lost(self, e):
        self.attempts[e['a']].lost = e

    def release(self, e):
        self.attempts[e['a']].release = e

    def granted(self):
        """{lock: its attempts that got it, in order}"""
        return {lock: sorted((a for a in attempts if a.got), key=lambda a: a.got['t'])
                for lock, attempts in self.by_lock.items()}

    def done(self):
        for lock, attempts in self.granted().items():
            self.check_exclusion(lock, attempts)
            self.check_fences(lock, attempts)
            for attempt in attempts:
                self.check_belief(attempt)

    def check_belief(self, attempt):
        last = {'at': attempt.until_at} if attempt.until_at else None
        if last and attempt.release and attempt.until > attempt.release['t']:
            self.run.violation('belief.released', '%s released the lock and was told later that it holds it'
                               % attempt.got['a'], attempt.release, last)
        if last and attempt.lost and attempt.until > attempt.lost['t']:
            self.run.violation('belief.lost', 'the loss of %s was reported, and later it was told that it holds the lock'
                               % attempt.got['a'], attempt.lost, last)

    def check_exclusion(self, lock, attempts):
        """One sweep: of those that have held so far, by their own answers, the ones until latest decide."""
        longest = {'exclusive': None, 'shared': None}
        for attempt in attempts:
            if attempt.until is None:
                continue
            kind, since = attempt.got['kind'], attempt.got['t']
            others = ('exclusive',) if kind == 'shared' else ('exclusive', 'shared')
            for other in filter(None, (longest[o] for o in others)):
                if other.until > since:
                    self.overlap(lock, other, attempt)
                    break
            if longest[kind] is None or attempt.until > longest[kind].until:
                longest[kind] = attempt

    def overlap(self, lock, first, second):
        both = min(first.until, second.until) - second.got['t']
        self.run.violation(
            'exclusion.overlap', 'lock %s: %s and %s both believed that they held it, for %.1f ms'
            % (lock, first.got['a'], second.got['a'], both / MS),
            first.got, second.got, {'at': second.until_at}, {'at': first.until_at})

    def check_fences(self, lock, attempts):
        """Whoever called after another was granted has a higher fence, unless both share the lock."""
        grants = [a.got for a in attempts if a.got.get('fence') is not None]
        self.check_twice(lock, grants)
        highest, earlier = {'exclusive': None, 'shared': None}, iter(grants)
        before = next(earlier, None)
        for grant in sorted(grants, key=lambda g: g['call']):
            while before and before['t'] < grant['call']:
                top = highest[before['kind']]
                if top is None or before['fence'] > top['fence']:
                    highest[before['kind']] = before
                before = next(earlier, None)
            for kind in ('exclusive', 'shared'):
                top = highest[kind]
                if top and not (kind == grant['kind'] == 'shared') and grant['fence'] <= top['fence']:
                    self.run.violation(
                        'fences.order', 'lock %s: %s has fence %d, not above fence %d that %s had before %s asked'
                        % (lock, grant['a'], grant['fence'], top['fence'], top['a'], grant['a']), top, grant)
                    break

    def check_twice(self, lock, grants):
        seen = {}
        for grant in grants:
            other = seen.setdefault(grant['fence'], grant)
            if other is not grant and 'exclusive' in (grant['kind'], other['kind']):
                self.run.violation('fences.twice', 'lock %s: %s and %s have the same fence %d'
                                   % (lock, other['a'], grant['a'], grant['fence']), other, grant)
