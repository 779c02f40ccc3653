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

# quietly LOG TITLE COMMAND...: runs the command with its output in the log, shows the newest line of that log every
# 15 s, says how long it took, and on failure shows the end of the log. Returns the command's status.
quietly() {
    local log=$1 title=$2 started status=0
    shift 2
    started=$(now_ms)
    say "$title"
    : >"$log"
    signs_of_life "$log" "$started" $$ &
    SIGNS_PID=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    stop_signs
    if ((status != 0)); then
        printf 'error: %s: failed with status %d; the end of %s:\n' "$title" "$status" "$log" >&2
        tail -n 25 "$log" >&2
        return "$status"
    fi
    printf '    done in %s s\n' "$(seconds_since "$started")"
}

# stop_signs: also for clean_up, since an interrupt may end the script within quietly.
stop_signs() {
    [[ -n ${SIGNS_PID:-} ]] || return 0
    kill "$SIGNS_PID" 2>/dev/null || true
    wait "$SIGNS_PID" 2>/dev/null || true
    SIGNS_PID=''
}

# signs_of_life LOG STARTED SHELL: a line every 15 s until it is killed, or until the shell is gone.
signs_of_life() {
    local line pause=''
    trap '[[ -z $pause ]] || kill "$pause" 2>/dev/null; exit 0' TERM
    while true; do
        # In the background, since a trap waits for a command in the foreground.
        sleep 15 >/dev/null 2>&1 &
        pause=$!
        wait "$pause"
        kill -0 "$3" 2>/dev/null || exit 0
        # Progress bars write over their line with carriage returns; colours and other controls go.
        line=$(tail -c 2000 "$1" | tr '\r' '\n' | sed 's/\x1b\[[0-9;]*[A-Za-z]//g' | tr -d '\000-\010\013-\037' |
            grep -v '^[[:space:]]*$' | tail -n 1 | cut -c 1-100) || line=''
        printf '    %d s so far: %s\n' $((($(now_ms) - $2) / 1000)) "${line#"${line%%[![:space:]]*}"}"
    done
}

# seconds_since MS: with one decimal.
seconds_since() {
    local tenths=$((($(now_ms) - $1) / 100))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}
