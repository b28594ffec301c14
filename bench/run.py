#!/usr/bin/env python3
"""Measures dibs beside the raw limit of each engine and beside other libraries: ./dev bench [--engines redis,mysql]

All take turns in one run, so that a slow minute of the machine hits each of them; every round begins with another.
Servers are private, on free loopback ports, in a scratch folder. A run that broke exclusion, went back with a fence
or failed a call is a failure, however fast. Scenarios: a uncontended, b a lock per worker, c one lock for all, d stock
deduction, e growth (many waiters, many held locks), f once, counters and tokens, g the command.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import chart
import command
import goals
import peers
import servers
import summary

HERE = servers.HERE
COMMITTED = HERE.parent / "docs/bench/results.json"
WORKERS = {"a": 1, "b": 32, "c": 32, "d": 50, "f": 8}
ROUNDS_OF_D = 100
SECONDS_OF_D = 15  # at most; it ends when everything is sold
SECONDS_OF_PEERS = 6  # the same for those that poll
TIMEOUT = 180
OPERATIONS = ["dibs-once", "dibs-counter", "dibs-token"]
WITHOUT_CELLS = ["redlock"]
MANY = {"wait": [10, 100, 1000, 10000], "hold": [1, 1000, 100000]}
FEWER = {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]}
GROWTH = {engine: FEWER if engine in ("sqlite", "postgresql", "mysql") else MANY for engine in servers.ENGINES}


class Bench:
    def __init__(self, options, stores):
        self.options = options
        self.stores = stores
        self.rows = []
        self.failures = []
        self.slow = set()  # what did not sell everything in the first round is not tried again
        self.programs = peers.Programs(options.bench, options.before, pathlib.Path(options.bench).resolve().parents[1] / "others")
        self.able = self.programs.prepare({e for g in options.engines for s in options.scenarios for e in self.entrants(g, s)})

    def entrants(self, engine, scenario):
        """Of scenarios a to d."""
        found = peers.of(engine, scenario)
        if self.options.before:
            mine = [e for e in found if e.kind == "dibs"]
            return [*mine, *(peers.before(e) for e in mine)]
        return [e for e in found if e.kind in self.options.kinds]

    def command(self, entrant, store, scenario, *extra):
        words = [*self.programs.command(entrant), scenario, entrant.id, *store.arguments(), f"shape={entrant.shape}",
                 "steps=1", *extra]
        if entrant.runner == "node":
            words.append(f"modules={self.programs.folder}")
        if scenario == "d":
            words.append(f"stock_port={self.stores.redis('stock').port}")
        return words

    def run(self, engine, scenario, entrant, round_number, *extra):
        store = self.stores.store(engine)
        done = Measured(self.command(entrant, store, scenario, *extra), store)
        if self.options.smoke and done.row and not (done.row.get("turns", 1) or done.row["errors"] or done.row["violations"]):
            done = Measured(self.command(entrant, store, scenario, *extra, "seconds=4"), store)  # the machine is busy
        if done.row is None:
            self.fail(entrant, f"{engine} {scenario} {entrant.name}: gave no figures", done.said)
            return None
        row = {**done.row, "engine": engine, "round": round_number, "kind": entrant.kind, "name": entrant.name}
        operations = row["changes"] if scenario == "c" else row.get("turns", 0)
        if done.commands is not None and operations:
            row["commands"] = round(done.commands / operations, 2)
            row["server_us"] = round(done.cpu * 1e6 / operations, 1)
        row["failed"] = done.code != 0
        if row["failed"]:
            self.fail(entrant, f"{engine} {scenario} {entrant.name}: {row['errors']} errors, {row['violations']} "
                      f"violations, {row.get('disorder', 0)} out of turn", done.said)
        self.rows.append(row)
        print(summary.one_line(row), flush=True)
        return row

    def fail(self, entrant, what, said):
        """What others do wrong is reported, and is no failure of the run."""
        if entrant.kind in ("dibs", "before"):
            self.failures.append(what)
        print(f"FAILED {what}", *said[:3], sep="\n    ", flush=True)

    def compare(self, engine, scenario, round_number):
        entrants = [e for e in self.entrants(engine, scenario) if e in self.able and (engine, e.id, scenario) not in self.slow]
        turn = round_number % max(len(entrants), 1)
        for entrant in entrants[turn:] + entrants[:turn]:
            seconds = self.options.seconds
            if scenario == "d":
                seconds = self.options.seconds_d if entrant.kind != "peer" else min(self.options.seconds_d, SECONDS_OF_PEERS)
            row = self.run(engine, scenario, entrant, round_number, f"workers={WORKERS[scenario]}",
                           f"rounds={ROUNDS_OF_D}", f"seconds={seconds}")
            if entrant.kind == "peer" and not (row or {}).get("complete", scenario != "d"):
                self.slow.add((engine, entrant.id, scenario))

    def grow(self, engine, round_number):
        one = peers.DIBS[1]
        for count in GROWTH[engine]["wait"] if engine != "memory" else []:
            self.run(engine, "wait", one, round_number, f"count={count}", f"seconds={self.options.seconds}")
        if round_number == 1:  # a third of a lease each: long enough to be measured once
            for count in GROWTH[engine]["hold"]:
                self.run(engine, "hold", one, round_number, f"count={count}", f"seconds={self.options.seconds_hold}")

    def operate(self, engine, round_number):
        for operation in OPERATIONS if engine not in WITHOUT_CELLS else []:
            self.run(engine, "f", peers.operation(operation), round_number, f"workers={WORKERS['f']}",
                     f"seconds={self.options.seconds}")

    def run_commands(self, engine, round_number):
        if engine not in command.TURNS:
            return
        folder = self.stores.scratch / f"command-{engine}-{round_number}"
        for row in command.measure(self.stores.store(engine), self.options.dibs, folder):
            row.update(engine=engine, round=round_number, failed=bool(row["errors"] or row["violations"]))
            if row["failed"] and row["kind"] == "dibs":
                self.failures.append(f"{engine} g: {row['errors']} errors, {row['violations']} violations")
            self.rows.append(row)
            print(summary.one_line(row), flush=True)

    def everything(self):
        for round_number in range(1, self.options.rounds + 1):
            for engine in self.options.engines:
                for scenario in self.options.scenarios:
                    if scenario == "e":
                        self.grow(engine, round_number)
                    elif scenario == "f":
                        self.operate(engine, round_number)
                    elif scenario == "g":
                        self.run_commands(engine, round_number)
                    else:
                        self.compare(engine, scenario, round_number)


class Measured:
    """One program run to its end. It stops when its workers are ready and when they have finished, so that the
    server's counters are read for just that time; but sessions of PostgreSQL report when they end."""

    def __init__(self, command, store):
        self.row = self.commands = self.cpu = None
        self.said = []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.late = store.engine == "postgresql"
        before = store.commands() if self.late else 0
        reader = threading.Thread(target=lambda: self.said.extend(process.stderr.read().strip().splitlines()))
        killer = threading.Timer(TIMEOUT, process.kill)
        reader.start()
        killer.start()
        for line in process.stdout:
            if line.strip() in ("ready", "finished"):
                self.read_counters(store, 1 if line.strip() == "finished" else -1)
                process.stdin.write("\n")
                process.stdin.flush()
            elif line.startswith("{"):
                self.row = json.loads(line)
        self.code = process.wait()
        if self.late:
            time.sleep(0.3)
            self.commands = store.commands() - before
        killer.cancel()
        reader.join()

    def read_counters(self, store, sign):
        if store.servers:
            self.commands = (self.commands or 0) + sign * store.commands()
            self.cpu = (self.cpu or 0) + sign * store.cpu()


