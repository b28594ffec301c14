#!/usr/bin/env python3
"""An adapter that lies: everybody is granted every lock at once, with the same fence. `dibs torture` must report it."""

from adapter import serve


class Lie:
    def lock(self, wait_ms):
        return 7

    def held(self):
        return True

    def unlock(self):
        return True


serve('liar', '1', lambda name, lease_ms: Lie())
