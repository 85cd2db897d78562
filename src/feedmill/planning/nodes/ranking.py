"""Sorted order of samples by a column of the index, 12 bytes a sample or less, cached for large datasets.

Samples with equal values are in stored order here; `Curriculum` shuffles them. From `TABLE_FROM` samples on, a ranking
is an array file ``$FEEDMILL_CACHE_DIR/rankings/<hash>`` (`feedmill.formats.arrays`) that all processes map:

    order    uint32[n]     sample of each rank (uint64 from 2^32 samples on)
    ranks    uint32[n]     rank of each sample
    starts   uint32[k]     first rank of each distinct value, ascending
    digest   uint8[16]     xxh3-64 of the values, as hexadecimal digits

Its name is a hash of the fingerprints of the datasets, the ranges of their samples, and the column. It may be deleted
at any time, and counts into the size of the cache folder.

Samples are partitioned by the upper bits of their values into ranges that fit into memory, each of which is sorted by
itself: `_AT_ONCE` samples are copied at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, FeedmillError
from feedmill.planning.nodes.base import IntArray, Leaf, Node
from feedmill.planning.nodes.blend import Concat
from feedmill.planning.nodes.subset import Subsample, Subset

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

logger = logging.getLogger("feedmill")

TABLE_FROM = 1 << 20
"""Number of samples from which a ranking is cached; sorting fewer takes tenths of a second."""
_FOLDER = "rankings"
_VERSION = 1
_AT_ONCE = 1 << 22
_BUCKETS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The samples of a node sorted by a column, ascending; samples with equal values in stored order.

    Attributes:
        order: sample of each rank, unsigned[n].
        ranks: rank of each sample, unsigned[n].
        starts: first rank of each distinct value, ascending, unsigned[k].
        digest: hash of the values: 16 hexadecimal digits.
        file: name of the file in the cache folder that the arrays are mapped from; empty if they are in memory.
    """

    order: npt.NDArray[Any]
    ranks: npt.NDArray[Any]
    starts: npt.NDArray[Any]
    digest: str
    file: str = ""

    def __reduce__(self) -> Any:
        if self.file:
            return _reopened, (self.file,)
        return Ranking, (self.order, self.ranks, self.starts, self.digest)


def _reopened(file: str) -> Ranking:
    """Map the file of a ranking in another process of this machine."""
    from feedmill.storage.folders import cache_folder

    found = _read(file)
    if found is None:
        raise ConfigError(
            "the order by a column that the main process computed is no longer in the cache folder",
            file=str(cache_folder() / _FOLDER / file),
            kind="changed",
            fix="Restart the run.",
        )
    return found


def values_of(node: Node, by: str, sources: Sequence[Dataset | None], *, texts: bool = False) -> npt.NDArray[Any]:
    """Return the value of each position of one epoch of a node in stored order; see `Dataset.values`.

    Args:
        node: a dataset, a subset, a subsample of one of them, or a concatenation of these.
        by: the column.
        sources: the datasets of the leaves, by number.

    Raises:
        ConfigError: another node, or a dataset whose index lacks the column.
        DataError: a value is missing or NaN.
    """
    pieces = []
    for dataset, start, stop, drawn in parts_of(node, sources):
        values = dataset.values(by, texts=texts)
        if values is None:
            fields = ", ".join(dataset.cost_fields) or "none"
            raise ConfigError(
                f"the index of {dataset.url} has no column {by!r} (its numeric fields: {fields})",
                kind="no-column",
                fix=f"{dataset.costs_advice(by)} For a column of attributes, use cells of its quantiles: see"
                " docs/order.md."
                if not texts
                else dataset.costs_advice(by),
            )
        pieces.append(values[start:stop] if drawn is None else values[start:stop][drawn.numbers])
    if len({piece.dtype for piece in pieces}) > 1 and any(piece.dtype == np.uint64 for piece in pieces):
        raise ConfigError(
            f"the column {by!r} has texts in one dataset and numbers in another",
            kind="bad-recipe",
            fix="Use a column of one type.",
        )
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def parts_of(node: Node, sources: Sequence[Dataset | None]) -> list[tuple[Dataset, int, int, Subsample | None]]:
    """Return the datasets of which one epoch of a node is the samples in stored order, and the range of each.

    With the range is what draws some samples of it, if it does not have all.

    Raises:
        ConfigError: the node has an order of its own, or a dataset is no longer known.
    """
    if isinstance(node, Leaf):
        dataset = sources[node.number]
        if dataset is None:
            raise ConfigError("the columns of a source that is no longer there are unknown", kind="bad-recipe")
        return [(dataset, 0, node.length, None)]
    if isinstance(node, Subset):
        inner = parts_of(node.child, sources)
        if len(inner) == 1 and inner[0][3] is None:
            dataset, start, _, _ = inner[0]
            return [(dataset, start + node.start, start + node.stop, None)]
    if isinstance(node, Subsample):
        ((dataset, start, stop, _),) = parts_of(node.child, sources)
        return [(dataset, start, stop, node)]
    if isinstance(node, Concat):
        return [part for child in node.children for part in parts_of(child, sources)]
    raise ConfigError(
        f"'curriculum' and 'groups' need the samples of datasets in stored order, this source is {node.describe()}",
        kind="bad-recipe",
        fix="Set them on the datasets, or on a 'concat' of datasets without 'shuffle' and 'epochs'.",
    )


