#!/usr/bin/env bash
# The symbols that libdibs.so exports are those of exports.txt, and those are what the headers declare.
#   test_exports.sh LIBRARY
set -u
export LC_ALL=C
library=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

. "$(dirname "$0")/../support/tap.sh"

# With their versions; the versions themselves are absolute symbols.
versioned() { # library
    nm -D --defined-only --format=posix "$1" | awk '$2 != "A" {print $1}' | sort
}

exported() { # library
    versioned "$1" | sed 's/@.*//'
}

same() { # library: as in exports.txt?
    diff "$here/exports.txt" <(exported "$1")
}

echo 1..10
same "$library" | sed 's/^/# /'
report "${PIPESTATUS[0]}" "the library exports what the list says"

diff "$here/exports.txt" <(cat "$root"/include/*.h | grep -o '\bdibs_[a-z_]*(' | tr -d '(' | sort -u) | sed 's/^/# /'
report "${PIPESTATUS[0]}" "the list is what the headers declare"

! exported "$library" | grep -q '^dibs__'
report $? "nothing from inside leaks out"

versioned "$library" | grep -v '@@DIBS_0$' | sed 's/^/# without a version: /'
[ "${PIPESTATUS[1]}" -eq 1 ] # grep has found none
report $? "every symbol has the version of the interface"

# DIBS_HAS_NAME is for programs that support several versions: where it is defined, there is dibs_name.
features=$(cat "$root"/include/*.h | sed -n 's/^#define DIBS_HAS_\([A-Z_]*\) 1$/dibs_\L\1/p' | sort)
[ -n "$features" ] && [ -z "$(comm -23 <(echo "$features") "$here/exports.txt")" ]
report $? "every feature macro names a function"

# The header takes no name from its user: macros that were there before stay, and do it no harm.
cat >"$scratch/macros.c" <<'C'
#define X      41
#define ROW    no such thing
#define OK     no such thing
#define BUSY   no such thing
#define LOST   no such thing
#define NONE   no such thing
#define LATER  no such thing
#define INVALID no such thing
#include "dibs_sql.h"
#define COUNT(value, name, text, next, http, code) +1
int statuses = DIBS_STATUSES(COUNT), x = X;
dibs_status lost = DIBS_LOST;
int main(void) { return x != 41 || statuses != DIBS_TOO_FEW + 1 || lost != 3; }
C
cp "$scratch/macros.c" "$scratch/macros.cc"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$root/include" -o "$scratch/macros" "$scratch/macros.c" && "$scratch/macros" &&
    c++ -std=c++11 -Wall -Wextra -Werror -I"$root/include" -o "$scratch/macros" "$scratch/macros.cc" && "$scratch/macros"
report $? "macros of the user's do not get in the way, and stay"

# What every such call leaves in the caller's dibs_error is decided in one place, and seen in a test.
with_error() {
    cat "$root"/include/*.h | tr '\n' ' ' | grep -o 'dibs_status dibs_[a-z_]*([^;]*dibs_error \*err)' |
        sed 's/dibs_status \(dibs_[a-z_]*\).*/\1/' | sort -u
}
diff <(with_error) <(cat "$root"/src/core/calls.h "$root"/src/transaction/sql.h |
    sed -n 's/^ *X(\([a-z_]*\),.*/dibs_\1/p' | sort) | sed 's/^/# /'
report "${PIPESTATUS[0]}" "every call with an error is defined by the list"

missing=$(comm -23 <(with_error) <(grep -oh 'dibs_[a-z_]*(' "$root"/tests/conformance/calls.c "$root"/tests/transaction/*.c | tr -d '(' | sort -u))
echo "# not called in tests/conformance/calls.c or tests/transaction/: ${missing:-none}"
[ -z "$missing" ]
report $? "every call with an error is seen to clear it"

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
