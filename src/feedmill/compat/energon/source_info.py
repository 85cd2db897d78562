"""Energon's names for the location of a sample: `SourceInfo` and `add_source_info`."""

from __future__ import annotations

from feedmill.formats.base import Source
from feedmill.samples.stores import add_source as add_source_info

__all__ = ["SourceInfo", "add_source_info"]


class SourceInfo(Source):
    """A location that a script creates. The locations that Feedmill creates (`Source`) have more attributes.

    Args:
        dataset_path: path of the dataset.
        index: number or name of the sample.
        shard_name: file of the sample in the dataset.
        file_names: names of the parts.
    """

    __slots__ = ()

    def __init__(
        self, *, dataset_path: object, index: int | str, shard_name: str, file_names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(str(dataset_path), str(shard_name), 0, 0, index, str(index), tuple(file_names))
