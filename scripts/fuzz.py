#!/usr/bin/env python3
"""Runs a fuzzer on its corpus, and keeps what it found. Used by tests/fuzz/test_fuzz.py and ./dev soak.

A corpus is tests/fuzz/corpus/NAME, text files of one input per line in base64: `seeds` covers the code, `found` are
inputs that failed once, each after a line `# what it was`.

  scripts/fuzz.py unpack NAME FOLDER   the inputs as files, as libFuzzer wants them
  scripts/fuzz.py pack NAME FOLDER     the files of FOLDER become the seeds: merge them first (-merge=1)
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CORPORA = pathlib.Path(__file__).resolve().parents[1] / "tests/fuzz/corpus"
LIMITS = ["-rss_limit_mb=2048", "-timeout=20", "-max_len=4096", "-print_final_stats=1"]


def inputs(name):
    for file in ("seeds", "found"):
        path = CORPORA / name / file
        for line in path.read_text().splitlines() if path.exists() else []:
            if line and not line.startswith("#"):
                yield base64.b64decode(line)


def unpack(name, folder):
    """How many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(inputs(name))
    for data in wanted:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return len(wanted)


def pack(name, folder):
    known = {path.read_bytes() for path in folder.iterdir()}
    (CORPORA / name).mkdir(parents=True, exist_ok=True)
    lines = sorted((base64.b64encode(data).decode() for data in known), key=lambda line: (len(line), line))
    (CORPORA / name / "seeds").write_text("".join(line + "\n" for line in lines))


def fuzzers(folder):
    return sorted(f for f in folder.glob("fuzz_*") if f.is_file() and os.access(f, os.X_OK))


def last(pattern, text):
    return (re.findall(pattern, text) or ["?"])[-1]


def run(program, seconds, keep, seed=0):
    """The corpus first, then new inputs, by chance or by `seed`. (passed, what to say); an input that fails is kept in
    the folder `keep`."""
    name = program.name.removeprefix("fuzz_")
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dibs-fuzz-") as folder:
        seeds = unpack(name, pathlib.Path(folder) / "corpus")
        before = set(keep.iterdir())
        done = subprocess.run([program.resolve(), f"-max_total_time={int(seconds)}", f"-seed={seed}", *LIMITS,
                               f"-artifact_prefix={keep.resolve()}/{name}-", "corpus"],
                              cwd=folder, capture_output=True, text=True, errors="replace")
    runs = last(r"number_of_executed_units: (\d+)", done.stderr)
    covered = last(r"cov: (\d+)", done.stderr)
    text = f"{program.name}: {seeds} seeds, {runs} runs, coverage {covered}"
    if done.returncode == 0 and seeds > 0:
        return True, text
    text += f", exit code {done.returncode}" if seeds else ", and no corpus"
    for path in sorted(set(keep.iterdir()) - before):
        text += f"\ninput, kept in {path}:\n{path.read_bytes().hex()}"
    said = [line for line in done.stderr.splitlines() if not line.startswith("#")]  # without what it learnt
    return False, text + "\n" + "\n".join(said[-60:])


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("unpack", "pack"):
        sys.exit(__doc__)
    {"unpack": unpack, "pack": pack}[sys.argv[1]](sys.argv[2], pathlib.Path(sys.argv[3]))


if __name__ == "__main__":
    main()
