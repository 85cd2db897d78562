"""Write the tables of this folder with five writers, and what `datasets` reads of its own features.

    python -m venv VENV && VENV/bin/pip install pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.0 datasets==5.2.0 \
        pillow==12.2.0
    VENV/bin/python tests/golden/tables/record.py

parquet/    one file of `ROWS` by each writer, as it writes them by itself
arrow/      the same: Arrow files, Feather and streams
features/   `datasets`: saved/ and features.parquet with its types; expected.json: what it reads
versions.json
"""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
from PIL import Image

HERE = Path(__file__).parent
FILE = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
MEDIA = {"video": datasets.Video, "pdf": datasets.Pdf, "audio": datasets.Audio}
WRITERS = ("pyarrow", "pandas", "polars", "datasets", "duckdb")


def rows(writer: str) -> list[dict[str, Any]]:
    """Return three rows, whose ids say which writer wrote them."""
    first = WRITERS.index(writer) * 3
    return [
        {
            "id": n,
            "text": f"text {n} by {writer} ü",
            "score": n / 4,
            "source": ("web", "book")[n % 2],
            "tags": [["a", "b"], [], ["c"]][n % 3],
            "vector": [n + 0.5, -1.25],
            "made": datetime.datetime(2026, 11, n + 1, 12, 30, 0, 250000),
            "meta": {"lang": "en" if n % 2 else None, "words": n},
        }
        for n in range(first, first + 3)
    ]


def by_pyarrow() -> None:
    table = pa.Table.from_pylist(rows("pyarrow"))
    table = table.set_column(3, "source", table.column("source").dictionary_encode())
    pq.write_table(table, HERE / "parquet/pyarrow.parquet")
    with pa.ipc.new_file(HERE / "arrow/pyarrow.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def by_pandas() -> None:
    frame = pandas.DataFrame(rows("pandas")).astype({"source": "category"})
    frame.to_parquet(HERE / "parquet/pandas.parquet")
    frame.to_feather(HERE / "arrow/pandas.feather")


def by_polars() -> None:
    frame = polars.DataFrame(rows("polars")).with_columns(polars.col("source").cast(polars.Categorical))
    frame.write_parquet(HERE / "parquet/polars.parquet")
    frame.write_ipc(HERE / "arrow/polars.arrow", compression="zstd")
    frame.write_ipc_stream(HERE / "arrow/polars.arrows")


def by_datasets() -> None:
    made = datasets.Dataset.from_list(rows("datasets"))
    made.to_parquet(HERE / "parquet/datasets.parquet")
    made.save_to_disk(HERE / "saved")
    shutil.move(HERE / "saved/data-00000-of-00001.arrow", HERE / "arrow/datasets.arrow")
    shutil.rmtree(HERE / "saved")


def by_duckdb() -> None:
    table = pa.Table.from_pylist(rows("duckdb"))  # noqa: F841 - the query names it
    found = duckdb.sql("select * replace (id::integer as id, source::enum('web', 'book') as source) from 'table'")
    found.write_parquet(str(HERE / "parquet/duckdb.parquet"))
    reader = found.to_arrow_reader()
    with pa.ipc.new_stream(HERE / "arrow/duckdb.arrows", reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def picture(n: int, form: str = "PNG") -> dict[str, Any]:
    out = io.BytesIO()
    Image.new("RGB", (3, 2), (40 * n, 100, 200 - 20 * n)).save(out, form)
    return {"bytes": out.getvalue(), "path": None}


def features() -> None:
    """Write a dataset of the types of `datasets`, and what it reads, with files as their bytes."""
    of = datasets.Features(
        {
            "json": datasets.Json(),
            "jsons": datasets.List(datasets.Json()),
            "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Json()}),
            "image": datasets.Image(),
            "grey": datasets.Image(mode="L"),
            "images": datasets.List(datasets.Image()),
            "page": {"number": datasets.Value("int32"), "scan": datasets.Image()},
            "video": FILE,
            "pdf": FILE,
            "undecoded": datasets.Image(decode=False),
            "audio": FILE,
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "list": datasets.List(datasets.Value("float32")),
            "fixed": datasets.List(datasets.Value("int16"), length=2),
            "large": datasets.LargeList(datasets.Value("string")),
            "array": datasets.Array2D(shape=(2, 2), dtype="float32"),
            "when": datasets.Value("timestamp[us]"),
            "text": datasets.Value("large_string"),
        }
    )
    made = [
        {
            "json": [{"a": 1}, "plain text", [1, "b", None]][n],
            "jsons": [[1, "x"], [], [{"k": [True]}]][n],
            "messages": [
                {"role": "user", "content": f"hi {n}"},
                {"role": "assistant", "content": [{"type": "text", "text": "yo"}]},
            ],
            "image": picture(n),
            "grey": picture(n),
            "images": [picture(k) for k in range(n)],
            "page": {"number": n, "scan": picture(n, "JPEG")},
            "video": {"bytes": b"\0\0\0\x18ftypmp42 no video", "path": None},
            "pdf": {"bytes": b"%PDF-1.4 no pages", "path": None},
            "undecoded": picture(n),
            "audio": {"bytes": b"RIFF\x24\0\0\0WAVE no sound", "path": None},
            "label": n % 2,
            "list": [0.5] * n,
            "fixed": [n, -n],
            "large": ["a"] * n,
            "array": [[n, 1], [2, 3.5]],
            "when": datetime.datetime(2026, 1, 1 + n),
            "text": f"text {n}",
        }
        for n in range(3)
    ]
    table = datasets.Dataset.from_list(made, features=of)
    for name, kind in MEDIA.items():  # encoding files by these types needs their decoders, casting does not
        table = table.cast_column(name, kind())
    table.save_to_disk(HERE / "features/saved")
    table.to_parquet(HERE / "features/features.parquet")
    for name, kind in MEDIA.items():
        table = table.cast_column(name, kind(decode=False))
    seen = [{name: plain(value) for name, value in row.items()} for row in table]
    (HERE / "features/expected.json").write_text(json.dumps(seen, indent=1, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """Return a value that `datasets` reads as JSON: images as lists of pixels, bytes as hex."""
    if isinstance(value, Image.Image):
        import numpy as np

        return {"mode": value.mode, "pixels": np.asarray(value).tolist()}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def main() -> None:
    for folder in ("parquet", "arrow", "features"):
        shutil.rmtree(HERE / folder, ignore_errors=True)
        (HERE / folder).mkdir()
    for write in (by_pyarrow, by_pandas, by_polars, by_datasets, by_duckdb, features):
        write()
    versions = {name: importlib.metadata.version(name) for name in WRITERS}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
