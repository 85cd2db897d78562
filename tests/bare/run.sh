#!/usr/bin/env bash
# The README's two commands on a bare machine: a Debian root file system that has python3, python3-venv, git, make and
# ca-certificates and nothing else, entered with chroot, as root and as an ordinary user.
#
#     tests/bare/run.sh [options] ROOT
#
# ROOT is a folder outside the checkout. It is made the first time (debootstrap, some 400 MB) and kept for the next run;
# `rm -r ROOT` is all that removing it takes, as nothing stays mounted. Options:
#
#     --users "root tester"   who runs them
#     --odd                   `make test` once more, as the ordinary user, in odd surroundings (see `odd` below)
#     --again                 go on in the clones of the last run, with their environments: commits are pulled
#     --command "COMMAND"     this in the clone instead of the two commands, such as ".venv/bin/python -m pytest tests/storage"
#
# What the network of this machine needs is taken over: the proxy and certificate variables, pip's settings (PIP_* and
# what `pip config list` says) and every local file or folder that they name (bind mounts, read-only). CARRY="PATH ..."
# names more of these, MIRROR and SUITE another Debian mirror and release. Needs root, for chroot and mounts: they are
# made in namespaces of their own, so that they, and every process, are gone when this script is, however it ends.
set -euo pipefail

users="root tester" odd="" again="" command="" root=""
while [ $# -gt 0 ]; do
    case $1 in
    --users) users=$2 && shift ;;
    --odd) odd=yes ;;
    --again) again=yes ;;
    --command) command=$2 && shift ;;
    -*) echo "unknown option $1; see the head of $0" >&2 && exit 2 ;;
    *) root=$1 ;;
    esac
    shift
