"""Energon's names for the location of a sample: `SourceInfo` and `add_source_info`."""

from __future__ import annotations

from typing import Any

from feedmill.formats.sample import Source
from feedmill.samples.stores import add_source as add_source_info

__all__ = ["SourceInfo", "add_source_info"]


class _OfAnySource(type):
    """Makes the locations that Feedmill creates instances of `SourceInfo`, for code that checks this."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Source)


class SourceInfo(Source, metaclass=_OfAnySource):
    """A location that a script creates. The locations that Feedmill creates (`Source`) have more attributes.

    Args:
        dataset_path: path of the dataset.
        index: number or name of the sample; None if it has none.
        shard_name: file of the sample in the dataset; None if there is none.
        file_names: names of the parts.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        dataset_path: object,
        index: int | str | None = None,
        shard_name: str | None = None,
        file_names: tuple[str, ...] = (),
    ) -> None:
        file: Any = None if shard_name is None else str(shard_name)
        number: Any = index
        key = str(index) if index is not None else next(iter(file_names), "")
        super().__init__(_text(dataset_path), file, 0, 0, number, key, tuple(file_names))

    def __eq__(self, other: object) -> bool:
        """Return whether two locations agree in what Energon's have; `Source` has more."""
        return _own(self) == _own(other) if isinstance(other, Source) else NotImplemented

    def __hash__(self) -> int:
        return hash(_own(self))


def _own(source: Source) -> tuple[object, ...]:
    return source.dataset, source.index, source.file, source.names


def _text(path: object) -> str:
    return path if isinstance(path, str) else str(path)
