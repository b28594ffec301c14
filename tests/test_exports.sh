#!/usr/bin/env bash
# The symbols that libdibs.so exports are those of exports.txt, and those are what the headers declare.
#   test_exports.sh LIBRARY
set -u
export LC_ALL=C
library=$1
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

count=0
failed=0
report() { # status, name
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $count - $2"
    else
        failed=1
        echo "not ok $count - $2"
    fi
}

exported() { # library
    nm -D --defined-only --format=posix "$1" | awk '{print $1}' | sort
}

same() { # library: as in exports.txt?
    diff "$here/exports.txt" <(exported "$1")
}

echo 1..5
same "$library" | sed 's/^/# /'
report "${PIPESTATUS[0]}" "the library exports what the list says"

diff "$here/exports.txt" <(cat "$here"/../include/*.h | grep -o '\bdibs_[a-z_]*(' | tr -d '(' | sort -u) | sed 's/^/# /'
report "${PIPESTATUS[0]}" "the list is what the headers declare"

! exported "$library" | grep -q '^dibs__'
report $? "nothing from inside leaks out"

soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
echo "# soname $soname"
[[ $soname =~ ^libdibs\.so\.[0-9]+$ ]]
report $? "the soname carries the version of the interface"

# The check itself: a library with one symbol too many must be noticed.
{
    sed 's/.*/void &(void); void &(void) {}/' "$here/exports.txt"
    echo 'void dibs__inner(void); void dibs__inner(void) {}'
} >"$scratch/leaky.c"
cc -shared -fPIC -w -o "$scratch/leaky.so" "$scratch/leaky.c" && ! same "$scratch/leaky.so" >/dev/null
report $? "a leaky library is noticed"
exit $failed
