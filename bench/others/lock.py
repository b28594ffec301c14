"""Locks of Python libraries, measured as dibs-bench measures: lock.py SCENARIO PEER [key=value]...

Every worker is a process with its own client. They share who is inside the lock, so that exclusion is checked while
it is measured. The arguments, the two steps and the line of JSON are those of dibs-bench."""
import json
import logging
import multiprocessing
import os
import socket
import sys
import time
import traceback
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
GIVE_UP = 20  # failed calls


def redis_py(plan, key, worker):
    import redis
    client = redis.Redis(port=int(plan["port"]))
    lock = client.lock(key, timeout=10, thread_local=False)
    return lock.acquire, lock.release, client.close


def kazoo(plan, key, worker):
    from kazoo.client import KazooClient
    client = KazooClient("127.0.0.1:" + plan["node_port"], timeout=10)
    client.start()
    lock = client.Lock("/kazoo/" + key, str(worker))
    return lock.acquire, lock.release, client.stop


TOOZ = {
    "redis": "redis://127.0.0.1:{port}",
    "zookeeper": "zookeeper://127.0.0.1:{node_port}",
    "mysql": "mysql://root@127.0.0.1:{sql_port}/bench",
    "postgresql": "postgresql://postgres@127.0.0.1:{sql_port}/bench",
    "file": "file://{folder}/tooz",
}


def tooz(driver):
    def make(plan, key, worker):
        from tooz import coordination
        coordinator = coordination.get_coordinator(TOOZ[driver].format_map(plan), b"%d-%d" % (worker, os.getpid()))
        coordinator.start()
        lock = coordinator.get_lock(key.encode())
        return lock.acquire, lock.release, coordinator.stop
    return make


PEERS = {"redis-py": ("redis-py Lock", redis_py), "kazoo": ("kazoo Lock", kazoo),
         **{f"tooz-{name}": (f"tooz {name}", tooz(name)) for name in TOOZ}}


class Stock:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("rb")

    def read(self):
        self.socket.sendall(b"GET stock\r\n")
        self.lines.readline()
        return int(self.lines.readline())

    def write(self, value):
        self.socket.sendall(b"SET stock %d\r\n" % value)
        self.lines.readline()


class Run:
    def __init__(self, scenario, peer, plan):
        self.scenario, self.peer, self.plan = scenario, peer, plan
        self.title, self.make = PEERS[peer]
        self.workers, self.seconds = int(plan["workers"]), float(plan["seconds"])
        context = multiprocessing.get_context("fork")
        self.inside = context.RawArray("l", self.workers)  # one lock: the first alone
        self.owner = context.RawArray("l", 2)  # who had the lock last, and how often that changed
        self.clock = context.RawValue("d", 0)
        self.barrier = context.Barrier(self.workers + 1)
        self.results = context.Queue()
        self.spawn = lambda i: context.Process(target=self.work, args=(i,), daemon=True)

    def one_lock(self):
        return self.scenario in "cd"

    def open(self, worker):
        key = "bench-%s-%d" % (self.scenario, 0 if self.one_lock() else worker)
        acquire, release, close = self.make(self.plan, key, worker)
        for _ in range({"a": 20, "b": 3}.get(self.scenario, 0)):
            acquire()
            release()
        return acquire, release, close, Stock(self.plan["stock_port"]) if self.scenario == "d" else None

    def work(self, worker):
        result = {"turns": 0, "errors": 0, "violations": 0, "times": [], "last": 0, "why": "", "cpu": 0}
        try:
            client = self.open(worker)
        except Exception:
            client, result["errors"], result["why"] = None, 1, traceback.format_exc(limit=-2)
        self.barrier.wait()
        self.barrier.wait()
        before = time.process_time()
        if client:
            self.turns(worker, *client, result)
        result["cpu"] = time.process_time() - before
        self.results.put(result)
        self.results.close()
        self.results.join_thread()
        os._exit(0)

    def turns(self, worker, acquire, release, _, stock, result):
        end = self.clock.value + self.seconds
        limit = int(self.plan["rounds"]) if stock else 1 << 60
        slot = 0 if self.one_lock() else worker
        while result["turns"] < limit and result["errors"] < GIVE_UP and time.monotonic() < end:
            asked = time.monotonic()
            try:
                if acquire() is False:
                    raise RuntimeError("acquire returned False")
                had = time.monotonic()
                result["violations"] += self.go_in(slot, worker, had < end)
                if stock:
                    stock.write(stock.read() - 1)
                result["violations"] += self.go_out(slot, worker)
                release()
            except Exception:
                result["errors"] += 1
                result["why"] = traceback.format_exc(limit=-2)
                continue
            done = time.monotonic()
            if done > end and not stock:
                return
            result["turns"] += 1
            result["last"] = done
            result["times"].append((had if self.one_lock() else done) - asked)

    def go_in(self, slot, worker, counted):
        wrong = self.inside[slot] != 0
        self.inside[slot] = worker + 1
        if counted and self.owner[0] != worker + 1:  # only the holder writes
            self.owner[0] = worker + 1
            self.owner[1] += 1
        return wrong

    def go_out(self, slot, worker):
        wrong = self.inside[slot] != worker + 1
        self.inside[slot] = 0
        return wrong

    def step(self, name):
        if self.plan.get("steps") == "1":
            print(name, flush=True)
            sys.stdin.readline()

    def go(self):
        all_workers = [self.spawn(i) for i in range(self.workers)]
        for process in all_workers:
            process.start()
        self.barrier.wait(60)
        self.step("ready")
        if self.scenario == "d":
            Stock(self.plan["stock_port"]).write(self.workers * int(self.plan["rounds"]))
        self.clock.value = time.monotonic()
        self.barrier.wait(60)
        results = [self.results.get(timeout=self.seconds + 60) for _ in all_workers]
        self.step("finished")
        self.report(results)

    def report(self, results):
        times = sorted(t for r in results for t in r["times"])
        turns = [r["turns"] for r in results]
        seconds = max(max(r["last"] for r in results) - self.clock.value, 0.001) if self.scenario == "d" else self.seconds
        operations = self.owner[1] if self.scenario == "c" else sum(turns)
        at = lambda share: round(times[int((len(times) - 1) * share)] * 1e6, 1) if times else 0
        row = {"peer": self.peer, "title": self.title, "scenario": self.scenario, "shape": "each", "workers": self.workers,
               "turns": sum(turns), "changes": self.owner[1], "seconds": round(seconds, 3),
               "rate": round(operations / seconds, 1), "p50_us": at(.5), "p99_us": at(.99), "most": max(turns),
               "least": min(turns), "cpu_us": round(sum(r["cpu"] for r in results) * 1e6 / max(operations, 1), 1),
               "errors": sum(r["errors"] for r in results), "violations": sum(r["violations"] for r in results)}
        if self.scenario == "d":
            left = Stock(self.plan["stock_port"]).read()
            row.update(stock_left=left, complete=left == 0,
                       exact=left == self.workers * int(self.plan["rounds"]) - sum(turns))
        print(*{r["why"] for r in results if r["why"]}, sep="\n", file=sys.stderr)
        print(json.dumps(row), flush=True)
        os._exit(1 if row["errors"] or row["violations"] or not row.get("exact", True) or not row["turns"] else 0)


if __name__ == "__main__":
    Run(sys.argv[1], sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:])).go()
