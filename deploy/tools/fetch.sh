#!/usr/bin/env bash
# Fetch the programs of other projects that tests and `make deploy-local` run into .tools/; `make tools` calls it.
#
# What is on PATH is used as it is. Anything else is taken from Debian's (or Ubuntu's) packages: apt checks their
# signatures, nothing is installed, no root is needed. Calling it again does nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

# package: its programs. What is found in .tools/usr/{bin,sbin} gets a link in .tools/bin. Debian calls some programs like
# their package.
PACKAGES=(
    "prometheus: prometheus promtool"
    "prometheus-alertmanager: alertmanager amtool"
    "spin: spin"
    "nginx: nginx"
)
declare -A DEBIAN=([alertmanager]=prometheus-alertmanager)
declare -A VERSION=([spin]=-V [nginx]=-v) # what asks a program for its version, where it is not --version

tools=$PWD/.tools
mkdir -p "$tools/bin"
if command -v flock > /dev/null; then
    exec 9> "$tools/lock"
    flock 9 # two calls at a time would unpack into each other
fi
scratch=$(mktemp -d "$tools/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# $1: the program in .tools/bin or on PATH, or nothing.
found() {
    if [ -x "$tools/bin/$1" ]; then
        echo "$tools/bin/$1"
    else
        command -v "$1" || command -v "${DEBIAN[$1]:-$1}" || true
    fi
}

# $1: a command that is absent.
give_up() {
    cat >&2 <<END
$1 is missing, and it cannot be fetched here: $2.
Install these programs so that they are on PATH, or put them (or links to them) into $tools/bin:
$(printf '  %s\n' "${wanted[@]}")
Debian, Ubuntu: apt-get install ${packages[*]}
Elsewhere: prometheus and promtool, alertmanager and amtool come from https://prometheus.io/download/, spin from
https://spinroot.com, nginx from https://nginx.org
END
    exit 1
}

# $1: a package; downloads it into the scratch folder.
download() {
    # The system's package lists first; a private copy of fresh ones where they are absent or old.
    (cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download "$1") > "$scratch/log" 2>&1 && return
    local private=(-o "Dir::State=$scratch/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$scratch/cache"
        -o APT::Sandbox::User=root -o Debug::NoLocking=true -o Acquire::Languages=none)
    mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial"
    [ -e "$scratch/updated" ] || apt-get -qq "${private[@]}" update >> "$scratch/log" 2>&1 || return 1
    touch "$scratch/updated"
    (cd "$scratch" && apt-get -qq "${private[@]}" download "$1") >> "$scratch/log" 2>&1
}

wanted=() packages=("${PACKAGES[@]%%:*}")
for line in "${PACKAGES[@]}"; do
    for program in ${line#*:}; do wanted+=("$program"); done
done

for line in "${PACKAGES[@]}"; do
    package=${line%%:*} missing=
    for program in ${line#*:}; do [ -n "$(found "$program")" ] || missing=$program; done
    [ -n "$missing" ] || continue
    for needed in apt-get dpkg; do
        command -v "$needed" > /dev/null || give_up "$missing" "there is no $needed on this machine"
    done
    echo "Fetching the package $package" >&2
    download "$package" || { cat "$scratch/log" >&2; give_up "$missing" "apt-get download $package failed"; }
    dpkg -x "$scratch/$package"_*.deb "$tools"
    for program in ${line#*:}; do
        for folder in usr/bin usr/sbin; do
            for name in "$program" "${DEBIAN[$program]:-}"; do
                if [ -n "$name" ] && [ -x "$tools/$folder/$name" ]; then ln -sf "../$folder/$name" "$tools/bin/$program"; fi
            done
        done
        [ -n "$(found "$program")" ] || give_up "$program" "the package $package does not have it"
    done
done

# Debian's Alertmanager reads its templates from a fixed path below /usr/share. Unpacked here it gets them there in a mount
# namespace of its own; the link becomes a script. setpriv: the kernel forgets on the way that it shall end with its parent.
templates=usr/share/prometheus/alertmanager
if [ -L "$tools/bin/alertmanager" ] && [ -e "$tools/$templates/default.tmpl" ] && ! [ -e "/$templates/default.tmpl" ]; then
    rm "$tools/bin/alertmanager"
    cat > "$tools/bin/alertmanager" <<'END'
#!/bin/sh
tools=$(cd "$(dirname "$0")/.." && pwd)
exec unshare --mount --map-root-user setpriv --pdeathsig TERM sh -ec '
    mount -t overlay overlay -o "lowerdir=$0/usr/share:/usr/share" /usr/share
    exec "$0/usr/bin/prometheus-alertmanager" "$@"' "$tools" "$@"
END
    chmod +x "$tools/bin/alertmanager"
    if ! "$tools/bin/alertmanager" --version > /dev/null 2>&1 && [ -w /usr/share ]; then
        # No namespaces here, as in most containers, but the right to put the templates where they are looked for.
        mkdir -p "/${templates%/*}"
        cp -r "$tools/$templates" "/$templates"
        ln -sf ../usr/bin/prometheus-alertmanager "$tools/bin/alertmanager"
    fi
fi

for program in "${wanted[@]}"; do
    path=$(found "$program")
    version=$("$path" "${VERSION[$program]:---version}" 2>&1) || give_up "$program" "$path does not run: $version"
    echo "$path: ${version%%(*}"
done
