#!/usr/bin/env bash
# A small member of a tar of webdataset takes 2 kB, not 1 kB.
#
# `TarWriter` gives members a time of change with a fraction, which ustar cannot hold, so that each member gets a PAX
# header of its own (two blocks) for the time alone. Members of two bytes so take 2,048 bytes instead of 1,024.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import os, tarfile, webdataset

with webdataset.TarWriter("a.tar") as tar:
    for number in range(100):
        tar.write({"__key__": f"{number:06d}", "txt": "hi"})
members = tarfile.open("a.tar").getmembers()
blocks = {member.offset_data - member.offset for member in members}
print(f"{len(members)} members of 2 bytes: {os.path.getsize('a.tar'):,} bytes, header bytes of a member: {blocks}")
print("PAX keys:", sorted({key for member in members for key in member.pax_headers}))
assert blocks == {1536} and {key for member in members for key in member.pax_headers} == {"mtime"}, "changed"
PYTHON
