#!/usr/bin/env bash
# ./dev demo: several processes add to one number in a file, without dibs and with it. Fails when the unguarded
# run lost nothing (then it showed nothing) or the guarded one lost anything. Usage: demo.sh PATH/TO/dibs
set -euo pipefail

dibs=$1
processes=8
rounds=25
expected=$((processes * rounds))

scratch=$(mktemp -d "${TMPDIR:-/tmp}/dibs-demo.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
export DIBS_URL="sqlite://$scratch/demo.db"
export PATH="$scratch:$PATH"
ln -s "$dibs" dibs

# Read, pause a moment, write: right only when nobody else is between the two.
cat >add-one <<'SH'
#!/bin/sh
n=$(cat number)
sleep 0.01
echo $((n + 1)) >"number.$$" && mv "number.$$" number
SH
chmod +x add-one

# work COMMAND...: every process runs it so many times.
work() {
    local i
    for ((i = 0; i < rounds; i++)); do
        "$@"
    done
}

# race COMMAND...: all processes at once; the file's last number goes to $found, the time to $took.
race() {
    local i start pids=()
    echo 0 >number
    start=$(date +%s%N)
    for ((i = 0; i < processes; i++)); do
        work "$@" &
        pids+=($!)
    done
    wait "${pids[@]}"
    found=$(cat number)
    took=$(awk -v ns=$(($(date +%s%N) - start)) 'BEGIN { printf "%.1f", ns / 1e9 }')
}

say_result() {
    local lost=$((expected - found))
    printf '   %-34s expected %d, found %3d: %s updates lost   (%s s)\n' "$1" "$expected" "$found" "$lost" "$took"
}

printf '%d processes each add 1 to the number in a file, %d times.\n' "$processes" "$rounds"
printf 'add-one reads the number, pauses for 10 ms and writes it back plus one.\n\n'

printf '1. Without a lock\n'
race ./add-one
say_result '$ ./add-one'
unguarded=$found

printf '\n2. Under a lock\n'
race dibs run number -- ./add-one
say_result '$ dibs run number -- ./add-one'
guarded=$found

printf '\n3. Who has it?\n'
mkfifo ready gate
dibs run report -- sh -c 'echo >ready; cat gate' >/dev/null &
holder=$!
read -r _ <ready
printf '   $ dibs run report -- ./make-report &\n   $ dibs ls report\n'
dibs ls report | sed 's/^/   /'
echo >gate
wait "$holder"

printf '\n4. Every holder gets a fence, a number that only grows: a store that refuses a lower one is safe\n'
printf '   from a holder that was asleep for too long.\n'
for _ in 1 2; do
    # shellcheck disable=SC2016
    printf '   $ dibs run number -- printenv DIBS_FENCE\n   %s\n' "$(dibs run number -- printenv DIBS_FENCE)"
done

printf '\n'
if [ "$guarded" -ne "$expected" ]; then
    printf 'demo: the guarded run lost updates: this is a bug\n' >&2
    exit 1
fi
if [ "$unguarded" -ge "$expected" ]; then
    printf 'demo: the unguarded run lost nothing, so that it showed nothing; run it again\n' >&2
    exit 1
fi
printf 'Without dibs %d of %d updates were lost, with dibs none.\n' $((expected - unguarded)) "$expected"
