"""Samples of shards as raw documents: how they are counted, and read."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import orjson

from feedmill.documents.file import kind_of
from feedmill.documents.rows import shown_bytes
from feedmill.errors import NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.energon import database
from feedmill.formats.sniff import open_raw
from feedmill.storage import open_store, split_url

_SHARDS = (".tar", ".npz", ".mds", ".mds.zst")
"""Suffixes of files whose rows are samples."""
_FOLDERS = 2
"""A shard's index is in its folder, or in the one above."""


def is_shard(path: str) -> bool:
    """Return whether the rows of a file are samples."""
    return path.endswith(_SHARDS)


def noun_of(path: str, verb: str) -> str:
    """Return what the rows of a file that a verb wrote are: a line or a sample, from 1; or a row, from 0.

    Rows are the documents or sequences of token files.

    >>> noun_of("a.jsonl.gz", "filter"), noun_of("shards/0.tar", "convert"), noun_of("a.pbin", "tokenize")
    ('line', 'sample', 'row')
    """
    if is_shard(path):
        return "sample"
    return "line" if verb != "tokenize" and kind_of(path) is not None else "row"


def read_samples(path: str, rows: Sequence[int]) -> dict[int, bytes]:
    """Return samples of a shard as JSON objects: the key as ``id``, and the parts; those that are no text as a note.

    Args:
        rows: numbers in the shard, ascending.

    Raises:
        NotFound: the shard, or one of the samples, does not exist.
    """
    dataset, file = _opened(path)
    out = {}
    for row in rows:
        samples = dataset.samples_of_row(file, row)
        if not samples:
            raise NotFound("there is no such sample", file=path, record=f"sample {row + 1:,}", kind="no-such-sample")
        (sample,) = dataset.read_raw(samples[:1])
        out[row] = orjson.dumps({"id": sample.key, **{name: _part(name, sample.raw(name)) for name in sample}})
    return out


def find_keys(paths: Iterable[str], keys: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """Yield key, path and row of the samples with these keys in some shards, through their indices."""
    seen = set[str]()
    for path in paths:
        if not keys or not is_shard(path) or path in seen:
            continue
        dataset, _ = _opened(path)
        files = dataset.row_files
        seen.update((path, *files))
        for key in keys:
            with contextlib.suppress(NotFound):
                (file,), (row,) = dataset.stored_rows([dataset.find(key)])
                yield key, files[int(file)], int(row)


def _opened(path: str) -> tuple[Dataset, int]:
    """Return the dataset of a shard, through its index if it has one, and the number of the shard in it."""
    folder = split_url(path)[0]
    for _ in range(_FOLDERS):
        store = open_store(folder)
        if store.exists(database.INDEX) or (not path.endswith(".tar") and store.exists("index.json")):
            dataset, _ = open_raw(folder)
            name = path.rpartition("/")[2]
            files = [n for n, one in enumerate(dataset.row_files) if one.rpartition("/")[2] == name]
            if len(files) == 1:
                return dataset, files[0]
        folder = split_url(folder)[0]
    return open_raw(path)[0], 0


def _part(name: str, data: bytes) -> Any:
    """Return a part as JSON if it is JSON, as text if it is text, and otherwise how many bytes it has."""
    if name.rpartition(".")[2] == "json":
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
    return shown_bytes(data)
