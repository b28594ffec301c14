# shellcheck shell=bash disable=SC2034,SC2191
# Installing what is missing on Debian. Sourced by ./dev and the scripts beside this file.
#
# A package is written NAME, or NAME=COMMAND when a command of any origin will do.

BUILD_PACKAGES=(gcc=gcc libc6-dev meson=meson ninja-build=ninja pkg-config=pkg-config libsqlite3-dev
    libhiredis-dev libssl-dev libpq-dev libmariadb-dev libzookeeper-mt-dev libnghttp2-dev libprotobuf-c-dev
    protobuf-c-compiler libjansson-dev libmicrohttpd-dev scdoc=scdoc)
TEST_PACKAGES=(g++=g++ libcmocka-dev libuv1-dev libglib2.0-dev clang-format=clang-format redis-server=redis-server redis-tools=redis-cli
    postgresql mariadb-server libzookeeper-java default-jre-headless=java etcd-server=etcd etcd-client=etcdctl
    python3-kazoo python3-redis groff-base=groff pgbouncer sqlite3=sqlite3 openssl=openssl valgrind=valgrind faketime=faketime
    python3-jsonschema nginx=nginx nodejs=node curl=curl util-linux=flock wrk=wrk iproute2=ip python3=python3 clang=clang libclang-rt-dev python3-clang-14
    abigail-tools=abidw chromium=chromium npm=npm libcurl4-openssl-dev)
LAB_PACKAGES=(redis-server=redis-server postgresql mariadb-server libzookeeper-java default-jre-headless=java
    etcd-server=etcd faketime=faketime python3=python3)
# For ./dev bench: what stands beside dibs.
BENCH_PACKAGES=(redis-server=redis-server postgresql mariadb-server libzookeeper-java default-jre-headless=java etcd-server=etcd
    etcd-client=etcdctl util-linux=flock libcurl4-openssl-dev python3=python3 python3-redis python3-kazoo python3-tooz python3-pymysql
    python3-psycopg2 golang-go=go golang-etcd-server-dev golang-github-samuel-go-zookeeper-dev nodejs=node npm=npm)

# The system's own, since a python version manager's shim may lack what meson needs.
find_meson() {
    local candidate
    for candidate in /usr/bin/meson "$(command -v meson || true)"; do
        if [ -x "$candidate" ] && "$candidate" --version >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

find_python() {
    if [ -x /usr/bin/python3 ]; then
        printf '/usr/bin/python3\n'
    else
        command -v python3
    fi
}

is_there() {
    case "$1" in
    meson=*) find_meson >/dev/null ;;
    *=*) command -v "${1#*=}" >/dev/null ;;
    *) dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q '^install ok installed' ;;
    esac
}

# Becomes root for one command.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Installs without starting any service: servers are only wanted as programs that tests start themselves.
install_packages() (
    policy=/usr/sbin/policy-rc.d
    if ! [ -e "$policy" ]; then
        trap 'as_root rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM HUP
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root apt-get update -q || printf 'dev: no new package lists; trying with the old ones\n' >&2
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
)

need_packages() {
    local package missing=()

    command -v dpkg-query >/dev/null || return 0 # not Debian: the build says what it lacks
    for package; do
        is_there "$package" || missing+=("${package%%=*}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ] && ! { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }; then
        printf 'dev: these packages are missing and only root can install them:\n  apt-get install %s\n' \
            "${missing[*]}" >&2
        exit 69
    fi
    printf 'dev: installing %s\n' "${missing[*]}" >&2
    install_packages "${missing[@]}" >&2
}
