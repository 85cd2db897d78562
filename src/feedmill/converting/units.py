"""Units of a conversion: read from the source, written as one output by the target, read back and compared.

A family of conversions (samples, rows, tokens) is a `Source`, a format is a `Target`. What all units share (staging,
hashes, skipped samples, aborting) is in this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from feedmill.converting.job import PIECE, Bad, Done, Hashes, read_hashes, write_hashes
from feedmill.converting.values import read
from feedmill.documents.lineage.samples import shard_lineage
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import DataError, FeedmillError, NotFound, StorageError
from feedmill.formats.base import Dataset
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import Sample
from feedmill.formats.sniff import open_raw
from feedmill.formats.tables.dataset import TableDataset
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.base import changed, is_disk_error, storage_error


def read_each(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    """Yield the number of each sample with the sample, or with the error that reading it raised.

    Raises:
        StorageError: the storage failed, which is not an error of one sample.
    """
    try:
        yield from zip(numbers, dataset.read_raw(numbers), strict=True)
    except StorageError:
        raise
    except FeedmillError:
        for piece in _pieces(dataset, numbers):
            yield from _one_by_one(dataset, piece)


def _pieces(dataset: Dataset, numbers: range) -> Sequence[range]:
    """Return the ranges of samples that are stored together, so that damage affects each as a whole."""
    return dataset.blocks(numbers) if isinstance(dataset, TableDataset) else [numbers]


def _one_by_one(dataset: Dataset, numbers: range) -> Iterator[tuple[int, Sample | FeedmillError]]:
    gone: FeedmillError | None = None
    if isinstance(dataset, TableDataset):
        try:
            dataset.arrow_rows(numbers[:1])  # a damaged block fails for all its rows: read it once
        except (DataError, NotFound) as error:
            gone = error
    for number in numbers:
        if gone is not None:
            yield number, gone
            continue
        try:
            (sample,) = dataset.read_raw([number])
        except (DataError, NotFound) as error:
            yield number, error
        else:
            yield number, sample


Hashed = Iterator[tuple[Sequence[bytes], Sequence[str]]]
"""Batches of hashes and keys of samples that are read back. Keys are empty if `Target.record` names the samples."""


class Unit(NamedTuple):
    """A unit of work: its number, what the source reads for it, and its number of samples (0 if unknown)."""

    number: int
    what: tuple[Any, ...]
    samples: int = 0

    def __str__(self) -> str:
        source = next((word for word in self.what if isinstance(word, str) and word), "")
        return f"unit {self.number}" + (f" ({source})" if source else "")


class Written(NamedTuple):
    """An output to read back.

    Attributes:
        done: the output.
        first: number of its first sample in the destination.
        at: offset of its first byte, if the destination is one file.
    """

    done: Done
    first: int
    at: int

    def __str__(self) -> str:
        return f"output {self.done.number} ({self.done.path})"


class Different(NamedTuple):
    """The first difference in an output: the number of the sample in it, and its key."""

    number: int
    key: str


Add = Callable[[Any], Sequence[bytes]]
"""Append an item of the source, and return the hash of each sample, as reading it back will compute it.

Raises `DataError` if the format cannot store it; then nothing of the item is appended.
"""


class Source(ABC):
    """The input of a conversion: plain data that is sent to each process once."""

    @abstractmethod
    def read(self, unit: Unit, bad: list[Bad]) -> Iterator[Any]:
        """Yield the content of a unit's output, in order. A sample that cannot be read is added to `bad`, or raised."""

    def refuse(self, unit: Unit, item: Any, error: FeedmillError, bad: list[Bad]) -> None:  # noqa: ARG002
        """Add an item that the format cannot store to `bad`, or raise the error."""
        raise error

    def numbers(self, item: Any) -> Sequence[int]:  # noqa: ARG002
        """Return the numbers of the samples of an item in what the unit reads; none if all are written, in order."""
        return ()

    def lengths(self) -> Iterator[Int64s]:
        """Yield the number of tokens of all documents, int64[n] each, if they are token files."""
        return iter(())

    @abstractmethod
    def add_origins(self, origins: Origins, unit: Unit, done: Done) -> bool:
        """Append the rows of an output to its lineage. Return False if the samples are rows of no file."""


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """The output of a conversion: a format at a destination, as plain data that is sent to each process once.

    Attributes:
        destination: path or URL; of the staged result if an old one is replaced.
        piece: whether the destination is one file. Then outputs are chunks of it in the work folder.
        keeps_empty: whether an output without samples is kept.
    """

    destination: str
    piece: bool
    keeps_empty: ClassVar[bool] = False

    @abstractmethod
    def path(self, unit: Unit) -> str:
        """Return the path of a unit's output in the destination."""

    @abstractmethod
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> AbstractContextManager[Add]:
        """Return a context in which an output is written; it is published if the block ends without an error.

        On exit, `extra` holds the data that `finish` needs.
        """

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:
        """Return the paths, and a regular expression of paths (or ""), that a killed conversion may leave behind."""
        return ([] if self.piece else [self.path(unit) for unit in units]), ""

    @abstractmethod
    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:
        """Complete the destination from all outputs: join them, write the index. Return all files, as store paths."""

    def lineage(self, path: str) -> str:
        """Return the path of the lineage of an output, see `feedmill.documents.lineage`."""
        return shard_lineage(path)

    def sequences(self, source: Source, done: Done) -> tuple[int, Int64s] | None:  # noqa: ARG002
        """Return the sequences of the documents if the outputs' rows are sequences; see `Origins.encoded`."""
        return None

    @abstractmethod
    def read_back(self, written: Written) -> Hashed:
        """Read an output through the destination's own reader."""

    def record(self, written: Written, number: int) -> str:  # noqa: ARG002
        """Return the name of a sample in messages, or "" to use its key."""
        return ""


