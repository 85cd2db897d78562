"""A unit of a conversion: read from the source, written as one output by the target, read back and compared.

A family of conversions (samples, rows, tokens) is a `Source`, a format is a `Target`; what every unit needs besides
(staging, hashes, refused samples, giving up) is here, once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import msgspec

from feedmill.converting.job import PIECE, Bad, Done, Hashes, read_hashes, write_hashes
from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset, Sample
from feedmill.formats.sniff import open_raw
from feedmill.storage import Store, open_store
from feedmill.storage.local import LocalStore, is_disk_trouble, storage_error

Hashed = Iterator[tuple[Sequence[bytes], Sequence[str]]]
"""Hashes and keys of samples that are read back, some at a time; without keys where a target names them otherwise."""


class Unit(NamedTuple):
    """A piece of work: its number, what the source reads for it, and its samples where known."""

    number: int
    what: tuple[Any, ...]
    samples: int = 0


class Written(NamedTuple):
    """An output to be read back: the number of its first sample in the destination, and its first byte where the
    destination is one file."""

    done: Done
    first: int
    at: int


class Different(NamedTuple):
    """The first difference of an output: the sample's number in it, and its key."""

    number: int
    key: str


Add = Callable[[Any], Sequence[bytes]]
"""Append what the source has read; return the hash of each sample, as reading back will compute it. Raises `DataError`
where it cannot be stored: then nothing of it is appended."""


class Source:
    """What is read: plain data that every process is sent once."""

    def read(self, unit: Unit, bad: list[Bad]) -> Iterator[Any]:
        """Return what the output holds, in order. A sample that cannot be read is entered in `bad`, or raised."""
        raise NotImplementedError

    def refuse(self, unit: Unit, item: Any, error: FeedmillError, bad: list[Bad]) -> None:  # noqa: ARG002
        """Enter an item that the output has refused in `bad`, or raise the error."""
        raise error


@dataclass(frozen=True, slots=True)
class Target:
    """What is written: a format at a destination, plain data that every process is sent once.

    Attributes:
        destination: path or URL; while an old result stays, that of the new one.
        piece: whether the destination is one file: then outputs are pieces of it, and lie in the folder of the job.
    """

    destination: str
    piece: bool
    keeps_empty: ClassVar[bool] = False

    def path(self, unit: Unit) -> str:
        """Return where the output of a unit lies in a destination that is a folder."""
        raise NotImplementedError

    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> AbstractContextManager[Add]:
        """An output being written, which appears when the block ends without an error; `extra` is then what finishing
        the dataset needs."""
        raise NotImplementedError

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:
        """Paths that may be there when writing is killed, and a regular expression of such paths (or nothing)."""
        return ([] if self.piece else [self.path(unit) for unit in units]), ""

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:
        """Make the destination whole of all its outputs; return its files, paths in the store."""
        raise NotImplementedError

    def read_back(self, written: Written) -> Hashed:
        """Read an output through the destination's own reader."""
        raise NotImplementedError

    def record(self, written: Written, number: int) -> str:  # noqa: ARG002
        """Return how a sample of an output is called where that is not its key."""
        return ""


@dataclass(frozen=True, slots=True)
class SampleTarget(Target):
    """A format whose reader is a `Dataset`.

    Attributes:
        batch: samples to read at once.
    """

    batch: int

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """Return what reads an output back, and the number of the output's first sample in it."""
        return opened(self.destination, None), written.first

    def digest(self, sample: Sample) -> bytes:
        """Return the hash of a sample that was read back."""
        raise NotImplementedError

    def digests(self, dataset: Dataset, samples: Sequence[Sample]) -> list[bytes]:  # noqa: ARG002
        """Return the hashes of samples that were read back."""
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
    """What every process needs: `folder` and `notes` are those of the job, on this machine's disk and as a URL."""

    source: Source
    target: Target
    folder: str
    notes: str


@lru_cache(8)
def opened(url: str, split: str | None) -> Dataset:
    """Return a dataset, undecoded, once for each process."""
    return open_raw(url, split=split)[0]


def convert_unit(shared: Shared, unit: Unit) -> Done:
    """Write one output, and keep the hashes of its samples."""
    target = shared.target
    store: Store = LocalStore(shared.folder) if target.piece else open_store(target.destination)
    path = f"{unit.number:06d}{PIECE}" if target.piece else target.path(unit)
    done = Done(unit.number, "", 0, "", 0, [], {})
    hashes: list[bytes] = []
    try:
        _write(shared, store, path, unit, done, hashes)
    except _Empty:
        pass
    except OSError as error:
        if is_disk_trouble(error):
            raise storage_error(error, store.locate(path)) from None
        raise
    if hashes or target.keeps_empty:
        entry = store.stat(path)
        place = f"{shared.folder}/{path}" if target.piece else path
        done = Done(unit.number, place, entry.size, entry.version, len(hashes), done.bad, done.extra)
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
        if not hashes and not target.keeps_empty:
            raise _Empty("all samples were refused")


def check_unit(shared: Shared, written: Written) -> Different | None:
    """Read an output back, and compare each sample with what was read from the source."""
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
    """Return the number of the first hash that differs, or that nothing is expected for."""
    if wanted.tobytes() == b"".join(hashes):
        return None
    return next(n for n, have in enumerate(hashes) if n >= len(wanted) or wanted[n].tobytes() != have)


class _Empty(FeedmillError):
    """Makes the store drop an output without samples."""
