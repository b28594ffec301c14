#!/usr/bin/env bash
# The README tells the truth: its C program is the example and works, its shell commands work, the ./dev commands
# and the files that it names are there. Usage: test_readme.sh BUILD
set -u

build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
readme=$source/README.md
scratch=$(mktemp -d "${TMPDIR:-/tmp}/dibs-readme.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export DIBS_URL="sqlite://$scratch/dibs.db"
mkdir "$scratch/bin"
ln -s "$build/src/cli/dibs" "$scratch/bin/dibs"
PATH=$scratch/bin:$PATH

number=0
check() {
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then
        printf 'ok %d - %s\n' "$number" "$1"
    else
        printf '%s\n' "$3" | sed 's/^/# /'
        printf 'not ok %d - %s\n' "$number" "$1"
    fi
}

# blocks LANGUAGE: what stands between the fences of that language.
blocks() {
    awk -v begin="\`\`\`$1" '$0 == "```" { inside = 0 } inside { print } $0 == begin { inside = 1 }' "$readme"
}

printf '1..7\n'

blocks c >"$scratch/readme.c"
output=$(tail -n +2 "$source/examples/lock.c" | diff - "$scratch/readme.c" 2>&1)
check "the C program is examples/lock.c" $? "$output"

output=$(${CC:-cc} -Wall -Wextra -Werror -I"$source/include" "$scratch/readme.c" -o "$scratch/readme" \
    -L"$build" -ldibs -Wl,-rpath,"$build" 2>&1)
check "the C program compiles" $? "$output"

output=$("$scratch/readme" 2>&1)
[[ $output == "mine; the store refuses a fence below "[0-9]* ]]
check "the C program runs" $? "$output"

blocks sh >"$scratch/commands.sh"
[ -s "$scratch/commands.sh" ]
check "there are shell commands" $? ""

output=$(cd "$scratch" && timeout 60 sh -eu commands.sh 2>&1)
status=$?
[ "$status" -eq 0 ] && [[ $output =~ "backing up, fence "[0-9]+ ]]
check "the shell commands run" $? "exit $status: $output"

missing=
for command in $(grep -o '\./dev [a-z]*' "$readme" | cut -d' ' -f2 | sort -u); do
    "$source/dev" help | grep -q "^  $command " || missing+=" $command"
done
check "every ./dev command is known" ${#missing} "unknown:$missing"

missing=
for file in $(grep -oE '\]\([^)]+\)' "$readme" | tr -d '](' | tr -d ')'); do
    [ -e "$source/$file" ] || missing+=" $file"
done
check "every file that it names is there" ${#missing} "missing:$missing"
