#!/usr/bin/env python3
"""The checker of torture histories, tested: for each check a small history that breaks the promise, and its nearest
innocent neighbour. A guilty one is found by that check alone: with the check left out it passes."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
sys.dont_write_bytecode = True
import tap  # noqa: E402

CHECK = os.path.join(HERE, '..', '..', 'torture', 'check.py')
sys.path.insert(0, os.path.dirname(CHECK))
import check  # noqa: E402
from checker.history import KNOWN  # noqa: E402
from checker.run import CHECKS  # noqa: E402

MS = 1000 * 1000
META = {'format': 1, 'version': '0', 'url': 'x', 'engine': 'redis', 'seed': 1, 'seconds': 20, 'processes': 2, 'lease_ms': 2000,
        'locks': ['L'], 'work': ['locks'], 'faults': ['stop'], 'adapter': None, 'first_come': True, 'notices_death': False,
        'request_ms': 5000, 'begin': 0, 'calm': 12000 * MS, 'end': 20000 * MS}


class History:
    """Writes a history. Times are in milliseconds. Two workers, both connected; L is granted in the calm part."""

    def __init__(self, **meta):
        self.meta = dict(META, **meta)
        self.files = {'faults.jsonl': [], 'resource.jsonl': []}
        self.sequence = 0
        for w in (1, 2):
            self.faults('spawn', 0, worker=w, pid=w, slot=w)
            self.worker(w, 'start', 1, worker=w, pid=w, slot=w)
            self.worker(w, 'opened', 2, call=2 * MS)
        if 'locks' in self.meta['work']:
            self.grant(1, 13000, 13010, lock='L', fence=10 ** 6)

    def add(self, file, ev, t, fields):
        line = json.dumps(dict({'t': t * MS, 'ev': ev}, **fields))
        self.files.setdefault(file, []).append(line + '\n')

    def worker(self, w, ev, t, **fields):
        self.add('worker-%04d.jsonl' % w, ev, t, fields)

    def faults(self, ev, t, **fields):
        self.add('faults.jsonl', ev, t, fields)

    def resource(self, ev, t, **fields):
        self.add('resource.jsonl', ev, t, fields)

    def stop(self, w, begin, end):
        self.sequence += 1
        self.faults('begin', begin, fault='stop', id=self.sequence, worker=w)
        self.faults('end', end, fault='stop', id=self.sequence, worker=w)

    def kill(self, w, t):
        self.sequence += 1
        self.faults('begin', t - 1, fault='kill', id=self.sequence, worker=w)
        self.faults('exit', t, worker=w, signal=9)
        self.faults('end', t + 1, fault='kill', id=self.sequence, worker=w)

    def ask(self, w, t, lock='L', kind='exclusive', wait_ms=5000):
        self.sequence += 1
        a = '%d.%d' % (w, self.sequence)
        self.worker(w, 'ask', t, a=a, lock=lock, kind=kind, wait_ms=wait_ms)
        return a

    def got(self, w, a, call, t, fence, lock='L', kind='exclusive'):
        self.worker(w, 'got', t, a=a, lock=lock, kind=kind, call=call * MS, fence=fence, floor=fence)

    def held(self, w, a, t, held=True):
        self.worker(w, 'held', t, a=a, held=held)

    def release(self, w, a, t, status='OK'):
        self.worker(w, 'release', t, a=a, call=(t - 1) * MS, status=status)

    def grant(self, w, call, until, fence, lock='L', kind='exclusive', t=None):
        """Asks, gets it a millisecond later, believes until `until`, releases."""
        t = t or call + 1
        a = self.ask(w, call, lock, kind)
        self.got(w, a, call, t, fence, lock, kind)
        self.held(w, a, t)
        self.held(w, a, until)
        self.release(w, a, until + 2)
        return a

    def begin(self, w, b, t, status='OK', policy='refuse', k='K', fence=None, result=None, call=None, **more):
        self.worker(w, 'begin', t, k=k, policy=policy, b=b, call=(call or t - 1) * MS, status=status, fence=fence,
                    result=result, again=False, **more)

    def end(self, w, b, t, ev='finish', status='OK', result=None, k='K', call=None, **more):
        self.worker(w, ev, t, b=b, k=k, call=(call or t - 1) * MS, status=status, result=result, **more)

    def effect(self, b, t, k='K'):
        self.resource('effect', t, k=k, b=b, worker=1, fence=1)

    def add_to(self, w, t, n=1, request=None, status='OK', value=1, counter='C'):
        self.worker(w, 'add', t, counter=counter, n=n, request=request, call=(t - 1) * MS, status=status, value=value)

    def store(self, t, fence, value, answer='ok', fenced=True):
        self.resource('store', t, lock='L', a='1.1', fence=fence, fenced=fenced, value=value, answer=answer)

    def final(self, fenced, plain=0):
        self.resource('final', 19000, lock='L', fenced=fenced, plain=plain, writes_fenced=fenced, writes_plain=plain)

    def write(self, folder):
        with open(os.path.join(folder, 'meta.json'), 'w') as f:
            json.dump(self.meta, f)
        for name, lines in self.files.items():
            with open(os.path.join(folder, name), 'w') as f:
                f.write(''.join(lines))


def run_check(history, *args):
    """(exit code, report, standard error), as the command gives them. In this process: there are hundreds."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    with tempfile.TemporaryDirectory() as folder:
        history.write(folder)
        sys.argv = [CHECK, folder, '--json', *args]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = check.main()
        finally:
            sys.argv = argv
    return code, json.loads(out.getvalue()), err.getvalue()


