"""Samples as MosaicML's shards: the encoding of each column, and the shards with their index."""

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
    BYTES,
    COUNTS,
    Columns,
    Survey,
    column_of,
    kinds,
    names,
    read_digest,
    refuse_unsurveyed,
    text_of,
    value_of,
)
from feedmill.converting.units import Add, SampleTarget, Unit
from feedmill.formats.base import Sample
from feedmill.formats.mds.dataset import INDEX
from feedmill.formats.mds.write import ENCODERS, has_dtype, write_index, write_shard
from feedmill.storage import Store

_PATTERN = "shard.%05d.mds"


@dataclass(frozen=True, slots=True)
class Mds(SampleTarget):
    """A folder of shards and ``index.json``; `columns` are their encodings."""

    columns: Columns

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return _PATTERN % unit.number

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """A shard, which is put together in memory."""
        rows: list[list[bytes]] = []

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            taken = item[1]
            refuse_unsurveyed(taken, self.columns)
            row, parts = _row(self.columns, taken)
            rows.append(row)
            return (digest(taken.key if KEY in self.columns else "", parts),)

        yield add
        extra["mds"] = write_shard(store, path, self.columns, rows)

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        return (INDEX,), re.sub(r"%0\dd", r"\\d+", _PATTERN.replace(".", r"\.")) + r"(\.idx)?"

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        filled = [each for each in done if each.samples]
        write_index(store, [each.extra["mds"] for each in filled])
        return [*(each.path for each in filled), INDEX]

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        return read_digest(self.columns, sample)


def mds_columns(found: Survey) -> tuple[dict[str, str], list[Loss]]:
    """The encodings of MDS, in the order of the columns' names, and what cannot be kept."""
    out: dict[str, str] = {KEY: "str"} if found[COUNTS]["keyed"] else {}
    missing_bytes = []
    for name in names(found):
        have, missing = kinds(found, name)
        form = _mds_form(have, missing)
        out[column_of(name, have, form)] = form
        if missing and form == "bytes":
            missing_bytes.append(name)
    losses = (
        [Loss("absent parts and null are one")] if any(kinds(found, name)[1] for name in out if name in found) else []
    )
    if missing_bytes:
        losses.append(
            Loss(
                f"samples without {named(missing_bytes)}: they would get no bytes there",
                content=True,
                fix="Leave these parts out with --fields, or choose another format.",
            )
        )
    return dict(sorted(out.items())), losses


def _mds_form(have: set[str], missing: bool) -> str:
    arrays = {kind for kind in have if kind.startswith("array:")}
    if have == {"text"}:
        return "json" if missing else "str"
    if have <= BYTES and have:
        return have.pop() if len(have) == 1 and not missing else "bytes"
    if arrays == have and have:
        dtypes = {kind.split(":")[1] for kind in arrays}
        return "ndarray" if not missing and all(map(has_dtype, dtypes)) else "bytes"
    if have & BYTES or arrays:
        return "bytes"
    if len(have) == 1 and not missing and have <= {"int", "float"}:
        return "int" if have == {"int"} else "float64"
    return "json"


def _row(columns: Mapping[str, str], taken: Taken) -> tuple[list[bytes], dict[str, bytes]]:
    """The encoded values of a sample, and the parts that are read back."""
    out, parts = [], {}
    for name, form in columns.items():
        value = taken.key if name == KEY else value_of(taken, name)
        if form == "json":
            value = text_of(value) if isinstance(value, bytes) else value
            if value is not None:
                parts[name] = plain_bytes(value)
        elif form in ("bytes", "jpeg", "png"):
            value = parts[name] = plain_bytes(value)
        elif name != KEY:
            parts[name] = plain_bytes(value)
        out.append(ENCODERS[form](value))
    return out, parts
