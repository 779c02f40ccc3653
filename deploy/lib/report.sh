# shellcheck shell=bash
# What the scripts say: progress with times, and failures that name the log to read.
# Sourced by deploy/quickstart.sh, tests/run.sh and .ci/run.

# say TEXT...: one line of progress.
say() {
    printf '==> %s\n' "$*"
}

# fail TEXT...: one line on standard error, then exit 1 (EXIT traps still clean up).
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# usage_error TEXT...: the same for a bad command line, exit 64.
usage_error() {
    printf 'error: %s (try --help)\n' "$*" >&2
    exit 64
}

now_ms() {
    date +%s%3N
}

# quietly LOG TITLE COMMAND...: runs the command with its output in the log, says how long it took, and on failure
# shows the end of that log. Returns the command's status.
quietly() {
    local log=$1 title=$2 started status=0
    shift 2
    started=$(now_ms)
    say "$title"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status != 0)); then
        printf 'error: %s: failed with status %d; the end of %s:\n' "$title" "$status" "$log" >&2
        tail -n 25 "$log" >&2
        return "$status"
    fi
    printf '    done in %s s\n' "$(seconds_since "$started")"
}

# seconds_since MS: with one decimal.
seconds_since() {
    local tenths=$((($(now_ms) - $1) / 100))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}