def expect(history, check, number=1):
    """`check` finds it, shows events, and nothing else finds anything: without it the history passes."""
    code, report, _ = run_check(history)
    assert report['counts'] == {check: number}, report
    assert code == 1 and report['verdict'] == 'fail'
    assert report['found'][0]['events'], report['found']
    assert all(json.loads(e['text']) for e in report['found'][0]['events'])
    code, report, _ = run_check(history, '--skip', check)
    assert code == 0 and report['verdict'] == 'pass' and report['skipped'] == [check], report


def expect_pass(history):
    code, report, _ = run_check(history)
    assert code == 0 and report['counts'] == {}, report
    return report


CASES = {}


def case(name):
    """Declares a function that takes `guilty` and returns the history."""
    def add(function):
        CASES.setdefault(name, []).append(function)
        return function
    return add


def both(check, function):
    expect(function(True), check)
    expect_pass(function(False))


# ---- Locks ----

@case('exclusion.overlap')
def two_believe(guilty):
    h = History()
    h.grant(1, 1000, 1100, fence=1)
    h.grant(2, 1000, 1200, fence=2, t=1099 if guilty else 1101)
    return h


@case('exclusion.overlap')
def stopped_holder_believes_on(guilty):
    """Stopped past its lease. Innocent: on waking it is told that the lock is lost; the next grant was during the stop."""
    h = History()
    h.stop(1, 1050, 5000)
    a = h.ask(1, 1000)
    h.got(1, a, 1000, 1001, fence=1)
    h.held(1, a, 1001)
    h.held(1, a, 1049)
    h.grant(2, 1010, 5100, fence=2, t=3060)
    h.held(1, a, 5001, held=guilty)
    h.release(1, a, 5010, 'LOST')
    return h


@case('exclusion.overlap')
def shared_beside_exclusive(guilty):
    h = History()
    h.grant(1, 1000, 1100, fence=1, kind='shared')
    h.grant(2, 1000, 1200, fence=2, kind='exclusive' if guilty else 'shared', t=1050)
    return h


@case('exclusion.overlap')
def long_holder_behind_a_short_one(guilty):
    """The third overlaps with the first, not with the second."""
    h = History()
    h.grant(1, 1000, 3000, fence=1, kind='shared')
    h.grant(2, 1001, 1100, fence=2, kind='shared')
    h.grant(2, 1002, 3500, fence=3, t=2999 if guilty else 3001)
    return h


@case('fences.order')
def fence_goes_back(guilty):
    h = History()
    h.grant(1, 1000, 1100, fence=7)
    h.grant(2, 2000, 2100, fence=6 if guilty else 8)
    return h