def choices(text, known, what):
    unknown = [x for x in text if x not in known]
    if unknown or not text:
        raise SystemExit(f"bench: unknown {what}: {', '.join(unknown) or 'none given'}; there are {', '.join(known)}")
    return text


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engines", default="sqlite,redis,redlock,postgresql,mysql,zookeeper,etcd")
    p.add_argument("--scenarios", default="abcdefg")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=1, help="how long a, b, c, f and each hand-over run of e take")
    p.add_argument("--seconds-d", type=float, default=SECONDS_OF_D, help="how long d takes at most (default: %(default)s)")
    p.add_argument("--seconds-hold", type=float, default=10, help="a third of the lease of held locks (default: %(default)s)")
    p.add_argument("--bench", default=str(HERE.parent / "build/bench/dibs-bench"), help="the program")
    p.add_argument("--before", help="the program of an older build: compare dibs with it instead of raw and peers")
    p.add_argument("--kinds", default="raw,peer,dibs", help="who is measured in a to d (default: %(default)s)")
    p.add_argument("--dibs", default=str(HERE.parent / "build/src/cli/dibs"), help="the command, for g")
    p.add_argument("--out", type=pathlib.Path, default=HERE / "results",
                   help="where the page, its pictures and the figures go (default: bench/results; ./dev bench without options: docs/bench)")
    p.add_argument("--compare", action="store_true", help="also show dibs beside the figures in docs/bench")
    p.add_argument("--smoke", action="store_true", help="every scenario for a moment: does it run, and is it right?")
    options = p.parse_args()
    if options.smoke:
        options.rounds, options.seconds, options.seconds_d, options.seconds_hold = 1, 0.2, 3, 1
        options.kinds = "raw,dibs"
        FEWER.update(wait=[10, 100], hold=[1])
        MANY.update(FEWER)
    options.engines = choices(options.engines.split(","), servers.ENGINES, "engine")
    options.scenarios = choices(list(options.scenarios), list("abcdefg"), "scenario")
    options.kinds = choices(options.kinds.split(","), ["raw", "peer", "dibs"], "kind")
    if options.rounds < 1 or options.seconds <= 0:
        raise SystemExit("bench: at least one round of more than 0 seconds")
    for program in filter(None, (options.bench, options.before)):
        if not os.access(program, os.X_OK):
            raise SystemExit(f"bench: {program} does not exist or is not executable: ./dev bench builds it")
    return options


