# shellcheck shell=bash
# Puts what is missing onto a Debian machine: a JDK, Maven, a C compiler, git, and Rust where a package brings one that is
# new enough. Needs report.sh and cache.sh.

readonly RUST_MIN=1.95
readonly JAVA_MIN=11

# install_needed: does nothing at all where everything is there.
install_needed() {
    local -a missing=()
    java_is_enough || missing+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    command -v git >/dev/null || missing+=(git)
    ((${#missing[@]} == 0)) || apt_install "${missing[@]}"
    need_rust
}

java_is_enough() {
    command -v java >/dev/null && command -v javac >/dev/null || return 1
    local version
    version=$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
    [[ -n $version ]] && ((version >= JAVA_MIN))
}

need_rust() {
    # Where rustup was installed without a new login, its folder is not on the path yet.
    [[ -x $HOME/.cargo/bin/cargo && $PATH != *"$HOME/.cargo/bin"* ]] && PATH=$HOME/.cargo/bin:$PATH
    rust_is_enough && return
    if command -v rustup >/dev/null; then
        rustup_install
    elif apt_offers_rustc; then
        apt_install cargo rustc
    elif apt_offers rustup; then
        apt_install rustup
        rustup_install
    fi
    rust_is_enough || fail "Rust $RUST_MIN or newer is needed, found: $(rust_found).$(
        printf ' %s' "No Debian package here brings it." \
            "Remedy: install Rust with rustup (https://www.rust-lang.org/tools/install), then run this again.")"
}

rust_found() {
    if command -v cargo >/dev/null; then
        cargo --version 2>/dev/null || printf 'a cargo that does not run'
    else
        printf 'no cargo'
    fi
}

rust_is_enough() {
    command -v cargo >/dev/null || return 1
    local version
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
    [[ -n $version ]] && at_least "$version" "$RUST_MIN"
}

rustup_install() {
    quietly "$CACHE/logs/rustup.log" "Installing Rust $RUST_MIN with rustup" \
        rustup toolchain install "$RUST_MIN" --profile minimal -c rustfmt -c clippy || exit 1
    export RUSTUP_TOOLCHAIN=$RUST_MIN
    PATH=$HOME/.cargo/bin:$PATH
}

# install_rust_components: rustfmt and clippy, which only checks of the source need.
install_rust_components() {
    if cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; then
        return
    fi
    command -v rustup >/dev/null || fail "cargo fmt and cargo clippy are needed; this Rust was not installed with rustup: add them by hand"
    quietly "$CACHE/logs/rustup.log" "Adding rustfmt and clippy" rustup component add rustfmt clippy || exit 1
}

# at_least HAVE WANT: compares dotted versions.
at_least() {
    [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# === apt ===

apt_offers() {
    command -v apt-cache >/dev/null || return 1
    apt_refresh
    [[ $(apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p') != @(|"(none)") ]]
}

apt_offers_rustc() {
    apt_offers rustc || return 1
    local candidate
    candidate=$(apt-cache policy rustc | sed -n 's/^  Candidate: //p')
    at_least "${candidate%%+*}" "$RUST_MIN"
}

apt_install() {
    command -v apt-get >/dev/null || fail "missing: $*; this is no Debian: install them by hand, then run this again"
    as_root true 2>/dev/null || fail "missing: $*; run as root, or install them first: apt-get install $*"
    apt_refresh
    quietly "$CACHE/logs/apt-install.log" "Installing with apt: $*" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" || exit 1
}

# Package lists are fetched at most once a run, and only when something has to be installed.
apt_refresh() {
    [[ -z ${APT_REFRESHED:-} ]] || return 0
    as_root true 2>/dev/null || return 0
    quietly "$CACHE/logs/apt-update.log" "Updating apt's package lists" as_root apt-get update || exit 1
    APT_REFRESHED=1
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        command -v sudo >/dev/null && sudo -n "$@"
    fi
}
