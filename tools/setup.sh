#!/bin/sh
# Install the packages of requirements.lock into .venv, then this one: all of them, or with `lab` the
# first part of the lock, which is what a learner needs. The second run adds what the first left out.
# Does nothing, and reaches no network, while the lock, pyproject.toml and the folder's place
# are those of the last time. What stands in the way is said in one line; the rest is in the log.
#
#     sh tools/setup.sh lab                        what make lab needs
#     PYTHON=python3.12 sh tools/setup.sh          what make test and all other targets need
#     TORCH=cpu sh tools/setup.sh                  without CUDA's libraries, three GB less
#     sh tools/setup.sh wheelhouse                 all packages into wheelhouse/, as files
#     WHEELHOUSE=wheelhouse sh tools/setup.sh      from there, without network
#     HASHES=off sh tools/setup.sh                 from an index that has builds of its own
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."

python=${PYTHON:-python3}
here=$(pwd -P)
log=.venv/setup.log
scrap=.venv/uv-cache  # on a scarce disk: its files are links, and go once they are installed
need_gb=11   # 7.8 GB installed, 7.4 of them for lab, and 3.2 GB of downloads until the end
cache_gb=14  # with the cache that spares a second set-up the downloads
uv=uv==0.13.9  # installs the rest, with a sixth of pip's work; not in the lock, but in the hashes
build=$(cat .venv/torch 2>/dev/null || :)  # what an earlier run was told: torch stays as it is
torch=${TORCH:-$build}
part=all; [ "${1:-}" != lab ] || part=lab
lock=requirements.lock
rest='^# Besides'  # the comment in the lock between the learner's packages and all others
wheels=${WHEELHOUSE:-}
news=@jupyterlab/apputils-extension:announcements

stop() {
    echo "setup: $1" >&2
    exit 1
}

state() {
    echo "$here"
    cat requirements.lock pyproject.toml
    [ -z "$torch" ] || echo "torch: $torch"
}

# Whether a part, lab or all, is installed as it stands here now.
ready() {
    [ -x .venv/bin/python ] && state | cmp -s - ".venv/ready-$1"
}

version() {
    "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null
}

check_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    command -v "$python" >/dev/null || stop "$python: not found, expected Python 3.11 or newer.\
 Install it, or name another: make lab PYTHON=python3.12"
    stop "$python: got $("$python" --version 2>&1 | head -n 1), expected Python 3.11 or newer.\
 Install it, or name another: make lab PYTHON=python3.12"
}

check_venv_module() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null || stop "$python: its venv module is\
 missing. Install it (Debian, Ubuntu: apt install python$(version "$python")-venv), run again."
}

check_torch() {
    [ -n "$torch" ] || return 0
    [ "$torch" = cpu ] || stop "TORCH: got $torch, expected cpu, or nothing for the build with CUDA."
    [ "$build" = cpu ] || [ ! -e .venv/ready-lab ] || stop "TORCH: .venv holds the build with CUDA,\
 expected none. Delete .venv, then run the same command again."
    need_gb=5 cache_gb=7
}

check_wheels() {
    [ -n "$wheels" ] || return 0
    [ -d "$wheels" ] || stop "WHEELHOUSE: got $wheels, which is no folder, expected the one that\
 make wheelhouse wrote. Copy it here from a machine with network."
    wheels=$(CDPATH='' cd -- "$wheels" && pwd -P)
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="file://$(escaped "$wheels")" UV_OFFLINE=1
}

# A folder's name as part of an address: pip splits what it is told at blanks.
escaped() {
    printf %s "$1" | sed 's/%/%25/g; s/ /%20/g; s/,/%2C/g'
}

# torch's own build for CPUs carries the same version; the libraries of the other one stay away.
choose_lock() {
    if [ "$part" = lab ]; then
        lock=.venv/lab.lock
        sed "/$rest/,\$d" requirements.lock >"$lock"
    fi
    if [ "$torch" = cpu ]; then
        grep -Ev '^(nvidia|cuda)-|^triton==' "$lock" >.venv/cpu.lock
        lock=.venv/cpu.lock
    fi
}

# Lines of a list, each with the hashes of all files that the index has of its pin. A wheelhouse was
# compared when it was filled, and may hold wheels built from source. torch for CPUs comes from an index
# of PyTorch's own, with files of its own.
with_hashes() {
    if [ -n "$wheels" ] || [ "${HASHES:-on}" = off ]; then cat "$1"; return; fi
    awk -v torch="$torch" 'FILENAME == "requirements.hashes" { pin = $1; $1 = ""; known[pin] = $0; next }
        { print $0 (torch == "cpu" && /^torch/ ? "" : known[$1]) }' requirements.hashes "$1"
}

