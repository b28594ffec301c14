#!/usr/bin/env bash
# Programs and libraries of different headers, together: a program of this header with a library whose options have
# grown (new members in the place of `reserved`, longer structures that are filled in), and the other way round.
#   test_abi.sh SOURCE BUILD
set -u
source=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log

. "$(dirname "$0")/../support/tap.sh"

cat >"$scratch/program.c" <<'C'
#include <dibs.h>
#include <stdio.h>

/* Exits with what the lock call returned. NOVELTY is given to a member that only the grown header has. */
int main(int argc, char *argv[])
{
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_error err = {0};
    dibs_lock_report *r = NULL;
    dibs_lock_options options = {.wait_ms = 5000, .lease_ms = 60000};
    struct {
        dibs_stats stats;
        unsigned canary;
    } s = {.canary = 42};
    dibs_status status;

#ifdef NOVELTY
    options.novelty = NOVELTY;
#endif
    if (argc != 2 || dibs_open(argv[1], &(dibs_options){.request_ms = 1000}, &d, &err) != DIBS_OK) {
        printf("%s\n", err.message);
        return 99;
    }
    status = dibs_lock(d, "abi", &options, &g, &err);
    printf("%s\n", err.message);
    if (status != DIBS_OK)
        return (int)status;
    dibs_stats_read(d, &s.stats, sizeof s.stats);
    if (s.stats.grants != 1 || s.canary != 42 || dibs_lock_inspect(d, "abi", &r, &err) != DIBS_OK)
        return 98;
    if (dibs_lock_report_at(r, 0)->holder_count != 1 || dibs_lock_report_at(r, 0)->holders[0]->fence != dibs_grant_fence(g))
        return 97;
    dibs_lock_report_free(r);
    if (dibs_engine_of(d)->cells != dibs_engine_at(0)->cells && !dibs_engine_of(d)->scheme)
        return 96;
    return dibs_unlock(&g, &err) == DIBS_OK ? (dibs_close(d), 0) : 95;
}
C

# The same sources with a header of the future.
mkdir "$scratch/grown"
cp -r "$source"/{include,src,lab,man,examples,completions,torture,meson.build,meson_options.txt} "$scratch/grown"
header=$scratch/grown/include/dibs.h
sed -i -e 's/^    uint64_t reserved\[4\];$/    uint64_t novelty;\n    uint64_t reserved[3];/' \
    -e 's/^    dibs_histogram late; .*/&\n    uint64_t novelty[9];/' \
    -e 's/^    bool breaking; .*/&\n    char novelty[40];/' \
    -e 's/^    int64_t lease_ms;      .*/&\n    char novelty[40];/' "$header"

echo 1..6
[ "$(grep -c novelty "$header")" -ge 11 ]
report $? "the header has grown"

meson setup "$scratch/out" "$scratch/grown" -Dbuildtype=debug -Dsqlite=disabled -Dredis=disabled -Dpostgresql=disabled \
    -Dmysql=disabled -Dzookeeper=disabled -Detcd=disabled -Dshop=disabled >"$log" 2>&1 &&
    ninja -C "$scratch/out" libdibs.so.0.1.0 >>"$log" 2>&1
report $? "its library builds"

compile() { # out, include, library's folder, more
    cc -std=c11 -Wall -Wextra -Werror -o "$1" "$scratch/program.c" -I"$2" -L"$3" -ldibs "${@:4}" >>"$log" 2>&1
}
compile "$scratch/now" "$source/include" "$build" && compile "$scratch/later" "$scratch/grown/include" "$scratch/out" &&
    compile "$scratch/novel" "$scratch/grown/include" "$scratch/out" -DNOVELTY=1
report $? "programs of both headers compile"

LD_LIBRARY_PATH=$scratch/out "$scratch/now" memory:abi >>"$log" 2>&1
report $? "a program of today runs with the grown library"

LD_LIBRARY_PATH=$build "$scratch/later" memory:abi >>"$log" 2>&1
report $? "a program of the grown header runs with the library of today"

LD_LIBRARY_PATH=$build "$scratch/novel" memory:abi >>"$log" 2>&1
[ $? -eq 7 ] && grep -q "reserved members" "$log"
report $? "unless it uses what is new there: that is refused (DIBS_INVALID)"
exit $failed
