"""The private servers that are measured: on free loopback ports, in scratch folders, ended with the run."""
import contextlib
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

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests/support"))
sys.dont_write_bytecode = True
import databases  # noqa: E402: it lies beside the tests, which start the same servers
import ensembles  # noqa: E402

ENGINES = ["sqlite", "redis", "redlock", "postgresql", "mysql", "zookeeper", "etcd", "memory"]
NODES = 5  # of Redlock


class Redis:
    """A private redis-server that keeps nothing."""

    def __init__(self, folder, *extra):
        folder.mkdir()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
             "--appendonly", "no", "--maxclients", "4000", "--repl-diskless-sync-delay", "0", "--logfile", str(folder / "log"), *extra])
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
        """That it executed, those that scripts made included."""
        counted = re.finditer(r"cmdstat_(\S+?):calls=(\d+)", self.ask("INFO commandstats"))
        return sum(int(m[2]) for m in counted if m[1] not in ("info", "flushall"))

    def cpu(self):
        """Seconds that the server itself has used."""
        return sum(float(x) for x in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", self.ask("INFO cpu")))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def transactions(server):
    """Of the clients of the database `bench`, by the server's own counters."""
    return int(server.ask("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'")[0])


def statements(server):
    """Of all clients, our own question included."""
    return int(server.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0].split("\t")[1])


def packets(server):
    """That clients sent to ZooKeeper, pings and our own question included."""
    return int(server.counters()["zk_packets_received"])


def calls(server):
    """That clients made of etcd: calls and messages on the streams for watches and leases."""
    return int(sum(v for k, v in server.counters().items() if k.startswith("grpc_server_msg_received_total")))


COUNTERS = {"postgresql": transactions, "mysql": statements, "zookeeper": packets, "etcd": calls}
DROP = {"postgresql": "DROP DATABASE IF EXISTS bench WITH (FORCE)", "mysql": "DROP DATABASE IF EXISTS bench"}
# Beside dibs run many processes with a connection or several each.
EXTRA = {"postgresql": ["-c", "max_connections=1200"], "mysql": ["--max-connections=1200"]}


class Store:
    """A clean engine: the URL for dibs, what the other programs need to get there, and its counters."""

    def __init__(self, engine, url, servers=(), **where):
        self.engine, self.url, self.servers, self.where = engine, url, list(servers), where

    def arguments(self):
        return [f"url={self.url}", *(f"{key}={value}" for key, value in self.where.items())]

    def commands(self):
        return sum(s.commands() for s in self.servers) if self.servers else None

    def cpu(self):
        return sum(s.cpu() for s in self.servers) if self.servers else None


class Servers:
    def __init__(self, scratch):
        self.scratch = pathlib.Path(scratch)
        self.running = {}
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.running.values():
            server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def redis(self, name):
        if name not in self.running:
            self.running[name] = Redis(self.scratch / f"redis-{name}")
        return self.running[name]

    def other(self, engine):
        """One that syncs what it commits, as a lock needs it."""
        if engine not in self.running:
            try:
                kind = {**databases.KINDS, **ensembles.KINDS}[engine]
                server = kind(*EXTRA[engine]) if engine in EXTRA else kind()
            except databases.Missing as e:
                raise SystemExit(f"bench: {e}")
            server.commands = lambda: COUNTERS[engine](server)
            self.running[engine] = server
        return self.running[engine]

    def store(self, engine):
        self.count += 1
        if engine == "sqlite":
            folder = tempfile.mkdtemp(prefix="sqlite-", dir=self.scratch)
            return Store(engine, f"sqlite://{folder}/dibs.db", folder=folder)
        if engine == "redis":
            server = self.redis("locks")
            server.ask("FLUSHALL")
            return Store(engine, f"redis://127.0.0.1:{server.port}", [server], port=server.port)
        if engine == "redlock":
            return self.store_redlock()
        if engine in databases.KINDS:
            server = self.other(engine)
            server.ask(DROP[engine])
            return Store(engine, server.make_database("bench"), [server], sql_port=server.port)
        if engine in ensembles.KINDS:
            server = self.other(engine)
            url = server.url(f"bench{self.count}") + "?session=30s"
            return Store(engine, url, [server], node_port=server.port)
        return Store(engine, "memory:")

    def store_redlock(self):
        """The nodes are new, and vouched for."""
        nodes = [self.redis(f"node{i}") for i in range(NODES)]
        for node in nodes:
            node.ask("FLUSHALL")
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        return Store("redlock", f"redlock://{hosts}?guard=off", nodes, port=nodes[0].port,
                     ports=",".join(str(node.port) for node in nodes))


VERSIONS = {"redis": ["redis-server", "--version"], "postgresql": ["psql", "--version"], "mariadb": ["mariadbd", "--version"],
            "etcd": ["etcd", "--version"], "sqlite": ["sqlite3", "--version"],
            "zookeeper": ["dpkg-query", "-W", "-f", "${Version}", "libzookeeper-java"]}


def version_of(command):
    if not shutil.which(command[0]):
        return "?"
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"\d+\.[\d.]+", done.stdout)
    return found[0].rstrip(".") if found else "?"


def machine():
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return {"cores": os.cpu_count(), "cpu": model[1] if model else "?", "kernel": os.uname().release,
            "load": round(os.getloadavg()[0], 1), "date": time.strftime("%Y-%m-%d %H:%M"),
            "version": commit.stdout.strip() or "?", "servers": {n: version_of(c) for n, c in VERSIONS.items()}}