def ranking_of(node: Node, by: str, sources: Sequence[Dataset | None]) -> Ranking:
    """Return the ranking of the samples of a node by a column, from the cache folder if it is large.

    Arguments, errors: `values_of`. A cache that cannot be read or written is only logged.
    """
    count = node.finite("'curriculum'")
    if count < TABLE_FROM:
        return ranked(values_of(node, by, sources))
    import hashlib

    from feedmill.storage.folders import cache_folder
    from feedmill.storage.locks import FileLock

    words = [
        f"{dataset.fingerprint()} {start} {stop}" + ("" if drawn is None else f" {drawn.identity()}")
        for dataset, start, stop, drawn in parts_of(node, sources)
    ]
    text = "\n".join([*words, by, str(_VERSION)])
    name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    folder = cache_folder() / _FOLDER
    known = _read(name)
    if known is not None and len(known.order) == count:
        return known
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{name}.lock", wait=True):
            known = _read(name)  # another process may have been faster
            if known is not None and len(known.order) == count:
                return known
            made = ranked(values_of(node, by, sources))
            _write(name, made)
        return _read(name) or made
    except OSError as error:
        logger.warning("the order by %r cannot be cached, so each process computes it again: %s", by, error)
        return ranked(values_of(node, by, sources))


def _read(name: str) -> Ranking | None:
    from feedmill.formats.arrays import read_arrays
    from feedmill.storage import LocalStore
    from feedmill.storage.cache.chunks import disk_cache
    from feedmill.storage.folders import cache_folder

    store = LocalStore(cache_folder() / _FOLDER)
    try:
        if not store.exists(name):
            return None
        disk_cache(cache_folder()).hold_derived(f"{_FOLDER}/{name}")
        arrays = read_arrays(store, name)
        order, ranks, starts = arrays["order"], arrays["ranks"], arrays["starts"]
        digest = arrays["digest"].tobytes().decode()
        if len(order) != len(ranks) or not len(starts) or int(starts[0]):
            raise ValueError("the arrays do not fit together")
        return Ranking(order, ranks, starts, digest, name)
    except (FeedmillError, KeyError, ValueError, OSError) as error:
        logger.warning("the cached order by a column cannot be read and is computed again: %s", error)
        return None


def _write(name: str, ranking: Ranking) -> None:
    from feedmill.formats.arrays import write_arrays
    from feedmill.storage import LocalStore
    from feedmill.storage.cache.chunks import disk_cache
    from feedmill.storage.folders import cache_folder

    digest = np.frombuffer(ranking.digest.encode(), np.uint8)
    arrays = {"order": ranking.order, "ranks": ranking.ranks, "starts": ranking.starts, "digest": digest}
    try:
        write_arrays(LocalStore(cache_folder() / _FOLDER), name, arrays)
        disk_cache(cache_folder()).hold_derived(f"{_FOLDER}/{name}", written=f"{_FOLDER}/{name}")
    except FeedmillError as error:
        logger.warning("the order by a column cannot be cached, so each process computes it again: %s", error)


