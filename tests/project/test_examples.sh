#!/usr/bin/env bash
# The examples work: each is run on every engine that it can run on. Usage: test_examples.sh BUILD
set -u

build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dibs-examples.XXXXXX")
redis=
trap '[ -n "$redis" ] && kill "$redis" && wait "$redis"; rm -rf "$scratch"' EXIT
count=0

# check NAME STATUS OUTPUT: one line of TAP.
check() {
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then
        printf 'ok %d - %s\n' "$count" "$1"
    else
        printf '%s\n' "$3" | sed 's/^/# /'
        printf 'not ok %d - %s\n' "$count" "$1"
    fi
}

# run NAME PATTERN COMMAND...: it must succeed and print the pattern.
run() {
    local name=$1 pattern=$2 output status
    shift 2
    output=$(timeout 60 "$@" 2>&1)
    status=$?
    if [ "$status" -eq 0 ] && ! grep -q -- "$pattern" <<<"$output"; then
        status=1
    fi
    check "$name" "$status" "$output"
}

start_redis() {
    local try
    for try in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 30000))
        redis-server --port "$port" --bind 127.0.0.1 --dir "$scratch" --save '' --logfile "$scratch/log$try" &
        redis=$!
        for _ in {1..100}; do
            [ "$(redis-cli -p "$port" ping 2>/dev/null)" = PONG ] && kill -0 "$redis" 2>/dev/null && return
            kill -0 "$redis" 2>/dev/null || break
            sleep 0.05
        done
    done
    return 1
}

run_all() {
    local engine=$1 url=$2
    DIBS_URL=$url run "lock on $engine" '^mine' "$build/examples/example-lock"
    run "epoll on $engine" '^job 5 has' "$build/examples/example-epoll" "$url"
    run "semaphore on $engine" 'at most 2 at once' "$build/examples/example-semaphore" "$url"
    run "stock on $engine" 'again: refused; 8 of 10 left' "$build/examples/example-stock" "$scratch/stock.db" "$url"
    run "order on $engine" 'sold (as before)' "$build/examples/example-order" "$scratch/order-$engine.db" "$url"
}

# Each event loop; without its library on a laptop it is not built.
in_order() {
    local output loop=$1
    if ! [ -x "$build/examples/example-$loop" ] && [ -z "${CI:-}${DIBS_TEST_REQUIRE_SERVERS:-}" ]; then
        count=$((count + 1))
        printf 'ok %d - requests are served in order by %s # SKIP not built\n' "$count" "$loop"
        return
    fi
    output=$("$build/examples/example-$loop" memory: | cut -d' ' -f2 | tr '\n' ' ')
    [ "$output" = "1 2 3 4 5 " ]
    check "requests are served in order by $loop" $? "$output"
}

# Two starts of the nightly job: one runs, the other leaves content.
nightly() {
    local output
    mkdir -p "$scratch/bin"
    ln -sf "$build/src/cli/dibs" "$scratch/bin/dibs"
    output=$(
        export PATH="$scratch/bin:$PATH" DIBS_URL="sqlite://$scratch/nightly.db" MIN_HOLD=20s
        "$source/examples/nightly.sh" echo ran && "$source/examples/nightly.sh" echo ran 2>/dev/null && echo content
    )
    [ "$output" = "ran"$'\n'"content" ]
    check "nightly.sh runs the job once" $? "$output"
}

# A runner that is killed after the card was charged: the next one goes on from there, and once is enough.
payment() {
    local engine=$1 output example=$build/examples/example-payment
    local -x DIBS_URL=$2
    output=$(
        exec 2>&1
        (timeout 20 "$example" order-17 49.90 charge)
        echo "died of $?"
        timeout 20 "$example" order-17 49.90 && timeout 20 "$example" order-17 49.90
        timeout 20 "$example" order-17 99.90
        echo "another amount: $?"
    )
    grep -q 'died of 137' <<<"$output" && grep -q 'going on after a crash' <<<"$output" &&
        grep -q 'charge: was done' <<<"$output" && grep -q 'as before: order order-17' <<<"$output" &&
        [ "$(grep -c 'charge, key' <<<"$output")" = 1 ] && grep -q 'another amount: 65' <<<"$output"
    check "payment on $engine" $? "$output"
}

# Messages that come twice, and one whose id was used for something else.
inbox() {
    local output
    output=$(
        exec 2>&1
        printf 'm1 ada 5\nm2 ada 7\nm1 ada 5\nm3 bob 1\n' | "$build/examples/example-inbox" "$1"
        printf 'm2 ada 7\nm3 bob 1\n' | "$build/examples/example-inbox" "$1"
        printf 'm2 ada 700\n' | "$build/examples/example-inbox" "$1" || echo refused
        psql -qAtX "$1" -c "SELECT name, balance FROM account ORDER BY name"
    )
    grep -q 'ack m1 (booked)' <<<"$output" && grep -q 'ack m1 (was booked before)' <<<"$output" &&
        grep -q 'ack m3 (was booked before)' <<<"$output" && grep -q refused <<<"$output" &&
        grep -q 'ada|12' <<<"$output" && grep -q 'bob|1' <<<"$output"
    check "inbox on postgresql" $? "$output"
}

# on ENGINE FUNCTION: the function, in a bash of its own, with a private server's $DIBS_URL.
on() {
    local engine=$1 output status
    output=$(
        export build scratch
        export -f run check payment inbox
        python3 "$source/tests/support/scratch_stores.py" "$engine" bash -c "count=$count; $2"
    )
    status=$?
    if [ "$status" -eq 77 ] && [ -z "${CI:-}${DIBS_TEST_REQUIRE_SERVERS:-}" ]; then
        count=$((count + 1))
        printf 'ok %d - %s # SKIP no %s\n' "$count" "$2" "$engine"
        return
    fi
    printf '%s\n' "$output"
    count=$((count + $(grep -c '^ok\|^not ok' <<<"$output")))
    if [ "$status" -ne 0 ]; then
        check "a server for $engine" 1 "status $status"
    fi
}

run_all memory memory:
run_all sqlite "sqlite://$scratch/dibs.db"
payment sqlite "sqlite://$scratch/payment.db"
if ! command -v redis-server >/dev/null && [ -z "${CI:-}${DIBS_TEST_REQUIRE_SERVERS:-}" ]; then
    for name in lock epoll semaphore stock order payment stream; do
        count=$((count + 1))
        printf 'ok %d - %s on redis # SKIP no redis-server\n' "$count" "$name"
    done
else
    start_redis
    run_all redis "redis://127.0.0.1:$port"
    payment redis "redis://127.0.0.1:$port"
    run "stream on redis" '2 by the first, 4 by the second, 21 pieces in all' \
        "$build/examples/example-stream" 127.0.0.1 "$port"
fi
on postgresql 'payment postgresql "$DIBS_URL"; inbox "$DIBS_URL"; true'
on mysql 'payment mysql "$DIBS_URL"; true'
on zookeeper 'payment zookeeper "$DIBS_URL"; true'
on etcd 'payment etcd "$DIBS_URL"; true'
for loop in epoll libuv glib; do
    in_order "$loop"
done
nightly
printf '1..%d\n' "$count"
