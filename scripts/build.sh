# shellcheck shell=bash
# Building with meson. Sourced, after packages.sh.

# configure_in FOLDER OPTION...: makes FOLDER a build folder, or changes these options in it.
configure_in() {
    local folder=$1 meson
    shift
    meson=$(find_meson) || return
    if [ -f "$folder/build.ninja" ]; then
        "$meson" configure "$folder" "$@"
    else
        "$meson" setup "$folder" "$@"
    fi
}

# build_in FOLDER OPTION...: the same, and builds everything.
build_in() {
    configure_in "$@" && ninja -C "$1"
}

# build_fuzzers FOLDER: only the programs that libFuzzer drives, and the parts of the library that they need, watched
# for coverage. A finding of either sanitizer ends the program.
build_fuzzers() {
    CC=clang configure_in "$1" -Dbuildtype=debugoptimized -Dtests=true -Db_sanitize=address,undefined -Db_lundef=false \
        "-Dc_args=-fsanitize=fuzzer-no-link -fno-sanitize-recover=all" \
        -Dpostgresql=disabled -Dmysql=disabled -Dzookeeper=disabled && ninja -C "$1" fuzzers
}
