"""Every fuzzer, on its corpus and then for a while on inputs of its own making, two at a time. The random seed is fixed,
so that a change is not rejected for an unrelated find: ./dev soak uses new seeds. The fuzzers are built first, in a build
folder of their own (scripts/build.sh, build_fuzzers). DIBS_TEST_FUZZ_SECONDS: time for each (default 20)."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import fuzz  # noqa: E402

BUILD = '. scripts/packages.sh && . scripts/build.sh && build_fuzzers "$1"'


def comment(text):
    print("\n".join("# " + line for line in text.splitlines()), flush=True)


def build(folder):
    done = subprocess.run(["bash", "-c", BUILD, "bash", folder], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        comment("\n".join((done.stdout + done.stderr).splitlines()[-60:]))
    return done.returncode == 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", type=pathlib.Path, required=True, help="where the fuzzers are built")
    options = p.parse_args()
    seconds = int(os.environ.get("DIBS_TEST_FUZZ_SECONDS", "20"))
    built = build(options.build)
    print(f"{'' if built else 'not '}ok 1 - the fuzzers build", flush=True)
    programs = fuzz.fuzzers(options.build / "tests/fuzz") if built else []
    good = built and len(programs) > 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda f: fuzz.run(f, seconds, options.build / "failed", seed=1), programs)
        for number, (program, (passed, text)) in enumerate(zip(programs, outcomes), 2):
            comment(text)
            print(f"{'' if passed else 'not '}ok {number} - {program.name}", flush=True)
            good = good and passed
    print(f"1..{1 + len(programs)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
