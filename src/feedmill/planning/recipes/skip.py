"""Apply a recipe's ``skip`` list to its plan.

A skipped position is removed from the stream and later positions move up. Earlier positions do not change, so an entry
that is added during a run and lies ahead changes nothing that the run has seen. Positions count in the stream *without*
a skip list, so that entries do not affect each other.

A skipped sample (by key or index) is removed at each of its positions from ``since`` on; in a plan of packed rows,
every row that holds a token of it is removed. This requires a finite plan. The length of the plan does not change the
meaning of the skip list, so a run can still be extended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.planning.resuming.outline import data_digest
from feedmill.storage import join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.fields import SkipModel

_SHORT = 80
_AGAIN = "Make the list again, from the data as it is now."
_BEGIN = b'{"position"'  # fields of each line that a loader writes to a quarantine file

Ranges = list[tuple[int, int]]


def with_skips(plan: Plan, entries: Sequence[SkipModel], where: Sequence[str]) -> Plan:
    """Return the plan without the positions and samples of a skip list.

    Args:
        plan: the plan without a skip list.
        entries: the entries of the list.
        where: ``file:line`` of each entry.

    Raises:
        ConfigError: a position is outside the plan, samples are skipped in an endless plan, or no position would
            remain.
        NotFound: no such source, key or sample.
    """
    ranges: Ranges = []
    for entry, line in zip(entries, where, strict=True):
        try:
            ranges += _of_positions(plan, entry) if entry.positions else _of_samples(plan, entry)
        except FeedmillError as error:
            # The message names the dataset that lacks a key; `file` becomes the line of the recipe to fix.
            error.what, error.file = error.what if error.file is None else f"{error.file}: {error.what}", line
            raise
    return plan.skipping(ranges, _said(entries))


def _of_positions(plan: Plan, entry: SkipModel) -> Ranges:
    assert entry.positions is not None
    first, stop = entry.positions
    if plan.length is not None and stop > plan.length:
        raise ConfigError(
            f"the positions [{first:,}, {stop:,}) are outside the plan, which has {plan.length:,}",
            kind="bad-skip",
            fix="Positions count from 0, without the skip list itself.",
        )
    return [(first, stop)]


def _of_samples(plan: Plan, entry: SkipModel) -> Ranges:
    """Return every position of the named samples from `since` on."""
    assert entry.source is not None
    if plan.length is None:
        raise ConfigError(
            "samples cannot be skipped in an endless plan",
            kind="bad-skip",
            fix="Set 'samples' at the top of the recipe (the maximum length of the run), or skip positions.",
        )
    dataset = plan.source(entry.source)
    indices = {dataset.find(key) for key in entry.keys or ()} | set(entry.indices or ())
    positions = plan.positions_of(entry.source, sorted(indices))
    return [(position, position + 1) for position in positions[positions >= (entry.since or 0)].tolist()]


def read_entries(entries: Sequence[SkipModel], base: str | os.PathLike[str], plan: Plan) -> list[list[SkipModel]]:
    """Return for each entry a list: the entry itself, or for a quarantine file one entry per source in the file.

    Args:
        base: the recipe's folder.
        plan: the plan without a skip list.

    Raises:
        NotFound, ConfigError: the file does not exist, one of its lines is not a failure record, or the dataset has
            changed since and no longer has the sample of a line.
    """
    return [
        [entry] if entry.quarantine is None else _quarantined(entry, join_url(os.fspath(base), entry.quarantine), plan)
        for entry in entries
    ]


def _quarantined(entry: SkipModel, url: str, plan: Plan) -> list[SkipModel]:
    folder, name = split_url(url)
    lines = open_store(folder).read(name).split(b"\n")
    found: dict[str, set[int]] = {}
    known: dict[tuple[str, int, str], bool] = {}
    for number, line in enumerate(map(bytes.strip, lines), 1):  # editors may add blank lines and carriage returns
        if not line:
            continue
        try:
            failure = json.loads(line)
        except (ValueError, RecursionError):
            if line[: len(_BEGIN)] == _BEGIN[: len(line)] and not line.endswith(b"}"):
                continue  # a loader was killed: the last line, or the last before those of a resumed run
            raise _no_failure(url, number) from None
        try:
            source, index, data = str(failure["source"]), failure["index"], failure.get("data")
            count, digest = (0, "") if data is None else data
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _no_failure(url, number) from None
        if type(index) is not int or index < 0 or type(count) is not int or type(digest) is not str:
            raise _no_failure(url, number)
        if isinstance(key := failure.get("key"), str) and source in plan.names:
            same = (source, count, digest)
            if digest and same not in known:
                known[same] = same_data(plan.source(source), count, digest)
            if not known.get(same):
                if digest and key == str(index):  # any sample at this place has this key
                    raise _changed(f"sample {index} of {source!r} may be another one", url, number, _AGAIN)
                index = _index_now(plan, source, index, key, url, number)
        found.setdefault(source, set()).add(index)
    return [
        entry.model_copy(update={"quarantine": None, "source": source, "indices": sorted(indices)})
        for source, indices in sorted(found.items())
    ]


def _index_now(plan: Plan, source: str, index: int, key: str, url: str, number: int) -> int:
    """Return the index of the sample that a line names; the dataset may have changed since the line was written."""
    dataset, now, there = plan.source(source), None, None
    with contextlib.suppress(NotFound):
        now = dataset.find(key)
    if now == index:
        return index
    with contextlib.suppress(FeedmillError, IndexError):  # it may be unreadable, which is why it was quarantined
        there = dataset.locate(index).key
    if there == key:  # one of several samples with this key
        return index
    if now is not None:
        return now
    if there is None:
        return index
    what = f"sample {index} of {source!r} is {there!r}, but this line names {key!r}, which {source!r} no longer has"
    raise _changed(what, url, number, "Remove the line if the sample was deleted.")


def _changed(what: str, url: str, number: int, fix: str) -> ConfigError:
    what += ": the dataset has changed since"
    return ConfigError(what, file=url, record=f"line {number}", kind="bad-skip", fix=fix)


def skip_lines(plan: Plan, samples: Iterable[tuple[str, int]]) -> bytes:
    """Return the lines of a list of samples, each a source and an index, for ``quarantine`` in a recipe's skip list.

    A line has the sample's key, and the size and digest of the data in which the index holds: keys of many formats,
    such as token files, are indices themselves.
    """
    lines: list[bytes] = []
    data: dict[str, list[Any]] = {}
    for source, index in samples:
        dataset = plan.source(source)
        if source not in data:
            data[source] = data_of(dataset)
        key = dataset.locate(index).key
        lines.append(orjson.dumps({"source": source, "index": index, "key": key, "data": data[source]}) + b"\n")
    return b"".join(lines)


def data_of(dataset: Dataset) -> list[Any]:
    """Return what a line of a list says of the data in which its index counts: the number of samples, and a digest."""
    return [len(dataset), data_digest(dataset.fingerprint())]


def same_data(dataset: Dataset, count: int, digest: str) -> bool:
    """Whether the dataset has the samples of a list at the same indices: it is the same, or has only grown."""
    now = dataset.fingerprint() if count == len(dataset) else None
    if 0 < count < len(dataset):
        now = dataset.fingerprint_of_first(count)
    return now is not None and data_digest(now) == digest


def _no_failure(url: str, number: int) -> ConfigError:
    return ConfigError(
        "this is not a line of a quarantine file",
        file=url,
        record=f"line {number}",
        kind="bad-skip",
        fix="Each line is a JSON object with a 'source' and an 'index'.",
    )


def _said(entries: Sequence[SkipModel]) -> str:
    """Return the list as text, independent of the order of its entries; a long list becomes a count and a hash."""
    words = sorted(str(entry) for entry in entries)
    text = ", ".join(words)
    if len(text) <= _SHORT:
        return text
    digest = hashlib.blake2b("\0".join(words).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{len(words):,} entries ({digest})"
