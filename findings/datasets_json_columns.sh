#!/usr/bin/env bash
# One number among the texts, and every text of the column is stored with quotes.
#
# A JSON-lines column whose values have two types becomes the feature `Json` of datasets 5 by itself. Its values are
# stored as JSON text, so pandas, Polars and DuckDB read `"plain"` with quotes from the Parquet file, and datasets'
# own CSV has them too. Only datasets (and a reader that decodes the extension type `arrow.json`) gives the text.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import datasets, pandas, polars, pyarrow.parquet

datasets.disable_progress_bars()
with open("chat.jsonl", "w") as file:
    file.write('{"text": "plain"}\n{"text": 5}\n')
loaded = datasets.load_dataset("json", data_files="chat.jsonl", cache_dir="cache")["train"]
loaded.to_parquet("chat.parquet")
loaded.to_csv("chat.csv")
seen = {
    "feature": str(loaded.features["text"]),
    "datasets": loaded[0]["text"],
    "type in Parquet": str(pyarrow.parquet.read_schema("chat.parquet").field("text").type),
    "pandas": pandas.read_parquet("chat.parquet")["text"][0],
    "polars": str(polars.read_parquet("chat.parquet")["text"].ext.storage()[0]),
    "csv": open("chat.csv").read().splitlines()[1],
}
for name, value in seen.items():
    print(f"{name}: {value}")
assert seen == {
    "feature": "Json(decode=True)",
    "datasets": "plain",
    "type in Parquet": "extension<arrow.json>",
    "pandas": '"plain"',
    "polars": '"plain"',
    "csv": '"""plain"""',
}, "changed"
PYTHON
