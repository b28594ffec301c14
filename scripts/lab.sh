#!/usr/bin/env bash
# ./dev lab: every scheme of the lab and dibs beside them on private servers, with the usual plan (50 threads x 100
# purchases from a stock of 5000), then the hazards and the experiments. Writes docs/lab/report.html, .md and .json, and
# docs/choosing.md and docs/lab/rows.md from them.
#
# With words or options, which go to `dibs lab report`, it is a look at a part: then build/lab/ is written, and
# nothing of docs/. Usage: lab.sh PATH/TO/dibs PYTHON [OPTION...]
set -euo pipefail

dibs=$1 python=$2
shift 2
status=0
if [ $# -gt 0 ]; then
    "$dibs" lab report --with-servers -o build/lab "$@" || status=$?
else
    "$dibs" lab report --with-servers -o docs/lab || status=$?
    if [ "$status" -le 1 ]; then # 1: something was not as promised; the figures are there
        for page in choosing.md lab/rows.md; do
            "$python" scripts/choosing.py docs/lab/report.json "docs/lab/$(basename "$page" .md).in.md" >"docs/$page.new"
            mv "docs/$page.new" "docs/$page"
            printf 'docs/%s\n' "$page"
        done
    fi
fi
printf 'it took %d s\n' "$SECONDS"
exit "$status"