@case('fences.order')
def fence_lower_but_asked_earlier(guilty):
    """The fence may be fixed when the waiter enters the queue: only calls after the other grant must be higher."""
    h = History()
    h.grant(1, 1000, 1100, fence=7)
    h.grant(2, 1002 if guilty else 1000, 2100, fence=6, t=2000)
    return h


@case('fences.order')
def fence_below_an_older_one(guilty):
    """Not the last fence counts, but the highest before."""
    h = History()
    h.grant(1, 1000, 1100, fence=9)
    h.grant(2, 1000, 1300, fence=5, t=1200)
    h.grant(1, 1400, 1500, fence=7 if guilty else 10)
    return h


@case('fences.twice')
def same_fence(guilty):
    h = History()
    h.grant(1, 1000, 1100, fence=7)
    h.grant(2, 1000, 2100, fence=7 if guilty else 8, t=1200)
    return h


@case('belief.again')
def held_again(guilty):
    h = History()
    a = h.grant(1, 1000, 1100, fence=1)
    h.held(1, a, 1101, held=False)
    h.held(1, a, 1101, held=guilty)
    return h


@case('belief.released')
def held_after_release(guilty):
    h = History()
    a = h.grant(1, 1000, 1100, fence=1)
    h.held(1, a, 1103 if guilty else 1102)
    return h


@case('belief.lost')
def held_after_loss(guilty):
    h = History()
    a = h.grant(1, 1000, 1100, fence=1)
    h.worker(1, 'lost', 1099 if guilty else 1101, a=a, why='EXPIRED')
    return h


# ---- The guarded counter ----

@case('fenced.lost')
def update_lost(guilty):
    """Two read 1 and both write 2."""
    h = History()
    h.store(1000, 1, 1)
    h.store(1001, 2, 2)
    h.store(1002, 3, 2 if guilty else 3)
    h.final(3)
    return h


@case('fenced.old-fence')
def old_fence_accepted(guilty):
    h = History()
    h.resource('raise', 1000, lock='L', a='1.2', fence=5, answer='ok', value=0)
    h.store(1001, 4, 1, answer='ok' if guilty else 'refused')
    h.final(1 if guilty else 0)
    return h


@case('fenced.final')
def final_value_short(guilty):
    h = History()
    h.store(1000, 1, 1)
    h.store(1001, 2, 2)
    h.final(1 if guilty else 2)
    return h


# ---- Once ----

def once_history():
    return History(work=['once'])


@case('once.effects')
def two_effects(guilty):
    """Innocent: the first was given back."""
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.end(1, 'b1', 1100, 'abandon' if guilty else 'fail')
    h.effect('b1', 1050)
    if guilty:
        h.effect('b1', 1060)
        return h
    h.begin(2, 'b2', 1200, fence=2)
    h.effect('b2', 1250)
    return h


@case('once.runs')
def run_twice(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.end(1, 'b1', 1100, 'abandon' if guilty else 'fail')
    h.begin(2, 'b2', 1200, fence=2)
    return h


@case('once.runs')
def run_after_a_kill(guilty):
    """A killed worker may have given the key back, unless it had made its effect."""
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    if guilty:
        h.effect('b1', 1010)
    h.kill(1, 1020)
    h.begin(2, 'b2', 4000, fence=2)
    return h


@case('once.result')
def replay_differs(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, result='one')
    h.begin(2, 'b2', 1100, 'ALREADY', result='two' if guilty else 'one')
    return h


@case('once.result')
def replay_of_an_unknown_finish(guilty):
    """The finish was not answered, and it counted."""
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, status='UNKNOWN', result='one')
    h.begin(2, 'b2', 1100, 'ALREADY', result='two' if guilty else 'one')
    return h


@case('once.forgotten')
def finished_and_running(guilty):
    """Innocent: it was asked before the finish."""
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, result='one')
    h.begin(2, 'b2', 1100, 'RUNNING', call=1021 if guilty else 1015)
    return h


@case('once.crashed')
def crashed_without_a_run(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, 'BUSY' if guilty else 'UNKNOWN')
    h.begin(2, 'b2', 1100, 'CRASHED')
    return h


