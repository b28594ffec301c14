#!/usr/bin/env python3
"""./dev soak [MINUTES]: `dibs run` and `dibs once` on sqlite and redis under kill -9 and SIGSTOP, with a checked log;
1,000 races for a token and for a key on every engine (race.py); every engine for at least five
minutes under every fault of clients, servers and networks that applies, 24 s each (torture/matrix.py, about an hour of their own);
Redlock's storm and restarts at length (some minutes of their own); the simulation with new seeds; fuzzers; 100,000 cycles
and 1,000 reconnects on every engine, after which nothing may have grown (test_growth); every n-th allocation and system
call fails (test_sweep). `--only torture` and the like run one of these parts.

Several wrappers take turns at one lock. Each command writes its fence into one common log, at its start and every
two milliseconds while it runs, while wrappers and guardians are killed and wrappers stopped past their lease at
random (half of the time the holder's, else anybody's). The log is appended to in the order of time, so that:
  - a start whose fence is not above all that came before: the fence went back;
  - a line of a fence after one of a higher fence: two commands ran at once;
  - nothing for much longer than a lease: the lock is stuck.
With `dibs once` several ask for the same keys, each key has a log of its own kind, and besides:
  - a start after somebody was told that the key is done: it was done twice;
  - two who were told different things about one key: a replay is no replay.
"""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import fuzz
import race

SLOTS = 8
LEASE = 2.0
STUCK = LEASE + 15
TICK = 0.002


