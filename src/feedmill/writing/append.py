"""Append the samples of other datasets to an existing dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from feedmill.errors import ConfigError, DataError
from feedmill.formats.energon import prepared as energon
from feedmill.jobs.dry_run import active
from feedmill.jobs.options import verb
from feedmill.storage import open_store, paths_of
from feedmill.storage.limits import parse_size
from feedmill.writing import rollouts
from feedmill.writing.copying import Copy, Group, Piece, facts, groups_of, open_source, pieces_of, plan_copies
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded
from feedmill.writing.index import need_prepared
from feedmill.writing.options import Append
from feedmill.writing.shard import PATTERN, Layout
from feedmill.writing.write import WriteReport, write_shards


@dataclass(frozen=True, slots=True)
class _Copies:
    """Function that yields the samples of a unit: source number and piece."""

    copies: list[Copy]

    def __call__(self, work: tuple[int, Piece]) -> Iterator[Encoded]:
        return self.copies[work[0]](work[1])


@verb(Append)
def append(options: Append) -> WriteReport:
    """New shards follow the last one. The splits of the sources are not kept.

    Raises:
        DataError: a key already exists, or a source is corrupt.
        NotFound: there is no prepared dataset at `url`.
        ConfigError: no sources are given, or an option is invalid.
        StorageError: the dataset cannot be written.
    """
    url = os.fspath(options.url)
    sources = paths_of(options.sources)
    began = time.perf_counter()
    if not sources:
        raise ConfigError("nothing to append: no sources were given", file=url, fix="Give at least one dataset.")
    store = open_store(url)
    if rollouts.takes(store, sources):
        return rollouts.append_answers(url, sources, options)
    for name in ("policy", "reward", "group_size"):
        if getattr(options, name) not in (None, ()):
            option = name.replace("_", "-")
            what, fix = f"--{option} applies to rollouts", f"Omit --{option}, or append to rollouts."
            raise ConfigError(f"{what}, and this is another dataset", file=url, kind="bad-option", fix=fix)
    need_prepared(store, url)
    layout = Layout(
        options.pattern or _pattern(list(energon.read_info(store))),
        options.max_shard_samples,
        parse_size(options.max_shard_size),
    )
    opened = [open_source(source) for source in sources]
    groups = [[Group((), g.order) for g in groups_of(dataset)] for dataset in opened]
    work = [
        (number, piece)
        for number, dataset in enumerate(opened)
        for piece in pieces_of(dataset, groups[number], replace(layout, first=0))
    ]
    job = {
        "verb": "append",
        "split": options.split,
        "prefix": options.prefix,
        "sources": [facts(dataset) for dataset in opened],
    }
    target = Destination(url, layout, job=job, split=options.split, append=True)
    copies = _Copies([Copy(dataset, groups[n], options.prefix) for n, dataset in enumerate(opened)])
    with closing(target):
        if (dry := active()) is not None:
            return plan_copies(dry, target, [(copies.copies[number], piece) for number, piece in work])
        origins = [copy.origins("append") for copy in copies.copies]
        try:
            report = write_shards(
                target,
                work,
                copies,
                origins=lambda one: origins[one[0]](one[1]),
                workers=options.workers,
                progress=options.progress,
            )
        except DataError as error:
            if error.kind == "duplicate-key":  # the same command would fail again, so nothing is kept
                target.drop()
            raise
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _pattern(shards: Sequence[str]) -> str:
    """Return the pattern of the last shard's name, or the default pattern if that name has no number."""
    import re

    match = re.fullmatch(r"([^%]*?)(\d+)([^\d%/]*\.tar)", shards[-1]) if shards else None
    if match is None:
        return PATTERN
    before, digits, after = match.groups()
    return f"{before}%0{len(digits)}d{after}"
