#!/usr/bin/env bash
# pyarrow writes a column of fixed size lists of size 0 to Parquet and then cannot read its own file.
#
# An Arrow file of the same table is read. The type is valid: a model without features of one kind has vectors of
# length 0. The error speaks of another size that no list in the file has.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({"vector": pa.array([[], []], pa.list_(pa.float32(), 0))})
with pa.ipc.new_file("a.arrow", table.schema) as writer:
    writer.write_table(table)
print(f"pyarrow {pa.__version__}, Arrow file:", pa.ipc.open_file("a.arrow").read_all()["vector"].to_pylist())
pq.write_table(table, "a.parquet")
try:
    seen = str(pq.read_table("a.parquet")["vector"].to_pylist())
except pa.ArrowInvalid as error:
    seen = f"ArrowInvalid: {error}"
print(f"pyarrow {pa.__version__}, Parquet file:", seen)
assert seen == "ArrowInvalid: Expected all lists to be of size=0 but index 1 had size=1", "changed"
PYTHON
