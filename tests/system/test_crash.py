#!/usr/bin/env python3
"""kill -9 of the database, or of the node that leads, under 8 holders and 50 waiters, and once more while locks go from
hand to hand: nobody is granted what another still believes to hold, tokens go on growing, everybody is served. And a
minority of the nodes grants nothing.

usage: test_crash.py --dibs DIBS --hold_checker HOLD_CHECKER [ENGINE...]
"""

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import databases  # noqa: E402: it lies beside what C tests use
import ensembles  # noqa: E402
import tap  # noqa: E402

LOCKS, CROWDS, CROWD, ROUNDS = 8, 5, 10, 3
HOLD_MS, LEASE_MS = 3000, 3000
SERVED = LOCKS + CROWDS * CROWD * ROUNDS

Belief = collections.namedtuple('Belief', 'lock fence start end outcome')


def parse(lines):
    return [Belief(lock, int(fence), int(start), int(end), outcome)
            for lock, fence, start, end, outcome in (line.split() for line in lines)]


def faults(beliefs):
    """What went wrong, in words: two at once, or a token that did not grow."""
    found = []
    for lock in sorted({b.lock for b in beliefs}):
        mine = sorted((b for b in beliefs if b.lock == lock), key=lambda b: b.start)
        for old, new in zip(mine, mine[1:]):
            if new.start <= old.end:
                found.append('%s: %d was held for %d µs beside %d' % (lock, old.fence, old.end - new.start, new.fence))
            if new.fence <= old.fence:
                found.append('%s: token %d after %d' % (lock, new.fence, old.fence))
    return found


class Scene:
    """A server, the processes that lock on it, and what they wrote."""

    def __init__(self, args, server):
        self.args, self.server = args, server
        self.url = self.make_url()
        self.started, self.files = [], []

    def make_url(self):
        return self.server.make_database('crash')

    def start(self, threads, rounds, hold_ms):
        out, err = tempfile.TemporaryFile('w+'), tempfile.TemporaryFile('w+')
        self.files.append((out, err))
        self.started.append(subprocess.Popen(
            [self.args.hold_checker, self.url, *map(str, (LOCKS, threads, rounds, hold_ms, LEASE_MS))],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err))

    @staticmethod
    def text(file):
        return os.pread(file.fileno(), 1 << 24, 0).decode()

    def beliefs(self):
        return parse(line for out, _ in self.files for line in self.text(out).split('\n')[:-1])

    def errors(self):
        return ''.join(self.text(err) for _, err in self.files)

    def count(self):
        """(holders, waiters) by the engine's own account."""
        done = subprocess.run([self.args.dibs, 'ls', '--json', '--url', self.url, 'crash:'], stdout=subprocess.PIPE,
                              timeout=20)
        found = json.loads(done.stdout)['locks'] if done.returncode == 0 else []
        return sum(len(lock['holders']) for lock in found), sum(lock['waiter_count'] for lock in found)

    def wait_for(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, 'waited %d s in vain for %s\n%s' % (seconds, what, self.errors())
            time.sleep(0.01)

    def crash(self):
        self.server.kill()
        start = time.monotonic()
        self.server.start()
        print('# back %.0f ms after the crash' % ((time.monotonic() - start) * 1000))

    def end(self):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


class Ensemble(Scene):
    """Three nodes, of which the one that leads is killed and comes back when another leads."""

    def make_url(self):
        return '%s?session=%dms' % (self.server.url('crash'), LEASE_MS)

    def crash(self):
        leader = self.server.leader()
        leader.kill()
        start = time.monotonic()
        new = self.server.leader()
        print('# node %d leads %.0f ms after node %d was killed' % (new.number, (time.monotonic() - start) * 1000,
                                                                    leader.number))
        leader.start()

    def run(self, *command):
        return subprocess.run([self.args.dibs, 'run', '--url', self.url, *command], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)


def crash_twice(scene):
    """All beliefs, when everybody is done."""
    scene.start(LOCKS, 1, HOLD_MS)
    scene.wait_for(lambda: scene.count() == (LOCKS, 0), 'the holders')
    for _ in range(CROWDS):
        scene.start(CROWD, ROUNDS, 20)
    scene.wait_for(lambda: scene.count()[1] == CROWDS * CROWD, '%d waiters' % (CROWDS * CROWD))
    scene.crash()
    scene.wait_for(lambda: len(scene.beliefs()) >= SERVED // 3, 'the hand-offs')
    print('# the second crash after %d of %d' % (len(scene.beliefs()), SERVED))
    scene.crash()
    scene.wait_for(lambda: all(p.poll() is not None for p in scene.started), 'everybody')
    assert all(p.returncode == 0 for p in scene.started), scene.errors()
    return scene.beliefs()


def start_server(engine):
    if engine in ensembles.KINDS:
        kind = ensembles.KINDS[engine]
        return kind(3, kind.quick), Ensemble
    return databases.KINDS[engine](), Scene


def crash_test(args, engine):
    server, make_scene = start_server(engine)
    scene = None
    try:
        scene = make_scene(args, server)
        beliefs = crash_twice(scene)
        if make_scene is Ensemble:
            minority_test(scene)
    finally:
        if scene:
            scene.end()
        server.stop()
    print('# %d held, %d of them lost by the crashes' % (len(beliefs), sum(b.outcome == 'lost' for b in beliefs)))
    assert len(beliefs) == SERVED, 'served %d of %d' % (len(beliefs), SERVED)
    assert not faults(beliefs), '\n'.join(faults(beliefs))


def minority_test(scene):
    """One node of three: no grant, neither of a free lock nor of one whose holder is gone. With two, all is well."""
    nodes = scene.server.nodes
    done = scene.run('free', '--', 'sh', '-c', 'echo $DIBS_FENCE')
    assert done.returncode == 0, done.stderr
    before = int(done.stdout)
    for node in nodes[:2]:
        node.kill()
    done = scene.run('--wait', '4s', 'free', '--', 'true')
    assert done.returncode == 69, (done.returncode, done.stderr)
    nodes[0].start()
    done = scene.run('--wait', '40s', 'free', '--', 'sh', '-c', 'echo $DIBS_FENCE')
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > before, (done.stdout, before)


def check_of_the_check():
    """It notices what it is there for."""
    good = parse(['a 5 10 20 kept', 'a 6 21 30 lost', 'b 1 5 40 kept'])
    assert not faults(good)
    assert 'beside' in faults(good + parse(['a 7 29 35 kept']))[0]
    assert 'token 6 after 6' in faults(good + parse(['a 6 31 35 kept']))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--dibs', required=True)
    parser.add_argument('--hold_checker', required=True)
    parser.add_argument('engines', nargs='*', default=[*databases.KINDS, *ensembles.KINDS])
    args = parser.parse_args()
    tap.end_on_sigterm()
    tests = [('the check notices two at once and a token that went back', check_of_the_check)]
    tests += [('%s: killed twice%s' % (engine, ', and a minority' if engine in ensembles.KINDS else ''), crash_test, args, engine) for engine in args.engines]
    return tap.run(tests)


if __name__ == '__main__':
    sys.exit(main())
