"""Counters: what was added exactly once, what may have been added, and what is there in the end.

A request (calls with the same id) counts once if any of its calls returned OK or ALREADY. Without either it may have
counted if a call returned UNKNOWN. A worker that was killed may have been inside one call that left no line: for each
of them the largest step that was seen on the counter may have been made.
"""


class Counters:
    def __init__(self, run):
        self.run = run
        self.calls = {}    # counter -> {request, or a call of its own -> [events]}
        self.finals = []

    def handlers(self):
        return {'worker': {'add': self.add, 'take': self.add}, 'resource': {'final_counter': self.final}}

    def add(self, e):
        e['n'], e['status']  # both are needed below
        request = e.get('request')
        key = e['at'] if request is None else request
        self.calls.setdefault(e['counter'], {}).setdefault(key, []).append(e)
        if e.get('value') is not None and e['value'] < 0:
            self.negative(e)

    def final(self, e):
        self.finals.append(e)

    def negative(self, e):
        self.run.violation('counters.negative', 'counter %s was %d' % (e['counter'], e['value']), e)

    def check_request(self, request, calls):
        """(surely counted, may have counted)"""
        done = [c for c in calls if c['status'] == 'OK']
        n = calls[0]['n']
        if len(done) > 1:
            self.run.violation('counters.request', 'request %s on counter %s was counted %d times'
                               % (request, calls[0]['counter'], len(done)), *done)
        if done or any(c['status'] == 'ALREADY' for c in calls):
            return n, 0
        return 0, n if any(c['status'] == 'UNKNOWN' for c in calls) else 0

    def range_of(self, counter):
        low = high = largest = smallest = 0
        for request, calls in self.calls.get(counter, {}).items():
            sure, maybe = self.check_request(request, calls)
            low, high = low + sure + min(maybe, 0), high + sure + max(maybe, 0)
            largest, smallest = max(largest, calls[0]['n']), min(smallest, calls[0]['n'])
        killed = len(self.run.killed)
        return low + killed * smallest, high + killed * largest

    def done(self):
        finals = {e['counter']: e for e in self.finals}
        for counter in sorted(set(self.calls) | set(finals)):
            low, high = self.range_of(counter)
            e = finals.get(counter)
            value = 0 if e and e['status'] == 'NOT_FOUND' else e and e.get('value')
            if value is None:
                continue
            if value < 0:
                self.negative(e)
            if not low <= value <= high:
                calls = self.calls.get(counter, {}).values()
                unsure = [c for group in calls for c in group if c['status'] == 'UNKNOWN'][:5]
                self.run.violation('counters.final', 'counter %s is %d in the end; by the answers it is %s'
                                   % (counter, value, low if low == high else 'from %d to %d' % (low, high)), e, *unsure)
