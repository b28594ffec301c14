#!/usr/bin/env python3
"""Measures dibs beside the raw limit of each engine: ./dev bench [--engines redis,mysql] [--scenarios abcd]

Raw and dibs take turns in one run, so that a slow minute of the machine hits both; each round begins with
another of them. Servers are private, on free loopback ports, in a scratch folder. A run that broke exclusion,
went back with a fence or failed a call is a failure, however fast. Scenarios: a uncontended, b a lock a
thread, c one lock for all, d stock deduction, e growth (many waiters, many held locks; several minutes).
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import summary

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests/support"))
sys.dont_write_bytecode = True
import databases  # noqa: E402: it lies beside the tests, which start the same servers
import ensembles  # noqa: E402

WORKERS = {"a": 1, "b": 32, "c": 32, "d": 50}
ROUNDS_OF_D = 100
SECONDS_OF_D = 60  # at most; it ends when everything is sold
TIMEOUT = 300
# Where client and server wake each other all the time, a run is fast or slow by where the scheduler put them:
# several shorter runs a round.
REPEATS = {"a": 3}

# Which raw programs stand beside dibs, by engine and scenario.
RAW = {
    "redis": {"a": ["redis-set"], "b": ["redis-set"], "c": ["redis-blpop", "redis-blpop-lua"], "d": ["redis-blpop"]},
    "redlock": {"a": ["redlock-set", "redis-set"], "b": ["redlock-set"], "c": ["redlock-set"], "d": ["redlock-set"]},
    "sqlite": {"a": ["sqlite-row"], "b": ["sqlite-row"], "c": ["sqlite-row"], "d": ["sqlite-row"]},
    "postgresql": {"a": ["pg-row", "pg-advisory"], "b": ["pg-row", "pg-advisory"], "c": ["pg-advisory"],
                   "d": ["pg-advisory"]},
    "mysql": {"a": ["mysql-row", "mysql-getlock"], "b": ["mysql-row", "mysql-getlock"], "c": ["mysql-getlock"],
              "d": ["mysql-getlock"]},
    "zookeeper": {"a": ["zookeeper-node"], "b": ["zookeeper-node"], "c": ["zookeeper-line"], "d": ["zookeeper-line"]},
    "etcd": {"a": ["etcd-put", "etcd-lock"], "b": ["etcd-put", "etcd-lock"], "c": ["etcd-lock"], "d": ["etcd-lock"]},
    "memory": {},
}
GROWTH = {
    "redis": {"wait": [10, 100, 1000, 10000], "hold": [1, 1000, 100000]},
    "redlock": {"wait": [10, 100, 1000, 10000], "hold": [1, 1000, 10000]},
    "sqlite": {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]},
    "postgresql": {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]},
    "mysql": {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]},
    "zookeeper": {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]},
    "etcd": {"wait": [10, 100, 1000], "hold": [1, 1000, 10000]},
    "memory": {"wait": [10, 100, 1000, 10000], "hold": [1, 1000, 100000]},
}
# What a script cannot call: these were sent by a client. Everything else inside a run of dibs was a script's.
ONLY_CLIENTS = re.compile(r"^(eval|evalsha|fcall|blpop|subscribe|unsubscribe|auth|hello|select|ping|info|client\|.*"
                          r"|script\|.*|config\|.*|command.*|statements|transactions|packets|calls)$")


class Redis:
    """A private redis-server that keeps nothing."""

    def __init__(self, folder):
        folder.mkdir()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
             "--appendonly", "no", "--logfile", str(folder / "log")])
        self.wait_until_it_answers()

    def wait_until_it_answers(self):
        for _ in range(500):
            with contextlib.suppress(OSError):
                if self.ask("PING").startswith("+PONG"):
                    return
            time.sleep(0.02)
        raise SystemExit("bench: redis-server does not answer")

    def ask(self, command):
        with socket.create_connection(("127.0.0.1", self.port), 5) as s:
            s.sendall((command + "\r\n").encode())
            text = s.recv(65536)
            if text.startswith(b"$"):
                size = int(text[1:text.index(b"\r\n")]) + text.index(b"\r\n") + 4
                while len(text) < size:
                    text += s.recv(65536)
            return text.decode()

    def commands(self):
        counted = re.finditer(r"cmdstat_(\S+?):calls=(\d+)", self.ask("INFO commandstats"))
        return {m[1]: int(m[2]) for m in counted if m[1] not in ("info", "flushall")}

    def cpu(self):
        """Seconds that the server itself has used."""
        return sum(float(x) for x in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", self.ask("INFO cpu")))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def transactions(server):
    """Of the clients of the database `bench`, by the server's own counters."""
    rows = server.ask("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'")
    return {"transactions": int(rows[0])}


