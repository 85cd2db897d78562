#!/usr/bin/env bash
# DuckDB does not compare the checksum of a gzip file with what it has read: damaged text passes without a word.
#
# Every bit in turn of a byte in the middle of a gzip file of JSON lines is turned over, as a bad disk or memory does.
# Polars, pyarrow and pandas raise each time. The checksum of a Zstandard frame is checked by DuckDB, too.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1 pandas==3.1.1 zstandard==0.25.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import collections
import gzip
import random
from importlib.metadata import version

import duckdb
import pandas as pd
import polars as pl
import pyarrow.json
import zstandard

rng = random.Random(7)
words = [f"{rng.getrandbits(40):x}" for _ in range(2000)]
texts = [" ".join(rng.choices(words, k=40)) for _ in range(3000)]
lines = "".join(f'{{"id": {number}, "text": "{text}"}}\n' for number, text in enumerate(texts)).encode()
whole = {"gz": gzip.compress(lines, mtime=0), "zst": zstandard.ZstdCompressor(write_checksum=True).compress(lines)}
readers = {
    "duckdb": lambda path: duckdb.sql(f"select text from read_json('{path}') order by id").df()["text"].tolist(),
    "polars": lambda path: pl.read_ndjson(path)["text"].to_list(),
    "pyarrow": lambda path: pyarrow.json.read_json(path)["text"].to_pylist(),
    "pandas": lambda path: pd.read_json(path, lines=True)["text"].tolist(),
}
print(", ".join(f"{n} {version(n)}" for n in ("duckdb", "polars", "pyarrow", "pandas")))
seen = {name: {kind: collections.Counter() for kind in whole} for name in readers}
for kind, data in whole.items():
    for trial in range(32):
        damaged = bytearray(data)
        damaged[len(data) * (trial // 8 + 2) // 7] ^= 1 << trial % 8
        path = f"rows-{trial}.jsonl.{kind}"
        with open(path, "wb") as out:
            out.write(damaged)
        for name, read in readers.items():
            try:
                found = read(path)
            except Exception:
                seen[name][kind]["error"] += 1
            else:
                seen[name][kind]["right" if found == texts else "other texts"] += 1
for name, kinds in seen.items():
    print(f"  {name}: " + "; ".join(f"{kind}: {dict(counts)}" for kind, counts in kinds.items()))
assert seen["duckdb"]["gz"]["other texts"] >= 8, "changed"
assert seen["duckdb"]["zst"] == {"error": 32}, "changed"
assert all(seen[name][kind] == {"error": 32} for name in readers for kind in whole if name != "duckdb"), "changed"
PYTHON