@dataclass(frozen=True, slots=True)
class SampleTarget(Target):
    """A format whose reader is a `Dataset`.

    Attributes:
        batch: number of samples to read at once.
    """

    batch: int

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """Return the dataset to read an output back from, and the number of the output's first sample in it."""
        return opened(self.destination, None), written.first

    @abstractmethod
    def digest(self, sample: Sample) -> bytes:
        """Return the digest of a sample that was read back. 16 bytes."""

    def digests(self, dataset: Dataset, samples: Sequence[Sample]) -> list[bytes]:  # noqa: ARG002
        """Return the digests of samples that were read back. 16 bytes each."""
        return [self.digest(sample) for sample in samples]

    def read_back(self, written: Written) -> Hashed:
        """See `Target`."""
        dataset, first = self.reader(written)
        for low in range(first, first + written.done.samples, self.batch):
            high = min(low + self.batch, first + written.done.samples)
            if high > len(dataset):
                return
            samples = dataset.read_raw(range(low, high))
            yield self.digests(dataset, samples), [sample.key for sample in samples]


@dataclass(frozen=True, slots=True)
class Shared:
    """Data that each process needs.

    Attributes:
        source, target: the input and output of the conversion.
        folder: path or URL of the folder of chunks.
        notes: URL of the folder of hashes.
    """

    source: Source
    target: Target
    folder: str
    notes: str


@contextmanager
def local_piece(done: Done) -> Iterator[Path]:
    """Yield the path of a chunk of a single file on this machine. Raises `DataError` if it has changed."""
    folder, name = split_url(done.path)
    store = open_store(folder)
    if store.stat(name).version != done.version:
        raise changed(done.path)
    with store.local_copy(name) as path:
        yield path


@lru_cache(8)
def opened(url: str, split: str | None, regroup: bool = False) -> Dataset:
    """Return a dataset whose samples have the values that a reader gets. It is opened once per process.

    Args:
        regroup: bring together the parts of each sample; see `feedmill.formats.tar.regrouped`.
    """
    dataset = read(open_raw(url, split=split)[0])
    if not regroup:
        return dataset
    from feedmill.formats.tar.regrouped import regrouped

    return read(regrouped(dataset))


def convert_unit(shared: Shared, unit: Unit) -> Done:
    """Write one output and the hashes of its samples."""
    target = shared.target
    store = open_store(shared.folder if target.piece else target.destination)
    path = f"{unit.number:06d}{PIECE}" if target.piece else target.path(unit)
    done = Done(unit.number, "", 0, "", 0, [], {}, rows=[])
    hashes: list[bytes] = []
    try:
        _write(shared, store, path, unit, done, hashes)
    except _Empty:
        pass
    except OSError as error:
        if is_disk_error(error):
            raise storage_error(error, store.locate(path)) from None
        raise
    if hashes or target.keeps_empty:
        entry = store.stat(path)
        place = store.locate(path) if target.piece else path
        facts: dict[str, Any] = {"rows": done.rows, "shard": done.extra.pop("tar", None)}
        done = Done(unit.number, place, entry.size, entry.version, len(hashes), done.bad, done.extra, **facts)
    return msgspec.structs.replace(done, hashes=write_hashes(shared.notes, done.number, b"".join(hashes)))


def _write(shared: Shared, store: Store, path: str, unit: Unit, done: Done, hashes: list[bytes]) -> None:
    source, target = shared.source, shared.target
    with ExitStack() as stack:
        add: Add | None = None
        if target.keeps_empty:
            add = stack.enter_context(target.output(store, path, unit, done.extra))
        for item in source.read(unit, done.bad):
            add = add or stack.enter_context(target.output(store, path, unit, done.extra))
            try:
                hashes += add(item)
            except (DataError, NotFound) as error:
                source.refuse(unit, item, error, done.bad)
            else:
                _extend(done.rows, source.numbers(item))
        if not hashes and not target.keeps_empty:
            raise _Empty("all samples were skipped")


def _extend(rows: list[tuple[int, int]], numbers: Sequence[int]) -> None:
    """Add ascending numbers to ranges ``[begin, end)``."""
    for number in numbers:
        if rows and rows[-1][1] == number:
            rows[-1] = (rows[-1][0], number + 1)
        else:
            rows.append((number, number + 1))


def check_unit(shared: Shared, written: Written) -> Different | None:
    """Read an output back and compare each sample with the source, by digest. Return the first difference, or None."""
    wanted = read_hashes(shared.notes, written.done.number)
    number = 0
    for hashes, keys in shared.target.read_back(written):
        different = _compare(wanted[number : number + len(hashes)], hashes)
        if different is not None:
            number += different
            return Different(number, shared.target.record(written, number) or keys[different])
        number += len(hashes)
    return None if number == len(wanted) else Different(number, shared.target.record(written, number))


def _compare(wanted: Hashes, hashes: Sequence[bytes]) -> int | None:
    """Return the number of the first hash that differs or is beyond the expected ones; None if there is none."""
    if wanted.tobytes() == b"".join(hashes):
        return None
    return next(n for n, have in enumerate(hashes) if n >= len(wanted) or wanted[n].tobytes() != have)


class _Empty(FeedmillError):
    """Raised within `Target.output`, so that the store discards an output without samples."""
