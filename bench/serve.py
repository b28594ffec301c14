#!/usr/bin/env python3
"""What HTTP costs over the library: bench/serve.py [--engines memory,sqlite,redis] [--rounds 5] [--seconds 3]

Pairs of acquire and release, each client with a lock of its own, with 1 and with 64 clients: through `dibs serve` over
keep-alive connections; by the library itself, in one process with a thread for each client; and the same two requests
to nginx, which answers each with a constant: the body that `dibs serve` gave to an acquire. The three take turns in one
run, a round begins with another of them each time, and ratios are taken within a round. Servers are private, and new
for each run; nginx has one worker, as `dibs serve` has one thread that speaks HTTP.

The load is dibs-bench-http (http_pairs.c): one thread with an epoll set. The page says how busy it and the server were:
where the load is busier than the server, the server could do more.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import run
import servers
from summary import median, show, spread, verdict

ENGINES = ["memory", "sqlite", "redis"]
PEERS = ["serve", "library", "nginx"]
ADDED_GOAL_US = 250  # at p50 of a pair, with one client
NGINX_GOAL = 0.5     # of its pairs a second, on the memory engine
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; default_type application/json; return 200 '{body}'; }}
}}
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engines", default=",".join(ENGINES))
    p.add_argument("--clients", default="1,64")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3, help="how long each run counts")
    p.add_argument("--build", type=pathlib.Path, default=run.HERE.parent / "build", help="a build with -Dbench=true")
    p.add_argument("--out", type=pathlib.Path, default=run.HERE / "results", help="where Markdown and JSON go")
    options = p.parse_args()
    options.engines = run.choices(options.engines.split(","), ENGINES, "engine")
    options.clients = [int(n) for n in options.clients.split(",")]
    if options.rounds < 1 or options.seconds <= 0 or min(options.clients) < 1:
        raise SystemExit("bench: at least one round of more than 0 seconds, with at least one client")
    for program in ("bench/dibs-bench", "bench/dibs-bench-http", "src/cli/dibs"):
        if not os.access(options.build / program, os.X_OK):
            raise SystemExit(f"bench: {options.build / program} is missing: ninja -C build, configured with -Dbench=true")
    if not shutil.which("nginx"):
        raise SystemExit("bench: nginx is missing: apt-get install nginx-light")
    return options


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port):
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)


@contextlib.contextmanager
def ending(process):
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


@contextlib.contextmanager
def dibs_serve(build, url):
    """(its port, its process)"""
    command = [build / "src/cli/dibs", "serve", "--listen", "127.0.0.1:0", "--url", url]
    with ending(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) as process:
        line = process.stderr.readline()
        if not (said := re.search(r"at http://127.0.0.1:(\d+)", line)):
            raise SystemExit(f"bench: dibs serve did not start: {line}")
        yield int(said[1]), process


def real_answer(build):
    """What `dibs serve` answers to an acquire."""
    with dibs_serve(build, "memory:") as (port, _):
        ask = urllib.request.Request(f"http://127.0.0.1:{port}/v1/acquire", b'{"name": "lock:1"}',
                                     {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as answer:
            return answer.read().decode()


@contextlib.contextmanager
def nginx(folder, body):
    port = free_port()
    folder.mkdir(exist_ok=True)
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, body=body.strip()))
    command = ["nginx", "-p", folder, "-e", folder / "error.log", "-c", folder / "conf"]
    with ending(subprocess.Popen(command)) as process:
        wait_for_port(port)
        yield port, process


class Comparison:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.stores = servers.Servers(scratch)
        self.body = real_answer(options.build)
        self.rows, self.failures = [], []

    def call(self, program, *args):
        done = subprocess.run([self.options.build / "bench" / program, *map(str, args)], capture_output=True, text=True,
                              timeout=run.TIMEOUT)
        if done.returncode:
            raise RuntimeError(f"{program}: exit {done.returncode}: {done.stderr.strip()[:300]} {done.stdout.strip()[:300]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def load(self, server, clients):
        port, process = server
        return self.call("dibs-bench-http", port, clients, self.options.seconds, process.pid)

    def measure(self, engine, peer, clients):
        store = self.stores.store(engine)
        if peer == "library":
            scenario = "a" if clients == 1 else "b"
            return self.call("dibs-bench", scenario, "dibs", *store.arguments(), f"workers={clients}", f"seconds={self.options.seconds}")
        if peer == "nginx":
            with nginx(self.scratch / "nginx", self.body) as server:
                return self.load(server, clients)
        with dibs_serve(self.options.build, store.url) as server:
            return self.load(server, clients)

    def everything(self):
        for number in range(1, self.options.rounds + 1):
            for engine in self.options.engines:
                for clients in self.options.clients:
                    turn = number % len(PEERS)
                    for peer in PEERS[turn:] + PEERS[:turn]:
                        self.one(number, engine, clients, peer)

    def one(self, number, engine, clients, peer):
        try:
            row = self.measure(engine, peer, clients)
        except (RuntimeError, ValueError, IndexError, subprocess.TimeoutExpired) as e:
            self.failures.append(f"{engine}, {clients} clients, {peer}: {e}")
            print("FAILED", self.failures[-1], flush=True)
            return
        kept = {k: row[k] for k in ("rate", "p50_us", "p99_us", "client_busy", "server_busy") if k in row}
        self.rows.append({"round": number, "engine": engine, "clients": clients, "peer": peer, **kept})
        print(f"{number} {engine:7} {clients:3} {peer:8} {row['rate']:10,.0f} pairs/s  p50 {row['p50_us']:8.1f} µs", flush=True)

    def of(self, engine, clients, peer):
        """By round."""
        return {r["round"]: r for r in self.rows
                if (r["engine"], r["clients"], r["peer"]) == (engine, clients, peer)}

    def pairs(self, engine, clients, other):
        """`dibs serve` and another, of the same round."""
        ours, theirs = self.of(engine, clients, "serve"), self.of(engine, clients, other)
        return [(ours[n], theirs[n]) for n in ours if n in theirs]


def ranged(values, digits=2):
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})" if values else "–"


def percent(rows, key):
    values = [r[key] for r in rows if key in r]
    return f"{100 * median(values):.0f} %" if values else "–"


def table(c, engine):
    yield from ("", f"## {engine}", "",
                "| clients | | pairs/s (spread) | p50 µs | p99 µs | serve ÷ it, pairs/s | serve − it, p50 µs | server busy | load busy |",
                "|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for clients in c.options.clients:
        for peer in PEERS:
            rows = list(c.of(engine, clients, peer).values())
            if not rows:
                continue
            rates, both = [r["rate"] for r in rows], c.pairs(engine, clients, peer) if peer != "serve" else []
            yield (f"| {clients} | {peer} | {show(median(rates))} ({spread(rates)}) | {show(median([r['p50_us'] for r in rows]))} "
                   f"| {show(median([r['p99_us'] for r in rows]))} | {ranged([a['rate'] / b['rate'] for a, b in both])} "
                   f"| {ranged([a['p50_us'] - b['p50_us'] for a, b in both], 0)} "
                   f"| {percent(rows, 'server_busy')} | {percent(rows, 'client_busy')} |")


def goals(c):
    yield from ("", "## Goals", "", "| engine | what | median (range) | goal | |", "|---|---|---:|---:|---|")
    for engine in c.options.engines:
        added = [a["p50_us"] - b["p50_us"] for a, b in c.pairs(engine, 1, "library")]
        if added:
            yield (f"| {engine} | added to the library's p50 of a pair, 1 client, µs | {ranged(added, 0)} | ≤ {ADDED_GOAL_US} "
                   f"| {verdict(median(added) <= ADDED_GOAL_US)} |")
    for clients in c.options.clients:
        ratios = [a["rate"] / b["rate"] for a, b in c.pairs("memory", clients, "nginx")]
        if ratios:
            yield (f"| memory | requests/s ÷ nginx's, {clients} clients | {ranged(ratios)} | ≥ {NGINX_GOAL} "
                   f"| {verdict(median(ratios) >= NGINX_GOAL)} |")


def markdown(c, machine):
    lines = ["# dibs serve beside the library and nginx", "",
             f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, load "
             f"{machine['load']:.1f} at the start. {c.options.rounds} rounds of {c.options.seconds:g} s, in turn; medians; ratios and "
             "differences within a round. A pair is two requests; every client has a lock of its own."]
    if machine["load"] > 0.5:
        lines += ["", "**The machine was not idle: take the figures as doubtful.**"]
    for engine in c.options.engines:
        lines += table(c, engine)
    lines += goals(c)
    if c.failures:
        lines += ["", "## Failures", ""] + [f"- {f}" for f in c.failures]
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="dibs-bench-serve-"))
    where = servers.machine()
    c = Comparison(options, scratch)
    with c.stores:
        c.everything()
    text = markdown(c, where)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = "serve-" + time.strftime("%Y%m%d-%H%M%S")
    (options.out / f"{stem}.md").write_text(text)
    (options.out / f"{stem}.json").write_text(
        json.dumps({"machine": where, "failures": c.failures, "rows": c.rows}, indent=1) + "\n")
    print("\n" + text)
    print(f"written: {options.out}/{stem}.md and .json")
    return 1 if c.failures or not c.rows else 0


if __name__ == "__main__":
    sys.exit(main())
