#!/usr/bin/env bash
# The benchmark: every scenario runs for a moment on every engine, and what it checks while it measures holds. Speed is
# not tested.
#   test_bench.sh BUILD
set -u
build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

. "$source/tests/support/tap.sh"

"$source/bench/run.py" --smoke --bench "$build/bench/dibs-bench" --dibs "$build/src/cli/dibs" --out "$scratch/out" >"$scratch/log" 2>&1
code=$?
if grep -q '^bench: .* is not installed$' "$scratch/log" && [ -z "${DIBS_TEST_REQUIRE_SERVERS:-}" ]; then
    printf '1..0 # SKIP %s\n' "$(grep '^bench: ' "$scratch/log")"
    exit 0
fi

ran() {
    [ "$code" -eq 0 ] && ! grep -q '^FAILED .* dibs' "$scratch/log"
}

# Each engine has rows of a to f, and the pictures are whole.
wrote() {
    python3 - "$scratch/out" <<'PYTHON'
import json, pathlib, sys, xml.dom.minidom
out = pathlib.Path(sys.argv[1])
rows = json.loads((out / "results.json").read_text())["rows"]
seen = {(r["engine"], r["scenario"]) for r in rows if r["kind"] == "dibs" and not r["failed"]}
wanted = {(e, s) for e in ("sqlite", "redis", "redlock", "postgresql", "mysql", "zookeeper", "etcd") for s in ("a", "b", "c", "d", "wait", "hold", "f")}
wanted = wanted - {("redlock", "f")} | {("sqlite", "g"), ("etcd", "g")}
assert wanted <= seen, wanted - seen
assert {r["shape"] for r in rows if r["scenario"] == "c" and r["kind"] == "dibs"} == {"shared", "each"}
for name in ("handovers.svg", "growth.svg"):
    xml.dom.minidom.parse(str(out / name))
assert "## etcd" in (out / "README.md").read_text()
PYTHON
}

log=$scratch/log
ran
report $? "every scenario runs on every engine, and nothing that it checks is violated"
log=
wrote
report $? "the figures have all scenarios and both shapes, and the pictures are well-formed"
printf '1..%d\n' "$count"
exit "$failed"