def statements(server):
    """Of all clients, our own question included."""
    rows = server.ask("SHOW GLOBAL STATUS LIKE 'Questions'")
    return {"statements": int(rows[0].split("\t")[1])}


def packets(server):
    """That clients sent to ZooKeeper, pings and our own question included."""
    return {"packets": int(server.counters()["zk_packets_received"])}


def calls(server):
    """That clients made of etcd: calls and messages on the streams for watches and leases."""
    return {"calls": int(sum(v for k, v in server.counters().items() if k.startswith("grpc_server_msg_received_total")))}


COUNTERS = {"postgresql": transactions, "mysql": statements, "zookeeper": packets, "etcd": calls}
DROP = {"postgresql": "DROP DATABASE IF EXISTS bench WITH (FORCE)", "mysql": "DROP DATABASE IF EXISTS bench"}


class Bench:
    def __init__(self, options, scratch):
        self.options = options
        self.scratch = scratch
        self.servers = {}
        self.rows = []
        self.failures = []
        self.place_count = 0

    def server(self, name):
        if name not in self.servers:
            self.servers[name] = Redis(self.scratch / f"redis-{name}")
        return self.servers[name]

    def database(self, engine):
        """One that syncs what it commits, as a lock needs it."""
        if engine not in self.servers:
            try:
                self.servers[engine] = {**databases.KINDS, **ensembles.KINDS}[engine]()
            except databases.Missing as e:
                raise SystemExit(f"bench: {e}")
            self.servers[engine].commands = lambda: COUNTERS[engine](self.servers[engine])
        return self.servers[engine]

    def stop(self):
        for server in self.servers.values():
            server.stop()

    def place(self, engine):
        """A clean engine: the arguments that lead there, and the server if there is one."""
        if engine == "redis":
            server = self.server("locks")
            server.ask("FLUSHALL")
            return [f"url=redis://127.0.0.1:{server.port}", f"port={server.port}",
                    f"server_pid={server.process.pid}"], server
        if engine == "redlock":
            return self.place_redlock()
        if engine == "sqlite":
            folder = pathlib.Path(tempfile.mkdtemp(prefix="sqlite-", dir=self.scratch))
            return [f"url=sqlite://{folder}/dibs.db", f"folder={folder}"], None
        if engine in databases.KINDS:
            server = self.database(engine)
            server.ask(DROP[engine])
            return [f"url={server.make_database('bench')}", f"sql_port={server.port}",
                    f"server_pid={server.process.pid}"], server
        if engine in ensembles.KINDS:
            server = self.database(engine)
            self.place_count += 1
            return [f"url={server.url(f'bench{self.place_count}')}?session=30s", f"node_port={server.port}"], server
        return ["url=memory:"], None

    def place_redlock(self):
        """Five servers; what the first of them counts stands for all. The nodes are new, and vouched for."""
        nodes = [self.server(f"node{i}") for i in range(5)]
        for node in nodes:
            node.ask("FLUSHALL")
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        return [f"url=redlock://{hosts}?guard=off", f"port={nodes[0].port}",
                "ports=" + ",".join(str(node.port) for node in nodes)], nodes[0]

    def run(self, engine, scenario, peer, round_number, *extra, repeat=0):
        where, server = self.place(engine)
        before, cpu = (server.commands(), server.cpu()) if server else ({}, 0)
        older = peer == "before"
        command = [self.options.before if older else self.options.bench, scenario, "dibs" if older else peer, *where, *extra]
        if scenario == "d":
            command.append(f"stock_port={self.server('stock').port}")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
            row = json.loads(done.stdout.strip().splitlines()[-1])
            failed = done.returncode != 0
        except (subprocess.TimeoutExpired, ValueError, IndexError) as e:
            self.fail(engine, scenario, peer, f"gave no figures: {e!r}", locals().get("done"))
            return
        row.update(engine=engine, round=round_number, repeat=repeat)
        if older:
            row.update(peer=peer, title="dibs before")
        if server:
            count_requests(row, before, server.commands(), server.cpu() - cpu)
        if failed:
            self.fail(engine, scenario, peer, f"{row['errors']} errors, {row['violations']} violations", done)
        row["failed"] = failed
        self.rows.append(row)
        print(summary.one_line(row), flush=True)

    def fail(self, engine, scenario, peer, why, done):
        said = done.stderr.strip().splitlines()[:3] if done else []
        self.failures.append(f"{engine} {scenario} {peer}: {why}")
        print(f"FAILED {self.failures[-1]}", *said, sep="\n    ", flush=True)

    def compare(self, engine, scenario, round_number):
        peers = ["dibs", *(["before"] if self.options.before else RAW[engine].get(scenario, []))]
        repeats = REPEATS.get(scenario, 1)
        seconds = SECONDS_OF_D if scenario == "d" else max(self.options.seconds / repeats, 0.5)
        for repeat in range(repeats):
            turn = (round_number + repeat) % len(peers)
            for peer in peers[turn:] + peers[:turn]:
                self.run(engine, scenario, peer, round_number, f"workers={WORKERS[scenario]}",
                         f"rounds={ROUNDS_OF_D}", f"seconds={seconds}", repeat=repeat)

    def grow(self, engine, round_number):
        for count in GROWTH[engine]["wait"]:
            self.run(engine, "wait", "dibs", round_number, f"count={count}", f"seconds={self.options.seconds}")
        self.run(engine, "c", "dibs", round_number, "workers=64", "locks=32", f"seconds={self.options.seconds}")
        if round_number == 1:  # a third of a lease each: long enough to be measured once
            for count in GROWTH[engine]["hold"]:
                self.run(engine, "hold", "dibs", round_number, f"count={count}")

    def everything(self):
        for round_number in range(1, self.options.rounds + 1):
            for engine in self.options.engines:
                for scenario in self.options.scenarios:
                    if scenario == "e":
                        self.grow(engine, round_number)
                    else:
                        self.compare(engine, scenario, round_number)


