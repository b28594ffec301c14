"""Who is measured, on which engine and in which scenarios.

Raw is the engine's own client library and nothing but the calls that a lock cannot do without. Peers are what Debian
packages and npm have; one that is not installed is left out, and the page says so. dibs runs in two shapes: all
workers are threads with one handle (shared), or processes with a handle each. All programs understand the same
arguments and print the same line of JSON."""
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else shutil.which("python3")


@dataclasses.dataclass(frozen=True)
class Entrant:
    id: str
    kind: str  # raw, peer or dibs
    scenarios: str
    runner: str = "bench"
    shape: str = "each"
    poor: str = ""  # scenarios that the first round alone is enough for: it polls, and is slow

    @property
    def name(self):
        return {"dibs": f"{self.id} {self.shape}", "before": f"before {self.shape}"}.get(self.kind, self.id)


def raw(name, scenarios):
    return Entrant(name, "raw", scenarios)


DIBS = [Entrant("dibs", "dibs", "bcd", shape="shared"), Entrant("dibs", "dibs", "abcd")]
BY_ENGINE = {
    "sqlite": [raw("sqlite-row", "abcd"), raw("flock", "abcd")],
    "redis": [raw("redis-set", "ab"), raw("redis-blpop", "cd")],
    "redlock": [raw("redlock-set", "abcd")],
    "postgresql": [raw("pg-row", "ab"), raw("pg-advisory", "abcd")],
    "mysql": [raw("mysql-row", "ab"), raw("mysql-getlock", "abcd")],
    "zookeeper": [raw("zookeeper-node", "ab"), raw("zookeeper-line", "cd")],
    "etcd": [raw("etcd-put", "ab"), raw("etcd-lock", "abcd")],
    "memory": [],
}


def of(engine, scenario):
    shapes = DIBS[:1] if engine == "memory" else DIBS
    return [e for e in [*BY_ENGINE[engine], *shapes] if scenario in e.scenarios]


def before(entrant):
    """dibs of an older build, in the same shape."""
    return dataclasses.replace(entrant, kind="before")


def operation(name):
    return Entrant(name, "dibs", "f")
