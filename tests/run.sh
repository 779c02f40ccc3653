#!/usr/bin/env bash
# All tests: installs what they need (Debian), fetches the jars of stock RocketMQs, compiles the Java driver, then runs
# `cargo test --locked` with whatever arguments this script was given. Fails if anything fails; nothing is skipped.
set -euo pipefail
shopt -s extglob

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for part in report cache install jars; do
    # shellcheck source=/dev/null
    source "$ROOT/deploy/lib/$part.sh"
done

main() {
    prepare_cache
    install_needed
    local version
    for version in 4.3.0 4.9.7 5.3.3; do
        fetch_jars "$version"
        compile_java "$version"
        export "ROCKETMQ_TIMER_PROXY_TEST_JARS_${version//./_}=$(jars_dir "$version")"
        export "ROCKETMQ_TIMER_PROXY_TEST_CLASSES_${version//./_}=$(classes_dir "$version")"
    done
    claim_target
    say "Running all tests (target folder: $CARGO_TARGET_DIR)"
    cd "$ROOT"
    exec cargo test --locked "$@"
}

main "$@"