def count_requests(row, before, after, cpu):
    """Client requests an operation, commands that scripts made of them, and what the server spent on it."""
    grown = {k: v - before.get(k, 0) for k, v in after.items() if v > before.get(k, 0)}
    operations = row.get("changes") if row["scenario"] == "c" else row.get("turns", 0) + row.get("warm", 0)
    if not operations:
        return
    ours = row["peer"] in ("dibs", "before")
    sent = sum(v for k, v in grown.items() if not ours or ONLY_CLIENTS.match(k))
    if not ours and "evalsha" in grown:  # its script makes one call of its own, or two
        sent -= grown.get("get", 0) + grown.get("del", 0) + (grown.get("lpush", 0) if "blpop" in grown else 0)
    row["server_us"] = round(cpu * 1e6 / operations, 2)
    row["requests"] = round(sent / operations, 3)
    row["in_scripts"] = round((sum(grown.values()) - sent) / operations, 3)
    row["commands"] = {k: round(v / operations, 3) for k, v in sorted(grown.items()) if v > 0.01 * operations}


def machine():
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {"cores": os.cpu_count(), "cpu": model[1] if model else "?", "kernel": os.uname().release,
            "load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d %H:%M")}


def choices(text, known, what):
    unknown = [x for x in text if x not in known]
    if unknown or not text:
        raise SystemExit(f"bench: unknown {what}: {', '.join(unknown) or 'none given'}; there are {', '.join(known)}")
    return text


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engines", default="sqlite,redis,redlock,postgresql,mysql,zookeeper,etcd")
    p.add_argument("--scenarios", default="abcd")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2, help="how long a, b, c and each hand-off run of e take")
    p.add_argument("--bench", default=str(HERE.parent / "build/bench/dibs-bench"), help="the program")
    p.add_argument("--before", help="the program of an older build: compare dibs with it instead of the raw peers")
    p.add_argument("--out", type=pathlib.Path, default=HERE / "results", help="where Markdown and JSON go")
    options = p.parse_args()
    options.engines = choices(options.engines.split(","), list(RAW), "engine")
    options.scenarios = choices(list(options.scenarios), list("abcde"), "scenario")
    if options.rounds < 1 or options.seconds <= 0:
        raise SystemExit("bench: at least one round of more than 0 seconds")
    for program in filter(None, (options.bench, options.before)):
        if not os.access(program, os.X_OK):
            raise SystemExit(f"bench: {program} does not exist or is not executable: ./dev bench builds it")
    return options


def main():
    options = arguments()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="dibs-bench-"))
    bench = Bench(options, scratch)
    where = machine()
    try:
        bench.everything()
    finally:
        bench.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    text = summary.markdown(bench.rows, where, bench.failures)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = time.strftime("%Y%m%d-%H%M%S")
    (options.out / f"{stem}.md").write_text(text)
    (options.out / f"{stem}.json").write_text(
        json.dumps({"machine": where, "failures": bench.failures, "rows": bench.rows}, indent=1) + "\n")
    print("\n" + text)
    print(f"written: {options.out}/{stem}.md and .json")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