write_hashed_lists() {
    [ -f requirements.hashes ] || stop "requirements.hashes: not found. Restore it, for example with\
 git checkout requirements.hashes"
    echo "$uv" >.venv/uv.txt
    with_hashes .venv/uv.txt >.venv/uv.lock
    with_hashes "$lock" >.venv/hashed.lock
}

check_disk() {
    free=$(df -Pk . | awk 'NR == 2 { print $4 }')
    used=$(du -sk .venv 2>/dev/null | cut -f 1)
    gb=$(((free + ${used:-0}) * 1024 / 1000000000))
    [ "$gb" -ge "$need_gb" ] || stop "disk: got $gb GB free in this folder, expected $need_gb GB.\
 Free some space, or clone onto a larger disk, then run the same command again."
    [ "$gb" -ge "$cache_gb" ] || export PIP_NO_CACHE_DIR=1 UV_CACHE_DIR="$scrap"
}

# An environment of another Python, or of a folder that was moved, cannot be mended in place.
drop_foreign_venv() {
    [ -e .venv ] || return 0
    [ "$(version .venv/bin/python)" = "$(version "$python")" ] &&
        grep -qF " $here/.venv" .venv/pyvenv.cfg && return
    echo "setup: .venv was made by another Python or in another folder; making it anew"
    rm -rf .venv
}

logged() {
    "$@" >>"$log" 2>&1 || explain
}

# What uv and pip say where the network is the cause: pip's words, then those of uv.
no_network='NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|Connection(Reset| )Error|Connection broken|Read timed out|Max retries|connection-failed'
no_network="$no_network|error sending request|dns error|tcp connect error|operation timed out|Failed to (connect|fetch)"
no_trust='invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED|certificate verify failed'

no_match='hash mismatch|do not match the hashes'  # uv's words, then pip's

# What the last program that ran has said: where uv gave up and pip went on, what pip said.
last_said() {
    awk -v mark="$gave_up" '$0 ~ mark { said = ""; next } { said = said $0 "\n" } END { printf "%s", said }' "$log"
}
gave_up='^setup: uv could not'

explain() {
    if grep -Eqi "$no_match" "$log"; then
        stop "hashes: a package of your index is another file than the one in requirements.hashes (log:\
 $log). If the index has builds of its own and you trust it, run the same command with HASHES=off."
    elif [ -n "$wheels" ] && grep -Eqi 'No matching distribution|no solution found|not found in the' "$log"; then
        stop "WHEELHOUSE: a package is not in $wheels, or not for this Python and system. Write it on\
 a machine of the same kind: make wheelhouse (log: $log)."
    elif grep -q 'No space left on device' "$log"; then
        stop "disk: it ran full. Free $need_gb GB here and in ${TMPDIR:-/tmp}, then run the same\
 command again (log: $log)."
    elif last_said | grep -Eq "$no_trust"; then
        stop "network: the certificate of the package index is not known here, as behind a company's\
 proxy. Name the file that your company gives: pip config set global.cert FILE (log: $log)."
    elif last_said | grep -Eq "$no_network"; then
        stop "network: the package index cannot be reached. Connect (behind a proxy: set\
 HTTPS_PROXY), then run the same command again (log: $log)."
    fi
    stop "installing failed on Python $(version "$python"). The last lines of $log say why;\
 Python 3.11 to 3.13 on Linux are known to work."
}

# In a terminal one line that moves: seconds, what was taken of the disk, the log's last line. In a
# file, a line a minute.
show_progress() {
    seconds=0 before=$(df -Pk . | awk 'NR == 2 { print $4 }')
    while sleep 1; do
        seconds=$((seconds + 1))
        mb=$(((before - $(df -Pk . | awk 'NR == 2 { print $4 }')) / 1024))
        [ "$mb" -ge 0 ] || mb=0
        if [ -t 1 ]; then
            printf '\r\033[K  %d s, %d MB: %.50s' "$seconds" "$mb" "$(tail -n 1 "$log")"
        elif [ $((seconds % 60)) = 0 ]; then
            echo "setup: $seconds s, $mb MB so far"
        fi
    done
}

# A setting that pip was told, in a file or in the environment: uv does not read what configures pip.
told_pip() {
    .venv/bin/python -m pip config list |
        sed -n "s/^[^=]*\\.$1='\\(.*\\)'\$/\\1/p" | head -n 1 | sed 's/\\n/ /g'
}

# Give uv a variable unless it has one already, from a setting of pip.
tell_uv() {
    eval "has=\${$1:-}"
    [ -z "$has" ] || return 0
    told=$(told_pip "$2")
    [ -z "$told" ] || export "$1=$told"
}

