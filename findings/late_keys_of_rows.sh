#!/usr/bin/env bash
# A key that only later rows have is no column and no error: pyarrow, datasets, Polars and DuckDB leave its values out.
#
# `Table.from_pylist`, `Dataset.from_list` and `map` take the keys of the first row, Polars those of the first 100, DuckDB
# those of the first 20,480 lines of a file, and then drop all others without a word. A license or a score that begins in
# the second half of a file is gone. The readers of JSON lines of pyarrow and pandas, `load_dataset` and `pyarrow.array`
# keep the key; so do Polars and DuckDB where they are asked to infer from all rows.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    pyarrow==26.0.1 datasets==5.2.0 polars==2.1.0 duckdb==2.0.1 pandas==3.1.1
cd "$work"
HF_HOME="$work/home" "$work/venv/bin/python" - 2> log <<'PYTHON' | grep '^ \|^pyarrow' || { tail -5 log; exit 1; }
import json
from importlib.metadata import version

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.json

rows = [{"id": number, "text": f"text {number}"} for number in range(30_000)]
for row in rows[25_000:]:
    row["license"] = "mit"
with open("rows.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
few = rows[24_500:25_500]
more = lambda row: {"length": len(row["text"])} | ({"late": True} if row["id"] >= 25_000 else {})
ways = {
    "pyarrow Table.from_pylist": (False, lambda: pa.Table.from_pylist(rows).column_names),
    "datasets Dataset.from_list": (False, lambda: datasets.Dataset.from_list(rows).column_names),
    "datasets map": (False, lambda: ["license"] * ("late" in datasets.Dataset.from_list(few).map(more).column_names)),
    "polars from_dicts": (False, lambda: pl.from_dicts(rows).columns),
    "polars read_ndjson": (False, lambda: pl.read_ndjson("rows.jsonl").columns),
    "polars scan_ndjson": (False, lambda: pl.scan_ndjson("rows.jsonl").collect().columns),
    "duckdb": (False, lambda: duckdb.sql("select * from 'rows.jsonl'").columns),
    "pyarrow array": (True, lambda: [field.name for field in pa.array(rows).type]),
    "pyarrow.json": (True, lambda: pyarrow.json.read_json("rows.jsonl").column_names),
    "datasets load_dataset": (
        True, lambda: datasets.load_dataset("json", data_files="rows.jsonl", split="train").column_names,
    ),
    "pandas": (True, lambda: list(pd.read_json("rows.jsonl", lines=True).columns)),
}
print(", ".join(f"{name} {version(name)}" for name in ("pyarrow", "datasets", "polars", "duckdb", "pandas")))
for name, (kept, columns) in ways.items():
    seen = "license" in columns()
    print(f"  {name}: {'kept' if seen else 'left out'}")
    assert seen == kept, "changed"
assert "license" in duckdb.sql("select * from read_json('rows.jsonl', sample_size=-1)").columns, "changed"
assert "license" in pl.read_ndjson("rows.jsonl", infer_schema_length=None).columns, "changed"
PYTHON
