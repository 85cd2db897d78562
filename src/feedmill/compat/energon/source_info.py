"""Energon's names for the source of a sample."""

from __future__ import annotations

from feedmill.formats.base import Source
from feedmill.samples.stores import add_source as add_source_info

__all__ = ["SourceInfo", "add_source_info"]


class SourceInfo(Source):
    """A source that is created by a script. Feedmill's own sources have the same attributes and more."""

    __slots__ = ()

    def __init__(
        self, *, dataset_path: object, index: int | str, shard_name: str, file_names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(str(dataset_path), str(shard_name), 0, 0, index, str(index), tuple(file_names))
