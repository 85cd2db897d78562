#!/usr/bin/env bash
# zig cc: a sanitizer that is turned on behind -fno-sanitize=all stays off, if it is "undefined".
#
# Of clang's options the last one counts, so "-fno-sanitize=all -fsanitize=undefined" is the usual way to have only these
# checks whatever the defaults are. zig cc turns its own checks off at "all" and does not turn them on again for the group
# "undefined": the program is built without a word and checks nothing. With "-fno-sanitize=undefined" before it, or with
# the name of a single check behind "all", the checks are there. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1
cat > "$work/a.c" <<'C'
#include <limits.h>
int main(int argc, char **argv) { (void)argv; int x = INT_MAX; return (x + argc) == 0 ? 3 : 0; }
C
export ZIG_GLOBAL_CACHE_DIR="$work/cache" ZIG_LOCAL_CACHE_DIR="$work/cache"

checks() {
    "$work/venv/bin/python" -m ziglang cc -O1 "$@" -o "$work/a" "$work/a.c"
    if (ulimit -c 0; "$work/a") > /dev/null 2>&1; then echo no; else echo yes; fi
}

echo "ziglang 0.17.1: does the overflow of an int end the program?"
status=0
expect() {
    local wanted=$1 seen
    shift
    seen=$(checks "$@" 2> /dev/null)
    echo "  $seen  $*"
    [ "$seen" = "$wanted" ] || status=1
}
expect yes -fsanitize=undefined
expect no -fno-sanitize=all
expect no -fno-sanitize=all -fsanitize=undefined
expect yes -fno-sanitize=undefined -fsanitize=undefined
expect yes -fno-sanitize=all -fsanitize=signed-integer-overflow -fsanitize-trap=undefined
exit $status
