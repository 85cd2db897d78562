"""What readers see of what verbs write; each function runs in a process of its own."""

from __future__ import annotations

import gzip
import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import feedmill as fm
from feedmill.formats.documents import read_rows
from feedmill.storage import open_store


def samples(folder: Path, name: str) -> Any:
    """The samples of every split of a dataset, with the bytes of their parts."""
    whole = fm.open(str(folder / name), raw=True)
    found = {"": [(sample.key, {part: _word(sample.raw(part)) for part in sample}) for sample in whole]}
    for split in whole.splits:
        found[split] = [sample.key for sample in fm.open(str(folder / name), raw=True, split=split)]
    return found


def rows(folder: Path, name: str) -> Any:
    """The rows of a dataset, as values."""
    return [repr(sample) for sample in fm.open(str(folder / name), raw=True)]


def tokens(folder: Path, *names: str) -> Any:
    """The ids of every document of each token file; None for one that is not there."""
    return {name: _tokens(folder / name) for name in names}


def _tokens(path: Path) -> Any:
    if not path.exists() or (path.suffix == ".bin" and not path.with_suffix(".idx").exists()):
        return None  # a pair is there once its index is
    dataset = fm.open(str(path), raw=True)
    return [sample["input_ids"].tolist() for sample in dataset.read_raw(range(len(dataset)))]


def lines(folder: Path, *names: str) -> Any:
    """The rows of each file of documents below these folders."""
    found = {}
    for name in names:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
                store = open_store(str(path.parent))
                found[str(path.relative_to(folder))] = [
                    _word(row) for some in read_rows(store, path.name) for row in some
                ]
    return found


def files(folder: Path, *names: str) -> Any:
    """The bytes of these files, unpacked; None where there is none."""
    found = {}
    for name in names:
        data = (folder / name).read_bytes() if (folder / name).exists() else None
        found[name] = _word(gzip.decompress(data) if data and name.endswith(".gz") else data)
    return found


def _word(data: bytes | None) -> str | None:
    return None if data is None else hashlib.md5(data).hexdigest()


def tokens_below(folder: Path, name: str) -> Any:
    """The ids of every document of each token file of a folder."""
    names = [str(path.relative_to(folder)) for path in sorted((folder / name).rglob("*"))]
    return tokens(folder, *(one for one in names if one.endswith((".npy", ".ds", ".pbin", ".bin"))))


def everything(folder: Path, name: str) -> Any:
    """The bytes of every file below a folder."""
    paths = [path for path in sorted((folder / name).rglob("*")) if path.is_file()]
    names = [path.relative_to(folder) for path in paths]
    return files(folder, *(str(one) for one in names if not any(part.startswith(".") for part in one.parts)))


def tables(folder: Path, name: str) -> Any:
    """The rows of every Parquet file below a folder."""
    from pyarrow import parquet

    paths = [path for path in sorted((folder / name).rglob("*.parquet")) if not path.name.startswith(".")]
    return {str(path.relative_to(folder)): parquet.read_table(path).to_pylist() for path in paths}


def cells(folder: Path, name: str) -> Any:
    """The cells of each sidecar in a folder, and the code of each document."""
    from feedmill.formats.cells import CellTable

    found = {}
    for path in sorted((folder / name).glob(".feedmill-cells/*.cells")):
        table = CellTable(open_store(str(path.parent)), path.name)
        found[path.name] = table.names(), table.codes().tolist(), [str(problem) for problem in table.verify()]
    return found


def splits(folder: Path, name: str) -> Any:
    """The rows of a JSONL file, and which of them are in its splits."""
    path = str(folder / name)
    return {
        split: [repr(row) for row in fm.open(path, raw=True, split=split)] for split in [None, *fm.open(path).splits]
    }


_MEDIA = "SELECT * FROM media_metadata ORDER BY 1"


def media(folder: Path, name: str) -> Any:
    """The samples of a dataset (where it is one), and the media metadata in its index."""
    index = folder / name / ".nv-meta/index.sqlite"
    known = [] if not index.exists() else _rows(index, _MEDIA)
    return known, samples(folder, name) if (folder / name / "shards").exists() else []


def _rows(index: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []


def without_log(path: Path) -> bytes:
    """What is compared of a file: not what a log says of its own run."""
    return b"" if path.parent.name == "logs" else path.read_bytes()


def without_time(path: Path) -> bytes:
    """What is compared of a file: of an index all rows, but for the time at which its media were looked at."""
    if path.suffix != ".sqlite":
        return path.read_bytes()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        dump = "\n".join(connection.iterdump())
    return re.sub(r"(?<=')\d{4}-\d\d-\d\d[T ][\d:.]+[^']*(?=')", "TIME", dump).encode()