tell_uv_the_network() {
    tell_uv SSL_CERT_FILE cert
    tell_uv SSL_CLIENT_CERT client-cert
    tell_uv HTTPS_PROXY proxy
    tell_uv HTTP_PROXY proxy
    tell_uv UV_INSECURE_HOST trusted-host
    tell_uv UV_HTTP_TIMEOUT default-timeout
    tell_uv UV_HTTP_TIMEOUT timeout
}

# Fails where there is no uv for this machine, or where it cannot do what pip can.
with_uv() {
    .venv/bin/python -m pip install --only-binary :all: -r .venv/uv.lock || return 1
    [ "$torch" != cpu ] || [ -n "$wheels" ] || export UV_TORCH_BACKEND=cpu  # uv knows where torch's builds lie
    tell_uv_the_network
    UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$(told_pip index-url)} \
        UV_INDEX=${UV_INDEX:-$(told_pip extra-index-url)} UV_INDEX_STRATEGY=unsafe-best-match \
        UV_FIND_LINKS=${UV_FIND_LINKS:-$(told_pip find-links | tr ' ' ,)} \
        .venv/bin/uv pip install --python .venv/bin/python ${wheels:+--no-index} -r .venv/hashed.lock
    installed=$?
    rm -rf "$scrap"
    return "$installed"
}

# Where one line has hashes, pip wants them for every package, also for the few that only macOS and
# Windows add and that the lock does not name.
with_pip() {
    ! grep -Eqi "$no_match" "$log" || explain
    [ "$(uname)" != Linux ] || lock=.venv/hashed.lock
    say_both "setup: uv could not install the packages ($(why_uv_failed)); pip goes on, which takes\
 some minutes more"
    logged .venv/bin/python -m pip install -r "$lock"
}

why_uv_failed() {
    said=$(grep -Eio "$no_trust|$no_network|no solution found|no space left on device" "$log" | tail -n 1)
    echo "${said:-its last lines are in $log}"
}

say_both() {
    [ ! -t 1 ] || printf '\r\033[K'
    echo "$1"
    echo "$1" >>"$log"
}

# As wheels, also of what comes as source: a machine without network may lack what builds it.
fill_wheelhouse() {
    [ "$torch" != cpu ] || [ -n "$(told_pip extra-index-url)" ] || stop "wheelhouse: pip does not know\
 torch's builds for CPUs. Set PIP_EXTRA_INDEX_URL to the address that PyTorch's installation page gives."
    echo "setup: some GB into wheelhouse/, for machines like this one (log: $log)"
    choose_lock
    write_hashed_lists
    logged .venv/bin/python -m pip wheel --no-deps --wheel-dir wheelhouse -r .venv/uv.lock
    [ "$torch" = cpu ] || lock=.venv/hashed.lock  # with a line that has none, pip takes no hash
    logged .venv/bin/python -m pip wheel --no-deps --wheel-dir wheelhouse -r "$lock"
    echo "setup: wheelhouse/ is complete. Copy it into the course's folder on the other machine, then\
 there: make lab WHEELHOUSE=wheelhouse"
}

install() {
    logged "$python" -m venv .venv
    choose_lock
    write_hashed_lists
    # pip knows one torch: that with CUDA. It must not take the place of the one that was asked for.
    with_uv >>"$log" 2>&1 || { [ "$torch" != cpu ] || [ -n "$wheels" ] || explain; with_pip; }
    logged .venv/bin/python -m pip install --no-deps --no-build-isolation -e .
    # Else JupyterLab asks about its news, and asks the network for them.
    logged .venv/bin/python -m jupyter labextension disable "$news"
}

check_torch
if [ "${1:-}" = wheelhouse ]; then
    ready lab || stop "no environment here yet, expected one. Run: make setup, then make wheelhouse"
    fill_wheelhouse
    exit 0
fi
! ready "$part" || exit 0
check_wheels
check_python
check_venv_module
check_disk
drop_foreign_venv
mkdir -p .venv 2>/dev/null || stop "this folder cannot be written. Clone to one that can."
ready lab || rm -f .venv/ready-lab
rm -f .venv/ready-all
: >"$log"
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
echo "setup: installing into .venv, some minutes the first time (log: $log)"
show_progress &
ticker=$!
trap 'kill "$ticker" 2>/dev/null; [ ! -t 1 ] || printf "\r\033[K"' EXIT
trap 'exit 130' INT TERM
install
[ -z "$torch" ] || echo "$torch" >.venv/torch
state >.venv/ready-lab
[ "$part" = lab ] || state >.venv/ready-all
