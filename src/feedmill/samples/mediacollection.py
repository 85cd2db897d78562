"""Collect media metadata: image sizes and audio and video durations, of a dataset's parts or a folder's files.

The work is divided into units of a few hundred files. Each unit is read in bulk, probed on one of several threads, and
recorded in a journal when it is done (see `MediaNotes`), so that a killed run is resumed. A file that cannot be decoded
is reported as an error in the result and does not affect other files.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
import xxhash

from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.energon.media import Row
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import Int64s, read_records
from feedmill.jobs.engine import Policy, Where, in_units, key_of
from feedmill.jobs.journal import Units
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run
from feedmill.jobs.threads import ordered_map
from feedmill.kernels.files.tar import ShardScan
from feedmill.samples.media import HEAD_LENGTH, MediaFilter, kind_by, probe_json
from feedmill.storage import Entry, Store, open_store
from feedmill.storage.window import Window
from feedmill.structs import unpack_as

AT_ONCE = 256
"""Number of files in a unit of work."""
_MOST_BYTES = 32 << 20
"""Bytes in a unit of work, unless a single file is larger."""
LARGE = 16 << 20
"""Size in bytes from which audio and video files are read through a window instead of loaded whole."""

Filters = tuple[MediaFilter, ...]


class ProbeUnit(NamedTuple):
    """A unit of work: files to probe.

    Attributes:
        file: the shard that contains them; None if each is a separate file.
        stamp: changes when the shard or the files change.
        names: full member names, or paths in the folder.
        starts, sizes: int64[n], byte offsets and sizes in the shard or file.
        filters: a file is a media file if at least one of them matches.
    """

    file: str | None
    stamp: str
    names: list[str]
    starts: Int64s
    sizes: Int64s
    filters: Filters

    def __str__(self) -> str:
        return f"{len(self.names)} files of {self.file}" if self.file else f"{self.names[0]} ({len(self.names)} files)"

    @property
    def digest(self) -> bytes:
        """Return the hash of everything that the result of this unit depends on."""
        rows = [one.row for one in self.filters]
        head = msgspec.msgpack.encode([self.file or "", self.stamp, rows])
        names = "\0".join(self.names).encode("utf-8", "surrogateescape")
        return xxhash.xxh3_128_digest(head + names + self.starts.tobytes() + self.sizes.tobytes())


def pieces_of_shard(
    shard: str, record: ShardRecord, scan: ShardScan, filters: Filters, parts: Collection[str] | None = None
) -> Iterator[ProbeUnit]:
    """Yield units with the parts of one shard that may be media; only those with the names in `parts` if given."""
    may = {
        part: (parts is None or part in parts) and any(one.part_may_hold(part) for one in filters)
        for part in set(scan.parts)
    }
    chosen = [i for i, part in enumerate(scan.parts) if may[part]]
    keys = scan.keys
    names = [f"{keys[s]}.{scan.parts[i]}" for i, s in zip(chosen, scan.sample[chosen].tolist(), strict=True)]
    numbers = np.asarray(chosen, np.int64)
    if any(one.strategy == "GLOB" for one in filters):
        kept = [i for i, name in enumerate(names) if any(one.may_hold(name) for one in filters)]
        names, numbers = [names[i] for i in kept], numbers[kept]
    stamp = f"{record.size} {record.version} {record.digest}"
    yield from _cut(shard, stamp, names, scan.data[numbers], scan.sizes[numbers], filters)


def pieces_of_folder(entries: Iterable[Entry], filters: Filters) -> Iterator[ProbeUnit]:
    """Yield units with the files of a folder that may be media."""
    chosen = [entry for entry in entries if any(one.may_hold(entry.path) for one in filters)]
    sizes = np.asarray([entry.size for entry in chosen], np.int64)
    versions = {entry.path: entry.version for entry in chosen}
    for piece in _cut(None, "", list(versions), np.zeros_like(sizes), sizes, filters):
        yield piece._replace(stamp=" ".join(versions[name] for name in piece.names))


def _cut(
    file: str | None, stamp: str, names: list[str], starts: Int64s, sizes: Int64s, filters: Filters
) -> Iterator[ProbeUnit]:
    """Yield units of limited size. The limits are the same on all machines, so a retry finds a killed run's units."""
    low, held = 0, 0
    for i, size in enumerate(sizes.tolist()):
        if i > low and (i - low == AT_ONCE or held + size > _MOST_BYTES):
            yield ProbeUnit(file, stamp, names[low:i], starts[low:i], sizes[low:i], filters)
            low, held = i, 0
        held += size
    if low < len(names):
        yield ProbeUnit(file, stamp, names[low:], starts[low:], sizes[low:], filters)


def collect(
    store: Store,
    pieces: Sequence[ProbeUnit],
    *,
    notes: MediaNotes | None = None,
    workers: int | None = None,
    progress: bool | None = False,
) -> tuple[list[Row], list[DataError]]:
    """Return the metadata of all media files, in the order of `pieces`, and errors for those that cannot be read.

    Args:
        notes: journal of finished units; a retry after a kill reuses them.
        workers: number of threads.
        progress: show a bar on a terminal.

    Raises:
        MissingExtra: the library for a kind of media is not installed.
        StorageError: reading failed for another reason than the data.
    """
    rows: list[Row] = []
    broken: list[DataError] = []
    if not pieces:
        return rows, broken  # no progress bar
    known = [None if notes is None else notes.get(piece.digest) for piece in pieces]
    todo = [number for number, found in enumerate(known) if found is None]
    results = _looked(store, pieces, todo, notes, workers)
    total = sum(len(piece.names) for piece in pieces)
    with Progress("media metadata", total, "files", enabled=progress) as bar, closing(results):
        for piece, before in zip(pieces, known, strict=True):
            found, bad = before or next(results)
            if notes is not None and before is None:
                notes.add(piece.digest, found, bad)
            rows += found
            broken += bad
            bar.advance(len(piece.names))
    return rows, broken


