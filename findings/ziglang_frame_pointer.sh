#!/usr/bin/env bash
# zig cc: optimized code keeps the frame pointer, which clang and gcc leave out.
#
# From -O1 on, clang and gcc omit the frame pointer on Linux x86-64 unless they are told to keep it. zig cc is clang, and
# its options are clang's, but it keeps the pointer at every level: each function gives up a register and two
# instructions, which tight loops notice. -fomit-frame-pointer gives clang's code. Exits 0 while this is so, 1 when it
# has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1
cat > "$work/a.c" <<'C'
long sum(const long *values, long count) {
    long total = 0;
    for (long i = 0; i < count; i++) total += values[i];
    return total;
}
C
export ZIG_GLOBAL_CACHE_DIR="$work/cache" ZIG_LOCAL_CACHE_DIR="$work/cache"

pushes() {
    "$work/venv/bin/python" -m ziglang cc -target x86_64-linux-gnu "$@" -S -o "$work/a.s" "$work/a.c"
    if grep -q 'pushq.*%rbp' "$work/a.s"; then echo yes; else echo no; fi
}

echo "ziglang 0.17.1: does the function keep the frame pointer?"
status=0
expect() {
    local wanted=$1 seen
    shift
    seen=$(pushes "$@" 2> /dev/null)
    echo "  $seen  $*"
    [ "$seen" = "$wanted" ] || status=1
}
expect yes -O2
expect yes -O3
expect no -O2 -fomit-frame-pointer
exit $status
