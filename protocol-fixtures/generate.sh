#!/usr/bin/env bash
# Writes the fixtures of all versions anew, from the classes of the releases themselves: fetches their jars, compiles the
# generator against each, runs it. With --check writes into a scratch folder instead and fails if anything differs.
set -euo pipefail
shopt -s extglob

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for part in report cache processes install jars; do
    # shellcheck source=/dev/null
    source "$ROOT/deploy/lib/$part.sh"
done

readonly FIXTURES=$ROOT/protocol-fixtures
readonly VERSIONS=(4.3.0 4.9.7 5.3.3 ons-1.8.8.8.Final)
# The client of 4.3.0, and Netty 4.0, reach into classes that a modern JDK hides.
readonly OPENED=(--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED
    --add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED)

main() {
    local version scratch check=0
    case ${1:-} in
        '') ;;
        --check) check=1 ;;
        -h | --help)
            printf 'usage: %s [--check]\n' "${0##*/}"
            return
            ;;
        *) usage_error "unknown argument: $1" ;;
    esac
    prepare_cache
    install_needed
    scratch_dir scratch
    for version in "${VERSIONS[@]}"; do
        fetch_jars "$version"
        generate "$version" "$scratch"
    done
    if ((check)); then
        for version in "${VERSIONS[@]}"; do
            diff -r "$FIXTURES/$version" "$scratch/out/$version" >&2 ||
                fail "the fixtures of $version are not what the generator writes"
        done
        say "All fixtures are as the generator writes them"
    else
        for version in "${VERSIONS[@]}"; do
            rm -rf "${FIXTURES:?}/$version"
            cp -r "$scratch/out/$version" "$FIXTURES/$version"
        done
        say "Written: ${VERSIONS[*]}"
    fi
}

# generate VERSION SCRATCH: into SCRATCH/out/VERSION.
generate() {
    local version=$1 sources=$2/src/$1 classes=$2/classes/$1
    mkdir -p "$sources" "$classes"
    cp "$FIXTURES"/generator/src/fixtures/*.java "$sources/"
    case $version in
        4.9.7 | 5.*) cp "$FIXTURES"/generator/signed/fixtures/*.java "$sources/" ;;
        ons-*) cp "$FIXTURES"/generator/ons/fixtures/*.java "$sources/" ;;
    esac
    rename_packages "$version" "$sources"/*.java
    quietly "$CACHE/logs/fixtures-$version.log" "Writing the fixtures of $version" \
        compile_and_run "$(jars_dir "$version")/*" "$sources" "$classes" "$2/out/$version" || exit 1
}

# rename_packages VERSION FILES...: from where 4.x has its classes to where that version has them.
rename_packages() {
    local version=$1 shade=com.aliyun.openservices.shade
    shift
    case $version in
        5.*) sed -i 's/org\.apache\.rocketmq\.common\.protocol\./org.apache.rocketmq.remoting.protocol./' "$@" ;;
        ons-*)
            sed -i -e "s/org\.apache\.rocketmq\./$shade.com.alibaba.rocketmq./" \
                -e "s/import io\.netty\./import $shade.io.netty./" -e "s/\"com\.alibaba\.fastjson/\"$shade.com.alibaba.fastjson/" "$@"
            ;;
    esac
}

# compile_and_run CLASS_PATH SOURCES CLASSES OUT
compile_and_run() {
    javac -nowarn -encoding UTF-8 -d "$3" -cp "$1" "$2"/*.java &&
        java "${OPENED[@]}" -XX:TieredStopAtLevel=1 -Dfile.encoding=UTF-8 "-Duser.home=$3" -cp "$3:$1" fixtures.Fixtures "$4"
}

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
main "$@"