def write(options, bench, where):
    """The page, its figures and its pictures."""
    last = json.loads(COMMITTED.read_text()) if options.compare and COMMITTED.exists() else None
    table = summary.Rows(bench.rows)
    pictures = [("handovers.svg", "Changes of owner per second", chart.handovers(table, where)),
                ("growth.svg", "Cost of a hand-over with many waiters", chart.growth(table, where))]
    pictures = [p for p in pictures if p[2]]
    text = summary.markdown(bench.rows, where, bench.failures, bench.programs.missing, last, [p[:2] for p in pictures],
                            [] if options.before else goals.table(bench.rows))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, _, picture in pictures:
        (options.out / name).write_text(picture)
    (options.out / "README.md").write_text(text)
    rows = ",\n".join(json.dumps(row) for row in bench.rows)
    (options.out / "results.json").write_text(f'{{"machine": {json.dumps(where)},\n"rows": [\n{rows}\n]}}\n')
    print("\n" + text)
    print(f"written: {options.out}/README.md, results.json and {len(pictures)} pictures")


def main():
    options = arguments()
    where = servers.machine()
    with servers.Servers(tempfile.mkdtemp(prefix="dibs-bench-")) as stores:
        bench = Bench(options, stores)
        bench.everything()
    where["load_after"] = round(os.getloadavg()[0], 1)
    write(options, bench, where)
    return 1 if bench.failures or not bench.rows else 0


if __name__ == "__main__":
    sys.exit(main())
