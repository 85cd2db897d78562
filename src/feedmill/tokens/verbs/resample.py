"""Sample Dolma's token files by rate, and distribute them over files of a given number or size, as Dolma's resharding.

A rate of 2.25 takes each file of a source twice, and a quarter of them once more. Whole files are taken, so rates are
met in files, not in tokens. The draws are those of Dolma 1.2 with the same seed, for files in the order of their paths.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.base import Form
from feedmill.formats.tokens.dolma import FORMAT, NPY
from feedmill.storage import join_url, open_store
from feedmill.tokens.corpus import Corpus, Documents, open_corpus
from feedmill.tokens.rewrite import TokensReport, numbered_parts, start

NAME = "{part:6}" + NPY
"""Name of an output file."""


class Source(NamedTuple):
    """Token files below a folder, and how often each is taken."""

    prefix: str
    rate: float


class Taken(NamedTuple):
    """What was taken of a source: its files, and how many were taken, repetitions included."""

    prefix: str
    rate: float
    files: int
    taken: int


@dataclass(kw_only=True)
class ResampleReport(TokensReport):
    """Report of `resample`, with what was taken of each source."""

    sources: Sequence[Taken] = ()


def resample(
    sources: Sequence[Source],
    destination: str | os.PathLike[str],
    *,
    max_num_files: int | None = None,
    max_size_bytes: int | None = None,
    seed: int = 42,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> ResampleReport:
    """Write sampled token files to ``<destination>/000000.npy`` and so on, with their rows in ``.csv.gz``.

    To resume a killed run, repeat the call.

    Args:
        max_num_files: distribute the files over at most this number, at random. A file that is taken several times goes
            to different ones.
        max_size_bytes: fill one file after another up to this size, with all files before repetitions.
        seed: seed of the draws.
        overwrite: replace existing files.

    Raises:
        ConfigError: not exactly one limit is given, a rate is not positive, a file is taken more often than there are
            output files, or a destination exists.
        NotFound: a source has no token files.
        DataError: a file and its ``.csv.gz`` do not match.
    """
    if (max_num_files is None) == (max_size_bytes is None):
        raise ConfigError(
            "exactly one of max_num_files and max_size_bytes must be given", kind="bad-option", fix="Give one of them."
        )
    if any(limit is not None and limit < 1 for limit in (max_num_files, max_size_bytes)):
        raise ConfigError("the limit must be at least 1", kind="bad-option", fix="Give 1 or more.")
    if not sources:
        raise ConfigError("no source was given", kind="missing-option", fix="Give at least one in source_prefixes.")
    chance = random.Random(seed)
    files: dict[str, int] = {}
    chosen: list[str] = []
    facts = []
    for source in sources:
        found = _files(source)
        files.update(found)
        taken = _taken(list(found), source, chance)
        chosen += taken
        facts.append(Taken(source.prefix, source.rate, len(found), len(taken)))
    times = Counter(chosen)
    groups = (
        _by_size(times, files, max_size_bytes)
        if max_size_bytes is not None
        else _by_number(times, max_num_files or 1, chance)
    )
    corpus = open_corpus(list(times))
    form = Form(FORMAT, corpus.token_size, None, corpus.has_loss)
    options = {
        "verb": "reshard",
        "sources": [list(source) for source in sources],
        "max_num_files": max_num_files,
        "max_size_bytes": max_size_bytes,
        "seed": seed,
    }
    target = join_url(os.fspath(destination), NAME)
    with start(
        target, corpus, form, options, seeded=False, overwrite=overwrite, workers=workers, progress=progress
    ) as run:
        places = {path: number for number, path in enumerate(times)}
        rows = [_numbers(corpus, [places[path] for path in group]) for group in groups]
        run.write(Documents(corpus), numbered_parts(target, rows), numbered=target)
        report = run.finish()
    return ResampleReport(**{**vars(report), "sources": facts, "seed": seed})


def _files(source: Source) -> dict[str, int]:
    """Return the bytes of each token file of a source, by URL, sorted by path."""
    if not source.rate > 0:
        raise ConfigError(
            f"the sample rate {source.rate} is not positive", file=source.prefix, fix="Omit the source instead."
        )
    folder = source.prefix.removesuffix("*").rstrip("/") or "/"
    store = open_store(folder)
    try:
        found = sorted(store.files(suffixes=(NPY,)), key=lambda entry: entry.path)
    except NotFound:
        found = []
    if not found:
        raise NotFound(f"no {NPY!r} files below this folder", file=source.prefix, kind="no-tokens", fix="Check it.")
    return {store.locate(entry.path): entry.size for entry in found}


def _taken(paths: list[str], source: Source, chance: random.Random) -> list[str]:
    """Return the files of a source that are taken, each as often as it is taken."""
    whole = int(source.rate)
    rest = source.rate - whole
    return paths * whole + (chance.sample(paths, max(1, round(rest * len(paths)))) if rest > 0 else [])


def _by_number(times: Counter[str], most: int, chance: random.Random) -> list[list[str]]:
    """Distribute files over at most `most` groups at random; groups with fewer files are more likely."""
    path, largest = times.most_common(1)[0]
    if largest > most:
        raise ConfigError(
            f"the file is taken {largest} times, but there are only {most} output files, each with it once at most",
            file=path,
            kind="bad-option",
            fix=f"Set max_num_files to {largest} or more, or lower the sample rate.",
        )
    groups: list[list[str]] = [[] for _ in range(most)]
    for path, count in times.items():
        weights = [1 / (len(group) + 1) for group in groups]
        total = sum(weights)
        keys = [chance.random() * (weight / total) for weight in weights]
        for number in sorted(range(most), key=keys.__getitem__, reverse=True)[:count]:
            groups[number].append(path)
    return [group for group in groups if group]


def _by_size(times: Counter[str], sizes: dict[str, int], most: int) -> list[list[str]]:
    """Fill one group after another with at most `most` bytes: first each file once, then the repetitions."""
    left = dict(times)
    groups: list[list[str]] = []
    while left:
        groups.append([])
        filled = 0
        for path in sorted(left, key=lambda path: -left[path]):
            if groups[-1] and filled + sizes[path] > most:
                groups.append([])
                filled = 0
            groups[-1].append(path)
            filled += sizes[path]
        left = {path: count - 1 for path, count in left.items() if count > 1}
    return groups


def _numbers(corpus: Corpus, shards: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of the documents of these files, one file after another, int64[documents]."""
    firsts = corpus.firsts
    return np.concatenate([np.arange(firsts[shard], firsts[shard + 1], dtype=np.int64) for shard in shards])
