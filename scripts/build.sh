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

# build_fuzzers FOLDER: only the programs that libFuzzer drives, with the library's own code watched for coverage.
build_fuzzers() {
    local targets
    CC=clang configure_in "$1" -Dbuildtype=debugoptimized -Dtests=true -Db_sanitize=address,undefined \
        -Db_lundef=false -Dc_args=-fsanitize=fuzzer-no-link || return
    targets=$(ninja -C "$1" -t targets all | sed -n 's|^\(tests/fuzz_[a-z_]*\): c_LINKER$|\1|p')
    # shellcheck disable=SC2086
    [ -z "$targets" ] || ninja -C "$1" $targets
}