def ranked(values: npt.NDArray[Any]) -> Ranking:
    """Return the ranking of values, int64[n] or float64[n] without NaN.

    >>> ranking = ranked(np.array([2.5, -1.0, 2.5, 0.0]))
    >>> ranking.order.tolist(), ranking.ranks.tolist(), ranking.starts.tolist()
    ([1, 3, 0, 2], [2, 0, 3, 1], [0, 1, 2])
    """
    count = len(values)
    kind = np.uint32 if count < 1 << 32 else np.uint64
    order, ranks = np.empty(count, kind), np.empty(count, kind)
    starts = np.empty(count, kind)  # memory that is not written to is not used
    at = distinct = 0
    for samples, firsts in _sorted(values, None):
        order[at : at + len(samples)] = samples
        starts[distinct : distinct + len(firsts)] = firsts + at
        at, distinct = at + len(samples), distinct + len(firsts)
    for first in range(0, count, _AT_ONCE):
        part = order[first : first + _AT_ONCE]
        ranks[part] = np.arange(first, first + len(part), dtype=kind)
    digest = xxhash.xxh3_64(values.dtype.str.encode())
    for first in range(0, count, _AT_ONCE):
        digest.update(np.ascontiguousarray(values[first : first + _AT_ONCE]).data)
    return Ranking(order, ranks, starts[:distinct], digest.hexdigest())


def _sorted(values: npt.NDArray[Any], members: npt.NDArray[Any] | None) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield some samples at a time in the order of their values, and where in them each distinct value begins.

    Args:
        values: of all samples.
        members: the samples to sort, ascending; None for all of them.
    """
    count = len(values) if members is None else len(members)
    if count <= _AT_ONCE:
        yield _sorted_at_once(_keys(values if members is None else values[members]), members)
        return
    steps = range(0, count, _AT_ONCE)

    def keys_at(first: int) -> npt.NDArray[np.uint64]:
        part = slice(first, first + _AT_ONCE)
        return _keys(values[part] if members is None else values[members[part]])

    low = min(int(keys_at(first).min()) for first in steps)
    high = max(int(keys_at(first).max()) for first in steps)
    shift = np.uint64(max(0, (high - low).bit_length() - 16))

    sizes, buckets = np.zeros(_BUCKETS, np.int64), np.empty(count, np.uint16)
    for first in steps:
        part = ((keys_at(first) - np.uint64(low)) >> shift).astype(np.uint16)
        buckets[first : first + _AT_ONCE] = part
        sizes += np.bincount(part, minlength=_BUCKETS)
    for begin, end in _groups(sizes):
        found = []
        for first in steps:
            part = buckets[first : first + _AT_ONCE]
            inside = np.flatnonzero((part >= begin) & (part < end) if end < _BUCKETS else part >= begin)
            mine = inside + first if members is None else members[first : first + _AT_ONCE][inside]
            found.append(mine.astype(np.uint32) if len(values) < 1 << 32 else mine)
        chosen = np.concatenate(found)
        if end == begin + 1 and not shift:  # all of them have one value
            for first in range(0, len(chosen), _AT_ONCE):
                start = np.zeros(0 if first else 1, np.int64)
                yield chosen[first : first + _AT_ONCE].astype(np.int64), start
        else:
            yield from _sorted(values, chosen)


def _groups(sizes: IntArray) -> Iterator[tuple[int, int]]:
    """Yield ranges of buckets that have at most `_AT_ONCE` samples together, or are one bucket."""
    begin = end = held = 0
    for bucket in np.flatnonzero(sizes).tolist():
        size = int(sizes[bucket])
        if held and held + size > _AT_ONCE:
            yield begin, end
            begin, held = bucket, 0
        end, held = bucket + 1, held + size
    if held:
        yield begin, end


def _sorted_at_once(keys: npt.NDArray[np.uint64], members: npt.NDArray[Any] | None) -> tuple[IntArray, IntArray]:
    """Return samples in the order of their keys, equal keys in stored order, and where each distinct key begins."""
    order = np.argsort(keys)  # not stable, and several times as fast
    in_order = keys[order]
    begins = np.concatenate([[True], in_order[1:] != in_order[:-1]])
    number = np.cumsum(begins) - 1
    order = np.sort((number << 32) | order) & 0xFFFFFFFF  # equal keys in stored order
    return order if members is None else members[order].astype(np.int64), np.flatnonzero(begins)


def _keys(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return unsigned integers in the order of values, int64 or float64: those of -0.0 and 0.0 are equal."""
    top = np.uint64(1 << 63)
    if values.dtype.kind != "f":
        return np.ascontiguousarray(values, np.int64).view(np.uint64) ^ top
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits ^ top)