@case('once.crashed')
def crashed_after_a_kill(guilty):
    """A killed worker may have begun without a line."""
    h = once_history()
    h.kill(1, 1101 if guilty else 900)
    h.begin(2, 'b2', 1100, 'CRASHED')
    return h


@case('once.no-effect')
def finished_without_effect(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, policy='rerun', fence=1)
    h.end(1, 'b1', 1020, result='one')
    if not guilty:
        h.effect('b1', 1010)
    return h


@case('once.late-finish')
def late_finisher(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, policy='rerun', fence=1)
    h.effect('b1', 1010)
    h.begin(2, 'b2', 4000, policy='rerun', fence=2)
    h.effect('b2', 4010)
    h.end(1, 'b1', 5000, result='one', status='OK' if guilty else 'LOST')
    return h


@case('once.fingerprint')
def replay_to_another_fingerprint(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1, fingerprint='x')
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, result='one')
    h.begin(2, 'b2', 1100, 'ALREADY', result='one', fingerprint='y' if guilty else 'x')
    return h


@case('once.mismatch')
def mismatch_with_nobody(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1, fingerprint='x')
    h.begin(2, 'b2', 1100, 'MISMATCH', fingerprint='x' if guilty else 'y')
    return h


@case('once.final')
def finished_and_gone(guilty):
    h = once_history()
    h.begin(1, 'b1', 1000, fence=1)
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, result='one')
    h.resource('final_key', 19000, k='K', status='NOT_FOUND' if guilty else 'ALREADY', result=None if guilty else 'one')
    return h


# ---- Tokens and counters ----

@case('tokens.redeemed')
def redeemed_twice(guilty):
    h = History(work=['tokens'])
    h.worker(1, 'issue', 1000, token='T', call=999 * MS, status='OK')
    h.worker(1, 'redeem', 1100, token='T', call=1099 * MS, status='OK')
    h.worker(2, 'redeem', 1100, token='T', call=1099 * MS, status='OK' if guilty else 'UNKNOWN')
    return h


def counter_history(final):
    h = History(work=['counters'])
    h.resource('final_counter', 19000, counter='C', value=final, status='OK')
    return h


@case('counters.request')
def request_counted_twice(guilty):
    h = counter_history(1)
    h.add_to(1, 1000, request='r')
    h.add_to(2, 1000, request='r', status='OK' if guilty else 'ALREADY')
    return h


@case('counters.final')
def counter_short(guilty):
    """Innocent: an add without an answer counted."""
    h = counter_history(3)
    h.add_to(1, 1000)
    h.add_to(1, 1010)
    h.add_to(2, 1020, status='UNAVAILABLE' if guilty else 'UNKNOWN', value=None)
    return h


@case('counters.final')
def counter_after_a_kill(guilty):
    """A killed worker may have made one call without a line, not two."""
    h = counter_history(3 if guilty else 2)
    h.add_to(1, 1000)
    h.kill(1, 1005)
    return h


@case('counters.final')
def request_without_ok(guilty):
    """ALREADY alone says that it counted, once."""
    h = counter_history(2 if guilty else 1)
    h.add_to(1, 1000, request='r', status='ALREADY')
    h.add_to(2, 1000, request='r', status='UNKNOWN', value=None)
    return h


@case('counters.negative')
def counter_below_zero(guilty):
    h = counter_history(0)
    h.add_to(1, 1000)
    h.worker(1, 'take', 1100, counter='C', n=-1, request=None, call=1099 * MS, status='OK', value=-1 if guilty else 0)
    return h


@case('counters.negative')
def counter_ends_below_zero(guilty):
    h = counter_history(-1 if guilty else 0)
    h.add_to(1, 1000, n=-1, value=None, status='OK' if guilty else 'TOO_FEW')
    return h


# ---- Progress ----

@case('progress.lock')
def never_granted_again(guilty):
    h = History(locks=['L', 'M'])
    h.grant(1, 11000 if guilty else 12001, 11100 if guilty else 12002, fence=1, lock='M')
    return h


