#!/usr/bin/env python3
"""What goes over the wire to Redis, counted from the server's own MONITOR: round trips of an uncontended
lock, and the requests of a hand-off with 200 waiters in 20 processes, who are served in order of arrival.

usage: test_wire.py --dibs DIBS --crowd CROWD --pairs PAIRS
"""

import argparse
import ast
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROCESSES, THREADS = 20, 10
REDIS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'src', 'engines', 'redis')
sys.dont_write_bytecode = True
sys.path.insert(0, REDIS)
import embed  # noqa: E402: the build's own step, which knows how a script's text is made
MONITOR_LINE = re.compile(r'^\+[\d.]+ \[\d+ (\S+)\] (.*)$')
WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


def script_name(text):
    """Which of the engine's scripts it is."""
    for path in glob.glob(os.path.join(REDIS, 'lua', '*.lua')):
        if text.rstrip('\n').endswith('\n'.join(embed.text_of(path))):
            return os.path.basename(path)[:-len('.lua')]
    raise AssertionError('an unknown script was loaded: ' + text[-200:])


class Redis:
    """A private server in a scratch folder, with a monitor."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix='dibs-wire.')
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen(
            ['redis-server', '--port', str(self.port), '--bind', '127.0.0.1', '--dir', self.dir,
             '--save', '', '--appendonly', 'no'], stdout=subprocess.DEVNULL)
        wait_for(self.answers, 'redis-server to answer')
        self.url = 'redis://127.0.0.1:%d' % self.port

    def connect(self):
        return socket.create_connection(('127.0.0.1', self.port), timeout=30)

    def answers(self):
        try:
            with self.connect() as s:
                s.sendall(b'PING\r\n')
                return s.recv(16).startswith(b'+PONG')
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir)


class Monitor:
    """Requests as the server saw them, those of clients apart from those of scripts."""

    def __init__(self, redis):
        self.clients, self.scripted = collections.Counter(), collections.Counter()
        self.keeps, self.looks, self.scripts = 0, 0, {}
        self.socket = redis.connect()
        self.file = self.socket.makefile('r', encoding='latin-1')
        self.socket.sendall(b'MONITOR\r\n')
        self.file.readline()
        self.marker = self.trouble = None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.redis = redis
        self.thread.start()

    def read(self):
        try:
            while not self.take(self.file.readline().rstrip('\r\n')):
                pass
        except Exception as e:
            self.trouble = e

    def take(self, line):
        """True when the line is the one that stop() waits for."""
        match = MONITOR_LINE.match(line)
        if not match:
            return False
        words = WORD.findall(match.group(2))
        command = words[0].strip('"').upper()
        if command == 'ECHO' and self.marker and self.marker in words[1]:
            return True
        if match.group(1) == 'lua':
            self.scripted[command] += 1
            return False
        if command == 'SCRIPT' and words[1].strip('"').upper() == 'LOAD':
            text = ast.literal_eval('b' + words[2])
            self.scripts[hashlib.sha1(text).hexdigest()] = script_name(text.decode())
        script = self.scripts.get(words[1].strip('"')) if command == 'EVALSHA' else None
        if script == 'keep':
            self.keeps += 1
        elif script == 'look':
            self.looks += 1  # the test's own `dibs show`
        else:
            self.clients[command] += 1
        return False

    def stop(self):
        """Everything up to now has been read when this returns."""
        self.marker = 'end-of-%d' % id(self)
        with self.redis.connect() as s:
            s.sendall(b'ECHO ' + self.marker.encode() + b'\r\n')
            s.recv(64)
        self.thread.join(30)
        self.socket.close()
        if self.trouble or self.thread.is_alive():
            raise AssertionError('the monitor failed: %s' % self.trouble)


def wait_for(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError('waited %d s for %s' % (seconds, what))
        time.sleep(0.02)


def show(dibs, url, name):
    done = subprocess.run([dibs, 'show', '--url', url, '--json', name], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def uncontended(args, redis):
    """One request to acquire, one to release, none to re-enter."""
    monitor = Monitor(redis)
    out = subprocess.run([args.pairs, redis.url, 'pairs', '100'], capture_output=True, text=True)
    monitor.stop()
    check(out.returncode == 0, out.stderr)
    print('# 100 pairs with 100 reentries: client requests %s, keep-alives %d, in scripts %s'
          % (dict(monitor.clients), monitor.keeps, dict(monitor.scripted)))
    check(monitor.clients['EVALSHA'] == 200, 'not one request each: %s' % dict(monitor.clients))
    setup = {'SCRIPT', 'CLIENT', 'SELECT', 'AUTH', 'HELLO', 'INFO', 'CONFIG', 'ROLE', 'EVALSHA'}
    check(not set(monitor.clients) - setup, 'other requests: %s' % dict(monitor.clients))


def hand_off(args, redis):
    """200 waiters in 20 processes: served as they came, with at most 3 requests each."""
    monitor = Monitor(redis)
    holder = subprocess.Popen([args.dibs, 'run', '--url', redis.url, 'line', '--', 'cat'],
                              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(lambda: (show(args.dibs, redis.url, 'line') or {}).get('holders'), 'the first holder')
    crowd = [subprocess.Popen([args.crowd, redis.url, 'line', str(THREADS)], stdout=subprocess.PIPE, text=True)
             for _ in range(PROCESSES)]
    total = PROCESSES * THREADS
    wait_for(lambda: show(args.dibs, redis.url, 'line')['waiter_count'] == total, '%d waiters' % total)
    line = [w['owner'] for w in show(args.dibs, redis.url, 'line')['waiters']]
    holder.stdin.close()
    served = []
    for process in crowd:
        out, _ = process.communicate(timeout=60)
        check(process.returncode == 0, 'a process of the crowd failed')
        served += [(int(fence), owner) for fence, owner in (l.split() for l in out.splitlines())]
    check(holder.wait(30) == 0, 'the first holder failed')
    monitor.stop()
    check(len(served) == total, 'served %d of %d' % (len(served), total))
    check([owner for _, owner in sorted(served)] == line, 'not in order of arrival')
    requests = sum(monitor.clients[c] for c in ('EVALSHA', 'EVAL', 'BLPOP'))
    print('# %d hand-offs: %.2f client requests each; client %s; keep-alives %d; inside scripts %s'
          % (total, requests / total, dict(monitor.clients), monitor.keeps, dict(monitor.scripted)))
    # The first holder's own two are no hand-off.
    check(2 * total <= requests, 'the monitor missed some: %d' % requests)
    check(requests <= 3 * total + 2, 'more than 3 requests a hand-off: %d for %d' % (requests, total))


def main():
    parser = argparse.ArgumentParser()
    for name in ('dibs', 'crowd', 'pairs'):
        parser.add_argument('--' + name, required=True)
    args = parser.parse_args()
    tests = [uncontended, hand_off]
    print('1..%d' % len(tests))
    if not shutil.which('redis-server'):
        strict = os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS')
        for i, test in enumerate(tests, 1):
            print('%s %d - %s%s' % ('not ok' if strict else 'ok', i, test.__name__,
                                    '' if strict else ' # SKIP no redis-server'))
        return 1 if strict else 0
    failed = False
    for i, test in enumerate(tests, 1):
        redis = Redis()
        try:
            test(args, redis)
            print('ok %d - %s' % (i, test.__doc__.strip().rstrip('.')))
        except Exception as e:  # a test that breaks is a test that failed
            failed = True
            print('# %s: %s' % (type(e).__name__, str(e).replace('\n', '\n# ')))
            print('not ok %d - %s' % (i, test.__doc__.strip().rstrip('.')))
        finally:
            redis.stop()
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
