#!/usr/bin/env bash
# DuckDB, DataFusion and pyarrow lose NaN in Parquet files: they skip row groups by statistics, which leave NaN out.
#
# In the first two, as in Polars, NaN is greater than all numbers: of rows in memory, `score > 0.5` keeps those of NaN. Of
# the same rows in a Parquet file of pyarrow it keeps none of them, `score = 'nan'` finds none, and the maximum is another.
# In pyarrow no comparison with NaN is true, so `not (score <= 0.5)` keeps such rows, but none of them from the file.
# Polars answers alike, as does DuckDB for a file that it wrote itself.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 datafusion==55.0.0 polars==2.1.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

scores = pa.table({"score": [0.1, float("nan"), 0.2, 0.9]})
pq.write_table(scores, "scores.parquet", row_group_size=3)
duck, fusion = duckdb.connect(), datafusion.SessionContext()
duck.execute("create table rows as select * from 'scores.parquet'")
duck.execute("copy rows to 'own.parquet'")
fusion.register_record_batches("rows", [scores.to_batches()])
fusion.register_parquet("file", "scores.parquet")


def answers(query, source):
    """Return how many rows are above 0.5, how many are NaN, and the greatest score."""
    high, nans, most = map(query, (
        f"select count(*) from {source} where score > 0.5",
        f"select count(*) from {source} where score = cast('nan' as double)",
        f"select max(score) from {source}",
    ))
    return high, nans, str(most)


def of_duckdb(source):
    return answers(lambda text: duck.execute(text).fetchall()[0][0], source)


def of_datafusion(source):
    return answers(lambda text: fusion.sql(text).to_arrow_table()[0][0].as_py(), source)


def of_polars(frame):
    score, nan = pl.col("score"), float("nan")
    return tuple(frame.filter(which).collect().height for which in (score > 0.5, score == nan))


print(", ".join(f"{name} {version(name)}" for name in ("duckdb", "datafusion", "polars", "pyarrow")))
print("  rows above 0.5, rows of NaN, maximum: in memory; in Parquet")
whole, lost = (2, 1, "nan"), (1, 0, "0.9")
for name, seen in (
    ("duckdb", (of_duckdb("rows"), of_duckdb("'scores.parquet'"))),
    ("datafusion", (of_datafusion("rows"), of_datafusion("file"))),
):
    print(f"  {name}: {seen[0]}; {seen[1]}")
    assert seen == (whole, lost), "changed"
polars = of_polars(pl.from_arrow(scores).lazy()), of_polars(pl.scan_parquet("scores.parquet"))
not_low = ~(pc.field("score") <= 0.5)
arrow = scores.filter(not_low).num_rows, pyarrow.dataset.dataset("scores.parquet").to_table(filter=not_low).num_rows
print(f"  pyarrow, rows not up to 0.5: {arrow[0]}; {arrow[1]}")
assert arrow == (2, 1), "changed"
own = of_duckdb("'own.parquet'")
print(f"  polars: {polars[0]}; {polars[1]}; duckdb, its own file: {own}")
assert polars == ((2, 1), (2, 1)) and own == whole, "changed"
PYTHON
