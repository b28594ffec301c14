#!/usr/bin/env python3
"""What `dibs gateway` costs: bench/gateway.py [--engines sqlite,redis] [--rounds 5] [--seconds 3]

wrk asks one application, nginx with one worker that answers a constant: directly, through nginx as a plain proxy with one worker and kept
connections, through `dibs gateway` on a route that is not guarded, and, with POST, on a guarded route with a new key for each request. They take turns
in one run, a round begins with another of them each time, and ratios are taken within a round. Servers are private, and new for each run.

wrk, the proxy and the application share the machine: besides rates, the page has the processor time of the proxy for each request."""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import run
import serve
import servers
from summary import median, show, spread, verdict

ENGINES = ["sqlite", "redis"]
RATE_GOAL = 0.75  # of nginx's requests a second, unguarded
APPLICATION = "default_type application/json; location / { return 200 '{\"id\": 17, \"state\": \"paid\"}'; }"
PROXY = "location / { proxy_pass http://application; proxy_http_version 1.1; proxy_set_header Connection ''; }"
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {upstream}
  server {{ listen 127.0.0.1:{port}; {what} }}
}}
"""
# The key is new for each request; GUARDED 0 sends the same request to a route that is not guarded.
SCRIPT = """
local n, run = 0, "%s"
request = function()
  n = n + 1
  local headers = {["Content-Type"] = "application/json"}
  if %d == 1 then headers["Idempotency-Key"] = '"' .. run .. "-" .. n .. '"' end
  return wrk.format("POST", "%s", headers, '{"amount": 100}')
