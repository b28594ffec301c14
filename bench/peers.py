"""Who is measured, on which engine and in which scenarios.

Raw is the engine's own client library and nothing but the calls that a lock cannot do without. Peers are what Debian
packages and npm have; one that is not installed is left out, and the page says so. dibs runs in two shapes: all
workers are threads with one handle (shared), or processes with a handle each. All programs understand the same
arguments and print the same line of JSON."""
import dataclasses
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
OTHERS = HERE / "others"
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else shutil.which("python3")


@dataclasses.dataclass(frozen=True)
class Entrant:
    id: str
    kind: str  # raw, peer or dibs
    scenarios: str
    runner: str = "bench"
    shape: str = "each"
    needs: str = ""  # python: the module; node: the package

    @property
    def name(self):
        return {"dibs": f"{self.id} {self.shape}", "before": f"before {self.shape}"}.get(self.kind, self.id)


def raw(name, scenarios):
    return Entrant(name, "raw", scenarios)


def python(name, module, scenarios="abcd"):
    return Entrant(name, "peer", scenarios, "python", needs=module)


def node(name, scenarios="abcd"):
    return Entrant(name, "peer", scenarios, "node", needs=name)


def go(name):
    return Entrant(name, "peer", "abcd", "go")


DIBS = [Entrant("dibs", "dibs", "bcd", shape="shared"), Entrant("dibs", "dibs", "abcd")]
BY_ENGINE = {
    "sqlite": [raw("sqlite-row", "abcd"), raw("flock", "abcd"), python("tooz-file", "tooz")],
    "redis": [raw("redis-set", "ab"), raw("redis-blpop", "cd"), python("redis-py", "redis"), python("tooz-redis", "tooz"),
              node("redlock")],
    "redlock": [raw("redlock-set", "abcd"), node("redlock")],
    "postgresql": [raw("pg-row", "ab"), raw("pg-advisory", "abcd"), python("tooz-postgresql", "tooz"),
                   node("advisory-lock")],
    "mysql": [raw("mysql-row", "ab"), raw("mysql-getlock", "abcd"), python("tooz-mysql", "tooz")],
    "zookeeper": [raw("zookeeper-node", "ab"), raw("zookeeper-line", "cd"), python("kazoo", "kazoo"), go("go-zookeeper")],
    "etcd": [raw("etcd-put", "ab"), raw("etcd-lock", "abcd"), go("etcd-go")],
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


class Programs:
    """The commands that run an entrant, with those of other languages made ready in `folder`."""

    def __init__(self, bench, before, folder):
        self.bench, self.before, self.folder = bench, before, pathlib.Path(folder)
        self.missing = []

    def prepare(self, entrants):
        """Returns those that can run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        runners = {e.runner for e in entrants}
        if "go" in runners:
            self.build_go()
        if "node" in runners:
            self.install_npm()
        able = {e for e in entrants if self.is_there(e)}
        self.missing = sorted({e.id for e in entrants} - {e.id for e in able})
        return able

    def build_go(self):
        env = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(self.folder / "cache")}
        if shutil.which("go"):
            subprocess.run(["go", "build", "-o", self.folder / "lock-go", OTHERS / "lock.go"], env=env)

    def install_npm(self):
        shutil.copy(OTHERS / "package.json", self.folder)
        if shutil.which("npm") and not (self.folder / "node_modules/redlock").exists():
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=self.folder)

    def is_there(self, e):
        if e.runner == "python":
            done = subprocess.run([PYTHON, "-c", f"import {e.needs}"], stderr=subprocess.DEVNULL)
            return done.returncode == 0
        if e.runner == "node":
            return bool(shutil.which("node")) and (self.folder / "node_modules" / e.needs).exists()
        return e.runner == "bench" or (self.folder / "lock-go").exists()

    def command(self, entrant):
        """Up to the scenario."""
        if entrant.kind == "before":
            return [self.before]
        return {"bench": [self.bench], "python": [PYTHON, OTHERS / "lock.py"], "go": [self.folder / "lock-go"],
                "node": ["node", OTHERS / "lock.js"]}[entrant.runner]
