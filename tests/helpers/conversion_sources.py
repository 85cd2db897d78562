"""Datasets to convert, and what is compared of them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedmill as fm
from feedmill.formats.tokens.ds import write_ds
from feedmill.storage import open_store
from feedmill.writing.write import write


def samples(count: int, *, binary: bool = True) -> Iterator[dict[str, Any]]:
    for i in range(count):
        sample = {"__key__": f"d.x/s{i:04d}", "txt": f"words {i} é", "json": {"n": i, "f": 1.5 * i, "l": [None, "a"]}}
        yield {**sample, "bin": bytes([i % 251, 255]) * (i % 40 + 1)} if binary else sample


def sample_set(root: Path, count: int = 90, *, binary: bool = True, per_shard: int = 25) -> Path:
    write(str(root), samples(count, binary=binary), max_shard_samples=per_shard, progress=False)
    return root


def parts(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Key and parts of every sample."""
    return [(s.key, {name: s.raw(name) for name in s}) for s in fm.open(path, raw=True)]


def rows(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    for i in range(first, first + count):
        row: dict[str, Any] = {
            "id": f"doc-{i}",
            "text": "words é " * (i % 9),
            "added": None if i % 3 else "2020-01-01",
            "score": i / 4,
            "metadata": {"a": [1, 2, {"x": i}], "empty": {}, "url": f"https://x/{i}"},
        }
        if i % 5 == 0:
            row["mixed"] = [i, "x", None] if i % 10 else {"k": "v"}
        yield row


def lines(path: Path, count: int = 60, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(count, first))
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.name.endswith(".gz") else text.encode())
    return path


def tree(root: Path, files: int = 3) -> Path:
    for number in range(files):
        lines(root / f"documents/web/{number}.jsonl.gz", 40, 40 * number)
    return root


def tokens(root: Path, *, files: int = 3, loss: bool = False, size: int = 2) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    for number in range(files):
        lengths = random.integers(0, 40, 60)
        ids = random.integers(0, 60_000, int(lengths.sum()))
        mask = random.random(len(ids)) < 0.5 if loss else None
        with write_ds(open_store(str(root)), f"{number}.ds", size, tokenizer_name="words", loss=loss) as writer:
            writer.add(ids, lengths, mask)
    return root


def files(root: Path) -> dict[str, bytes]:
    """What every file holds, but for the sidecar of a prepared folder, which has times in it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "feedmill.shards.json"
    }


def rot(path: Path, data: bytes) -> None:
    """Change a file's bytes as a disk that fails does: its time of change stays, so that no index is stale."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