def job(log, seconds):
    """What runs under the lock, or once; then it says with which fence."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    fence, key = os.environ["DIBS_FENCE"], os.environ.get("DIBS_KEY", "-")
    write = lambda kind: os.write(fd, f"{fence} {kind} {os.getppid()} {key}\n".encode())
    write("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(TICK)
        write("tick")
    write("end")
    print(key, fence, flush=True)


class Redis:
    def __init__(self, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
             "--logfile", str(folder / "redis.log")])
        while not self.tell("PING"):
            time.sleep(0.02)

    def tell(self, command):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as s:
            s.sendall((command + "\r\n").encode())
            return s.recv(64)
        return b""

    def stop(self):
        self.process.terminate()
        self.process.wait()


def parent_of(pid):
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


class Log:
    """Reads the common log as it grows and checks every line."""

    def __init__(self, path):
        path.touch()
        self.file = path.open()
        self.rest = ""
        self.highest = 0
        self.starts = self.ends = 0
        self.guardian = 0
        self.moved = time.monotonic()
        self.wrong = []

    def follow(self):
        text = self.rest + self.file.read()
        *lines, self.rest = text.split("\n")
        for line in lines:
            self.check(line)
            self.moved = time.monotonic()

    def check(self, line):
        fence, kind, guardian, _ = line.split()
        fence = int(fence)
        if kind == "start":
            if fence <= self.highest:
                self.wrong.append(f"fence {fence} started after {self.highest}")
            self.starts += 1
            self.guardian = int(guardian)
        elif fence < self.highest:
            self.wrong.append(f"fence {fence} still ran ({kind}) after {self.highest} had started")
        self.ends += kind == "end"
        self.highest = max(self.highest, fence)


class OnceLog(Log):
    """The same with an order of fences for each key, and nothing after a key is done."""

    def __init__(self, path):
        super().__init__(path)
        self.order = {}
        self.done = {}  # key: what was said

    def check(self, line):
        key = line.split()[3]
        self.highest = self.order.get(key, 0)
        super().check(line)
        self.order[key] = self.highest
        if line.split()[1] == "start" and key in self.done:
            self.wrong.append(f"{key} was done and started again")

    def told(self, key, text):
        self.follow()  # whatever started before this answer is no fault
        if self.done.setdefault(key, text) != text or text.split()[:1] != [key.encode()]:
            self.wrong.append(f"{key}: {self.done[key]} and {text} were told")


class Soak:
    name, log_class = "run", Log

    def __init__(self, engine, url, dibs, folder, seed, redis=None):
        self.engine, self.url, self.dibs, self.folder, self.redis = engine, url, dibs, folder, redis
        self.chance = random.Random(seed)
        self.log = self.log_class(folder / "log")
        self.wrappers = [None] * SLOTS
        self.asleep = {}  # pid: when to wake it
        self.exits = {}
        self.faults = {}

    def start_one(self):
        return self.start("run", "soak")

    def start(self, *what, stdout=subprocess.DEVNULL):
        seconds = self.chance.choice([0.005, 0.02, 0.05, 0.5])
        return subprocess.Popen(
            [self.dibs, *what, "--url", self.url, "--lease", f"{int(LEASE * 1000)}ms", "--",
             sys.executable, __file__, "--job", str(self.folder / "log"), str(seconds)],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL)

    def ended(self, wrapper):
        self.exits[wrapper.returncode] = self.exits.get(wrapper.returncode, 0) + 1
        self.asleep.pop(wrapper.pid, None)

    def refill(self):
        for i, wrapper in enumerate(self.wrappers):
            if wrapper is None or wrapper.poll() is not None:
                if wrapper is not None:
                    self.ended(wrapper)
                self.wrappers[i] = self.start_one()

    def wake(self, everybody=False):
        for pid, when in list(self.asleep.items()):
            if everybody or time.monotonic() >= when:
                del self.asleep[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def victim(self):
        """The holder's wrapper, or any; only ever one of ours that has not been reaped."""
        alive = [w.pid for w in self.wrappers if w and w.returncode is None and w.pid not in self.asleep]
        holder = parent_of(self.log.guardian)
        if holder in alive and self.chance.random() < 0.5:
            return holder
        return self.chance.choice(alive) if alive else 0

    def disturb(self):
        kind = self.chance.choice(["kill", "kill", "stop", "guardian"] + (["connections", "scripts"] if self.redis else []))
        pid = self.victim()
        if kind == "connections":
            self.redis.tell("CLIENT KILL TYPE normal")
        elif kind == "scripts":
            self.redis.tell("SCRIPT FLUSH")
        elif pid == 0:
            return
        elif kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif kind == "stop":
            self.asleep[pid] = time.monotonic() + LEASE * 1.5
            os.kill(pid, signal.SIGSTOP)
        elif parent_of(self.log.guardian) == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.log.guardian, signal.SIGKILL)
        else:
            return
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def run(self, seconds):
        end = time.monotonic() + seconds
        next_fault = time.monotonic() + 1
        while time.monotonic() < end and not self.log.wrong:
            self.refill()
            self.log.follow()
            self.wake()
            if time.monotonic() >= next_fault:
                self.disturb()
                next_fault = time.monotonic() + self.chance.uniform(0.05, 1.0)
            if time.monotonic() - self.log.moved > STUCK:
                self.log.wrong.append(f"nothing happened for {STUCK:.0f} s: the lock is stuck")
            time.sleep(0.01)
        self.end()

    def end(self):
        self.wake(everybody=True)
        for wrapper in self.wrappers:
            if wrapper and wrapper.poll() is None:
                wrapper.terminate()
        for wrapper in self.wrappers:
            if wrapper:
                try:
                    wrapper.wait(LEASE + 15)
                except subprocess.TimeoutExpired:
                    self.log.wrong.append(f"dibs {self.name} ({wrapper.pid}) does not end after SIGTERM")
                    wrapper.kill()
                    wrapper.wait()
        self.log.follow()
        if self.log.ends < 10:
            self.log.wrong.append(f"only {self.log.ends} commands came to their end")

    def report(self):
        faults = ", ".join(f"{v} × {k}" for k, v in sorted(self.faults.items())) or "none"
        exits = ", ".join(f"{v} × {k}" for k, v in sorted(self.exits.items()))
        print(f"{self.engine}, dibs {self.name}: {self.log.starts} commands started, {self.log.ends} came to their end\n"
              f"    faults: {faults}\n    exit codes: {exits}\n"
              f"    {'FAILED: ' + '; '.join(self.log.wrong[:5]) if self.log.wrong else 'no overlap, fences grew'}",
              flush=True)
        return not self.log.wrong


