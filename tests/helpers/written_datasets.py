"""Datasets that tests write, and how they are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedmill as fm

TIMED = ("feedmill.shards.json",)  # holds times of change


def samples(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    for i in range(first, first + count):
        yield {"__key__": f"s{i:05d}", "json": {"n": i}, "bin": bytes([i % 251]) * (i * 37 % 900)}


def files(root: Path | str) -> dict[str, str]:
    """Hash of every file but the sidecar."""
    return {
        str(path.relative_to(root)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and path.name not in TIMED
    }


def contents(url: Path | str, split: str | None = None) -> dict[str, dict[str, bytes]]:
    """Every sample's parts, in order."""
    dataset = fm.open(url, raw=True, split=split)
    return {sample.key: {name: sample.raw(name) for name in sample} for sample in dataset}


class Broken(RuntimeError):
    """What ends `breaking`."""


def breaking(count: int) -> Iterator[dict[str, Any]]:
    """So many samples, then an error."""
    yield from samples(count)
    raise Broken
