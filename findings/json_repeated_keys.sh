#!/usr/bin/env bash
# Where a key occurs twice in an object, pysimdjson and Polars give the first value, all others the last, or an error.
#
# pysimdjson alone gives both: the first by `document["text"]` and by pointer, the last by `as_dict()`. So does DuckDB: its
# reader of JSON lines raises, its operator `->>` gives the first.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    pysimdjson==7.0.2 orjson==3.13.0 msgspec==0.23.0 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

import duckdb
import msgspec
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.json
import simdjson

line = b'{"text": "first", "text": "last"}'
with open("rows.jsonl", "wb") as out:
    out.write(line + b"\n")
duck = duckdb.connect()
document = simdjson.Parser().parse(line)
seen = {
    "json": json.loads(line)["text"],
    "orjson": orjson.loads(line)["text"],
    "msgspec": msgspec.json.decode(line)["text"],
    "pysimdjson, as_dict()": document.as_dict()["text"],
    "pysimdjson, []": document["text"],
    "pysimdjson, pointer": document.at_pointer("/text"),
    "polars": pl.read_ndjson("rows.jsonl")["text"][0],
    "duckdb, ->>": duck.execute("select json->>'text' from read_ndjson_objects('rows.jsonl')").fetchall()[0][0],
}
for name, read, error in (
    ("duckdb", lambda: duck.execute("select text from 'rows.jsonl'").fetchall(), duckdb.Error),
    ("pyarrow", lambda: pa.json.read_json("rows.jsonl"), pa.ArrowInvalid),
):
    try:
        seen[name] = str(read())
    except error:
        seen[name] = "error"
print(", ".join(f"{n} {version(n)}" for n in ("pysimdjson", "orjson", "msgspec", "polars", "duckdb", "pyarrow")))
print("\n".join(f"  {name}: {value}" for name, value in seen.items()))
assert list(seen.values()) == ["last"] * 4 + ["first"] * 4 + ["error"] * 2, "changed"
PYTHON
