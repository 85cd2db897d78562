"""Append the samples of other datasets to an existing dataset.

Append files of answers to rollouts: one commit for each file, so that a killed run continues where it was.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.energon import prepared as energon
from feedmill.formats.rollouts.commits import COMMITS, Rollouts, is_rollouts
from feedmill.formats.rollouts.layouts import SUFFIXES, Answers, Given, read_answers
from feedmill.jobs.dry_run import active
from feedmill.jobs.options import verb
from feedmill.storage import Store, open_store, paths_of, split_url
from feedmill.storage.limits import parse_size
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
    if takes(store, sources):
        return append_answers(url, sources, options)
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


def takes(store: Store, sources: Sequence[str]) -> bool:
    """Return whether a folder has rollouts, or is to have its first ones: files of rows for a folder with nothing."""
    return is_rollouts(store) or (all(map(_is_file, sources)) and not store.is_folder())


def _is_file(source: str) -> bool:
    return source.endswith(SUFFIXES)


def append_answers(url: str, sources: Sequence[str], options: Append) -> WriteReport:
    """Append the answers of files. Raises what `read_answers` and `Rollouts.append` do."""
    began = time.perf_counter()
    for name in ("split", "pattern", "max_shard_size"):
        if getattr(options, name) is not None:
            what, option = "rollouts have no shards of samples", name.replace("_", "-")
            raise ConfigError(f"{what}: --{option} has no effect", kind="bad-option", fix=f"Omit --{option}.")
    rollouts = Rollouts(url)
    rollouts.refresh()
    report = WriteReport(url)
    left_out: Counter[str] = Counter()
    dry = active()
    given = Given(options.policy, tuple(options.reward))
    for store, path in _files(sources):
        answers = read_answers(store, path, given)
        if answers.once:
            _leave_out_repeated(rollouts, answers)
        left_out += answers.left_out
        if not answers.rows:
            continue
        size = store.stat(path).size
        if dry is not None:
            dry.reads([size])
            dry.writes(rollouts.store, f"{COMMITS}/{rollouts.commits + report.shards:08d}.parquet")
            report.shards += 1
        else:
            # The same file with the same options is the same commit, so that a killed run can be repeated.
            name = f"{xxhash.xxh3_128_hexdigest(store.read(path))} {given}"
            for row in answers.rows:
                row["group"] = f"{options.prefix}{row['group']}"
            try:
                commit = rollouts.append(answers.rows, id=name, group_size=options.group_size)
            except FeedmillError as error:
                error.file = error.file or store.locate(path)
                raise
            report.shards += 1
            report.reused += not commit.is_new
            report.bytes += rollouts.store.stat(rollouts.path_of(commit.number)).size
        report.samples += len(answers.rows)
    if dry is not None:
        dry.counts, dry.skipped = {"samples": report.samples, **dry.counts}, dict(left_out)
    report.warnings += [f"left out: {count:,} answers {reason}" for reason, count in sorted(left_out.items())]
    if not report.samples:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise ConfigError(
            f"nothing to append: all answers were left out ({reasons})", file=url, fix="Give other files."
        )
    report.seconds = round(time.perf_counter() - began, 3)
    return report


def _leave_out_repeated(rollouts: Rollouts, answers: Answers) -> None:
    """Leave out the groups that are there already in another version: their tool logs them more than once."""
    found = {str(row["group"]): row["version"] for row in answers.rows}
    known = {
        name for name, version in found.items() for group in rollouts.find(name) if rollouts.versions[group] != version
    }
    kept = [row for row in answers.rows if row["group"] not in known]
    answers.left_out["of groups that are there already"] += len(answers.rows) - len(kept)
    answers.rows = kept


def _files(sources: Sequence[str]) -> list[tuple[Store, str]]:
    """Return the files of answers that are given, those of folders sorted by path. Raises `NotFound`."""
    found: list[tuple[Store, str]] = []
    for source in sources:
        if _is_file(source):
            folder, name = split_url(source)
            found.append((open_store(folder), name))
            continue
        store = open_store(source)
        paths = [entry.path for entry in store.files(suffixes=SUFFIXES)]
        if not paths:
            what, fix = f"no files of answers are here ({', '.join(SUFFIXES)})", "Give files, or a folder of them."
            raise NotFound(what, file=source, fix=fix)
        found += [(store, path) for path in paths]
    return found