class OnceSoak(Soak):
    """Four keys at a time; one that was answered for often enough makes room for the next."""

    name, log_class = "once", OnceLog
    ANSWERS = 12

    def __init__(self, *args):
        super().__init__(*args)
        self.keys = {f"key{i}": 0 for i in range(4)}
        self.next_key = 4
        self.asked = {}  # pid: key

    def start_one(self):
        key = self.chance.choice(list(self.keys))
        process = self.start("once", "--wait", "1m", "--on-crash", "rerun", key, stdout=subprocess.PIPE)
        self.asked[process.pid] = key
        return process

    def ended(self, wrapper):
        super().ended(wrapper)
        key = self.asked.pop(wrapper.pid)
        with wrapper.stdout:
            text = wrapper.stdout.read()
        if wrapper.returncode != 0:
            return
        self.log.told(key, text)
        if key in self.keys:
            self.keys[key] += 1
            if self.keys[key] >= self.ANSWERS:
                del self.keys[key]
                self.keys[f"key{self.next_key}"] = 0
                self.next_key += 1


def soak_engine(kind, engine, dibs, seconds, seed):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"dibs-soak-{engine}-"))
    redis = Redis(folder) if engine == "redis" else None
    url = f"redis://127.0.0.1:{redis.port}" if redis else f"sqlite://{folder}/soak.db"
    soak = kind(engine, url, dibs, folder, seed, redis)
    try:
        soak.run(seconds)
    finally:
        if redis:
            redis.stop()
    good = soak.report()
    if good:
        shutil.rmtree(folder)
    else:
        print(f"    its log is kept in {folder}")
    return good


def soak_redlock(dibs):
    """A minute of 32 clients while nodes are killed, and a thousand restarts inside a lease."""
    program = pathlib.Path(dibs).resolve().parents[2] / "tests/test_redlock"
    if not program.is_file():
        print("redlock: left out, because the build has no tests")
        return True
    done = subprocess.run([program], capture_output=True, text=True,
                          env=dict(os.environ, DIBS_TEST_GUARD_TRIES="1000", DIBS_TEST_STORM_SECONDS="60"))
    notes = [line for line in done.stdout.splitlines() if line.startswith("# ")]
    print("redlock:", "ok" if done.returncode == 0 else "FAILED", *notes, sep="\n    ", flush=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:])
    return done.returncode == 0


CELL_SECONDS = 24  # of one engine under one fault: six are the calm part at the end, one the calm at the beginning


def torture(build, seconds):
    """Every engine under every fault that applies to it."""
    program = pathlib.Path(__file__).resolve().parents[1] / "torture/matrix.py"
    return subprocess.run([sys.executable, program, "--build", build, "--per-engine", str(seconds), "--seconds", str(CELL_SECONDS),
                           "--peers", "no", "--output", f"{build}/guarantees"]).returncode == 0


ENGINES = ("memory", "sqlite", "redis", "redlock3", "postgresql", "mysql", "zookeeper", "etcd")


