#!/usr/bin/env python3
"""50 processes take 1 from a counter of 5000, 100 times each, and every tenth request is sent twice under its own id:
none is left, none was taken twice, and nobody saw less than nothing.

usage: test_counter.py --dibs DIBS --taker TAKER [ENGINE...]
"""

import argparse
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import scratch_stores  # noqa: E402: it lies beside what C tests use

PROCESSES, TAKES, STOCK = 50, 100, 5000


def dibs(args, url, *words):
    done = subprocess.run([args.dibs, 'counter', *words, '--url', url], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60)
    assert done.returncode == 0, (words, done.returncode, done.stderr)
    return done.stdout.strip()


def take(args, url, processes, takes, label):
    """What all of them got, and how often there were too few."""
    started = [subprocess.Popen([args.taker, url, 'stock', str(takes), '%s%d' % (label, i)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(processes)]
    got = too_few = 0
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, (process.returncode, out, err)
            counts = out.split()
            got, too_few = got + int(counts[0]), too_few + int(counts[1])
    finally:
        for process in started:
            process.kill()
            process.wait()
    return got, too_few


def sells_out(args, engine):
    store = scratch_stores.make(engine)
    try:
        dibs(args, store.url, 'set', 'stock', str(STOCK))
        assert take(args, store.url, PROCESSES, TAKES, 'p') == (STOCK, 0)
        assert dibs(args, store.url, 'get', 'stock') == '0'
        assert take(args, store.url, 1, 20, 'late') == (0, 20)
        assert dibs(args, store.url, 'get', 'stock') == '0'
        dibs(args, store.url, 'set', 'stock', '25')
        assert take(args, store.url, 10, 10, 'q') == (25, 75)
        assert dibs(args, store.url, 'get', 'stock') == '0'
    finally:
        store.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--dibs', required=True)
    parser.add_argument('--taker', required=True)
    parser.add_argument('engine', nargs='*')
    args = parser.parse_args()
    return scratch_stores.run_all([(e, lambda e=e: sells_out(args, e)) for e in args.engine or scratch_stores.ENGINES],
                          '50 processes take 5000 from a counter')


if __name__ == '__main__':
    sys.exit(main())
