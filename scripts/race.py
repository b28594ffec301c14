#!/usr/bin/env python3
"""race.py [--library FILE] [--races N] [ENGINE...]: 64 threads redeem one token, 64 begin one key; N times each, on
every engine that can be started here. Each race must have exactly one winner.

It uses the shared library directly: threads on several handles start at the same moment, which processes cannot."""
import argparse
import ctypes
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "support"))
import databases  # noqa: E402
import scratch_stores  # noqa: E402

ENGINES = scratch_stores.ENGINES
HANDLES, THREADS = 16, 4  # threads a handle
OK = 0
NO_WAIT = -1


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("next", ctypes.c_int), ("retry_after_ms", ctypes.c_int64),
                ("fence", ctypes.c_uint64), ("pid", ctypes.c_int64), ("owner", ctypes.c_char * 129),
                ("host", ctypes.c_char * 65), ("engine_code", ctypes.c_char * 32), ("message", ctypes.c_char * 1024),
                ("reserved", ctypes.c_uint64 * 8)]


class OnceOptions(ctypes.Structure):
    _fields_ = [("scope", ctypes.c_char_p), ("fingerprint", ctypes.c_void_p), ("fingerprint_size", ctypes.c_size_t),
                ("lease_ms", ctypes.c_int64), ("keep_ms", ctypes.c_int64), ("tombstone_ms", ctypes.c_int64),
                ("wait_ms", ctypes.c_int64), ("on_crash", ctypes.c_int), ("on_lost", ctypes.c_void_p),
                ("data", ctypes.c_void_p), ("owner", ctypes.c_char_p), ("reserved", ctypes.c_uint64 * 4)]


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.dibs_status_name.restype = ctypes.c_char_p

    def name(self, status):
        return self.c.dibs_status_name(status).decode()

    def open(self, url):
        d, err = ctypes.c_void_p(), Error()
        if self.c.dibs_open(url.encode(), None, ctypes.byref(d), ctypes.byref(err)) != OK:
            raise RuntimeError(err.message.decode())
        return d

    def issue(self, d):
        token, err = ctypes.create_string_buffer(64), Error()
        if self.c.dibs_token_issue(d, None, token, ctypes.byref(err)) != OK:
            raise RuntimeError(err.message.decode())
        return token.value

    def redeem(self, d, token):
        return self.c.dibs_token_redeem(d, token, None, None)

    def once(self, d, key):
        """Begins and, as the first, finishes."""
        once, options = ctypes.c_void_p(), OnceOptions(wait_ms=NO_WAIT)
        status = self.c.dibs_once_begin(d, key, ctypes.byref(options), ctypes.byref(once), None)
        if status == OK:
            status = self.c.dibs_once_finish(once, b"done", ctypes.c_size_t(4), 0, None)
        self.c.dibs_once_free(once)
        return status


class Race:
    """All threads meet at a barrier, do the same thing, and meet again."""

    def __init__(self, library, url):
        self.library = library
        self.handles = [library.open(url) for _ in range(HANDLES)]
        self.barrier = threading.Barrier(HANDLES * THREADS + 1)
        self.task = None
        self.answers = [None] * (HANDLES * THREADS)
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True)
                        for i in range(HANDLES * THREADS)]
        for thread in self.threads:
            thread.start()

    def work(self, i):
        while True:
            self.barrier.wait()
            if self.task is None:
                return
            function, argument = self.task
            self.answers[i] = function(self.handles[i % HANDLES], argument)
            self.barrier.wait()

    def run(self, function, argument):
        """How often each status was answered."""
        self.task = function, argument
        self.barrier.wait()
        self.barrier.wait()
        return {self.library.name(s): self.answers.count(s) for s in set(self.answers)}

    def close(self):
        self.task = None
        self.barrier.wait()
        for thread in self.threads:
            thread.join()
        for d in self.handles:
            self.library.c.dibs_close(d)


def race_engine(library, engine, races):
    """What was wrong; nothing when every race had one winner."""
    try:
        server = scratch_stores.make(engine)
    except databases.Missing as e:
        print(f"{engine}: {e}", flush=True)
        return []
    race, wrong, began = None, [], time.monotonic()
    try:
        race = Race(library, server.url)
        for i in range(races):
            for what, answers in (("token", race.run(library.redeem, library.issue(race.handles[0]))),
                                  ("key", race.run(library.once, b"key%d" % i))):
                others = {"REFUSED"} if what == "token" else {"RUNNING", "ALREADY"}
                if answers.get("OK") != 1 or not set(answers) <= others | {"OK"}:
                    wrong.append(f"{what} {i}: {answers}")
    finally:
        if race:
            race.close()
        server.stop()
    print(f"{engine}: {races} races for a token and {races} for a key, {HANDLES * THREADS} threads, "
          f"{time.monotonic() - began:.0f} s: {'FAILED: ' + '; '.join(wrong[:5]) if wrong else 'one winner each'}",
          flush=True)
    return wrong


def run(path, races, engines=ENGINES):
    library = Library(os.path.abspath(path))
    return not any([race_engine(library, engine, races) for engine in engines])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/libdibs.so")
    p.add_argument("--races", type=int, default=1000)
    p.add_argument("engines", nargs="*", default=ENGINES)
    options = p.parse_args()
    return 0 if run(options.library, options.races, options.engines) else 1


if __name__ == "__main__":
    sys.exit(main())