@case('progress.wait')
def long_wait(guilty):
    """Another held it meanwhile, but the engine serves in order."""
    h = History()
    h.grant(1, 14000, 18498 if guilty else 18000, fence=2000000)
    h.grant(2, 14002, 18600, fence=2000001, t=18500 if guilty else 18002)
    return h


@case('progress.gap')
def free_and_waited_for(guilty):
    """Not in order of arrival: a long wait is no violation, unless the lock was free."""
    h = History(first_come=False)
    if not guilty:
        h.grant(1, 15000, 16000, fence=2000000)
    h.grant(2, 14000, 18600, fence=2000001, t=18500)
    return h


@case('progress.wait')
def long_wait_for_a_session(guilty):
    """A new leader gives a dead client's session its whole time again."""
    h = History(lease_of_handle=True, faults=['kill', 'leader-kill'])
    h.grant(1, 14000, 20300 if guilty else 20200, fence=2000000)
    h.grant(2, 14002, 20600, fence=2000001, t=20302 if guilty else 20202)
    return h


@case('progress.gap')
def free_and_waited_for_by_sessions(guilty):
    """Guilty, because no fault of the run changes the leader: one lease is all that is waited for."""
    h = History(first_come=False, lease_of_handle=True, faults=['kill', 'cut'] if guilty else ['kill', 'partition'])
    h.grant(2, 14000, 18600, fence=2000001, t=18500)
    return h


@case('progress.gap')
def lease_of_a_lock(guilty):
    """The same without sessions: what the servers suffered does not lengthen a lock's own lease."""
    h = History(first_come=False, lease_of_handle=not guilty, faults=['kill', 'partition'])
    h.grant(2, 14000, 18600, fence=2000001, t=18500)
    return h


@case('progress.open')
def never_connected(guilty):
    h = History()
    h.faults('spawn', 9000, worker=3, pid=3, slot=2)
    h.worker(3, 'start', 9000, worker=3, pid=3, slot=2)
    h.worker(3, 'open_failed', 9100, call=9001 * MS, status='UNAVAILABLE', message='x')
    if not guilty:
        h.worker(3, 'opened', 12500, call=12400 * MS)
    return h


@case('progress.open')
def connection_fails_late(guilty):
    h = History()
    h.worker(2, 'open_failed', 16400, call=(16300 if guilty else 16200) * MS, status='UNAVAILABLE', message='x')
    return h


@case('progress.works')
def fails_in_the_calm(guilty):
    h = History()
    a = h.ask(1, 16300 if guilty else 16200)
    h.worker(1, 'not', 16310, a=a, lock='L', call=(16300 if guilty else 16200) * MS, status='UNAVAILABLE', message='x')
    return h


@case('progress.died')
def worker_dies(guilty):
    h = History()
    h.kill(1, 1000)
    h.faults('exit', 1500, worker=2, **({'signal': 11} if guilty else {'code': 0}))
    return h


@case('progress.died')
def worker_hangs(guilty):
    h = History()
    h.kill(1, 1000)
    if guilty:
        h.faults('exit', 20000, worker=2, signal=9, overdue=True)
    return h


# ---- Deadlines ----

@case('deadlines.overrun')
def waits_too_long(guilty):
    """Innocent: it was stopped meanwhile."""
    h = History()
    a = h.ask(2, 1000, wait_ms=1000)
    h.worker(2, 'not', 4300, a=a, lock='L', call=1000 * MS, status='BUSY', message='x')
    if not guilty:
        h.stop(2, 1500, 2000)
    return h


@case('deadlines.overrun')
def release_hangs(guilty):
    h = History()
    a = h.grant(1, 1000, 1100, fence=1)
    h.worker(1, 'release', 8352 if guilty else 8350, a=a, call=1101 * MS, status='UNAVAILABLE')
    return h


@case('deadlines.overrun')
def close_hangs(guilty):
    """Closing may take one request and two seconds."""
    h = History()
    h.worker(1, 'closed', 19252 if guilty else 19250, call=10000 * MS)
    return h


