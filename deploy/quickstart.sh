#!/usr/bin/env bash
# From nothing to delayed messages on a stock RocketMQ 4.9.7, on this machine only. See --help.
set -euo pipefail
shopt -s extglob

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for part in report cache install jars processes cluster; do
    # shellcheck source=/dev/null
    source "$ROOT/deploy/lib/$part.sh"
done

readonly VERSION=4.9.7
readonly NEWER=5.3.3
readonly MESSAGES=5
readonly TOPIC=Quickstart
readonly WITHIN_MS=50
readonly ANSWER_WITHIN_S=60

usage() {
    cat <<-TEXT
		Usage: deploy/quickstart.sh [--keep]

		Shows arbitrary-time delayed messages on a stock RocketMQ $VERSION. Installs what is missing (Debian), builds the
		proxy, starts a stock name server, a stock broker and the proxy on loopback, sends messages with the stock Java clients
		$VERSION and $NEWER, kills the proxy with -9 while it holds them, starts it again, and checks by the broker's own store
		time that every message came within $WITHIN_MS ms after its time and none before. Takes up to 10 minutes the first
		time, then less than one. Everything it started is stopped at the end.

		  --keep   leave name server, broker and proxy running, and say how to use and how to stop them
		  --help   this text

		Downloads and builds are kept in $CACHE
		(ROCKETMQ_TIMER_PROXY_CACHE names another place).

		Exit code: 0 all on time, 1 not, or something failed, 64 bad options.
	TEXT
}

main() {
    parse_options "$@"
    trap 'finish $?' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    BEGAN_MS=$(now_ms)
    prepare
    start_cluster
    start_clients
    control_run
    start_proxy 127.0.0.1:0 127.0.0.1:0
    tell "$VERSION" "through $PROXY_NAMESRV" "ready"
    tell "$NEWER" "producer $PROXY_NAMESRV" "ready"
    send_and_kill
    watch_arrivals
    verdict
}

parse_options() {
    KEEP=''
    ARRIVALS=()
    declare -gA CLIENT_PIDS=() CLIENT_IN=() CLIENT_OUT=()
    while (($#)); do
        case $1 in
            --keep) KEEP=1 ;;
            --help | -h)
                usage
                exit 0
                ;;
            *) usage_error "unknown option: $1" ;;
        esac
        shift
    done
}

# finish STATUS: on any way out. A failed run leaves its logs behind, nothing else.
finish() {
    trap - EXIT INT TERM
    if [[ -n $KEEP && $1 == 0 ]]; then
        stop_process "${CLIENT_PIDS[$VERSION]}"
        stop_process "${CLIENT_PIDS[$NEWER]}"
        say_how_to_use
        return
    fi
    (($1 == 0)) || save_logs
    clean_up
}

# === Steps ===

prepare() {
    prepare_cache
    install_needed
    claim_target
    quietly "$CACHE/logs/build.log" "Building the proxy (the first time: a few minutes)" \
        cargo build --release --locked --manifest-path "$ROOT/Cargo.toml" --bin rocketmq-timer-proxy || exit 1
    PROXY_BINARY=$CARGO_TARGET_DIR/release/rocketmq-timer-proxy
    fetch_jars "$VERSION"
    compile_java "$VERSION"
    fetch_jars "$NEWER"
    compile_java "$NEWER"
}

start_cluster() {
    scratch_dir SCRATCH
    mkdir "$SCRATCH"/{namesrv,broker,client,proxy}
    free_ports NAMESRV_PORT 1
    free_ports BROKER_PORT 4
    BROKER_PORT=$((BROKER_PORT + 2))
    say "Starting a stock name server (port $NAMESRV_PORT) and broker (port $BROKER_PORT), RocketMQ $VERSION"
    start_name_server "$VERSION" "$SCRATCH/namesrv" "$NAMESRV_PORT"
    start_broker "$VERSION" "$SCRATCH/broker" "$BROKER_PORT" "$NAMESRV_PORT" stock-broker
}

