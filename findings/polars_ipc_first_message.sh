#!/usr/bin/env bash
# An Arrow file of Polars is not a stream with a frame around it.
#
# The first schema of an Arrow file, at byte 8, is commonly read as the start of a stream, which works for files of
# pyarrow. Polars writes it there without the marker 0xFFFFFFFF that every message of a stream begins with. The
# footer is the only entry: `pyarrow.ipc.open_file` reads the file.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import io, polars, pyarrow
from pyarrow import ipc

polars.DataFrame({"t": ["a", "b"]}).write_ipc("polars.arrow")
table = pyarrow.table({"t": ["a", "b"]})
with ipc.new_file("pyarrow.arrow", table.schema) as writer:
    writer.write_table(table)
seen = {}
for name in ("pyarrow", "polars"):
    data = open(f"{name}.arrow", "rb").read()
    try:
        inside = ipc.open_stream(io.BytesIO(data[8:])).read_all().num_rows
    except OSError as error:
        inside = str(error)
    seen[name] = (data[8:12] == b"\xff" * 4, inside, ipc.open_file(io.BytesIO(data)).read_all().num_rows)
    print(f"{name}: marker {seen[name][0]}, read as a stream from byte 8: {inside}, read by its footer: {seen[name][2]} rows")
assert seen["pyarrow"] == (True, 2, 2), "changed"
assert seen["polars"][0] is False and isinstance(seen["polars"][1], str) and seen["polars"][2] == 2, "changed"
PYTHON
