"""Scenario g: what one run of the command costs, beside the command that people use now.

`dibs run NAME -- true` on SQLite beside `flock FILE true`, and on etcd beside `etcdctl lock NAME true`, in turn. Then
four at a time run a script that fails if another is inside, or if its fence is not above the last one."""
import os
import shutil
import subprocess
import time

TURNS = {"sqlite": 40, "etcd": 10}
RIVALS, RIVAL_TURNS = 4, 5
ALONE = ('set -C; { : >"$0/inside"; } 2>/dev/null || exit 9; last=$(cat "$0/fence"); [ "$DIBS_FENCE" -gt "$last" ] || exit 8; '
         'echo "$DIBS_FENCE" >|"$0/fence"; rm "$0/inside"')


def commands(store, dibs, folder):
    """The title, kind and words of each."""
    run = [dibs, "run", "--url", store.url, "bench:command", "--"]
    if store.engine == "sqlite":
        yield "flock true", "raw", [shutil.which("flock"), f"{folder}/file", "true"]
    elif shutil.which("etcdctl"):
        yield "etcdctl lock", "peer", [shutil.which("etcdctl"), "lock", "bench", "true"]
    yield "dibs run true", "dibs", [*run, "true"]


def once(words, env):
    """Seconds, and whether it failed."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    begin = time.monotonic()
    pid = os.posix_spawn(words[0], words, env, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    return time.monotonic() - begin, status != 0


def violations(store, dibs, folder):
    (folder / "fence").write_text("0\n")
    script = ["sh", "-c", ALONE, str(folder)]
    wrong = 0
    for _ in range(RIVAL_TURNS):
        rivals = [subprocess.Popen([dibs, "run", "--url", store.url, "--wait", "30s", "bench:rivals", "--", *script])
                  for _ in range(RIVALS)]
        wrong += sum(rival.wait() != 0 for rival in rivals)
    return wrong


def measure(store, dibs, folder):
    """A row for each."""
    folder.mkdir()
    env = {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": f"127.0.0.1:{store.where.get('node_port')}"}
    turns = TURNS[store.engine]
    taken = {}
    every = list(commands(store, dibs, folder))
    for _ in range(turns):
        for title, _, words in every:
            taken.setdefault(title, []).append(once(words, env))
    for title, kind, _ in every:
        times = sorted(t for t, _ in taken[title])
        yield {"peer": title, "title": title, "name": title, "kind": kind, "scenario": "g", "shape": "each", "turns": turns,
               "rate": round(turns / sum(times), 1), "p50_us": round(times[turns // 2] * 1e6), "p99_us": round(times[-1] * 1e6),
               "most": turns, "least": turns, "errors": sum(failed for _, failed in taken[title]),
               "violations": violations(store, dibs, folder) if kind == "dibs" else 0}