@case('deadlines.overrun')
def long_stop_in_a_call(guilty):
    """Of several stops only the part inside the call counts."""
    h = History()
    a = h.ask(2, 1000, wait_ms=1000)
    h.worker(2, 'not', 4300, a=a, lock='L', call=1000 * MS, status='BUSY', message='x')
    h.stop(2, 900, 1040)
    h.stop(1, 1500, 4000)
    h.stop(2, 4295 if guilty else 4285, 9000)
    return h


@case('deadlines.overrun')
def wait_without_a_bound(guilty):
    """A wait of 0 is for ever; -1 is one try."""
    h = History()
    a = h.ask(2, 1000, wait_ms=-1 if guilty else 0)
    h.worker(2, 'not', 11000, a=a, lock='L', call=1000 * MS, status='BUSY', message='x')
    return h


# ---- Reading ----

def test_torn_line():
    """A worker was killed while it wrote: only the last line of a worker may be torn."""
    h = History()
    h.files['worker-0002.jsonl'].append('{"t":150000')
    expect_pass(h)
    h.files['worker-0002.jsonl'].append('\n')
    expect_unusable(h, 'worker-0002.jsonl:3: not a JSON object')
    h = History()
    h.files['resource.jsonl'].append('{"t":150000')
    expect_unusable(h, 'resource.jsonl:1')


def expect_unusable(h, message):
    code, report, errors = run_check(h)
    assert code == 2 and report['verdict'] == 'unusable', report
    assert message in report['reason'] and message in errors, (message, report)


def test_unusable():
    h = History()
    h.meta['format'] = 2
    expect_unusable(h, 'format')
    h = History()
    del h.meta['end']
    expect_unusable(h, 'the run did not end')
    expect_unusable(History(locks='L'), 'must be lists')
    h = History()
    del h.files['worker-0001.jsonl'], h.files['worker-0002.jsonl']
    expect_unusable(h, 'no worker ran')
    h = History()
    h.worker(1, 'held', 1000, a='9.9', held=True)
    expect_unusable(h, '9.9')
    h = History()
    h.worker(1, 'redeem', 1000, token='T', call=1, status=None)
    del h.files['faults.jsonl']
    expect_unusable(h, 'faults.jsonl')
    h = History()
    h.store(1000, 1, 1)
    expect_unusable(h, 'no "final" of lock L')
    h = History()
    h.worker(1, 'ask', '1000'[1:], a='1.9', lock='L', kind='exclusive', wait_ms=1)
    h.files['worker-0001.jsonl'][-1] = '{"ev":"ask","a":"1.9"}\n'
    expect_unusable(h, 'no "t"')


def test_no_belief_without_sample():
    """Granted while it was stopped: it was told at once that the lease is over, and never believed."""
    h = History()
    h.grant(1, 1000, 5000, fence=2)
    a = h.ask(2, 1000)
    h.got(2, a, 1000, 4000, fence=1)
    h.held(2, a, 4000, held=False)
    expect_pass(h)


def test_unreadable_end():
    """The engine was away when the final values were read: nothing follows from that."""
    h = History(work=['counters', 'once'])
    h.add_to(1, 1000)
    h.resource('final_counter', 19000, counter='C', value=None, status='UNAVAILABLE')
    h.begin(1, 'b1', 1000, fence=1)
    h.effect('b1', 1010)
    h.end(1, 'b1', 1020, result='one')
    h.resource('final_key', 19000, k='K', status='UNAVAILABLE', result=None)
    expect_pass(h)