start_clients() {
    say "Starting the stock Java client, straight to the name server first"
    start_client "$VERSION" "$TOPIC" "127.0.0.1:$NAMESRV_PORT"
    # Not needed before the proxy is there, but it can start meanwhile.
    start_client "$NEWER" "$TOPIC"
    expect "$VERSION" "ready"
}

# start_client VERSION ARGUMENTS...: one at most of each version.
start_client() {
    local version=$1 commands=$SCRATCH/client/commands-$1 in out
    shift
    mkfifo "$commands"
    exec {out}< <(
        exec java "${JVM_FLAGS[@]}" "-Duser.home=$SCRATCH/client" \
            -cp "$(classes_dir "$version"):$(jars_dir "$version")/*" driver.Quickstart "$@" \
            <"$commands" 2>"$SCRATCH/client/stderr-$version.log"
    )
    CLIENT_PIDS[$version]=$!
    started "$!"
    exec {in}>"$commands"
    CLIENT_IN[$version]=$in
    CLIENT_OUT[$version]=$out
}

# Without the proxy: the broker does not know the property and delivers at once.
control_run() {
    local how due stored arrived
    tell "$VERSION" "control" "sent"
    expect "$VERSION" "message"
    IFS=$'\t' read -r _ how due stored arrived <<<"$LINE"
    ((stored < due)) || fail "the control run is no control: this broker held the message"
    say "Without the proxy: asked for +3,000 ms, stored $((due - stored)) ms before its time ($(clock "$stored"))," \
        "seen at $(clock "$arrived"): a stock $VERSION ignores __STARTDELIVERTIME"
}

# start_proxy LISTEN ADMIN: sets PROXY_PID, PROXY_NAMESRV, PROXY_ADMIN, READY_MS.
start_proxy() {
    local line
    [[ -n ${PROXY_PORTS:-} ]] || free_ports PROXY_PORTS 16
    exec {PROXY_STDOUT}< <(
        exec "$PROXY_BINARY" serve --namesrv "127.0.0.1:$NAMESRV_PORT" --listen "$1" --admin "$2" \
            --broker-ports "$PROXY_PORTS-$((PROXY_PORTS + 15))" --data-dir "$SCRATCH/proxy/data" \
            2>>"$SCRATCH/proxy/stderr.log" </dev/null
    )
    PROXY_PID=$!
    started "$PROXY_PID"
    IFS= read -r -t "$ANSWER_WITHIN_S" -u "$PROXY_STDOUT" line ||
        fail "the proxy did not get ready: $(tail -n 3 "$SCRATCH/proxy/stderr.log" | tr '\n' ' ')"
    READY_MS=$(now_ms)
    [[ $line =~ ^ready\ namesrv=([0-9.:]+)\ admin=([0-9.:]+)$ ]] || fail "not the ready line expected: $line"
    PROXY_NAMESRV=${BASH_REMATCH[1]}
    PROXY_ADMIN=${BASH_REMATCH[2]}
}

send_and_kill() {
    local due held=0
    DUES=()
    say "Through the proxy (name server address $PROXY_NAMESRV): sending $MESSAGES messages," \
        "one of them with the client $NEWER and its setDelayTimeMs"
    tell "$NEWER" "setter $NEWER" "done"
    tell "$VERSION" "send" "done"
    KILLED_MS=$(now_ms)
    stop_process "$PROXY_PID" KILL
    start_proxy "$PROXY_NAMESRV" "$PROXY_ADMIN"
    tell "$VERSION" "again $PROXY_NAMESRV" "ready"
    for due in "${DUES[@]}"; do
        ((due <= KILLED_MS)) || held=$((held + 1))
    done
    ((held > 0)) || fail "this machine took so long to send that nothing was held any more at the kill: run it again"
    say "Killed the proxy with -9 while it held $held of them; it was back after $((READY_MS - KILLED_MS)) ms"
}