Looked = tuple[list[Row], list[DataError]]


def _looked(
    store: Store, pieces: Sequence[ProbeUnit], todo: Sequence[int], notes: MediaNotes | None, workers: int | None
) -> Generator[Looked, None, None]:
    """Return a generator of the results of units: on threads, or on the engine in use."""
    items = [pieces[number] for number in todo]
    if not in_units():
        threads = workers or available_cores()
        return ordered_map(partial(look, store), items, workers=threads, in_flight=4 * threads)

    def record(found: tuple[bytes, Looked]) -> None:
        if notes is not None:
            notes.add(found[0], *found[1])

    place = None if notes is None else notes.units.place
    key = key_of(*(piece.digest.hex() for piece in pieces))
    where = Where("media", key, place, numbers=todo, record=record, lasting=notes is not None)
    policy = Policy(shared=store.url)
    results = run(_look_unit, items, workers=workers, preload=(__name__,), policy=policy, where=where)
    return (found for _, found in results)


def _look_unit(url: str, piece: ProbeUnit) -> tuple[bytes, Looked]:
    return piece.digest, look(open_store(url), piece)


def look(store: Store, piece: ProbeUnit) -> Looked:
    """Return the rows of one unit's media files, and errors for those that cannot be read."""
    rows: list[Row] = []
    broken: list[DataError] = []
    for i, (name, data) in enumerate(_contents(store, piece)):
        try:
            if isinstance(data, FeedmillError):
                raise data
            kind = kind_by(piece.filters, name, data if isinstance(data, bytes) else data.peek(HEAD_LENGTH))
            if kind is None:
                continue
            if kind == "image" and not isinstance(data, bytes):
                data = data.read()
            kind, metadata, corrections = probe_json(name, data, kind)
        except (DataError, NotFound) as error:
            where, offset = store.locate(piece.file or name), int(piece.starts[i]) if piece.file else None
            broken.append(DataError(error.what, kind=error.kind, fix=error.fix, file=where, offset=offset, record=name))
            continue
        rows.append((name, kind, metadata, corrections))
    return rows, broken


def remarks(rows: Iterable[Row]) -> list[str]:
    """Return what a reader of the metadata should know: how many media must be turned, or have other durations."""
    seen = {"image": 0, "av": 0}
    turned = {"image": 0, "av": 0}
    longer: list[tuple[str, float | None, float]] = []
    for name, kind, metadata, corrections in rows:
        seen[kind] += 1
        if corrections:
            content = orjson.loads(corrections)
            turned[kind] += "orientation" in content
            if "video_duration" in content:
                longer.append((name, orjson.loads(metadata).get("video_duration"), content["video_duration"]))
    words = {"image": "images", "av": "audio and video files"}
    out = [
        f"{turned[kind]:,} of {seen[kind]:,} {words[kind]} have an orientation: the widths and heights in the index are"
        " those of the pixels as they are stored"
        for kind in seen
        if turned[kind]
    ]
    if longer:
        name, stored, right = longer[0]
        out.append(
            f"{len(longer):,} of {seen['av']:,} audio and video files have another duration than their header states,"
            f" which is what Energon stores: {name} has frames for {right:.3f} s, {stored or 0:.3f} s are stored"
        )
    return out


def _contents(store: Store, piece: ProbeUnit) -> Iterator[tuple[str, bytes | io.BufferedReader | FeedmillError]]:
    """Yield the name of each file with its bytes, a reader if it is large, or the error that reading raised."""
    large = (piece.sizes >= LARGE).tolist()
    blocks: Sequence[bytes] | None = None
    if piece.file is not None and not any(large):
        try:
            blocks = read_records(store, piece.file, piece.starts, piece.starts + piece.sizes)
        except (DataError, NotFound):
            blocks = None  # read them one by one, so that only missing ones are lost
    for i, name in enumerate(piece.names):
        if blocks is not None:
            yield name, blocks[i]
            continue
        file, start, size = piece.file or name, int(piece.starts[i]), int(piece.sizes[i])
        if large[i]:
            yield name, io.BufferedReader(Window(store, file, start, size), 1 << 20)
        else:
            try:
                yield name, store.read(file, start, size) if size else b""
            except (DataError, NotFound) as error:
                yield name, error


MEDIA = "media.scanned"
"""Name of the journal in the work folder of a dataset."""


class _Facts(msgspec.Struct, array_like=True):
    rows: list[Row]
    broken: list[dict[str, Any]]


class MediaNotes:
    """Results of finished units, by their hashes."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._known: dict[str, tuple[list[Row], list[DataError]]] | None = None

    def get(self, piece: bytes) -> tuple[list[Row], list[DataError]] | None:
        """Return the rows and errors of a unit, or None if no earlier run finished it."""
        if self._known is None:
            known: dict[str, tuple[list[Row], list[DataError]]] = {}
            for name, body in self.units.read().items():  # skip units of other work
                with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                    facts = unpack_as(body, _Facts)
                    known[name] = facts.rows, [DataError(**fields) for fields in facts.broken]
            self._known = known
        return self._known.get(piece.hex())

    def add(self, piece: bytes, rows: Sequence[Row], broken: Sequence[DataError]) -> None:
        """Record a finished unit. A unit with names that are not UTF-8 is skipped and will be done again."""
        with contextlib.suppress(UnicodeEncodeError):
            facts = _Facts(list(rows), [error.as_dict() for error in broken])
            self.units.add(piece.hex(), msgspec.msgpack.encode(facts))
