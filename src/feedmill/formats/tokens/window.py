"""One window of tokens as a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.sample import Sample, Source


class Window(Sample):
    """One window: ``window["input_ids"]`` is a row of the array that was read for all windows of the call.

    Args:
        owner, number: its `WindowDataset`, and its number there.
    """

    __slots__ = ("_number", "_owner", "_raw")

    def __init__(
        self,
        key: str,
        values: dict[str, Any],
        source: Callable[[], Source],
        raw: Callable[[], bytes],
        subflavors: Mapping[str, Any] | None = None,
        *,
        owner: Any = None,
        number: int = 0,
    ) -> None:
        super().__init__(key, b"", dict.fromkeys(values, (0, 0)), source, None, subflavors)
        self._values = values
        self._raw = raw
        self._owner, self._number = owner, number

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # Copy the row, so that pickling does not include the other rows of its array.
        state: dict[str, Any] = {name: getattr(self, name) for name in (*Sample.__slots__, *Window.__slots__)}
        values = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in self.items()}
        return None, {**state, "_values": values}

    def before(self, place: int, most: int) -> npt.NDArray[Any]:
        """Return the last `most` tokens before the window that belong to the document at a position of the window.

        Only the document at position 0 can begin before the window.

        Raises:
            NotFound: neither the index nor `eos` locates documents.
        """
        if place or self._owner is None:
            return np.zeros(0, np.int64)
        found: npt.NDArray[Any] = self._owner.before(self._number, most)
        return found

    def starts(self) -> list[int]:
        """Return the starts of documents in the window, ascending from 0. Raises `NotFound` as `before` does."""
        if self._owner is None:
            return [0]
        _, places = self._owner.resets([self._number], self["input_ids"][None])
        return sorted({0, *places.tolist()})

    def raw(self, name: str) -> bytes:
        """Return the window's tokens as stored. Raises `NotFound`."""
        if name != "input_ids":
            raise self._missing(name)
        return self._raw()

    def __getitem__(self, name: str) -> Any:
        assert self._values is not None
        return self._values[name] if name in self._values else super().__getitem__(name)

    def select(self, keep: Callable[[str], bool]) -> Window:
        """Return this window with only the parts whose name `keep` accepts."""
        values = {name: self[name] for name in self if keep(name)}
        return Window(
            self.key, values, self._source, self._raw, self.subflavors, owner=self._owner, number=self._number
        )

    def __repr__(self) -> str:
        return f"Window({self.key!r}, {', '.join(self)})"
