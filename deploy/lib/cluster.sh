# shellcheck shell=bash
# A stock name server and broker on loopback. Needs report.sh, processes.sh and jars.sh (jars fetched).

# Heap: small, since everything of a quickstart or a test shares one machine. Serial collector and one compiler tier: quick
# to start. Exports: the broker of 4.x maps files through classes that a modern JDK hides.
readonly JVM_FLAGS=(-Xms256m -Xmx768m -XX:+UseSerialGC -XX:TieredStopAtLevel=1
    --add-exports=java.base/sun.nio.ch=ALL-UNNAMED --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED)
readonly ANSWERS_WITHIN_MS=60000

# start_name_server VERSION DIR PORT: DIR becomes its home.
start_name_server() {
    local version=$1 dir=$2 port=$3
    write_log_config "$dir" namesrv
    printf 'listenPort=%s\n' "$port" >"$dir/ns.conf"
    run_stock "$version" "$dir" org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/ns.conf"
    await_port "name server" "$port" "$!" "$dir"
}

# start_broker VERSION DIR PORT NAME_SERVER_PORT NAME: takes PORT, PORT-2 and PORT+1; returns once it is registered.
start_broker() {
    local version=$1 dir=$2 port=$3 namesrv=$4 name=$5 pid
    write_log_config "$dir" broker
    cat >"$dir/broker.conf" <<-CONF
		brokerClusterName=stock
		brokerName=$name
		brokerId=0
		brokerIP1=127.0.0.1
		listenPort=$port
		namesrvAddr=127.0.0.1:$namesrv
		storePathRootDir=$dir/store
		storePathCommitLog=$dir/store/commitlog
		mapedFileSizeCommitLog=67108864
		mappedFileSizeCommitLog=67108864
		autoCreateTopicEnable=true
		enablePropertyFilter=true
		diskMaxUsedSpaceRatio=95
	CONF
    run_stock "$version" "$dir" org.apache.rocketmq.broker.BrokerStartup -c "$dir/broker.conf"
    pid=$!
    await_port broker "$port" "$pid" "$dir"
    await_registration "$namesrv" "$name" "$pid" "$dir"
}

# run_stock VERSION DIR CLASS ARGUMENTS...: leaves the process id in $!.
run_stock() {
    local version=$1 dir=$2
    shift 2
    ROCKETMQ_HOME=$dir java "${JVM_FLAGS[@]}" "-Duser.home=$dir" \
        -Drocketmq.broker.diskSpaceWarningLevelRatio=0.98 -Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97 \
        -cp "$(jars_dir "$version")/*" "$@" >"$dir/output.log" 2>&1 </dev/null &
    started "$!"
}

# write_log_config DIR ROLE: under both names, that of 4.x and that of 5.x.
write_log_config() {
    mkdir -p "$1/conf"
    cat >"$1/conf/logback_$2.xml" <<-XML
		<configuration>
		  <appender name="file" class="ch.qos.logback.core.FileAppender">
		    <file>$1/$2.log</file>
		    <encoder><pattern>%d %p %t %m%n</pattern></encoder>
		  </appender>
		  <root level="WARN"><appender-ref ref="file"/></root>
		</configuration>
	XML
    cp "$1/conf/logback_$2.xml" "$1/conf/rmq.$2.logback.xml"
}

# === Ports and waiting ===

# free_ports VARIABLE COUNT: the first of COUNT neighbouring ports that nobody listens on, outside the ephemeral range.
free_ports() {
    local base i
    while true; do
        base=$((21000 + RANDOM % 10000))
        for ((i = 0; i < $2; i++)); do
            ! port_answers "$((base + i))" || continue 2
        done
        printf -v "$1" '%s' "$base"
        return
    done
}

port_answers() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# await_port WHAT PORT PID DIR
await_port() {
    local deadline=$(($(now_ms) + ANSWERS_WITHIN_MS))
    until port_answers "$2"; do
        is_running "$3" || fail "the $1 ended at once: $(tail -n 3 "$4/output.log" | tr '\n' ' ')(logs in $4)"
        (($(now_ms) < deadline)) || fail "the $1 did not answer on port $2 within $ANSWERS_WITHIN_MS ms"
        sleep 0.1
    done
}

# await_registration NAME_SERVER_PORT BROKER_NAME PID DIR
await_registration() {
    local deadline=$(($(now_ms) + ANSWERS_WITHIN_MS))
    until cluster_info "$1" | grep -q "\"$2\""; do
        is_running "$3" || fail "the broker ended: $(tail -n 3 "$4/output.log" | tr '\n' ' ')"
        (($(now_ms) < deadline)) || fail "the broker did not register within $ANSWERS_WITHIN_MS ms (logs in $4)"
        sleep 0.1
    done
}

# cluster_info NAME_SERVER_PORT: the answer to GET_BROKER_CLUSTER_INFO (106), asked in plain bash: a JVM would take 1 s a time.
cluster_info() {
    local header='{"code":106,"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":401}'
    (
        exec 3<>"/dev/tcp/127.0.0.1/$1"
        printf '%b%b%s' "$(be32 $((4 + ${#header})))" "$(be32 ${#header})" "$header" >&3
        read -r a b c d < <(head -c 4 <&3 | od -An -tu1)
        head -c $((a << 24 | b << 16 | c << 8 | d)) <&3 | tr -d '\0'
    ) 2>/dev/null || true
}

# be32 N: four escaped bytes for printf %b, most significant first.
be32() {
    printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 >> 24 & 255)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255))
}
