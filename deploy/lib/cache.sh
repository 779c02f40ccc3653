# shellcheck shell=bash
# Where everything lives that is fetched or built once: outside the clone, so that a fresh clone starts warm.
#   m2/          Maven's own repository
#   jars/V/      the jars of a stock RocketMQ version V, complete or absent
#   classes/     compiled Java programs, by version and hash of their sources
#   target/      cargo's target folder, shared by all clones, so that a new one finds the dependencies built
#   logs/        output of quiet steps
# Sourced; sets CACHE and CARGO_TARGET_DIR. Needs report.sh, and ROOT (the clone).

CACHE=${ROCKETMQ_TIMER_PROXY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rocketmq-timer-proxy}
if [[ -z ${CARGO_TARGET_DIR:-} ]]; then
    export CARGO_TARGET_DIR=$CACHE/target
fi

prepare_cache() {
    mkdir -p "$CACHE/logs" "$CACHE/jars" "$CACHE/classes" || fail "cannot create the cache folder $CACHE"
}

# claim_target: before cargo builds. Cargo tells fresh from stale by times of files relative to the clone, so what another
# clone built would pass for this one's if its sources are older than that build. Dependencies are not affected.
claim_target() {
    local stamp=$CACHE/target-clone profile
    [[ $CARGO_TARGET_DIR == "$CACHE/target" && $(cat "$stamp" 2>/dev/null) != "$ROOT" ]] || return 0
    if [[ -d $CARGO_TARGET_DIR ]]; then
        for profile in dev release; do
            cargo clean --quiet --manifest-path "$ROOT/Cargo.toml" --package rocketmq-timer-proxy --profile "$profile"
        done
    fi
    printf '%s\n' "$ROOT" >"$stamp"
}

# with_cache_lock COMMAND...: one process at a time fills the cache.
with_cache_lock() {
    local lock
    exec {lock}>"$CACHE/lock"
    flock "$lock"
    "$@"
    exec {lock}>&-
}
