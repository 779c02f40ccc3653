# shellcheck shell=bash
# Where everything lives that is fetched or built once: outside the clone, so that a fresh clone starts warm.
#   m2/          Maven's own repository
#   jars/V/      the jars of a stock RocketMQ version V, complete or absent
#   classes/     compiled Java programs, by version and hash of their sources
#   target/      cargo's target folder
#   logs/        output of quiet steps
# Sourced; sets CACHE and CARGO_TARGET_DIR. Needs report.sh.

CACHE=${ROCKETMQ_TIMER_PROXY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rocketmq-timer-proxy}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}

prepare_cache() {
    mkdir -p "$CACHE/logs" "$CACHE/jars" "$CACHE/classes" || fail "cannot create the cache folder $CACHE"
}

# with_cache_lock COMMAND...: one process at a time fills the cache.
with_cache_lock() {
    local lock
    exec {lock}>"$CACHE/lock"
    flock "$lock"
    "$@"
    exec {lock}>&-
}
