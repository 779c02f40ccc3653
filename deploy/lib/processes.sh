# shellcheck shell=bash
# Everything a script starts and every scratch folder it makes, and their end: by process id, on any way out.
# The script says `trap clean_up EXIT`, plus INT and TERM that exit. Needs report.sh and cache.sh.

STARTED_PIDS=()
SCRATCH_DIRS=()

# scratch_dir VARIABLE: makes a folder that clean_up removes.
scratch_dir() {
    local made
    made=$(mktemp -d "${TMPDIR:-/tmp}/rocketmq-timer-proxy.XXXXXXXX")
    SCRATCH_DIRS+=("$made")
    printf -v "$1" '%s' "$made"
}

# started PID: to be stopped by clean_up. Disowned, since the shell would report each process that it kills.
started() {
    STARTED_PIDS+=("$1")
    disown "$1" 2>/dev/null || true
}

is_running() {
    kill -0 "$1" 2>/dev/null
}

# stop_process PID [SIGNAL]: returns when it is gone; KILL after 5 s.
stop_process() {
    local pid=$1 deadline
    kill "-${2:-TERM}" "$pid" 2>/dev/null || return 0
    deadline=$(($(now_ms) + 5000))
    while is_running "$pid"; do
        if (($(now_ms) > deadline)); then
            kill -KILL "$pid" 2>/dev/null || true
            break
        fi
        sleep 0.02
    done
}

# save_logs: keeps the logs of all scratch folders in the cache, for a run that failed.
save_logs() {
    local dir place=$CACHE/logs/failed-run
    ((${#SCRATCH_DIRS[@]} > 0)) || return 0
    rm -rf "$place"
    mkdir -p "$place"
    for dir in "${SCRATCH_DIRS[@]}"; do
        (cd "$dir" && find . -name '*.log' -size +0 -exec cp --parents {} "$place" \;)
    done
    printf 'The logs of all processes are in %s\n' "$place" >&2
}

# clean_up: youngest first, and at once: all of it is scratch, so there is nothing to shut down in order.
clean_up() {
    local i
    stop_signs
    for ((i = ${#STARTED_PIDS[@]} - 1; i >= 0; i--)); do
        stop_process "${STARTED_PIDS[i]}" KILL
    done
    STARTED_PIDS=()
    ((${#SCRATCH_DIRS[@]} == 0)) || rm -rf "${SCRATCH_DIRS[@]}"
    SCRATCH_DIRS=()
}
