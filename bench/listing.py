#!/usr/bin/env python3
"""What `dibs ls` costs while most locks are idle: bench/listing.py [--engines redis,etcd] [--counts 0,10000,100000]

Ten locks are held, and 0, 10,000 and 100,000 others were used once and given back. Prints the time of `dibs ls`,
the processor time of the server, and how many locks were listed; with --before those of another build, too.
Servers are private, as those of run.py.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import run
import servers

HELD = 10
ROUNDS = 5


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engines", default="sqlite,redis,redlock,postgresql,mysql,zookeeper,etcd")
    p.add_argument("--counts", default="0,10000,100000", help="idle locks")
    p.add_argument("--build", type=pathlib.Path, default=servers.HERE.parent / "build", help="a build with -Dbench=true")
    p.add_argument("--before", type=pathlib.Path, help="an older one, to compare with")
    options = p.parse_args()
    options.engines = run.choices(options.engines.split(","), [e for e in servers.ENGINES if e != "memory"], "engine")
    options.counts = [int(n) for n in options.counts.split(",")]
    return options


def hold(dibs, url):
    """Ten processes, each with a lock."""
    held = [subprocess.Popen([dibs, "run", "--url", url, f"held:{i}", "--", "sh", "-c", "echo up; exec sleep 3600"],
                             stdout=subprocess.PIPE) for i in range(HELD)]
    for process in held:
        process.stdout.readline()
    return held


def let_go(held):
    for process in held:
        process.terminate()
    for process in held:
        process.wait()


def measure(dibs, store):
    """Medians of a few calls; the first, which may have to build an index, for itself."""
    rows = []
    for _ in range(ROUNDS + 1):
        cpu, begin = sum(s.cpu() for s in store.servers), time.monotonic()
        done = subprocess.run([dibs, "ls", "--url", store.url], capture_output=True, text=True)
        rows.append((time.monotonic() - begin, sum(s.cpu() for s in store.servers) - cpu))
        if done.returncode != 0:
            return f"failed after {rows[-1][0]:.1f} s, exit {done.returncode}: {done.stderr.strip()[:200]}"
    listed = sum(line.startswith("held:") for line in done.stdout.splitlines())
    again = [statistics.median(x) for x in zip(*rows[1:])]
    server = f"{sum(r[1] for r in rows[1:]) / ROUNDS * 1000:.1f} ms" if store.servers else "-"
    return (f"{again[0] * 1000:.0f} ms, server {server}; the first {rows[0][0] * 1000:.0f} ms; "
            f"{listed} of {HELD} listed")


# Where a lock takes a sync of the disk, one is used, and its row copied.
COPIES = {"postgresql": "convert_to('idle:' || i, 'UTF8'), {} FROM dibs_lock, generate_series(1, {}) i",
          "mysql": "CONCAT('idle:', seq), {} FROM dibs_lock, seq_1_to_{}"}


def make_idle(build, engine, store, count):
    used = 1 if engine in COPIES else count
    subprocess.run([build / "bench/dibs-bench", "idle", "dibs", f"url={store.url}", f"count={used}"], check=True)
    if engine in COPIES:
        server = store.servers[0]
        columns = ", ".join(server.ask("SELECT column_name FROM information_schema.columns "
                                       "WHERE table_name = 'dibs_lock' AND column_name <> 'name'", database="bench"))
        server.ask(f"INSERT INTO dibs_lock (name, {columns}) SELECT {COPIES[engine].format(columns, count)}",
                   database="bench")


def try_one(stores, engine, count, label, build):
    dibs = build / "src/cli/dibs"
    store = stores.store(engine)
    begin = time.monotonic()
    if count:
        make_idle(build, engine, store, count)
    made = time.monotonic() - begin
    held = hold(dibs, store.url)
    try:
        said = measure(dibs, store)
    finally:
        let_go(held)
    print(f"{engine:10} {count:7} idle, {label}: {said}  (made in {made:.1f} s)", flush=True)


def main():
    options = arguments()
    builds = [("before", options.before)] if options.before else []
    with servers.Servers(tempfile.mkdtemp(prefix="dibs-listing-")) as stores:
        for engine in options.engines:
            for count in options.counts:
                for label, build in [*builds, ("now", options.build)]:
                    try_one(stores, engine, count, label, build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
