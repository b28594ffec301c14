#!/usr/bin/env bash
# The installed package: consumers in C (shared and static) and C++ compile against an installed copy by
# pkg-config alone, and run.
#   test_install.sh BUILD
set -u
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
log=$scratch/log

. "$(dirname "$0")/../support/tap.sh"

cat >"$scratch/consumer.c" <<'C'
#include <dibs.h>
#include <stdio.h>

int main(int argc, char *argv[])
{
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_error err = {0};
    dibs_lock_options options = {0};

    options.wait_ms = 5000;
    if (argc != 2 || dibs_open(argv[1], NULL, &d, &err) != DIBS_OK ||
        dibs_lock(d, "installed", &options, &g, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("%s %llu\n", dibs_version(), (unsigned long long)dibs_grant_fence(g));
    if (dibs_unlock(&g, &err) != DIBS_OK)
        return 1;
    dibs_close(d);
    return 0;
}
C
sed 's/= {0}/= {}/; s/\bNULL\b/nullptr/g' "$scratch/consumer.c" >"$scratch/consumer.cc"
warnings="-Wall -Wextra -Wpedantic -Werror"

echo 1..10
DESTDIR=$root meson install -C "$build" --no-rebuild >"$log" 2>&1
report $? "it installs"

pc=$(find "$root" -name dibs.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc" 2>/dev/null)
[ -n "$pc" ] && grep -q '^Version: ' "$pc" && [ -n "$prefix" ]
report $? "there is a dibs.pc"

# Installed under a scratch root: pkg-config is told so, and puts it before every path.
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$root
libdir=$(pkg-config --variable=libdir dibs)
export LD_LIBRARY_PATH=$root${libdir#"$root"}
url=sqlite://$scratch/store.db

cc $warnings -std=c11 -o "$scratch/shared" "$scratch/consumer.c" $(pkg-config --cflags --libs dibs) >"$log" 2>&1 &&
    "$scratch/shared" "$url" >>"$log" 2>&1
report $? "a C consumer of the shared library"

readelf -d "$scratch/shared" | grep -q 'NEEDED.*libdibs\.so\.0'
report $? "which asks for the soname"

[ "$(readlink "$LD_LIBRARY_PATH/libdibs.so")" = libdibs.so.0 ] && [ -e "$LD_LIBRARY_PATH/libdibs.so.0" ]
report $? "which is there, with the link for the linker"

# The archive by its name: -ldibs would take the shared one.
static=$(pkg-config --static --libs dibs | sed "s#-ldibs\b#$LD_LIBRARY_PATH/libdibs.a#")
cc $warnings -std=c11 -o "$scratch/static" "$scratch/consumer.c" $(pkg-config --cflags dibs) $static >"$log" 2>&1 &&
    LD_LIBRARY_PATH= "$scratch/static" "$url" >>"$log" 2>&1
report $? "a C consumer of the archive"

c++ $warnings -std=c++11 -o "$scratch/cxx" "$scratch/consumer.cc" $(pkg-config --cflags --libs dibs) >"$log" 2>&1 &&
    "$scratch/cxx" "$url" >>"$log" 2>&1
report $? "a C++ consumer"

command=$(find "$root" -path '*/bin/dibs')
[ -n "$command" ] && "$command" --version >"$log" 2>&1
report $? "the command is installed and runs"

parts=$(find "$root" -path '*/dibs/dibs-*' -type f -perm -u+x -printf '%f\n' | sort | tr '\n' ' ')
built=$(find "$build/src/cli" -maxdepth 1 -name 'dibs-*' -type f -perm -u+x -printf '%f\n' | sort | tr '\n' ' ')
[ -n "$built" ] && [ "$parts" = "$built" ]
report $? "and so are the programs that it becomes: $built"

headers=$(find "$root" -name '*.h' -printf '%f\n' | sort | tr '\n' ' ')
[ "$headers" = "dibs.h dibs_sql.h " ]
report $? "the two headers, and no other"
exit $failed
