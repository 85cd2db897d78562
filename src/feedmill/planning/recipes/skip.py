"""Skip lists: what a recipe's ``skip`` means for its plan.

A skipped position is taken out of the stream and what follows moves up, so everything before it stays where it was:
an entry that is added in the middle of a run and lies ahead changes nothing that the run has seen. Positions count in
the stream *without* a skip list, so that one entry never changes what another means.

A skipped sample (by key or index) is taken out at every position where the plan would give it, from ``since`` on; of
a plan of packed rows, every row that holds a token of it goes. For that the plan must end; how far it goes is not part
of what is skipped, so a run can still be made longer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from feedmill.errors import ConfigError, FeedmillError
from feedmill.planning.nodes import Skip
from feedmill.storage import join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.fields import SkipModel

_SHORT = 80
_BEGIN = b'{"position"'  # of every line that a loader writes into a quarantine file

Ranges = list[tuple[int, int]]


def with_skips(plan: Plan, entries: Sequence[SkipModel], where: Sequence[str]) -> Plan:
    """Return the plan without what a skip list names.

    Args:
        plan: the plan without a skip list.
        entries: the list.
        where: ``file:line`` of each entry.

    Raises:
        ConfigError: a position outside the plan, samples of a plan without an end, or nothing would be left.
        NotFound: no such source, key or sample.
    """
    ranges: Ranges = []
    for entry, line in zip(entries, where, strict=True):
        try:
            ranges += _of_positions(plan, entry) if entry.positions else _of_samples(plan, entry)
        except FeedmillError as error:
            # The message names the dataset that lacks a key; the line to fix is the recipe's.
            error.what, error.file = error.what if error.file is None else f"{error.file}: {error.what}", line
            raise
    return plan.skipping(ranges, _said(entries))


def _of_positions(plan: Plan, entry: SkipModel) -> Ranges:
    assert entry.positions is not None
    first, stop = entry.positions
    if plan.length is not None and stop > plan.length:
        raise ConfigError(
            f"the positions [{first:,}, {stop:,}) do not lie in the plan, which has {plan.length:,}",
            kind="bad-skip",
            fix="Positions count from 0, without the skip list itself.",
        )
    return [(first, stop)]


def _of_samples(plan: Plan, entry: SkipModel) -> Ranges:
    """Return every position of the named samples from `since` on."""
    assert entry.source is not None
    if plan.length is None:
        raise ConfigError(
            "samples can be skipped in a plan that ends, and this one is endless",
            kind="bad-skip",
            fix="Give 'samples' at the top of the recipe (how far the run may go), or skip positions.",
        )
    dataset = plan.source(entry.source)
    indices = {dataset.find(key) for key in entry.keys or ()} | set(entry.indices or ())
    positions = plan.positions_of(entry.source, sorted(indices))
    return [(position, position + 1) for position in positions[positions >= (entry.since or 0)].tolist()]


def read_entries(entries: Sequence[SkipModel], base: str | os.PathLike[str]) -> list[list[SkipModel]]:
    """For each entry what it names: itself, or for a quarantine file the samples in it, source by source.

    Args:
        base: the recipe's folder.

    Raises:
        NotFound, ConfigError: the file does not exist, or a line of it is not a failure's.
    """
    return [
        [entry] if entry.quarantine is None else _quarantined(entry, join_url(os.fspath(base), entry.quarantine))
        for entry in entries
    ]


def _quarantined(entry: SkipModel, url: str) -> list[SkipModel]:
    folder, name = split_url(url)
    lines = open_store(folder).read(name).split(b"\n")
    found: dict[str, set[int]] = {}
    for number, line in enumerate(map(bytes.strip, lines), 1):  # an editor may have left blanks and carriage returns
        if not line:
            continue
        try:
            failure = json.loads(line)
            source, index = str(failure["source"]), failure["index"]
        except (KeyError, TypeError, ValueError, RecursionError):
            begun = line[: len(_BEGIN)] == _BEGIN[: len(line)]
            if number == len(lines) or (begun and not line.endswith(b"}")):
                continue  # cut short by a kill: the last line, or one before those of a run that went on
            raise _no_failure(url, number) from None
        if type(index) is not int or index < 0:
            raise _no_failure(url, number)
        found.setdefault(source, set()).add(index)
    return [
        entry.model_copy(update={"quarantine": None, "source": source, "indices": sorted(indices)})
        for source, indices in sorted(found.items())
    ]


def _no_failure(url: str, number: int) -> ConfigError:
    return ConfigError(
        "this is no line of a quarantine file",
        file=url,
        record=f"line {number}",
        kind="bad-skip",
        fix="Each line is a JSON object with a 'source' and an 'index'.",
    )


def _said(entries: Sequence[SkipModel]) -> str:
    """Return the list in words, whatever the order of its entries; a count and a hash where that would be long."""
    words = sorted(str(entry) for entry in entries)
    text = ", ".join(words)
    if len(text) <= _SHORT:
        return text
    digest = hashlib.blake2b("\0".join(words).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{len(words):,} entries ({digest})"


def dropped(skip: Skip, before: int, sources: int, chunk: int = 65_536) -> list[int] | None:
    """Return how many samples of each source are skipped among the child's first `before` positions.

    None if that is too many to look at one by one.
    """
    if skip.gaps.skipped(before) > 1 << 24:
        return None
    counts = np.zeros(sources, np.int64)
    for start in range(0, skip.gaps.skipped(before), chunk):
        ranks = np.arange(start, min(start + chunk, skip.gaps.skipped(before)))
        counts += np.bincount(skip.child.locate(skip.gaps.nth(ranks)).source, minlength=sources)
    return [int(count) for count in counts]
