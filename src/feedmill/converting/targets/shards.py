"""Write samples as shards of columns (MDS and similar formats), with the `ColumnWriter` of the format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from feedmill.converting.fields import KEY, Taken, digest, plain_bytes
from feedmill.converting.job import Done
from feedmill.converting.preview import Loss, named
from feedmill.converting.survey import (
    COUNTS,
    Columns,
    Survey,
    column_of,
    json_value,
    kinds,
    names,
    read_digest,
    refuse_unsurveyed,
    value_of,
)
from feedmill.converting.units import Add, SampleTarget, Unit, Written, opened
from feedmill.formats import format as formats
from feedmill.formats.base import Dataset
from feedmill.formats.columnar import JSON, ColumnWriter
from feedmill.formats.registry import targets
from feedmill.formats.sample import Sample
from feedmill.storage import Store, join_url


def writer_of(to: str) -> ColumnWriter:
    """Return the writer of a format's shards."""
    writer: ColumnWriter = formats.named(targets()[to].writer)
    return writer


@dataclass(frozen=True, slots=True)
class Shards(SampleTarget):
    """Samples as a folder of shards, with an index if the format has one.

    Attributes:
        to: name of the format.
        columns: column -> form, see `feedmill.converting.survey.Columns`.
    """

    to: str
    columns: Columns

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return targets()[self.to].shards % unit.number

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. The shard is held in memory until it is written."""
        writer = writer_of(self.to)
        rows: list[list[Any]] = []

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            taken = item[1]
            refuse_unsurveyed(taken, self.columns)
            row, parts = _row(writer, self.columns, taken)
            rows.append(row)
            return (digest(taken.key if KEY in self.columns else "", parts),)

        yield add
        extra["shard"] = writer.write(store, path, self.columns, rows)

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        index = writer_of(self.to).index
        pattern = targets()[self.to].shards.replace(".", r"\.")
        return (index,) if index else (), re.sub(r"%0\dd", r"\\d+", pattern) + r"(\.idx)?"

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


def shard_columns(to: str, found: Survey) -> tuple[dict[str, str], list[Loss]]:
    """Return column -> form, sorted by name, and the losses."""
    writer = writer_of(to)
    out: dict[str, str] = {KEY: writer.form({"text"}, False)} if found[COUNTS]["keyed"] else {}
    missing_bytes = []
    for name in names(found):
        have, missing = kinds(found, name)
        form = writer.form(have, missing)
        out[column_of(name, have, form)] = form
        if missing and form in writer.exact:
            missing_bytes.append(name)
    losses = (
        [Loss("the difference between missing fields and null")]
        if any(kinds(found, name)[1] for name in out if name in found)
        else []
    )
    if missing_bytes:
        losses.append(
            Loss(
                f"samples without {named(missing_bytes)}: a missing value would become empty bytes",
                content=True,
                fix="Select other fields with --fields, or choose another format.",
            )
        )
    return dict(sorted(out.items())), losses


def _row(writer: ColumnWriter, columns: Mapping[str, str], taken: Taken) -> tuple[list[Any], dict[str, bytes]]:
    """Return the encoded values of a sample, and the bytes of each field as they will be read back."""
    out, parts = [], {}
    for name, form in columns.items():
        value = taken.key if name == KEY else value_of(taken, name)
        if form == JSON:
            value = json_value(value)
            if value is not None:
                parts[name] = plain_bytes(value)
        elif form in writer.exact:
            value = parts[name] = plain_bytes(value)
        elif name != KEY:
            parts[name] = plain_bytes(value)
        out.append(writer.encode(form, value))
    return out, parts
