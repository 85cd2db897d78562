"""A dataset of numbers, for tests of everything above the formats."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from feedmill.errors import NotFound
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.sample import Sample, Source

RUNS = [0, 1, 1, 1, 2, 2, 2, 2, 3, 3]
"""Group of each of ten samples."""


class Numbered(Dataset):
    """Sample `i` has key ``str(i)`` and one part ``txt`` with ``name:i``; the indices of every read are kept.

    With `tokens`, sample `i` has ``tokens + i % 7`` of them. The column ``score`` has a few values in no order, and
    ``group`` numbers runs of 1 to 4 samples.
    """

    format = "numbered"

    def __init__(self, name: str, size: int, version: str = "1", tokens: int | None = None) -> None:
        self._tokens = None if tokens is None else tokens + np.arange(size) % 7
        self.url, self._size, self._version = name, size, version
        self.reads: list[list[int]] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return self._size

    def read_raw(self, indices: Indices) -> list[Sample]:
        numbers = np.asarray(indices).tolist()
        with self._lock:
            self.reads.append(numbers)
        return [self._sample(number) for number in numbers]

    def _sample(self, number: int) -> Sample:
        text = f"{self.url}:{number}".encode()
        return Sample(str(number), text, {"txt": (0, len(text))}, lambda: self.locate(number))

    def locate(self, index: int) -> Source:
        return Source(self.url, "numbers", index * 8, 8, index, str(index))

    def find(self, key: str) -> int:
        if not key.isdigit() or int(key) >= self._size:
            raise NotFound("there is no such sample", file=self.url, record=key)
        return int(key)

    def _find_values(self, by: str, *, texts: bool) -> np.ndarray | None:
        number = np.arange(self._size)
        columns = {"score": number * 7919 % 13 / 4 - 1, "group": number // 10 * 4 + np.array(RUNS)[number % 10]}
        return columns.get(by)

    def fingerprint(self) -> str:
        return json.dumps([self._size, self._version])

    def describe(self) -> dict[str, Any]:
        return {"format": self.format, "path": self.url, "samples": self._size, **self.about}

    @property
    def lengths(self) -> np.ndarray | None:
        return self._tokens

    @property
    def splits(self) -> Mapping[str, int]:
        return {}


class Growing(Numbered):
    """Numbered data in shards of eight samples, whose first samples can be recognized."""

    @property
    def shard_bounds(self) -> np.ndarray:
        return np.append(np.arange(0, len(self), 8), len(self))

    def fingerprint_of_first(self, count: int) -> str | None:
        return Numbered(self.url, count, self._version).fingerprint()


def texts(samples: list[Sample]) -> list[str]:
    """What the samples say."""
    return [sample.raw("txt").decode() for sample in samples]
