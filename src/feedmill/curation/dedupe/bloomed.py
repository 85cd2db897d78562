"""Find duplicates by a Bloom filter in Dolma's format.

The attributes and the filter equal those of Dolma's run with one thread, for any number of threads: threads read and
hash ahead, and the filter is queried and filled in input order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import digest_ids
from feedmill.curation.dedupe.render import render
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import EMPTY_LIST, Units, read_units
from feedmill.curation.options import DOCUMENTS, Dedupe
from feedmill.documents.lines import read_blocks
from feedmill.errors import DataError
from feedmill.formats.bloom import BloomFilter
from feedmill.formats.documents import write_lines
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ahead, ordered_map
from feedmill.kernels.hashing import ahash
from feedmill.storage.codec import compression

Ints64 = npt.NDArray[np.uint64]
Prepared = tuple[Units, Ints64 | None, Ints64]
AT_ONCE = 4 << 20
"""Number of hashes in memory per thread."""


def find_bloomed(
    tasks: Sequence[DedupeTask],
    bloom: BloomFilter,
    *,
    read_only: bool = False,
    threads: int | None = None,
    progress: bool | None = None,
) -> list[Finished]:
    """Write the attributes of all files, and fill `bloom` unless it is `read_only`."""
    count = available_cores() if threads is None else threads
    with Progress("deduplicating", sum(task.file.size for task in tasks), "B", progress) as bar:
        return [_find(task, bloom, read_only, count, bar) for task in tasks]


def mine(name: str, partitions: int, partition: int) -> bool:
    """Return whether a file belongs to this partition of the files, by Dolma's hash of its path."""
    return ahash.write_bytes(os.fsencode(name), (0, 1, 2, 3)) % partitions == partition


def _find(task: DedupeTask, bloom: BloomFilter, read_only: bool, threads: int, bar: Progress) -> Finished:
    store, options = task.file.store(), task.options
    out = task.file.attributes(options.name, options.documents_folder)
    kind = task.output
    if kind is None:
        kind = compression(out) if task.input is None else task.input
    keys = bloom.keys
    rows = documents = units = 0
    digest = digest_ids([])
    read, written = list[str](), list[str]()

    def made(lines: bytes, line: int) -> Prepared:
        found = read_units(lines, options, task.file.name, line)
        first = np.empty(len(found.firsts), np.uint64)
        if first.size * keys.shape[1] > AT_ONCE:
            return found, None, first
        return found, _positions(found, bloom, keys, slice(None), first), first

    def prepare(lines: bytes) -> Prepared | bytes:
        try:
            return made(lines, 1)
        except DataError:
            return lines  # decoded again in input order, when the number of its first line is known

    source = read_blocks(task.file, fields=options.fields, packed=task.input, advance=bar.advance, hashed=read.append)
    spare, workers = threads < available_cores(), threads - 1  # this thread queries the filter
    # Always closed, so that no thread outlives an error.
    with (
        write_lines(store, out, kind=kind, hashed=written.append, gather=True) as append,
        closing(ahead(source) if spare else source) as blocks,
        closing(ordered_map(prepare, blocks, workers=workers, in_flight=2 * threads)) as prepared,
    ):
        for block in prepared:
            found, bits, first = made(block, rows + 1) if isinstance(block, bytes) else block
            seen = _ask(found, bits, first, bloom, keys, options, read_only)
            done = render(found.ids, found.states, found.rows, found.starts, found.ends, found.bounds, seen, options)
            append(done.rows)
            digest_ids(found.ids, digest)
            rows, documents, units = rows + len(found.ids), documents + done.documents, units + done.units
    return Finished(rows, digest.hexdigest(), documents, units, store.stat(out).size, written[0], read[0])


def _positions(units: Units, bloom: BloomFilter, keys: Ints64, part: slice, first: Ints64) -> npt.NDArray[np.uint64]:
    firsts, counts = units.firsts[part], units.counts[part]
    bits = np.empty((len(firsts), keys.shape[1]), np.uint64)
    words = np.uint64(len(bloom.words))
    ahash.positions(units.data, units.lows, units.highs, firsts, counts, keys, words, bits, first[part])
    return bits


def _ask(
    units: Units,
    bits: npt.NDArray[np.uint64] | None,
    first: Ints64,
    bloom: BloomFilter,
    keys: Ints64,
    options: Dedupe,
    read_only: bool,
) -> npt.NDArray[np.bool_]:
    """Return whether each key is in the filter, as bool[keys]. Keys of other partitions are not looked up."""
    count = len(units.firsts)
    seen = np.zeros(count, np.bool_)
    step = count if bits is not None else max(1, AT_ONCE // keys.shape[1])
    for low in range(0, count, max(1, step)):
        part = slice(low, low + step)
        here = bits if bits is not None else _positions(units, bloom, keys, part, first)
        wanted = first[part] % np.uint64(options.partitions) == np.uint64(options.partition)
        ahash.look_up(bloom.words, here, wanted, read_only, seen[part])
        if options.partitions > 1 and options.by == DOCUMENTS:
            units.states[units.rows[part][~wanted]] = EMPTY_LIST
    return seen
