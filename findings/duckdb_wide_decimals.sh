#!/usr/bin/env bash
# DuckDB reads Parquet decimals of more than 38 digits as DOUBLE, without a word; the same column as Arrow is an error.
#
# 41 digits become 16, numbers that differ become equal, and `write_parquet` writes doubles for what were decimals.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

values = [Decimal(f"12345678901234567890.12345678901234567890{n}") for n in (1, 2)]
wide = pa.table({"x": pa.array(values, pa.decimal256(41, 21))})
pq.write_table(wide, "wide.parquet")
assert pq.read_table("wide.parquet")["x"].to_pylist() == values
((kind,),) = duckdb.sql("select distinct typeof(x) from 'wide.parquet'").fetchall()
distinct = duckdb.sql("select distinct x from 'wide.parquet'").fetchall()
duckdb.sql("select x from 'wide.parquet'").write_parquet("again.parquet")
print(f"duckdb {duckdb.__version__}: two decimals(41, 21) in Parquet are {kind}, and {len(distinct)} value: {distinct[0][0]!r}")
assert kind == "DOUBLE" and len(distinct) == 1 and str(pq.read_schema("again.parquet").field("x").type) == "double", "changed"
try:
    duckdb.sql("select x from wide").fetchall()
except duckdb.NotImplementedException as error:
    print("  as Arrow:", error)
else:
    raise SystemExit("changed")
PYTHON
