"""Once: for each key, the attempts to begin, how the runs ended, and the effects that the resource saw.

Policy "refuse" is at most once: one run, one effect. Policy "rerun" is at least once: an earlier run may be repeated until
one has finished. A run that its worker ended with "fail" (not final) gives the key back: it counts as if it had not been.
A begin that a killed worker never got to record is possible: where that would explain an answer, nothing is reported.
"""

GAVE_NO_ANSWER = ('UNKNOWN', 'UNAVAILABLE')


class Key:
    def __init__(self):
        self.begins, self.ends, self.effects, self.final = [], [], [], None


class Once:
    def __init__(self, run):
        self.run = run
        self.keys = {}

    def handlers(self):
        return {'worker': {'begin': self.begin, 'finish': self.end, 'fail': self.end, 'abandon': self.end},
                'resource': {'effect': self.effect, 'final_key': self.final}}

    def key(self, e):
        return self.keys.setdefault(e['k'], Key())

    def begin(self, e):
        e['b'], e['policy'], e['status'], e['call']  # all are needed below
        self.key(e).begins.append(e)

    def end(self, e):
        e['b'], e['status'], e['call']
        self.key(e).ends.append(e)

    def effect(self, e):
        e['b']
        self.key(e).effects.append(e)

    def final(self, e):
        self.key(e).final = e

    def done(self):
        for name in sorted(self.keys):
            Check(self.run, name, self.keys[name]).check()


def gives_back(end):
    return end['ev'] == 'fail' and not end.get('final')


def settles(end):
    return end['status'] == 'OK' and (end['ev'] == 'finish' or end['ev'] == 'fail' and end.get('final'))


class Check:
    """The checks of one key."""

    def __init__(self, run, name, key):
        self.run, self.name, self.key = run, name, key
        self.refuse = all(b['policy'] == 'refuse' for b in key.begins)
        self.runs = sorted((b for b in key.begins if b['status'] == 'OK'), key=lambda b: b['t'])
        self.by_id = {b['b']: b for b in self.runs}
        self.ends = {}
        for end in key.ends:
            self.ends.setdefault(end['b'], []).append(end)
        self.settled = next((e for e in key.ends if settles(e)), None)
        self.replays = [b for b in key.begins if b['status'] == 'ALREADY']

    def report(self, check, what, *events):
        self.run.violation('once.' + check, 'key %s: %s' % (self.name, what), *events)

    def check(self):
        if self.refuse:
            self.check_effects()
            self.check_runs()
        self.check_results()
        self.check_no_effect()
        self.check_crashed()
        self.check_fingerprints()
        if self.settled:
            self.check_forgotten()
            self.check_late()
            self.check_final()

    def check_effects(self):
        counted = [e for e in self.key.effects if not any(map(gives_back, self.ends.get(e['b'], ())))]
        if len(counted) > 1:
            self.report('effects', '%d effects with the policy "refuse"' % len(counted), *counted)

    def may_have_been_given_back(self, begin, before):
        """Did this run end with a fail before that moment, or may it have, unrecorded?"""
        ends = self.ends.get(begin['b'], ())
        if any(gives_back(e) and e['call'] < before for e in ends):
            return True
        killed = self.run.killed.get(int(begin['at'][0][7:-6]))
        return (not ends and killed is not None and killed < before
                and all(e['b'] != begin['b'] for e in self.key.effects))

    def check_runs(self):
        for first, second in zip(self.runs, self.runs[1:]):
            if not self.may_have_been_given_back(first, second['t']):
                self.report('runs', 'begun by %s and again by %s with the policy "refuse"' % (first['b'], second['b']),
                            first, *self.ends.get(first['b'], ()), second)

    def check_results(self):
        """All replays are the result of the run that finished."""
        final = self.key.final
        replays = self.replays + ([final] if final and final['status'] == 'ALREADY' else [])
        if self.settled:
            reference, allowed = self.settled, [self.settled.get('result')]
        else:
            reference = replays[0] if replays else None
            tried = [e.get('result') for e in self.key.ends if e['ev'] == 'finish' or e.get('final')]
            allowed = [r.get('result') for r in replays[:1] if r.get('result') in tried or self.run.killed_before(r['t'])]
        for replay in replays:
            if replay.get('result') not in allowed:
                self.report('result', 'replayed %r, which is not the result it was finished with' % replay.get('result'),
                            *([reference, replay] if reference is not replay else [replay]))

    def check_no_effect(self):
        failed = any(e['ev'] == 'fail' for e in self.key.ends)
        finished = self.settled and self.settled['ev'] == 'finish'
        if not self.key.effects and (finished or self.replays and not failed):
            self.report('no-effect', 'finished, and the resource saw no effect', self.settled, *self.replays[:1])

    def check_crashed(self):
        """A crash needs a run that began, or may have begun, before."""
        for e in self.key.begins:
            if e['status'] == 'CRASHED' and not self.run.killed_before(e['t']) and not any(
                    b['call'] < e['t'] and (b['status'] == 'OK' or b['status'] in GAVE_NO_ANSWER)
                    for b in self.key.begins):
                self.report('crashed', 'reported as crashed, and no run had begun', e)

    def check_fingerprints(self):
        known = self.by_id.get(self.settled['b']) if self.settled else None
        for e in self.replays:
            if known and None not in (known.get('fingerprint'), e.get('fingerprint')) \
                    and e['fingerprint'] != known['fingerprint']:
                self.report('fingerprint', 'replayed to a request with another fingerprint', known, e)
        for e in self.key.begins:
            if e['status'] == 'MISMATCH' and not self.run.killed_before(e['t']) and not any(
                    b['call'] < e['t'] and b.get('fingerprint') != e.get('fingerprint') for b in self.key.begins):
                self.report('mismatch', 'refused for its fingerprint, and nobody had used another one', e)

    def check_forgotten(self):
        for e in self.key.begins:
            if e['call'] > self.settled['t'] and e['status'] in ('OK', 'RUNNING', 'CRASHED'):
                self.report('forgotten', 'it was finished, and a later begin returned %s' % e['status'], self.settled, e)

    def check_late(self):
        """A run that another one has replaced cannot finish."""
        mine = self.by_id.get(self.settled['b'])
        if not mine or mine.get('fence') is None:
            return
        for e in self.runs:
            if e.get('fence') is not None and e['fence'] > mine['fence'] and e['call'] <= self.settled['t']:
                self.report('late-finish', '%s finished although %s had taken over with a higher fence'
                            % (mine['b'], e['b']), mine, e, self.settled)

    def check_final(self):
        final = self.key.final
        if final and final['status'] in ('OK', 'RUNNING', 'CRASHED', 'NOT_FOUND'):
            self.report('final', 'it was finished, and in the end it is %s' % final['status'], self.settled, final)
