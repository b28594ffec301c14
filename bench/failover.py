#!/usr/bin/env python3
"""What exclusion across failovers costs: bench/failover.py [--rounds 5] [--seconds 1]

One worker with its own lock (a) and 32 with a lock each (b) on redis://, with guard=on, with guard=on&wait=1, on a service that a
sentinel watches and on a cluster of three masters with a replica each, both with wait=1; in turn, so that all see the same machine. Prints
pairs of acquire and release per second, the median time of one, and the medians of the ratios to redis:// within a round.
"""
import argparse
import contextlib
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import run
import servers

WORKERS = {"a": 1, "b": 32}
KINDS = ["redis", "guard", "wait=1", "sentinel", "cluster"]


class Sentinel:
    def __init__(self, folder, port):
        folder.mkdir()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        conf = folder / "sentinel.conf"
        conf.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\nsentinel monitor bench 127.0.0.1 {port} 1\n"
                        "sentinel down-after-milliseconds bench 30000\n")
        self.process = subprocess.Popen(["redis-server", conf, "--sentinel"])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


class Cluster:
    """Six nodes; ended with them."""

    def __init__(self, scratch):
        self.nodes = [servers.Redis(scratch / f"cluster-{i}", "--cluster-enabled", "yes", "--cluster-node-timeout", "15000",
                                    "--cluster-port", str(free_port())) for i in range(6)]
        subprocess.run(["redis-cli", "--cluster", "create", *(f"127.0.0.1:{n.port}" for n in self.nodes), "--cluster-replicas", "1",
                        "--cluster-yes"], check=True, stdout=subprocess.DEVNULL)
        wait_for(lambda: all("cluster_state:ok" in n.ask("CLUSTER INFO") for n in self.nodes)
                 and sum("state=online" in n.ask("INFO replication") for n in self.nodes) == 3)

    def stop(self):
        for node in self.nodes:
            node.stop()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(there):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if there():
                return
        time.sleep(0.1)
    raise SystemExit("bench: the servers do not find each other")


def with_replica(scratch, name):
    master, replica = servers.Redis(scratch / name), servers.Redis(scratch / f"{name}-replica")
    replica.ask(f"REPLICAOF 127.0.0.1 {master.port}")
    wait_for(lambda: "state=online" in master.ask("INFO replication"))
    return master, replica


def start(scratch, stack):
    """{kind: URL}, with nobody in the way: all are vouched for."""
    def keep(server):
        stack.callback(server.stop)
        return server

    plain, guarded = keep(servers.Redis(scratch / "plain")), keep(servers.Redis(scratch / "guarded"))
    pair, watched = [[keep(s) for s in with_replica(scratch, n)][0] for n in ("pair", "watched")]
    sentinel = keep(Sentinel(scratch / "sentinel", watched.port))
    cluster = keep(Cluster(scratch))
    wait_for(lambda: socket.create_connection(("127.0.0.1", sentinel.port), 1).close() is None)
    return {"redis": f"redis://127.0.0.1:{plain.port}", "guard": f"redis://127.0.0.1:{guarded.port}?guard=on",
            "wait=1": f"redis://127.0.0.1:{pair.port}?guard=on&wait=1",
            "sentinel": f"redis+sentinel://127.0.0.1:{sentinel.port}/bench?guard=on&wait=1",
            "cluster": f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}?guard=on&wait=1"}


def vouch(dibs, kind, url):
    if kind != "redis":
        subprocess.run([dibs, "ls", "--url", url.replace("guard=on", "guard=vouch")], check=True, stdout=subprocess.DEVNULL)


def measure(options, url, scenario):
    store = servers.Store("redis", url)
    done = run.Measured([options.bench, scenario, "dibs", f"url={url}", "shape=shared" if scenario == "b" else "shape=each", "steps=1",
                         f"workers={WORKERS[scenario]}", f"seconds={options.seconds}"], store)
    if done.row is None or done.row["errors"]:
        raise SystemExit(f"bench: {url} {scenario}: " + " ".join(done.said[:3]))
    return done.row


def show(rows, scenario):
    base = {r["round"]: r["rate"] for r in rows if (r["kind"], r["scenario"]) == ("redis", scenario)}
    print(f"\n| {scenario}: {WORKERS[scenario]} workers, a lock each | pairs per second | median of one | beside redis:// |\n|---|---|---|---|")
    for kind in KINDS:
        mine = [r for r in rows if (r["kind"], r["scenario"]) == (kind, scenario)]
        ratios = sorted(base[r["round"]] / r["rate"] for r in mine)
        print(f"| {kind} | {statistics.median(r['rate'] for r in mine):,.0f} | {statistics.median(r['p50_us'] for r in mine):,.0f} µs | "
              f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) times as long |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--build", type=pathlib.Path, default=servers.HERE.parent / "build", help="a build with -Dbench=true")
    options = p.parse_args()
    options.bench = options.build / "bench/dibs-bench"
    rows = []
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dibs-bench-")))
        urls = start(scratch, stack)
        for kind, url in urls.items():
            vouch(options.build / "src/cli/dibs", kind, url)
        for number in range(options.rounds):
            for scenario in WORKERS:
                for kind in KINDS[number % len(KINDS):] + KINDS[:number % len(KINDS)]:
                    rows.append({**measure(options, urls[kind], scenario), "kind": kind, "scenario": scenario, "round": number})
    where = servers.machine()
    print(f"{where['cores']} cores, {where['cpu']}, load {where['load']}, Redis {where['servers']['redis']}, dibs {where['version']}, "
          f"{options.rounds} rounds of {options.seconds:g} s")
    for scenario in WORKERS:
        show(rows, scenario)
    return 0


if __name__ == "__main__":
    sys.exit(main())
