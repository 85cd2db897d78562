#!/usr/bin/env bash
# isal: the bytes of a gzip stream depend on how the content was divided into writes; those of zlib do not.
#
# A compressor is taken to give the same bytes for the same content however it is handed over, as zlib does: hashes of
# outputs, reproducible builds and deduplicated uploads rest on it. isal's keeps less between two calls: at level 3 any
# division of ordinary text changes the bytes, and at every level that of repetitive text, where the first part has some
# hundred bytes or more. All streams are right. Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check isal==1.9.1
"$work/venv/bin/python" - <<'P'
import gzip, sys, zlib
from isal import isal_zlib

TEXTS = {
    "numbered": b"".join(b'{"id": %d, "text": "line %d"}\n' % (number, number * 7919 % 1000) for number in range(4000)),
    "repeated": b'{"attributes": {}}\n' * 3000,
}


def packed(module, level, text, first):
    made = module.compressobj(level, zlib.DEFLATED, 31)
    data = made.compress(text[:first]) + made.compress(text[first:]) + made.flush()
    assert gzip.decompress(data) == text
    return data


print("isal 1.9.1: how many of 5 divisions into two writes change the bytes")
seen = {}
for name, text in TEXTS.items():
    for which, module, level in (("zlib", zlib, 6), ("isal", isal_zlib, 1), ("isal", isal_zlib, 3)):
        whole = packed(module, level, text, 0)
        changed = sum(packed(module, level, text, first) != whole for first in (10, 200, 500, 1000, 5000))
        seen[name, which, level] = changed
        print(f"  {name}  {which} level {level}: {changed}")
zlib_never = not any(changed for (_, which, _), changed in seen.items() if which == "zlib")
isal_does = seen["numbered", "isal", 3] >= 1 and seen["repeated", "isal", 1] >= 3 and not seen["numbered", "isal", 1]
sys.exit(not (zlib_never and isal_does))
P
