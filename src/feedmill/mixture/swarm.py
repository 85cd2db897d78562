"""The folder of a swarm: a recipe per run, ``mixtures.csv`` with the weights of each, ``swarm.json`` with the rest.

``mixtures.csv`` has the columns ``run`` (name of the recipe without ``.yaml``), ``stage`` if the recipe has several
stages, and one per source; the weights in a row add up to 1. ``swarm.json`` is written last: without it, the swarm is
not complete.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.mixture.base import Floats
from feedmill.storage import Store, join_url, open_store

TABLE, FACTS = "mixtures.csv", "swarm.json"
_KIND, _VERSION = "feedmill swarm", 1


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm as read from its folder.

    Attributes:
        folder: path or URL.
        runs: names of the runs.
        names: the sources.
        weights: float64[runs, stages, sources]; they add up to 1 over the sources.
        facts: the content of ``swarm.json``.
    """

    folder: str
    runs: Sequence[str]
    names: Sequence[str]
    weights: Floats
    facts: Mapping[str, Any]

    @property
    def recipe(self) -> str:
        """Path or URL of the recipe whose weights vary."""
        return join_url(self.folder, self.facts["recipe"])

    def path(self, run: str) -> str:
        """Return the path or URL of the recipe of a run."""
        return join_url(self.folder, f"{run}.yaml")


def table_of(runs: Sequence[str], names: Sequence[str], weights: Sequence[Sequence[Sequence[Any]]]) -> bytes:
    """Return ``mixtures.csv``.

    Args:
        runs: names of the runs.
        names: the sources.
        weights: of each run and stage, by source.
    """
    staged = len(weights[0]) > 1
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *(["stage"] if staged else []), *names])
    for run, rows in zip(runs, weights, strict=True):
        for stage, row in enumerate(rows):
            writer.writerow([run, *([stage + 1] if staged else []), *row])
    return text.getvalue().encode()


def facts_of(values: Mapping[str, Any]) -> bytes:
    """Return ``swarm.json``."""
    data = {"kind": _KIND, "version": _VERSION, **values}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def is_swarm(folder: str) -> bool:
    """Return whether a path or URL is the folder of a swarm."""
    return open_store(folder).exists(FACTS)


def read_swarm(folder: str | os.PathLike[str]) -> Swarm:
    """Read the folder of a swarm.

    Raises:
        NotFound: it has no complete swarm.
        DataError: a file of it is damaged.
    """
    url = os.fspath(folder)
    store = open_store(url)
    if not store.exists(FACTS):
        raise NotFound(
            f"this folder has no {FACTS}, so it is no complete swarm",
            file=url,
            fix="Make one with 'feedmill mixture propose RECIPE -o DIR', or run that command again if it was killed.",
        )
    facts = _facts(store)
    try:
        rows = list(csv.reader(io.StringIO(store.read(TABLE).decode())))
        head, body = rows[0], rows[1:]
        names = [source["name"] for source in facts["sources"]]
        stages = len(facts["stages"])
        runs = list(facts["runs"])
        skip = 2 if stages > 1 else 1
        if head[skip:] != names or [row[0] for row in body] != [run for run in runs for _ in range(stages)]:
            raise ValueError("its runs or sources are not those of swarm.json")
        weights = np.array([[float(value) for value in row[skip:]] for row in body], np.float64)
        weights = weights.reshape(len(runs), stages, len(names))
        if not np.isfinite(weights).all() or (weights < 0).any() or np.abs(weights.sum(axis=2) - 1).max() > 1e-6:
            raise ValueError("the weights of a row are negative, or do not add up to 1")
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"the table of weights is damaged: {error}",
            file=store.locate(TABLE),
            fix="Write the swarm again with 'feedmill mixture propose' and --overwrite.",
        ) from None
    return Swarm(url, runs, names, weights, facts)


def _facts(store: Store) -> dict[str, Any]:
    where = store.locate(FACTS)
    try:
        facts = json.loads(store.read(FACTS))
    except ValueError as error:
        raise DataError(f"this is not valid JSON: {error}", file=where) from None
    if not isinstance(facts, dict) or facts.get("kind") != _KIND:
        raise DataError("this file does not describe a swarm of mixtures", file=where)
    if facts.get("version") != _VERSION:
        raise DataError(
            f"the swarm has version {facts.get('version')!r}, this release reads version {_VERSION}", file=where
        )
    return facts


def to_write(store: Store, files: Mapping[str, bytes], *, overwrite: bool) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a swarm that are missing, and those of an earlier swarm that it does not have.

    A killed run has left some of the files; they are the same, and stay. Beside a complete swarm, other files (losses,
    reports) are allowed.

    Raises:
        ConfigError: the folder holds something else, or another swarm without `overwrite`.
    """
    there = {entry.path for entry in store.files()} if store.is_folder() else set()
    earlier = set(_files_of(_facts(store))) if FACTS in there else set()
    strange = sorted(path for path in there if path not in files and path not in earlier)
    if strange and not earlier:
        raise ConfigError(
            f"the folder holds something else: {strange[0]}" + (f" and {len(strange) - 1:,} more" * (len(strange) > 1)),
            file=store.url,
            kind="exists",
            fix="Pass a new or empty folder as --output.",
        )
    todo = {path: data for path, data in files.items() if path not in there or store.read(path) != data}
    stale = sorted(earlier & there - files.keys())
    if (todo.keys() & there or stale) and not overwrite:
        raise ConfigError(
            "the folder holds a swarm of another recipe or of other options",
            file=store.url,
            kind="exists",
            fix="Pass another --output, or --overwrite.",
        )
    return todo, stale


def _files_of(facts: Mapping[str, Any]) -> list[str]:
    return [FACTS, TABLE, *(f"{run}.yaml" for run in facts.get("runs", ()))]
