"""The line protocol of `dibs torture --adapter` (docs/torture.md), for adapters in Python.

An adapter gives `serve` a function that makes the lock of a name: an object with lock(wait_ms), which returns the fence or
NO_FENCE, or raises Busy; held(); and unlock(), which returns whether it was still held.
"""

import sys

NO_FENCE = '-'


class Busy(Exception):
    """Not obtained in time."""


def answer(locks, make, verb='', name='', *numbers):
    if verb == 'lock':
        wait_ms, lease_ms = map(int, numbers)
        if name not in locks:
            locks[name] = make(name, lease_ms)
        return 'granted %s' % locks[name].lock(wait_ms)
    if verb == 'held':
        return 'yes' if locks[name].held() else 'no'
    if verb == 'unlock':
        return 'released' if locks[name].unlock() else 'lost'
    raise ValueError('unknown request %r' % verb)


def serve(library, version, make):
    """Answers until `quit` or the end of the input."""
    locks = {}
    print('dibs-adapter 1 %s %s' % (library, version), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ['quit']:
            break
        try:
            text = answer(locks, make, *words)
        except Busy:
            text = 'busy'
        except Exception as e:  # whatever the library raises is its answer
            text = 'error %s: %s' % (type(e).__name__, ' '.join(str(e).split()))
        print(text, flush=True)
