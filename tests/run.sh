#!/usr/bin/env bash
# All tests: installs what they need (Debian), fetches the jars of a stock RocketMQ, compiles the Java driver, then runs
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
    fetch_jars 4.9.7
    compile_java 4.9.7
    ROCKETMQ_TIMER_PROXY_TEST_JARS_4_9_7=$(jars_dir 4.9.7)
    ROCKETMQ_TIMER_PROXY_TEST_CLASSES_4_9_7=$(classes_dir 4.9.7)
    export ROCKETMQ_TIMER_PROXY_TEST_JARS_4_9_7 ROCKETMQ_TIMER_PROXY_TEST_CLASSES_4_9_7
    claim_target
    say "Running all tests (target folder: $CARGO_TARGET_DIR)"
    cd "$ROOT"
    exec cargo test --locked "$@"
}

main "$@"
