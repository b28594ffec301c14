# shellcheck shell=bash
# One line of TAP per check, for the tests that are shell scripts. Sourced. `log`, if set, is a file with what was
# printed meanwhile: shown when a check fails, and emptied after each.
count=0
failed=0

report() { # status, name
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $count - $2"
    else
        failed=1
        [ -z "${log:-}" ] || tail -n 60 "$log" | sed 's/^/# /'
        echo "not ok $count - $2"
    fi
    [ -z "${log:-}" ] || : >"$log"
}
