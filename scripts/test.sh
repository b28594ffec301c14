#!/usr/bin/env bash
# ./dev test: the format, the tests of the release build, and the C tests again under sanitizers. Goes on after
# a failure, so that one run tells everything. The last line is the sum: N passed, N failed, N skipped.
#   test.sh            everything
#   test.sh --quick    the format and what the meson.build files of the tests call quick; nothing else is built
#   test.sh NAME...    these programs, without the format and the sanitizers
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

. scripts/packages.sh
. scripts/build.sh

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
python=$(find_python)
mkdir -p build
tally=build/tally.json
log=build/test-build.log
failed=0

# One step that is no test program counts as one test.
count_step() {
    "$python" - "$tally" "$1" "$2" <<'PYTHON'
import json, os, sys
path, passed, failed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
old = json.load(open(path)) if os.path.exists(path) else [0, 0, 0]
json.dump([old[0] + passed, old[1] + failed, old[2]], open(path, "w"))
PYTHON
}

headline() {
    printf '\n== %s (at %d s)\n' "$1" "$SECONDS"
}

# step NAME COMMAND...: its output is shown when it fails.
step() {
    local name=$1
    shift
    if "$@" >"$log" 2>&1; then
        printf 'ok     %s\n' "$name"
        count_step 1 0
    else
        failed=1
        printf 'FAILED %s\n' "$name"
        tail -n 80 "$log" | sed 's/^/    /'
        count_step 0 1
        return 1
    fi
}

# build_release [TARGET]: everything, or what TARGET stands for.
build_release() {
    configure_in build -Dbuildtype=release -Dtests=true -Dbench=true -Dwerror=true && ninja -C build "$@"
}

# Its closing line would be a sum of what ran so far: left out, only the last one is printed.
run_tests() {
    "$python" tests/run.py --second-chance --tally "$tally" "$@" |
        sed -u '/^[0-9]* passed, [0-9]* failed, [0-9]* skipped$/d' || failed=1
}

# What a sanitizer found in a helper process fails no test by itself: it fails this. That coroutines are not fully
# supported, which test_dispatch and test_sim are told, is no finding.
no_reports() {
    local report found=0
    for report in "build/$1"/report.*; do
        [ -e "$report" ] || continue
        grep -qv "ASan doesn't fully support makecontext/swapcontext" "$report" || continue
        printf '%s:\n' "$report"
        head -n 60 "$report"
        found=1
    done
    return "$found"
}

# sanitized NAME SANITIZERS OPTION...: the C programs, in a build of their own; options are for tests/run.py.
sanitized() {
    headline "$1 sanitizer"
    if step "build ($2)" build_in "build/$1" -Dbuildtype=debugoptimized -Dtests=true -Dwerror=true \
        "-Db_sanitize=$2" -Db_lundef=false; then
        rm -f "build/$1"/report.*
        run_tests "build/$1" --kind c --slow 5 "${@:3}"
        step "no findings ($2)" no_reports "$1" || true
    fi
}

close_with_sum() {
    printf '\nlogs and builds are in build/; it took %d s\n' "$SECONDS"
    "$python" -c 'import json, sys; print("%d passed, %d failed, %d skipped" % tuple(json.load(open(sys.argv[1]))))' \
        "$tally"
}

target=()
with_format=$((! $#))
if [ "${1:-}" = --quick ]; then
    [ $# -eq 1 ] || {
        printf 'dev: test --quick takes no names\n' >&2
        exit 64
    }
    with_format=1
    target=(quick) # compiling all programs takes longer than running these
    set -- --kind quick
fi

rm -f "$tally"
headline "release build"
[ "$with_format" -eq 0 ] || step "format" ./dev format --check || true
if step "build" build_release "${target[@]}"; then
    ln -sfn src/cli/dibs build/dibs
    run_tests build "$@"
fi
if [ $# -eq 0 ]; then
    # The differential test is long; a tenth of it shows what a sanitizer can show.
    export DIBS_TEST_COMMANDS=${DIBS_TEST_COMMANDS:-20000}
    sanitized address address,undefined
    # Programs with one thread have nothing to tell here.
    sanitized thread thread --skip test_state --skip test_model --skip test_url --skip test_error \
        --skip test_lua --skip 'test_sweep*' --skip test_sqlite_disk
fi
close_with_sum
exit "$failed"