def run_on_engines(tests, name, *arguments, **environment):
    """A test program on each engine, at length, two side by side; its notes are shown."""
    def run(engine):
        began = time.monotonic()
        done = subprocess.run([tests / name, engine, *arguments], capture_output=True, text=True,
                              env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", **environment))
        return done, time.monotonic() - began

    good = True
    engines = ENGINES if (tests / name).is_file() else ()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for engine, (done, seconds) in zip(engines, pool.map(run, engines)):
            good &= done.returncode == 0
            print(f"{name} {engine}, {seconds:.0f} s:", "ok" if done.returncode == 0 else "FAILED",
                  *(line for line in done.stdout.splitlines() if line.startswith("# ")), sep="\n    ", flush=True)
            if done.returncode:
                print(done.stdout[-4000:], done.stderr[-4000:])
    return good


SEEDS = 500  # of one process


def simulate_some(program, first, end):
    """(seeds, simulated hours) of one process after the other; None: something was wrong, and it was shown."""
    seeds, hours = 0, 0.0
    while time.monotonic() < end:
        done = subprocess.run([program, str(first + seeds), str(SEEDS)], capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout, flush=True)
            return None
        hours += float(re.search(r"([\d.]+) simulated hours", done.stdout).group(1))
        seeds += SEEDS
    return seeds, hours


def simulate(program, seconds):
    """Seeds that nobody has run before, until the time is over, on every processor."""
    began, first, count = time.monotonic(), time.time_ns(), os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        done = list(pool.map(lambda i: simulate_some(program, first + i * 10**9, began + seconds), range(count)))
    if None in done:
        return False
    minutes = (time.monotonic() - began) / 60
    seeds, hours = (sum(column) for column in zip(*done))
    print(f"simulation: {seeds:,} seeds, {hours:,.0f} simulated hours, nothing wrong; "
          f"{seeds / minutes:,.0f} seeds and {hours / minutes:,.0f} simulated hours per minute, {count} at a time, "
          f"load {os.getloadavg()[0]:.1f}", flush=True)
    return True


def run_fuzzer(path, seconds):
    good, text = fuzz.run(path, seconds, path.parent / "failed")
    print(text if good else "FAILED " + text, flush=True)
    return good


# ---- Parts: each gives a list of results -------------------------------------------------------------------------

def timed_engines(options):
    return [e for e in options.engines.split(",") if e != "redlock"]


def all_fuzzers(options):
    return fuzz.fuzzers(options.fuzzers) if options.fuzzers else []


def share(options):
    """The minutes are divided among those that take as long as they are given: half of them are the simulation's."""
    return options.minutes * 60 / 2 / max(2 * len(timed_engines(options)) + len(all_fuzzers(options)), 1)


def path_of(options):
    return str(pathlib.Path(options.dibs).resolve())


def tests_of(options):
    return pathlib.Path(path_of(options)).parents[2] / "tests"


PARTS = {
    "holders": lambda o: [soak_engine(kind, e, path_of(o), share(o), o.seed) for kind in (Soak, OnceSoak) for e in timed_engines(o)],
    "simulation": lambda o: [simulate(o.simulation, o.minutes * 60 / (1 if o.only else 2))] if o.simulation else [],
    "races": lambda o: [race.run(o.library, o.races)],
    "fuzzers": lambda o: [run_fuzzer(f, share(o)) for f in all_fuzzers(o)],
    "torture": lambda o: [torture(o.build, o.torture_seconds)] if o.build else [],
    "redlock": lambda o: [soak_redlock(path_of(o))] if "redlock" in o.engines.split(",") else [],
    "growth": lambda o: [run_on_engines(tests_of(o), "test_growth", "100000", "1000")],
    "sweeps": lambda o: [run_on_engines(tests_of(o), "test_sweep", DIBS_TEST_EVERY="1")],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("minutes", nargs="?", type=float, default=10)
    p.add_argument("--dibs", default="build/src/cli/dibs", help="the command")
    p.add_argument("--simulation", help="the program test_sim")
    p.add_argument("--fuzzers", type=pathlib.Path, help="folder with programs called fuzz_*")
    p.add_argument("--engines", default="sqlite,redis,redlock")
    p.add_argument("--library", default="build/libdibs.so", help="for the races")
    p.add_argument("--races", type=int, default=1000, help="for a token, and for a key, on every engine")
    p.add_argument("--build", help="the build folder: every engine is tortured")
    p.add_argument("--torture-seconds", type=int, default=300, help="at least, for each engine (default 300)")
    p.add_argument("--only", metavar="PART", choices=PARTS, help=f"only one part: {', '.join(PARTS)}")
    p.add_argument("--seed", type=int, default=int(time.time()))
    options = p.parse_args()
    if options.minutes <= 0:
        p.error("more than 0 minutes")
    return options


def main():
    if sys.argv[1:2] == ["--job"]:
        return job(sys.argv[2], float(sys.argv[3]))
    options = arguments()
    print(f"soak: {options.minutes:g} minutes, seed {options.seed}", flush=True)
    good = [result for name, part in PARTS.items() if options.only in (None, name) for result in part(options)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
