"""The golden data of datatrove and Nanotron: its folder, what it expects, and documents to write."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.formats.tokens.base import TokenDataset, TokenWriter

NANOSETS = Path(__file__).parents[1] / "golden" / "nanosets"


@functools.cache
def expected() -> dict[str, Any]:
    """The ``expected.json`` of the golden data."""
    return json.loads((NANOSETS / "expected.json").read_text())


def sha256(data: bytes | Path) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.read_bytes()).hexdigest()


def documents(lengths: list[int], first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Tokens `first`, `first` + 1 ... divided into documents, and their lengths."""
    return np.arange(first, first + sum(lengths)), np.asarray(lengths, np.int64)


def copy_into(dataset: TokenDataset, writer: TokenWriter, step: int = 7) -> None:
    """Write all documents of a dataset, a few at a time."""
    for low in range(0, len(dataset), step):
        samples = dataset.read_raw(range(low, min(low + step, len(dataset))))
        tokens = [np.asarray(sample["input_ids"]) for sample in samples]
        writer.add(np.concatenate(tokens), np.asarray([len(each) for each in tokens]))
