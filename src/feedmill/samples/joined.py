"""Join several datasets: sample `i` combines the samples that have the same key in all of them.

Rows of sample numbers define which samples belong together (see `feedmill.formats.energon.join`), and a *joiner* makes
one sample of each row. Reading checks that the keys of a row agree, so rows made for other data raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset, Indices, Opened
from feedmill.formats.costs import LARGEST, bad_cost
from feedmill.formats.energon.join import MISSING
from feedmill.formats.offsets import Extents, Int64s, hash_words
from feedmill.formats.sample import Sample, Source, locate, reraise
from feedmill.samples.trusted import TrustedCode
from feedmill.samples.types import sample_type
from feedmill.samples.view import is_ours
from feedmill.samples.views import bounds_within

Joiner = Callable[..., Any]
"""Function of one sample per dataset: by position, or by name if the join has names. A missing sample is None."""


class JoinedDataset(Dataset):
    """Dataset whose samples are rows of samples of several datasets.

    ``read`` returns what the joiner makes of each row; without a joiner, a tuple, or a dict if the datasets have names.
    ``read_raw`` returns one `Sample` with the parts of all datasets, named ``0.txt``, ``1.png`` or ``left.txt``,
    ``right.png``.

    Args:
        parts: The datasets; the first one gives the keys of the samples.
        rows: int64[n, c], sample numbers; -1 means that a sample is missing.
        names: One name per dataset; None for a join by position.
        joiner: Makes one sample of a row.
    """

    format = "join"

    def __init__(
        self,
        parts: Sequence[Dataset],
        rows: Int64s,
        *,
        names: Sequence[str] | None = None,
        joiner: Joiner | None = None,
    ) -> None:
        self.parts, self.rows, self.names, self.joiner = list(parts), rows, names, joiner
        self.url = " + ".join(dict.fromkeys(part.url for part in parts))
        self.split = parts[0].split
        self._opened = Opened(decode=parts[0].decode, subflavors=parts[0].subflavors)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Indices) -> list[Any]:
        columns = [_spread(part.view, raw) for part, raw in zip(self.parts, self._columns(indices), strict=True)]
        return [self._join(number, row) for number, row in zip(indices, zip(*columns, strict=True), strict=True)]

    def read_raw(self, indices: Indices) -> list[Sample]:
        labels = self.names or [str(number) for number in range(len(self.parts))]
        rows = zip(indices, zip(*self._columns(indices), strict=True), strict=True)
        return [self._combined(int(number), labels, row) for number, row in rows]

    @property
    def is_remote(self) -> bool:
        return any(part.is_remote for part in self.parts)

    def load_ahead(self) -> None:
        for part in self.parts:
            part.load_ahead()

    def copy_indices(self) -> None:
        for part in self.parts:
            part.copy_indices()

    def extents(self, indices: Indices) -> Sequence[Extents]:
        rows = self.rows[np.asarray(indices, np.int64)]
        found: list[Extents] = []
        for part, numbers in zip(self.parts, rows.T, strict=True):
            there = np.flatnonzero(numbers != MISSING)
            found += [extents.of_samples(there) for extents in part.extents(numbers[there])]
        return found

    @property
    def shard_bounds(self) -> Int64s:
        """Return the bounds of the first dataset's shards, in rows."""
        return bounds_within(self.parts[0], self.rows[:, 0])

    def locate(self, index: int) -> Source:
        """Return the source of the first dataset's sample."""
        return self.parts[0].locate(int(self.rows[self._checked(index), 0]))

    def find(self, key: str) -> int:
        """Return the number of the row with this key in the first dataset. Raises `NotFound`."""
        number = self.parts[0].find(key)
        rows = np.flatnonzero(self.rows[:, 0] == number)
        if not len(rows):
            from feedmill.formats.sample import no_such_key

            raise no_such_key(self.url, key)
        return int(rows[0])

    def fingerprint(self) -> str:
        return hash_words([*(part.fingerprint() for part in self.parts), str(len(self)), _digest(self.rows)])

    def _find_costs(self, by: str) -> Int64s | None:
        """Return the sum over the samples of each row; a missing sample costs 0."""
        total = np.zeros(len(self), np.int64)
        for number, part in enumerate(self.parts):
            costs = part.costs(by)
            if costs is None:
                return None
            there = self.rows[:, number] != MISSING
            total[there] += costs[self.rows[there, number]]
            if len(total) and total.max() > LARGEST:
                raise bad_cost(by, int(total.argmax()), int(total.max()), file=self.url)
        return total

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        """Return the values of the first dataset, whose samples all rows have."""
        values = self.parts[0].values(by, texts=texts)
        return None if values is None else values[self.rows[:, 0]]

    @property
    def cost_fields(self) -> Sequence[str]:
        return [name for name in self.parts[0].cost_fields if all(name in part.cost_fields for part in self.parts)]

    def costs_advice(self, by: str) -> str:
        return " ".join(dict.fromkeys(part.costs_advice(by) for part in self.parts if part.costs(by) is None))

    def describe(self) -> dict[str, Any]:
        """Return a JSON-ready summary, including the summaries of the joined datasets."""
        parts = [part.describe() for part in self.parts]
        facts = {"format": self.format, "path": self.url, "split": self.split, "samples": len(self), "indexed": True}
        totals = {name: sum(part.get(name, 0) for part in parts) for name in ("shards", "bytes")}
        return {**facts, **totals, "parts": parts, **self.about}

    def _columns(self, indices: Indices) -> list[list[Sample | None]]:
        """Return one list of raw samples per dataset. Raises `DataError` if the keys of a row differ."""
        rows = self.rows[np.asarray(indices, np.int64)]
        columns: list[list[Sample | None]] = []
        for number, part in enumerate(self.parts):
            there = np.flatnonzero(rows[:, number] != MISSING)
            column: list[Sample | None] = [None] * len(rows)
            for place, sample in zip(there.tolist(), part.read_raw(rows[there, number]), strict=True):
                column[place] = sample
                first = columns[0][place] if columns else sample
                if first is None or first.key != sample.key:
                    raise _disagree(first, sample)
            columns.append(column)
        return columns

    def _join(self, number: int, row: tuple[Any, ...]) -> Any:
        if self.joiner is None:
            return row if self.names is None else dict(zip(self.names, row, strict=True))
        try:
            if self.names is None:
                return self.joiner(*row)
            return self.joiner(**dict(zip(self.names, row, strict=True)))
        except Exception as error:
            fix = "Fix the sample or the joiner; the joiner receives None for a missing sample."
            reraise(error, self.locate(int(number)), "the joiner", kind="function-failed", fix=fix)

    def _combined(self, number: int, labels: Sequence[str], row: Sequence[Sample | None]) -> Sample:
        blocks: list[bytes] = []
        spans: dict[str, tuple[int, int]] = {}
        size = 0
        for label, sample in zip(labels, row, strict=True):
            for name in sample or ():
                assert sample is not None
                blocks.append(sample.raw(name))
                spans[f"{label}.{name}"] = (size, size + len(blocks[-1]))
                size += len(blocks[-1])
        first = row[0]
        assert first is not None
        source = partial(self.locate, number)
        return Sample(first.key, b"".join(blocks), spans, source, self.decode, self.subflavors)