done
[ -n "$root" ] || { echo "usage: $0 [options] ROOT; see the head of this file" >&2 && exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0 needs root, for chroot and mounts; run it as root" >&2 && exit 2; }
checkout=$(cd "$(dirname "$0")/../.." && pwd)
case $(realpath -m "$root")/ in "$checkout"/*) echo "ROOT lies in the checkout: name a folder outside" >&2 && exit 2 ;; esac

packages=python3,python3-venv,git,make,ca-certificates
if [ ! -e "$root/made" ]; then
    command -v debootstrap >/dev/null || { echo "debootstrap is missing (Debian: apt install debootstrap)" >&2 && exit 2; }
    echo "== making a Debian of its own in $root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=$packages "${SUITE:-bookworm}" "$root/debian" ${MIRROR:+"$MIRROR"} >"$root/debootstrap.log"
    chroot "$root/debian" useradd --create-home --shell /bin/sh tester
    touch "$root/made"
fi
root=$(realpath "$root")

if [ -z "${BARE_INSIDE:-}" ]; then # once more in namespaces of its own: what it mounts and starts ends with it
    export BARE_INSIDE=yes
    env --default-signal=INT unshare --mount --propagation private --pid --fork --kill-child "$0" \
        --users "$users" ${odd:+--odd} ${again:+--again} ${command:+--command "$command"} "$root" &
    inside=$!
    trap 'kill -KILL $inside 2>/dev/null || true' EXIT INT TERM HUP
    wait $inside && exit 0 || exit $?
fi

debian=$root/debian logs=$root/logs
commit=$(git -C "$checkout" -c safe.directory='*' rev-parse --short HEAD) # the checkout may move on meanwhile
mkdir -p "$logs"
cp -L /etc/resolv.conf "$debian/etc/resolv.conf"

mount -t proc proc "$debian/proc"
mount -t tmpfs -o mode=755 tmpfs "$debian/dev" # devices of its own: nothing here can harm the machine's
while read -r name major minor; do
    mknod -m 666 "$debian/dev/$name" c "$major" "$minor"
done <<<"null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0"
mkdir "$debian/dev/shm" "$debian/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$debian/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$debian/dev/pts"
ln -s pts/ptmx "$debian/dev/ptmx"
ln -s /proc/self/fd "$debian/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$debian/dev/${number#*:}"; done

carry() { # a file or folder of this machine, at the same place inside, read-only
    [ -e "$1" ] || return 0
    if [ -d "$1" ]; then mkdir -p "$debian$1"; else mkdir -p "$debian$(dirname "$1")"; fi
    [ -e "$debian$1" ] || touch "$debian$1"
    mount --bind "$(realpath "$1")" "$debian$1"
    mount -o remount,bind,ro "$debian$1"
}

settings=()
while IFS= read -r line; do # pip's settings as variables, what is in the environment last: it overrides the files
    name=${line%%=*} value=${line#*=}
    value=${value#[\'\"]} value=${value%[\'\"]} value=${value//\\n/ }
    name=${name##*.} name=PIP_${name//-/_}
    settings+=("${name^^}=$value")
done < <(python3 -m pip config list 2>/dev/null | sort -s -t. -k1,1r || true)
while IFS= read -r line; do
    settings+=("$line")
done < <(env | grep -E '^(PIP_[A-Z_]+|(https?|HTTPS?|all|ALL|no|NO)_(proxy|PROXY)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO)=' || true)
for path in ${CARRY:-} $(for setting in "${settings[@]}"; do
    for word in ${setting#*=}; do
        case $word in
        file://*/simple | file://*/simple/) dirname "${word#file://}" ;; # an index: its files lie beside it
        file://*) echo "${word#file://}" ;;
        /*) echo "$word" ;;
        esac
    done
done | sort -u); do
    carry "$path"
done

within() { # USER COMMAND: in the chroot, with a fresh environment, in the user's home
    local home=/home/$1
    [ "$1" = root ] && home=/root
    chroot --userspec="$1:$1" --groups="$1" "$debian" /usr/bin/env -i \
        HOME="$home" USER="$1" LOGNAME="$1" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM=dumb \
        "${settings[@]}" /bin/sh -c "cd && $2"
}

odd() { # USER: the tests where little is as usual; no network but loopback, no home to write to
    local proxy surroundings="HOME=/usr TZ=Asia/Kathmandu LC_ALL=tr_TR.UTF-8 COLUMNS=40 FORCE_COLOR=1 PYTHONDONTWRITEBYTECODE=1"
    for proxy in http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY; do
        surroundings+=" $proxy=http://127.0.0.1:9"
    done
    # shellcheck disable=SC2016,SC2086 # expanded by the inner shell; several words
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
        chroot --userspec="$1:$1" --groups="$1" "$debian" /usr/bin/env -i PATH=/usr/bin:/bin $surroundings \
        /bin/sh -c "umask 077 && ulimit -n 1024 && cd /home/$1/feedmill && $whole"
}

whole=${command:-".venv/bin/python -m pytest -n auto -m 'not slow' --hypothesis-profile=repeatable"}
summary=()
failed=0
step() { # NAME COMMAND...: run it, keep what it prints, note how it ended
    local name=$1 began=$SECONDS rc=0
    shift
    echo "== $name"
    "$@" >"$logs/$name.log" 2>&1 || rc=$?
    [ $rc = 0 ] || { failed=1 && tail -n 40 "$logs/$name.log"; }
    summary+=("$(printf '%-22s exit %d  %4d s  %s' "$name" $rc $((SECONDS - began)) \
        "$(grep -aoE '[0-9]+ (passed|failed)[^=]*' "$logs/$name.log" | tail -n 1 || true)")")
}

for user in $users; do
    home=$debian/home/$user
    [ "$user" = root ] && home=$debian/root
    if [ -z "$again" ] || [ ! -d "$home/feedmill" ]; then
        rm -rf "$home/feedmill" "$home/feedmill.git"
        git clone --quiet --bare "$checkout" "$home/feedmill.git"
        chroot "$debian" chown -R "$user:$user" "${home#"$debian"}/feedmill.git"
        within "$user" "git clone --quiet feedmill.git feedmill"
    else
        git -C "$home/feedmill.git" -c safe.directory='*' fetch --quiet "$checkout" +HEAD:refs/heads/bare-again
        chroot "$debian" chown -R "$user:$user" "${home#"$debian"}/feedmill.git"
        within "$user" "cd feedmill && git fetch --quiet origin bare-again && git reset --quiet --hard FETCH_HEAD"
    fi
    if [ -n "$command" ]; then
        step "$user-command" within "$user" "cd feedmill && $command"
    else
        step "$user-demo" within "$user" "cd feedmill && make demo"
        step "$user-test" within "$user" "cd feedmill && make test"
    fi
done
[ -z "$odd" ] || step "tester-odd" odd tester

echo
echo "== commit $commit on Debian $(cat "$debian/etc/debian_version"), $(chroot "$debian" python3 --version), $(nproc) cores"
echo "packages asked for: ${packages//,/ }; $(chroot "$debian" dpkg-query -f '.\n' -W | wc -l) in all; no $(for tool in gcc strace fusermount3 unshare chattr perl ip; do
    chroot "$debian" sh -c "command -v $tool" >/dev/null || printf '%s ' $tool
done)"
printf '%s\n' "${summary[@]}" "what they printed: $logs"
exit $failed
