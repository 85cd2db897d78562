"""Write samples, or the results of a function per shard, as a prepared dataset: `feedmill.write`.

With the class `Writer`, samples are written one by one: the caller's thread encodes them and divides them into shards.
A second thread creates headers, hashes and writes. A third publishes finished shards. The content of a shard depends
only on the samples and the limits. `write_shards` writes a shard per item in several processes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, Self

from feedmill.documents.lineage.samples import write_shard_lineage
from feedmill.documents.lineage.sidecar import Origins
from feedmill.errors import ConfigError, DataError, suggesting
from feedmill.formats.base import Dataset
from feedmill.formats.offsets import hash_words
from feedmill.jobs.dry_run import JobReport
from feedmill.jobs.engine import key_of
from feedmill.jobs.progress import Progress
from feedmill.jobs.threads import Call, Threads, ordered_map
from feedmill.samples.description import describe_type
from feedmill.samples.encode import Encode, Encoder
from feedmill.samples.view import FieldMapView
from feedmill.storage import open_store
from feedmill.storage.limits import parse_size
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.shard import BATCH_BYTES, BATCH_SAMPLES, PATTERN, Layout, Shard, ShardFile, write_shard
from feedmill.writing.work import finish_units, identity

_QUEUED = 6


@dataclass(slots=True)
class WriteReport(JobReport):
    """The result of writing a dataset.

    Attributes:
        path: the dataset.
        samples, shards, bytes: totals of this run and of an earlier interrupted run.
        reused: number of shards that an interrupted run finished.
        seconds: wall time.
    """

    path: str
    samples: int = 0
    shards: int = 0
    bytes: int = 0
    reused: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: str, shards: Sequence[Shard], reused: int, seconds: float) -> WriteReport:
        """Return the report of a dataset with these shards."""
        samples = sum(len(shard.scan.keys) for shard in shards)
        return cls(path, samples, len(shards), sum(s.record.size for s in shards), reused, round(seconds, 3))


def encoding_facts(field_map: Mapping[str, str] | None, encode: Mapping[str, Encode] | None) -> dict[str, Any]:
    """Return the encoding options that are part of a job's identity."""
    encoders = {name: identity(function) for name, function in sorted((encode or {}).items())}
    return {"field_map": dict(field_map or {}), "encode": encoders}


class Keys:
    """The keys of a dataset being written. Raises `DataError` for a duplicate."""

    def __init__(self, url: str, shards: Iterable[Shard] = ()) -> None:
        self.url = url
        self._seen: set[str] = set()
        for shard in shards:
            self.add_shard(shard)

    def add(self, key: str) -> None:
        """Add a key."""
        if key in self._seen:
            raise DataError(
                "the key occurs twice: keys must be unique in a dataset",
                file=self.url,
                record=key,
                kind="duplicate-key",
                fix="Rename the sample, for example by adding the name of its source before the key.",
            )
        self._seen.add(key)

    def add_shard(self, shard: Shard) -> None:
        """Add the keys of a complete shard."""
        self.add_all(shard.scan.keys)

    def add_all(self, keys: Sequence[str]) -> None:
        """Add the keys of a shard."""
        before = len(self._seen)
        if not self._seen.isdisjoint(keys):
            raise DataError(
                "the key also occurs in an earlier shard: keys must be unique in a dataset",
                file=self.url,
                record=next(key for key in keys if key in self._seen),
                kind="duplicate-key",
                fix="Rename the samples, for example by adding the name of their source before the key (--prefix).",
            )
        self._seen.update(keys)
        if len(self._seen) != before + len(keys):
            fresh = Keys(self.url)
            for key in keys:
                fresh.add(key)


