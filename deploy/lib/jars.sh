# shellcheck shell=bash
# Jars of stock RocketMQ versions and the Java programs compiled against them, both in the cache and both complete or
# absent: they are made beside their place and moved there when done. Needs report.sh and cache.sh, and ROOT (the clone).

readonly DEPENDENCY_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.6.1

# jars_dir VERSION: where fetch_jars puts them; changes with the pom.
jars_dir() {
    printf '%s/jars/%s-%s' "$CACHE" "$1" "$(hash_of "$ROOT/deploy/java/pom-$1.xml")"
}

# classes_dir VERSION: where compile_java puts them; changes with any source.
classes_dir() {
    printf '%s/classes/%s-%s' "$CACHE" "$1" "$(hash_of "$ROOT"/deploy/java/src/*/*.java "$ROOT"/deploy/java/src/*.xml)"
}

hash_of() {
    cat "$@" | sha256sum | cut -c1-12
}

# fetch_jars VERSION
fetch_jars() {
    [[ -d $(jars_dir "$1") ]] || with_cache_lock fetch_jars_locked "$1"
}

fetch_jars_locked() {
    local version=$1 place part
    place=$(jars_dir "$version")
    [[ ! -d $place ]] || return 0
    part=$place.part
    rm -rf "$part"
    quietly "$CACHE/logs/jars-$version.log" "Fetching the jars of RocketMQ $version (up to 70 MB, a minute)" \
        mvn --batch-mode --file "$ROOT/deploy/java/pom-$version.xml" "-Dmaven.repo.local=$CACHE/m2" \
        "$DEPENDENCY_PLUGIN:copy-dependencies" "-DoutputDirectory=$part" || exit 1
    mv "$part" "$place"
}

# compile_java VERSION: the programs of deploy/java/src against that version's client.
compile_java() {
    [[ -d $(classes_dir "$1") ]] || with_cache_lock compile_java_locked "$1"
}

compile_java_locked() {
    local version=$1 place part
    place=$(classes_dir "$version")
    [[ ! -d $place ]] || return 0
    part=$place.part
    rm -rf "$part"
    mkdir -p "$part"
    quietly "$CACHE/logs/javac-$version.log" "Compiling the Java programs against RocketMQ $version" \
        javac -nowarn -encoding UTF-8 -d "$part" -cp "$(jars_dir "$version")/*" "$ROOT"/deploy/java/src/*/*.java || exit 1
    cp "$ROOT"/deploy/java/src/*.xml "$part/"
    mv "$part" "$place"
}