end
"""
ROUTES = {"routes": [{"path": "/orders", "key": "required", "caller": "none", "keep": "5m"}]}
TICKS = os.sysconf("SC_CLK_TCK")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engines", default=",".join(ENGINES))
    p.add_argument("--clients", default="1,32")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=int, default=3, help="how long each run counts")
    p.add_argument("--build", type=pathlib.Path, default=run.HERE.parent / "build", help="a build")
    p.add_argument("--out", type=pathlib.Path, default=run.HERE / "results", help="where Markdown and JSON go")
    options = p.parse_args()
    options.engines = run.choices(options.engines.split(","), ENGINES, "engine")
    options.clients = [int(n) for n in options.clients.split(",")]
    if options.rounds < 1 or options.seconds < 1 or min(options.clients) < 1:
        raise SystemExit("bench: at least one round of at least a second, with at least one client")
    for program in ("nginx", "wrk"):
        if not shutil.which(program):
            raise SystemExit(f"bench: {program} is missing: apt-get install {program}")
    return options


@contextlib.contextmanager
def nginx(folder, what, upstream=""):
    """(its port, its process)"""
    port = serve.free_port()
    folder.mkdir(exist_ok=True)
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, what=what, upstream=upstream))
    with serve.ending(subprocess.Popen(["nginx", "-p", folder, "-e", folder / "error.log", "-c", folder / "conf"])) as process:
        serve.wait_for_port(port)
        yield port, process


@contextlib.contextmanager
def gateway(build, folder, application, url):
    (folder / "gateway.json").write_text(json.dumps(ROUTES))
    command = [build / "src/cli/dibs", "gateway", "--upstream", f"http://127.0.0.1:{application}", "--listen", "127.0.0.1:0",
               "--config", folder / "gateway.json", "--url", url]
    with serve.ending(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) as process:
        line = process.stderr.readline()
        if not (said := re.search(r" at http://127.0.0.1:(\d+)", line)):
            raise SystemExit(f"bench: dibs gateway did not start: {line}")
        yield int(said[1]), process


def cpu(process):
    with open(f"/proc/{process.pid}/stat") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS


UNITS = {"us": 1, "ms": 1000, "s": 1000000}


class Comparison:
    def __init__(self, options, scratch, application):
        self.options, self.scratch, self.application = options, scratch, application
        self.stores = servers.Servers(scratch)
        self.rows, self.failures, self.count = [], [], 0

    def wrk(self, port, process, clients, script=None):
        command = ["wrk", "-t1", f"-c{clients}", f"-d{self.options.seconds}s", "--latency"]
        if script:
            (self.scratch / "script.lua").write_text(script)
            command += ["-s", self.scratch / "script.lua"]
        before = cpu(process)
        text = subprocess.run([*command, f"http://127.0.0.1:{port}/a"], capture_output=True, text=True, check=True,
                              timeout=run.TIMEOUT).stdout
        used = cpu(process) - before
        if bad := re.search(r"Non-2xx.*|Socket errors.*", text):
            raise RuntimeError(bad[0])
        times = {p: float(v) * UNITS[u] for p, v, u in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)\b", text)}
        requests = int(re.search(r"(\d+) requests in", text)[1])
        return {"rate": float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]), "p50_us": times["50"], "p99_us": times["99"],
                "cpu_us": used * 1e6 / max(requests, 1)}

    def script(self, guarded):
        self.count += 1
        return SCRIPT % (f"{os.getpid()}-{self.count}", guarded, "/orders" if guarded else "/plain")

    def store(self, engine):
        return self.stores.store(engine).url

    def measure(self, peer, clients):
        if peer == "application":
            return self.wrk(*self.application, clients)
        if peer == "nginx":
            upstream = f"upstream application {{ server 127.0.0.1:{self.application[0]}; keepalive 100; keepalive_requests 1000000000; }}"
            with nginx(self.scratch / "proxy", PROXY, upstream) as server:
                return self.wrk(*server, clients)
        what, _, engine = peer.partition(" ")
        with gateway(self.options.build, self.scratch, self.application[0], self.store(engine) if engine else "memory:") as server:
            return self.wrk(*server, clients, None if what == "gateway" else self.script(what == "guarded"))

    def peers(self):
        return ["application", "nginx", "gateway", "POST", *(f"guarded {engine}" for engine in self.options.engines)]

    def everything(self):
        peers = self.peers()
        for number in range(1, self.options.rounds + 1):
            for clients in self.options.clients:
                turn = number % len(peers)
                for peer in peers[turn:] + peers[:turn]:
                    self.one(number, clients, peer)

    def one(self, number, clients, peer):
        try:
            row = self.measure(peer, clients)
        except (RuntimeError, ValueError, KeyError, subprocess.SubprocessError) as e:
            self.failures.append(f"{peer}, {clients} clients: {e}")
            print("FAILED", self.failures[-1], flush=True)
            return
        self.rows.append({"round": number, "clients": clients, "peer": peer, **row})
        print(f"{number} {clients:3} {peer:16} {row['rate']:10,.0f} requests/s  p50 {row['p50_us']:8.0f} µs  cpu {row['cpu_us']:6.1f} µs", flush=True)

    def of(self, clients, peer):
        return {r["round"]: r for r in self.rows if (r["clients"], r["peer"]) == (clients, peer)}

    def pairs(self, clients, one, other):
        """Of the same round."""
        a, b = self.of(clients, one), self.of(clients, other)
        return [(a[n], b[n]) for n in a if n in b]


def table(c, clients):
    yield from ("", f"## {clients} connections", "", "| | requests/s (spread) | p50 µs | p99 µs | processor µs per request |", "|---|---:|---:|---:|---:|")
    for peer in c.peers():
        rows = list(c.of(clients, peer).values())
        if rows:
            rates = [r["rate"] for r in rows]
            yield (f"| {peer} | {show(median(rates))} ({spread(rates)}) | {show(median([r['p50_us'] for r in rows]))} "
                   f"| {show(median([r['p99_us'] for r in rows]))} | {median([r['cpu_us'] for r in rows]):.1f} |")


def goals(c):
    yield from ("", "## Ratios, within a round", "", "| connections | what | median (range) | goal | |", "|---:|---|---:|---:|---|")
    for clients in c.options.clients:
        both = c.pairs(clients, "gateway", "nginx")
        for key, name in (("rate", "requests/s"), ("p99_us", "p99"), ("cpu_us", "processor time")):
            ratios = [a[key] / b[key] for a, b in both if b[key]]
            if ratios:
                goal = f"≥ {RATE_GOAL} | {verdict(median(ratios) >= RATE_GOAL)}" if key == "rate" else "| "
                yield f"| {clients} | unguarded ÷ nginx, {name} | {serve.ranged(ratios)} | {goal} |"
        for engine in c.options.engines:
            added = [a["p50_us"] - b["p50_us"] for a, b in c.pairs(clients, f"guarded {engine}", "POST")]
            if added:
                yield f"| {clients} | guarded on {engine} − the same POST unguarded, p50 µs | {serve.ranged(added, 0)} | | |"


def markdown(c, machine):
    lines = ["# dibs gateway beside nginx", "",
             f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, load "
             f"{machine['load']:.1f} at the start. {c.options.rounds} rounds of {c.options.seconds} s, in turn; medians; ratios and differences "
             "within a round."]
    if machine["load"] > 0.5:
        lines += ["", "**The machine was not idle: take the figures as doubtful.**"]
    for clients in c.options.clients:
        lines += table(c, clients)
    lines += goals(c)
    if c.failures:
        lines += ["", "## Failures", ""] + [f"- {f}" for f in c.failures]
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="dibs-bench-gateway-"))
    where = servers.machine()
    with nginx(scratch / "application", APPLICATION) as application:
        c = Comparison(options, scratch, application)
        with c.stores:
            c.everything()
    text = markdown(c, where)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = "gateway-" + time.strftime("%Y%m%d-%H%M%S")
    (options.out / f"{stem}.md").write_text(text)
    (options.out / f"{stem}.json").write_text(json.dumps({"machine": where, "failures": c.failures, "rows": c.rows}, indent=1) + "\n")
    print("\n" + text)
    print(f"written: {options.out}/{stem}.md and .json")
    return 1 if c.failures or not c.rows else 0


if __name__ == "__main__":
    sys.exit(main())