class Writer:
    """Context manager that writes samples into shards and completes the dataset at its end.

    If the block ends with an error, or the process is killed, finished shards are kept. Writing the same samples again
    resumes after them.

    Args:
        url: folder of the dataset, as path or URL.
        pattern: path of a shard in it, with ``%06d`` for its number.
        max_shard_samples, max_shard_size: maximum number of samples per shard, and maximum size in bytes or as text
            such as ``"1G"``.
        split: the split of the samples.
        sample_type, field_map: content of ``dataset.yaml``; the field map also maps fields of dataclasses to parts.
        encode: suffix or part name -> function that returns bytes.
        append: append to the existing prepared dataset, after its last shard.
        overwrite: replace an existing dataset.

    Attributes:
        samples: number of samples passed so far.
        report: the result; None until the block has ended.

    Raises:
        ConfigError: a dataset exists already, or options are invalid.
        StorageError: the dataset cannot be written.
    """

    def __init__(
        self,
        url: str,
        *,
        pattern: str | None = None,
        max_shard_samples: int | None = 10_000,
        max_shard_size: int | str | None = "3GB",
        split: str | None = None,
        sample_type: str | None = None,
        field_map: Mapping[str, str] | None = None,
        encode: Mapping[str, Encode] | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> None:
        if append and overwrite:
            raise ConfigError("append and overwrite cannot be used together", fix="Remove one of them.")
        layout = Layout(pattern or PATTERN, max_shard_samples, parse_size(max_shard_size))
        description = describe_type(sample_type, field_map) if sample_type is not None else None
        self.url = url
        self.encoding = Encoding(Encoder(encode), Taker(field_map))
        self.target = Destination(
            url,
            layout,
            job={"verb": "write", **encoding_facts(field_map, encode)},
            split=split,
            description=description,
            append=append,
            overwrite=overwrite,
        )
        self._open()

    def _open(self) -> None:
        self._began = time.perf_counter()
        self.report: WriteReport | None = None
        self.layout = self.target.layout
        self.shards: list[Shard] = []
        self.reused = 0
        self.samples = 0
        self._keys = Keys(self.url, self.target.base)
        self._skip: deque[str] = deque()
        self._reuse_finished()
        self._pending: list[Encoded] = []
        self._pending_bytes = 0
        self._in_shard = 0
        self._size = 0
        self._file: ShardFile | None = None
        self._writing = Threads(1, "feedmill-write")
        self._placing = Threads(1, "feedmill-place")
        self._queue: deque[Call[Any]] = deque()
        self._placed: deque[Call[Shard]] = deque()
        self._closed = self._failed = False

    def _reuse_finished(self) -> None:
        """Reuse the first shards that an interrupted run finished; their samples are not written again."""
        while (shard := self.target.done.get(self.layout.shard(len(self.shards)))) is not None:
            self.shards.append(shard)
            self._keys.add_shard(shard)
            self._skip.extend(shard.scan.keys)
        self.reused = len(self.shards)

    @property
    def skipping(self) -> bool:
        """Return whether an interrupted run already wrote the next sample."""
        return bool(self._skip)

    def skip(self, sample: Any) -> None:
        """Skip a sample that is already written. Raises `DataError` if its key differs from the written one."""
        key = self.encoding.taker.key(sample)
        wanted = self._skip.popleft()
        if key != wanted:
            raise DataError(
                f"the samples changed since an interrupted run, which wrote the sample {wanted!r} at this position",
                file=self.url,
                record=key,
                kind="changed",
                fix="Pass the same samples in the same order, or restart with overwrite=True.",
            )
        self.samples += 1

    def write(self, sample: Any) -> None:
        """Write one sample: a mapping with ``__key__`` and parts, a `Sample`, or a dataclass.

        Raises:
            DataError: its key or a part cannot be stored. Only this sample is not written.
            StorageError: the disk is full or cannot be written.
        """
        if self._skip:
            self.skip(sample)
        else:
            self.add(self.encoding(sample))

    def write_samples(self, samples: Iterable[Any]) -> None:
        """Write several samples."""
        for sample in samples:
            self.write(sample)

    def add(self, encoded: Encoded) -> None:
        """Write one encoded sample."""
        self._keys.add(encoded.key)
        layout = self.layout
        if self._in_shard and (
            (layout.samples is not None and self._in_shard >= layout.samples)
            or (layout.size is not None and self._size + encoded.size + 1024 > layout.size)
        ):
            self._end_shard()
        self._pending.append(encoded)
        self._in_shard += 1
        self._size += encoded.size
        self._pending_bytes += encoded.size
        self.samples += 1
        if self._pending_bytes >= BATCH_BYTES or len(self._pending) >= BATCH_SAMPLES:
            self._flush()

    def _flush(self) -> None:
        batch, self._pending, self._pending_bytes = self._pending, [], 0
        if batch:
            self._submit(self._append, batch)

    def _end_shard(self) -> None:
        self._flush()
        self._submit(self._finish_shard)
        self._in_shard = self._size = 0

    def _submit(self, function: Any, *arguments: Any) -> None:
        while len(self._queue) >= _QUEUED:
            self._queue.popleft().result()
        self._queue.append(self._writing.begin(self._run, function, *arguments))

    def _run(self, function: Any, *arguments: Any) -> None:
        """Run a function on the writing thread, unless an earlier one failed: the shard would lack samples."""
        if not self._failed:
            self._failed = True
            function(*arguments)
            self._failed = False

    def _append(self, batch: list[Encoded]) -> None:
        if self._file is None:
            number = len(self.shards) + len(self._placed)
            path = self.layout.shard(number)
            self.target.claim([path])
            self._file = ShardFile(self.target.store, path)
        self._file.add_all(batch)

    def _finish_shard(self) -> None:
        """Publish the shard in the background while the next one begins; at most two are in flight."""
        file, self._file = self._file, None
        assert file is not None
        self._placed.append(self._placing.begin(self._publish, file))
        while len(self._placed) > 2 or (self._placed and self._placed[0].done()):
            self._record()

    def _publish(self, file: ShardFile) -> Shard:
        """Publish a shard, on the third thread, and record it at once in the journal, so that it survives a kill."""
        try:
            shard = file.close()
        except BaseException:
            file.abort()
            raise
        self.target.work.add_shard(shard)
        return shard

    def _record(self) -> None:
        self.shards.append(self._placed[0].result())
        self._placed.popleft()

    def close(self) -> WriteReport:
        """Finish the dataset and return the report.

        Raises as `write`, and `DataError` if there were no samples, or fewer than an interrupted run wrote.
        """
        if self._skip:
            raise DataError(
                f"fewer samples than an interrupted run wrote (the next one was {self._skip[0]!r})",
                file=self.url,
                kind="changed",
                fix="Pass the same samples in the same order, or restart with overwrite=True.",
            )
        if self._in_shard:
            self._end_shard()
        while self._queue:
            self._queue.popleft().result()
        while self._placed:
            self._record()
        warnings = self.target.finish(self.shards)
        self.report = WriteReport.of(self.url, self.shards, self.reused, time.perf_counter() - self._began)
        self.report.warnings += warnings
        return self.report

    def abort(self) -> None:
        """Stop writing. Finished shards are kept for the next run."""
        self._stop()

    def _stop(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writing.end(finish=True)  # queued batches are still written: they may complete a shard
        self._placing.end(finish=True)
        if self._file is not None:
            self._file.abort()
            self._file = None
        self._placed.clear()
        self.target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        finally:
            self.abort()


def writer(url: str, **options: Any) -> Writer:
    """Return a `Writer` with these options.

    >>> import feedmill, tempfile
    >>> folder = tempfile.mkdtemp() + "/cats"
    >>> with feedmill.writer(folder, max_shard_samples=1000) as w:
    ...     for i in range(3):
    ...         w.write({"__key__": f"{i:06d}", "txt": "a cat", "json": {"number": i}})
    >>> feedmill.open(folder)["000002"]["json"]
    {'number': 2}
    """
    return Writer(url, **options)


_ENCODED_AT_ONCE = 32
_LINEAGES_AT_ONCE = 8

Produce = Callable[[Any], Iterable[Any]]
"""Function that returns the samples of one shard for an item."""


@suggesting(
    split_ratio="write all samples, then divide the shards: fm.prepare(url, split_ratio=...); or write each split with"
    " split=... and append=True.",
    num_workers="did you mean 'workers'?",
)
def write(
    url: str | os.PathLike[str],
    samples: Iterable[Any],
    *,
    produce: Produce | None = None,
    pattern: str | None = None,
    max_shard_samples: int | None = 10_000,
    max_shard_size: int | str | None = "3GB",
    split: str | None = None,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    encode: Mapping[str, Encode] | None = None,
    append: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> WriteReport:
    """Write a prepared dataset: shards with their index.

    The output does not depend on `workers`. After a kill, the same call finishes the job and keeps finished shards.

    Args:
        url: folder, as path or URL.
        samples: mappings with ``__key__``, `Sample`, or dataclasses; with `produce`, its items. The samples of a
            `Dataset` with a field map, or of its `filter` and `select`, are written as stored, with the field map.
        produce: function at the top level of a module that returns the samples of an item. Each item becomes one shard
            (none if it has no samples), and several processes share the items. The limits have no effect.
        pattern: path of a shard, with ``%06d`` for its number; ``shards/%06d.tar`` by default.
        max_shard_samples, max_shard_size: maximum number of samples per shard, and maximum size in bytes or as text
            such as ``"1G"``.
        split: the split of the samples; by default ``train`` in a new dataset, the first one with `append`.
        sample_type, field_map: content of ``dataset.yaml``; the field map also maps fields of dataclasses to parts.
        encode: suffix or part name -> function that returns bytes.
        append: append to the existing prepared dataset, after its last shard.
        overwrite: replace an existing dataset.
        workers: without `produce`, number of encoding threads (none by default; useful for images); with it, number of
            processes (by default one per core).
        progress: show a progress bar on a terminal.

    Raises:
        DataError: a sample cannot be stored, or a key occurs twice.
        ConfigError: a dataset exists already, or options are invalid.
        StorageError: the dataset cannot be written.
    """
    if not isinstance(url, str | os.PathLike):
        raise TypeError(f"the path comes first, fm.write(path, samples): found a {type(url).__name__}")
    url = os.fspath(url)
    began = time.perf_counter()
    if isinstance(samples, Dataset) and produce is None and sample_type is None and field_map is None:
        samples, sample_type, field_map = _stored(samples, append=append)
    if produce is not None:
        items = list(samples)
        target = Destination(
            url,
            Layout(pattern or PATTERN, None, None),
            job={
                "verb": "write",
                "produce": identity(produce),
                "items": hash_words([repr(item) for item in items]),
                **encoding_facts(field_map, encode),
            },
            split=split,
            description=describe_type(sample_type, field_map) if sample_type is not None else None,
            append=append,
            overwrite=overwrite,
        )
        encoding = Encoding(Encoder(encode), Taker(field_map))
        with closing(target):
            report = write_shards(target, items, produce, encoding, workers=workers, progress=progress)
    else:
        options = {"split": split, "sample_type": sample_type, "field_map": field_map, "encode": encode}
        limits = {"pattern": pattern, "max_shard_samples": max_shard_samples, "max_shard_size": max_shard_size}
        writer = Writer(url, append=append, overwrite=overwrite, **limits, **options)  # type: ignore[arg-type]
        report = write_samples(writer, samples, workers=workers or 0, progress=progress)
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _stored(dataset: Dataset, *, append: bool) -> tuple[Dataset, str | None, Mapping[str, str] | None]:
    """Return a dataset, with its sample type and field map, so that its samples are written as they are stored.

    Decoded images would be encoded a second time. With `append` the dataset there has its own description.
    """
    if not isinstance(dataset.view, FieldMapView):
        return dataset, None, None
    described = (None, None) if append else (dataset.view.cls.__name__, dataset.about["field_map"])
    return dataset.opened_as(view=None, decode=None), *described


def write_samples(writer: Writer, samples: Iterable[Any], *, workers: int, progress: bool) -> WriteReport:
    """Write all samples and finish the dataset. Finished shards are kept after an error."""
    total = len(samples) if isinstance(samples, Sequence) else None
    try:
        with Progress("writing", total, "samples", enabled=progress) as bar:
            source = iter(samples)
            while writer.skipping and (batch := list(islice(source, BATCH_SAMPLES))):
                writer.write_samples(batch)
                bar.advance(len(batch))
            pieces = iter(lambda: list(islice(source, _ENCODED_AT_ONCE)), [])
            encoded = ordered_map(writer.encoding.batch, pieces, workers=workers, in_flight=2 * workers)
            with closing(encoded):
                for done in encoded:
                    for sample in done:
                        writer.add(sample)
                    bar.advance(len(done))
        return writer.close()
    finally:
        writer.abort()


@dataclass(frozen=True, slots=True)
class _Shared:
    """Data that every worker process needs to write shards."""

    url: str
    produce: Produce
    encoding: Encoding


def write_shards(
    target: Destination,
    items: Sequence[Any],
    produce: Produce,
    encoding: Encoding | None = None,
    *,
    splits: Mapping[str, Sequence[int]] | None = None,
    origins: Callable[[Any], Origins | None] | None = None,
    **options: Any,
) -> WriteReport:
    """Write one shard per item in several processes, and finish the dataset.

    Args:
        splits: split -> numbers of items; by default all shards are in the target's split.
        origins: function of an item that returns the lineage of its shard, if its samples are rows of files.
        produce, encoding, options: see `make_shards`.
    """
    made = make_shards(target, items, produce, encoding, **options)
    if origins is not None:
        _write_lineages(target, zip(items, made, strict=True), origins)
    return finish_shards(target, made, splits)


def finish_shards(
    target: Destination, made: Sequence[Shard | None], splits: Mapping[str, Sequence[int]] | None = None
) -> WriteReport:
    """Finish a dataset of these shards. `splits`: split -> their numbers."""
    shards = [shard for shard in made if shard is not None]
    paths = None
    if splits is not None:
        paths = {name: [shard.path for n in numbers if (shard := made[n])] for name, numbers in splits.items()}
    warnings = target.finish(shards, paths)
    report = WriteReport.of(target.url, shards, len(target.done), 0.0)
    report.warnings += warnings
    return report


def make_shards(
    target: Destination,
    items: Sequence[Any],
    produce: Produce,
    encoding: Encoding | None = None,
    *,
    sizes: Sequence[int] | None = None,
    preload: Sequence[str] = (),
    workers: int | None = None,
    progress: bool = True,
) -> list[Shard | None]:
    """Write one shard per item in several processes, and return them in order; None for an item without samples.

    Args:
        produce: function that returns the samples of an item; `Encoded` ones are written unchanged.
        sizes: bytes of each item, to show progress in bytes instead of shards.
        preload: modules that `produce` needs, imported once for all workers.
    """
    encoding = encoding or Encoding(Encoder(), Taker())
    keys = Keys(target.url, target.base)
    shared = _Shared(target.store.url, produce, encoding)
    units = [(target.layout.shard(number), item) for number, item in enumerate(items)]
    names = [name for name, _ in units]
    target.claim(names)
    target.note_units(len(names))
    finished: dict[int, Shard | None] = {n: target.done[name] for n, name in enumerate(names) if name in target.done}
    out: list[Shard | None] = []
    steps = [1] * len(units) if sizes is None else sizes
    stage = "writing", key_of(*names), target.work.scratch
    options: dict[str, Any] = {"shared": shared, "workers": workers, "preload": (__name__, *preload), "stage": stage}
    with Progress("writing", sum(steps), "shards" if sizes is None else "B", enabled=progress) as bar:
        made = finish_units(_write_shard, units, finished, record=target.record, bar=bar, steps=steps, **options)
        with closing(made):
            for shard in made:
                if shard is not None:
                    keys.add_shard(shard)
                out.append(shard)
    return out


def _write_lineages(
    target: Destination, made: Iterable[tuple[Any, Shard | None]], origins: Callable[[Any], Origins | None]
) -> None:
    """Write the lineages of the shards, which are given with their items."""

    def write(pair: tuple[Any, Shard | None]) -> None:
        item, shard = pair
        lineage = None if shard is None else origins(item)
        if shard is not None and lineage is not None:
            write_shard_lineage(lineage, target.store, shard.path, target.home.locate(shard.path))

    workers = 0 if target.store.is_local else _LINEAGES_AT_ONCE  # in an object store each is a request
    for _ in ordered_map(write, made, workers=workers, in_flight=2 * _LINEAGES_AT_ONCE):
        pass


def _write_shard(shared: _Shared, work: tuple[str, Any]) -> Shard | None:
    """Write one shard and return it; None if there are no samples."""
    name, item = work
    samples = (s if isinstance(s, Encoded) else shared.encoding(s) for s in shared.produce(item))
    return write_shard(open_store(shared.url), name, samples)