def test_figures():
    h = History()
    h.stop(1, 1000, 3000)
    h.faults('begin', 4000, fault='cut', id=90, worker=None)
    h.faults('end', 4500, fault='cut', id=90, worker=None)
    for number, fault, begin, end in ((91, 'inside', 4100, 4200), (92, 'followed', 8000, 8100), (93, 'last', 8200, 8300)):
        h.faults('begin', begin, fault=fault, id=number, worker=None)
        h.faults('end', end, fault=fault, id=number, worker=None)
    h.grant(2, 2000, 3150, fence=1, t=3100)
    h.grant(2, 4600, 4700, fence=2, t=4650)
    for t, value in ((4000, 1), (4001, 1), (4002, 2)):
        h.store(t, None, value, fenced=False)
    h.store(4010, 1, 1)
    h.store(4011, 1, 2, answer='refused')
    h.final(1, plain=2)
    a = h.ask(2, 6000, wait_ms=1000)
    h.worker(2, 'not', 7350, a=a, lock='L', call=6000 * MS, status='BUSY', message='x')
    a = h.ask(2, 7500, wait_ms=1000)
    h.worker(2, 'not', 8800, a=a, lock='L', call=7500 * MS, status='BUSY', message='x')
    report = expect_pass(h)
    assert report['faults']['stop'] == {'count': 1, 'seconds': 2.0}, report
    assert report['faults']['cut'] == {'count': 1, 'seconds': 0.5}, report
    # What ended while another lasted is not measured, nor a wait into which another began.
    assert report['waits_after_faults_ms'] == {'stop': 100.0, 'cut': 150.0, 'last': 4701.0}, report
    assert report['worst_wait_after_fault_ms'] == 4701.0
    assert (report['plain_writes'], report['plain_losses'], report['fenced_writes'], report['fenced_refusals']) == (3, 1, 1, 1)
    assert report['worst_overrun_ms'] == 100.0 and report['worst_overrun_at'].startswith('worker-0002.jsonl:'), report
    assert report['grants'] == 3 and report['operations']['lock'] == {'OK': 3, 'BUSY': 2}, report


def test_text():
    """What people read has the offending events with file and line."""
    with tempfile.TemporaryDirectory() as folder:
        two_believe(True).write(folder)
        done = subprocess.run([sys.executable, CHECK, folder], stdout=subprocess.PIPE, universal_newlines=True, timeout=60)
    assert done.returncode == 1
    assert 'VIOLATION exclusion.overlap: lock L: 1.' in done.stdout, done.stdout
    assert '  worker-0002.jsonl:4: {"t": 1099000000, "ev": "got"' in done.stdout, done.stdout
    assert done.stdout.rstrip().split('\n')[-1] == 'FAIL: 1 violations: exclusion.overlap 1', done.stdout


def test_unknown_events():
    """What the checker does not know it names, so that nothing goes unchecked in silence."""
    h = History()
    h.worker(1, 'frobnicate', 1000)
    h.worker(1, 'frobnicate', 1001)
    assert expect_pass(h)['unknown_events'] == {'frobnicate': 2}
    assert expect_pass(History())['unknown_events'] == {}


def test_many_are_counted():
    """Only some are shown, all are counted."""
    h = History()
    for i in range(20):
        h.grant(1 + i % 2, 1000, 2000 + i, fence=i, t=1500 + i)
    code, report, _ = run_check(h, '--most', '3')
    assert code == 1 and report['counts'] == {'exclusion.overlap': 19} and len(report['found']) == 3, report


def test_every_check_has_a_case():
    names = {'%s.%s' % (rule, check) for rule, checks in CHECKS.items() for check in checks}
    assert names == set(CASES), names ^ set(CASES)


def test_page_names_every_check_and_event():
    with open(os.path.join(HERE, '..', '..', 'docs', 'torture.md'), encoding='utf-8') as f:
        page = f.read()
    names = ['%s.%s' % (rule, check) for rule, checks in CHECKS.items() for check in checks]
    missing = [n for n in names + [e for events in KNOWN.values() for e in events] if '`%s`' % n not in page]
    assert not missing, missing


def test_arguments():
    for args, message in ((['/nonexistent'], 'not a folder'), (['.', '--skip', 'x'], 'invalid choice'),
                          (['.', '--tolerance-ms', '-1'], 'negative'), ([], 'folder')):
        done = subprocess.run([sys.executable, CHECK, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=60)
        assert done.returncode == 2 and message in done.stderr, done.stderr


if __name__ == '__main__':
    tests = [('%s: %s' % (check, f.__name__.replace('_', ' ')), both, check, f) for check in CASES for f in CASES[check]]
    tests += [(name[5:].replace('_', ' '), f) for name, f in list(globals().items()) if name.startswith('test_')]
    sys.exit(tap.run(tests))
