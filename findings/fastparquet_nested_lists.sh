#!/usr/bin/env bash
# fastparquet reads every list of structs, and every list of lists, as None, without an error.
#
# So the column of conversations (`messages`: a list of role and content) that most chat data has is empty, also through
# pandas with this engine. Lists of texts beside it are right, and so is the number of rows.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check fastparquet==2026.9.0 pyarrow==26.0.1 pandas==3.1.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import fastparquet
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
table = pa.table({"messages": [chat] * 3, "boxes": [[[1, 2], [3, 4]]] * 3, "tags": [["a", "b"]] * 3})
pq.write_table(table, "chat.parquet")
rows = fastparquet.ParquetFile("chat.parquet").to_pandas()
print(f"fastparquet {fastparquet.__version__}:", rows.to_dict("list"))
assert rows["messages"].isna().all() and rows["boxes"].isna().all() and len(rows) == 3, "changed"
assert rows["tags"].tolist() == [["a", "b"]] * 3, "changed"
assert pd.read_parquet("chat.parquet", engine="fastparquet")["messages"].isna().all(), "changed"
assert pd.read_parquet("chat.parquet", engine="pyarrow")["messages"].notna().all(), "changed"
PYTHON
