"""In-memory stand-ins for the contracts of other rooms."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.errors import DataError


@dataclass
class FakeLocated:
    source: np.ndarray
    index: np.ndarray
    epoch: np.ndarray


@dataclass
class FakePlan:
    """Two sources taken in turn, each an affine permutation of its samples in every epoch."""

    length: int | None = None
    seed: int = 7
    sizes: tuple[int, int] = (11, 5)
    fails_at: frozenset[int] = frozenset()
    revision: str = "a"
    reads: list[tuple[int, int]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("lock", "reads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.Lock(), reads=[])

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"docs": f"d-{self.revision}", "pages": "p-1"}

    @property
    def fingerprint(self) -> str:
        return f"plan-{self.revision}-{self.length}-{self.sizes}"

    def explain_change(self, old: dict[str, str]) -> list[str]:
        return [f"source {name!r} changed" for name, word in self.fingerprints.items() if old.get(name) != word]

    def locate(self, positions: np.ndarray) -> FakeLocated:
        assert positions.dtype == np.int64
        source = (positions % 2).astype(np.int32)
        size = np.asarray(self.sizes, dtype=np.int64)[source]
        ordinal = positions // 2
        epoch = ordinal // size
        return FakeLocated(source, (ordinal % size * 7 + 3 + epoch) % size, epoch)

    def read(self, positions: np.ndarray) -> list[dict[str, Any]]:
        with self.lock:
            self.reads.append((int(positions[0]), len(positions)))
        bad = self.fails_at.intersection(positions.tolist())
        if bad:
            raise DataError("cut short", file="docs/s0.tar", offset=512, record=f"k{min(bad)}")
        located = self.locate(positions)
        rows = zip(positions.tolist(), located.source.tolist(), located.index.tolist(), strict=True)
        return [{"__key__": f"{s}/{i}", "position": p, "x": np.full(3, i, dtype=np.int32)} for p, s, i in rows]