def build_joiner(config: Mapping[str, Any] | None, *, at: str, trust: bool) -> Joiner | None:
    """Return the joiner configured by a recipe: a sample type's ``from_joined``, or a function.

    Args:
        config: ``{__module__, __class__}`` or ``{__module__, __function__}``; None for no joiner.
        at: ``file:line`` of the configuration, for errors.
        trust: Whether code outside Feedmill may run.

    Raises:
        TrustError: The joiner is the user's own code and `trust` is False.
        ConfigError: The class or function does not exist.
    """
    if config is None:
        return None
    if "__class__" in config and is_ours(config.get("__module__")):
        try:
            return sample_type(str(config["__class__"])).from_joined
        except ConfigError as error:
            error.file = at
            raise
    code = TrustedCode(lambda _: b"", at, trust)
    if "__class__" not in config:
        return code.function(config, "joiner", at)
    found = getattr(code.member(config, "__class__", at), "from_joined", None)
    if not callable(found):
        raise ConfigError(
            f"the class {config['__class__']!r} has no method 'from_joined'",
            file=at,
            fix="Derive the class from TypedSample, or define the method.",
        )
    joiner: Joiner = found
    return joiner


def _spread(view: Callable[[list[Sample]], list[Any]] | None, column: list[Sample | None]) -> list[Any]:
    """Apply the dataset's view to a column; missing samples stay None."""
    if view is None:
        return column
    values = iter(view([sample for sample in column if sample is not None]))
    return [None if sample is None else next(values) for sample in column]


def _digest(rows: Int64s) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(rows, "<i8").tobytes())


def _disagree(first: Sample | None, other: Sample) -> DataError:
    what = f"this sample is joined to the key {first.key if first else None!r}, so the rows were made for other data"
    fix = "Run 'feedmill prepare' on the metadataset again."
    return locate(DataError(f"the join is stale: {what}", kind="stale-index", fix=fix), other.source, other.key)
