#!/usr/bin/env bash
# Polars' new Map keeps repeated keys that come as Arrow, and loses them, without a word, when it reads a Parquet file.
#
# Of `[("a", 1), ("a", 2)]`, which Arrow and Parquet allow, `read_parquet` keeps the last pair, `from_arrow` both.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

pairs = [("a", 1), ("a", 2), ("b", 3)]
table = pa.table({"x": pa.array([pairs], pa.map_(pa.string(), pa.int32()))})
pq.write_table(table, "maps.parquet")
assert pq.read_table("maps.parquet")["x"].to_pylist() == [pairs]
found = {
    "from_arrow": pl.from_arrow(table),
    "read_parquet": pl.read_parquet("maps.parquet"),
    "scan_parquet": pl.scan_parquet("maps.parquet").collect(),
    "read_parquet(use_pyarrow)": pl.read_parquet("maps.parquet", use_pyarrow=True),
}
for name, frame in found.items():
    got = frame.to_arrow()["x"].to_pylist()[0]
    print(f"polars {pl.__version__}, {name}: {frame.schema['x']}, {got}")
    assert got == (pairs[1:] if name in ("read_parquet", "scan_parquet") else pairs), "changed"
PYTHON
