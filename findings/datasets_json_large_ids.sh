#!/usr/bin/env bash
# One unsigned id of 64 bits makes Hugging Face datasets store all ids of a JSON-lines column as doubles: some become equal.
#
# Hashes as ids are unsigned: one of them above 2^63 - 1 is enough, and small ids lose their last bits too. pyarrow's
# reader decides so; nothing warns. Polars, DuckDB and pandas read the same lines exactly.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    datasets==5.2.0 pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 pandas==3.1.1
cd "$work"
HF_HOME="$work/home" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow.json

datasets.disable_progress_bars()
ids = [2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1, 2**63 + 1]
with open("ids.jsonl", "w") as out:
    out.writelines(f'{{"id": {one}}}\n' for one in ids)
stored = datasets.load_dataset("json", data_files="ids.jsonl", split="train")
seen = stored["id"][:]
table = pyarrow.json.read_json("ids.jsonl")
print(", ".join(f"{name} {version(name)}" for name in ("datasets", "pyarrow", "polars", "duckdb", "pandas")))
print(f"  datasets: {stored.features['id'].dtype}, {len(set(seen))} different of {len(ids)}; pyarrow: {table['id'].type}")
assert stored.features["id"].dtype == "float64" == str(table["id"].type).replace("double", "float64"), "changed"
assert len(set(seen)) == 2 and seen == [float(one) for one in ids], "changed"
assert pl.read_ndjson("ids.jsonl")["id"].to_list() == ids, "changed"
assert [row[0] for row in duckdb.connect().execute("select id from 'ids.jsonl'").fetchall()] == ids, "changed"
assert pd.read_json("ids.jsonl", lines=True)["id"].tolist() == ids, "changed"
with open("ids.jsonl", "w") as out:
    out.writelines(f'{{"id": {one}}}\n' for one in ids[:-1])
assert datasets.load_dataset("json", data_files="ids.jsonl", split="train")["id"][:] == ids[:-1], "changed"
print("  without the last id all are exact; Polars, DuckDB and pandas are exact with it")
PYTHON
