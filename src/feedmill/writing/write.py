"""Write samples, or the results of a function per shard, as a prepared dataset: `feedmill.write`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from feedmill.documents.lineage.samples import write_shard_lineage
from feedmill.documents.lineage.sidecar import Origins
from feedmill.formats.offsets import hash_words
from feedmill.jobs.engine import Where, key_of
from feedmill.jobs.policy import suggesting
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.jobs.threads import ordered_map
from feedmill.samples.description import describe_type
from feedmill.samples.encode import Encode, Encoder
from feedmill.storage import open_store
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.layout import PATTERN, Layout
from feedmill.writing.shard import Shard, ShardFile
from feedmill.writing.work import identity
from feedmill.writing.writer import BATCH_BYTES, BATCH_SAMPLES, Keys, Writer, WriteReport, encoding_facts

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
        samples: mappings with ``__key__``, `Sample`, or dataclasses; with `produce`, its items.
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
    url = os.fspath(url)
    began = time.perf_counter()
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
    items: Iterable[Any],
    produce: Produce,
    encoding: Encoding | None = None,
    *,
    splits: Callable[[Sequence[Shard]], Mapping[str, Sequence[str]]] | None = None,
    origins: Callable[[Any], Origins | None] | None = None,
    sizes: Sequence[int] | None = None,
    preload: Sequence[str] = (),
    workers: int | None = None,
    progress: bool = True,
) -> WriteReport:
    """Write one shard per item in several processes, and finish the dataset.

    Args:
        produce: function that returns the samples of an item; `Encoded` ones are written unchanged.
        splits: function of the written shards that returns split -> shard paths; by default all shards are in the
            target's split.
        origins: function of an item that returns the lineage of its shard, if its samples are rows of files.
        sizes: bytes of each item, to show progress in bytes instead of shards.
        preload: modules that `produce` needs, imported once for all workers.
    """
    encoding = encoding or Encoding(Encoder(), Taker())
    keys = Keys(target.url, target.base)
    shared = _Shared(target.store.url, produce, encoding)
    listed = list(enumerate(items))
    names = [target.layout.shard(number) for number, _ in listed]
    target.claim(names)
    target.note_units(len(names))
    todo = [number for number, name in enumerate(names) if name not in target.done]
    shards: list[Shard] = []
    steps = [1] * len(listed) if sizes is None else sizes
    with Progress("writing", sum(steps), "shards" if sizes is None else "B", enabled=progress) as bar:
        policy = Policy(shared=shared)
        where = Where("writing", key_of(*names), target.work.scratch, numbers=todo, record=target.record)
        work = [(names[number], listed[number][1]) for number in todo]
        bar.advance(sum(steps) - sum(steps[number] for number in todo))
        bar.of_sizes([steps[number] for number in todo])
        options: dict[str, Any] = {"workers": workers, "preload": (__name__, *preload), "policy": policy}
        with closing(run(_write_shard, work, progress=bar, where=where, **options)) as results:
            for name in names:
                shard = target.done.get(name)
                if shard is None:
                    shard = next(results)
                    target.record(shard)
                if shard is not None:
                    keys.add_shard(shard)
                    shards.append(shard)
    if origins is not None:
        _write_lineages(target, {names[number]: item for number, item in listed}, shards, origins)
    warnings = target.finish(shards, None if splits is None else splits(shards))
    report = WriteReport.of(target.url, shards, len(target.done), 0.0)
    report.warnings += warnings
    return report


def _write_lineages(
    target: Destination,
    items: Mapping[str, Any],
    shards: Sequence[Shard],
    origins: Callable[[Any], Origins | None],
) -> None:
    """Write the lineages of the shards, whose items have these paths."""

    def write(shard: Shard) -> None:
        lineage = origins(items[shard.path])
        if lineage is not None:
            write_shard_lineage(lineage, target.store, shard.path, target.home.locate(shard.path))

    workers = 0 if target.store.is_local else _LINEAGES_AT_ONCE  # in an object store each is a request
    for _ in ordered_map(write, shards, workers=workers, in_flight=2 * _LINEAGES_AT_ONCE):
        pass


def _write_shard(shared: _Shared, work: tuple[str, Any]) -> Shard | None:
    """Write one shard and return it; None if there are no samples."""
    name, item = work
    store = open_store(shared.url)
    file: ShardFile | None = None
    try:
        for batch in batches(s if isinstance(s, Encoded) else shared.encoding(s) for s in shared.produce(item)):
            if file is None:
                file = ShardFile(store, name)
            file.add(batch)
        return None if file is None else file.close()
    except BaseException:
        if file is not None:
            file.abort()
        raise


def batches(samples: Iterable[Encoded]) -> Iterator[list[Encoded]]:
    """Yield samples in lists large enough for efficient writing."""
    batch: list[Encoded] = []
    size = 0
    for sample in samples:
        batch.append(sample)
        size += sample.size
        if size >= BATCH_BYTES or len(batch) >= BATCH_SAMPLES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
