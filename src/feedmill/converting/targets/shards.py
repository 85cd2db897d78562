"""Write samples as shards of columns (MDS and similar formats), with the `ColumnWriter` of the format."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from feedmill.converting.fields import Taken
from feedmill.converting.job import Done
from feedmill.converting.survey import Columns, read_digest, row_digest, row_of
from feedmill.converting.units import Add, SampleTarget, Unit, Written, opened
from feedmill.formats import format as formats
from feedmill.formats.base import Dataset
from feedmill.formats.columnar import ColumnWriter
from feedmill.formats.registry import targets
from feedmill.formats.sample import Sample
from feedmill.storage import Store, join_url


def writer_of(to: str) -> ColumnWriter:
    """Return the writer of a format's shards."""
    writer: ColumnWriter = formats.named(targets()[to].writer)
    return writer


@dataclass(frozen=True, slots=True)
class NumberedShards(SampleTarget):
    """Samples as a folder of numbered shards.

    Attributes:
        to: name of the format.
    """

    to: str

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return targets()[self.to].shards % unit.number

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        pattern = targets()[self.to].shards.replace(".", r"\.")
        return self.beside(), re.sub(r"%0\dd", r"\\d+", pattern) + r"(\.idx)?"

    @abstractmethod
    def beside(self) -> Sequence[str]:
        """Return the paths of the files that describe the shards."""


@dataclass(frozen=True, slots=True)
class Shards(NumberedShards):
    """Shards of columns, with an index if the format has one.

    Attributes:
        columns: the columns, sorted by name.
    """

    columns: Columns

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. The shard is held in memory until it is written."""
        writer = writer_of(self.to)
        rows: list[list[Any]] = []

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            taken = item[1]
            values = row_of(writer.forms, self.columns, taken)
            rows.append([writer.encode(f, values.get(n, taken.key)) for n, f in self.columns.forms.items()])
            return (row_digest(taken.key, values, self.columns),)

        yield add
        extra["shard"] = writer.write(store, path, self.columns.forms, rows)

    def beside(self) -> Sequence[str]:
        """See `NumberedShards`."""
        index = writer_of(self.to).index
        return (index,) if index else ()

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        filled = [each for each in done if each.samples]
        writer = writer_of(self.to)
        writer.finish(store, [each.extra["shard"] for each in filled])
        return [*(each.path for each in filled), *([writer.index] if writer.index else [])]

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """See `SampleTarget`. If the format has no index, the shard is opened alone."""
        if writer_of(self.to).index:
            return SampleTarget.reader(self, written)
        return opened(join_url(self.destination, written.done.path), None), 0

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        return read_digest(self.columns, sample)
