#!/usr/bin/env bash
# ./dev lab: every scheme of the lab and dibs beside them on private servers, with the notes' own plan (50 threads x 100
# purchases from a stock of 5000), then the hazards and the experiments. Writes docs/lab/report.html, .md and .json.
# Words and options go to `dibs lab report`: ./dev lab D0 dibs-redis --threads 10 -o build/lab
set -euo pipefail

dibs=$1
shift
began=$SECONDS
status=0
"$dibs" lab report --with-servers -o docs/lab "$@" || status=$?
printf 'it took %d s\n' $((SECONDS - began))
exit "$status"