watch_arrivals() {
    local how due stored arrived
    EARLY=0 LATE=0 SEEN=() WORST_MS=0
    printf '\n    %-22s %-14s %-14s %-14s %8s\n' "asked for" due "stored" "seen" "late, ms"
    while ((${#SEEN[@]} < MESSAGES)); do
        expect "$VERSION" "message"
        IFS=$'\t' read -r _ how due stored arrived <<<"$LINE"
        judge "$how" "$due" "$stored" "$arrived"
        SEEN+=("$how")
    done
    printf '\n'
}

# judge HOW DUE STORED ARRIVED: one row of the table. What fell due while the proxy was down can only leave once it is back.
judge() {
    local from=$2 remark='' late
    if (($2 >= KILLED_MS && $2 < READY_MS)); then
        from=$READY_MS
        remark="  due while the proxy was down: counted from $(clock "$READY_MS"), when it was ready"
    fi
    late=$(($3 - from))
    (($3 >= $2)) || EARLY=$((EARLY + 1))
    ((late <= WITHIN_MS)) || LATE=$((LATE + 1))
    ((late <= WORST_MS)) || WORST_MS=$late
    printf '    %-22s %-14s %-14s %-14s %8d%s\n' "$1" "$(clock "$2")" "$(clock "$3")" "$(clock "$4")" "$late" "$remark"
}

verdict() {
    local distinct
    distinct=$(printf '%s\n' "${SEEN[@]}" | sort -u | wc -l)
    if ((EARLY > 0 || LATE > 0 || distinct < MESSAGES)); then
        fail "$distinct of $MESSAGES messages came, $EARLY early, $LATE more than $WITHIN_MS ms late (in all $(seconds_since "$BEGAN_MS") s)"
    fi
    say "OK: $MESSAGES of $MESSAGES messages, none early, the latest $WORST_MS ms after its time (in all $(seconds_since "$BEGAN_MS") s)"
}

say_how_to_use() {
    local pid
    local -a kept=()
    for pid in "${STARTED_PIDS[@]}"; do
        ! is_running "$pid" || kept+=("$pid")
    done
    cat <<-TEXT

		Left running:
		  proxy         name server address for your clients: $PROXY_NAMESRV
		                admin: http://$PROXY_ADMIN/metrics   log: $SCRATCH/proxy/stderr.log
		  name server   127.0.0.1:$NAMESRV_PORT (the real one)
		  broker        127.0.0.1:$BROKER_PORT, creates topics by itself

		Point a client at it, Java for one: producer.setNamesrvAddr("$PROXY_NAMESRV");
		then send with message.putUserProperty("__STARTDELIVERTIME", String.valueOf(System.currentTimeMillis() + 2500));

		Stop and remove it all:
		  kill -9 ${kept[*]}; rm -rf $SCRATCH
	TEXT
}

# === Talking to the clients ===

# tell VERSION LINE WORD: sends the line to that client, waits for an answer that begins with the word.
tell() {
    printf '%s\n' "$2" >&"${CLIENT_IN[$1]}"
    expect "$1" "$3"
}

# expect VERSION WORD: that client's next line that begins with it is left in LINE. Arrivals that come meanwhile are kept for
# later, other lines are passed over, a failure ends the run.
expect() {
    if [[ $2 == message ]] && ((${#ARRIVALS[@]} > 0)); then
        LINE=${ARRIVALS[0]}
        ARRIVALS=("${ARRIVALS[@]:1}")
        return
    fi
    while IFS= read -r -t "$ANSWER_WITHIN_S" -u "${CLIENT_OUT[$1]}" LINE; do
        case $LINE in
            "$2" | "$2"$'\t'*) return ;;
            sent*) DUES+=("${LINE##*$'\t'}") ;;
            message*) ARRIVALS+=("$LINE") ;;
            failed*) fail "the client $1 failed: ${LINE#failed$'\t'}" ;;
        esac
    done
    fail "the client $1 did not answer within $ANSWER_WITHIN_S s (waiting for: $2)"
}

# clock MS: HH:MM:SS.mmm, local time.
clock() {
    printf '%(%T)T.%03d' $(($1 / 1000)) $(($1 % 1000))
}

main "$@"
