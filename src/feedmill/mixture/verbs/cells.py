"""The verb ``mixture cells``: which cell each document of a dataset is in, into the sidecars that recipes use.

1. *find*: columns are found by name (`feedmill.mixture.columns`).
2. *read*: the units are files of documents: their columns are read and kept (`feedmill.mixture.columnfiles`).
3. *code*: block by block, values become cells (`feedmill.mixture.coding`), in one process and little memory.

Each column and each sidecar is published when it is complete, and found again by the next run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.provenance import check_others
from feedmill.documents.file import DocumentFile, relative
from feedmill.errors import ConfigError, FeedmillError, refuse_empty
from feedmill.formats.base import Dataset
from feedmill.formats.cells import FOLDER as CELLS
from feedmill.formats.cells import OUTSIDE, CellTable, Rule, cells_path, read_cells, write_cells
from feedmill.formats.format import TRAIN_OR_ALL
from feedmill.formats.tokens.base import TokenDataset
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Where, key_of
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run_largest_first
from feedmill.jobs.work import Work
from feedmill.mixture.coding import (
    AT_ONCE,
    Coder,
    Combinations,
    Series,
    Span,
    Test,
    Tests,
    costs_of,
    specs_of,
)
from feedmill.mixture.columnfiles import FOLDER, INDEX, ColumnStore, Reading, Wanted, read_unit
from feedmill.mixture.columns import Block, Origins
from feedmill.mixture.options import Cells, columns_of
from feedmill.planning.recipes.cells import rules
from feedmill.planning.recipes.member import recipe_line
from feedmill.planning.recipes.read import Parsed, is_dataset
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.schema import Member
from feedmill.samples.open import open as open_dataset
from feedmill.storage import canonical_location, join_url
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.folders import cache_folder
from feedmill.storage.remote.options import storage_options
from feedmill.storage.staging import make_folder

FEW = 100
"""Documents below which a cell is marked: too few to repeat, or to measure a share by."""
_SAMPLES = 1 << 14
"""Samples of a unit, if they are not rows of files."""
_FILES = 100
"""Files with missing values that the sidecar names for each column; all documents are counted."""
_PRELOAD = ("feedmill.mixture.columnfiles",)


@dataclass(slots=True)
class ColumnReport:
    """A column of cells.

    Attributes:
        name: as in the rule.
        place: ``index``, ``fields`` or ``attributes/SET``.
        column: its whole name there.
        files: files that it was read from; 0 for the index.
        reused: files among these that an earlier run had read, and that have not changed since.
        values: number of different values, or of bins.
        edges: where bins begin, for edges and quantiles.
        missing: documents without a value.
        missing_in: file -> documents of it without a value; 100 files at most.
    """

    name: str
    place: str
    column: str
    files: int = 0
    reused: int = 0
    values: int = 0
    edges: list[float] | None = None
    missing: int = 0
    missing_in: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class CellReport:
    """A cell.

    Attributes:
        name: its values by column, ``topic=code,source=wiki``.
        documents, tokens: what it has; tokens are None if the index does not know them.
        share: its share of the documents in cells.
        few: whether it has fewer than 100 documents.
    """

    name: str
    documents: int
    tokens: int | None
    share: float
    few: bool


@dataclass(slots=True)
class SidecarReport:
    """The cells of one dataset by one rule.

    Attributes:
        dataset, split: the dataset.
        rule: the rule in words.
        file: path or URL of the sidecar.
        documents: documents of the dataset; `outside`: those in no cell.
        unmatched: documents outside because of `where`.
        up_to_date: whether nothing had changed, so that nothing was written.
        columns, cells: see there. Cells are in order of their values; in a dry run there are none.
    """

    dataset: str
    split: str | None
    rule: str
    file: str
    documents: int
    outside: int = 0
    unmatched: int = 0
    up_to_date: bool = False
    columns: list[ColumnReport] = field(default_factory=list)
    cells: list[CellReport] = field(default_factory=list)


@dataclass(slots=True)
class CellsReport(JobReport):
    """Report of the cells of datasets.

    Attributes:
        path: recipe or dataset.
        sidecars: one for each dataset and rule.
        seconds: time that it took.
    """

    path: str
    sidecars: list[SidecarReport]
    seconds: float

    def written_files(self) -> list[str]:
        """See `JobReport`."""
        return [sidecar.file for sidecar in self.sidecars]


@verb(Cells)
def cells(options: Cells) -> CellsReport:
    """Write the sidecars that are missing or out of date, and return the cells.

    Raises:
        ConfigError: A column is unknown or ambiguous, needs bins, or makes too many cells; token files have no lineage;
            a recipe has no cells.
        DataError: Attributes are missing or were computed from other documents, or a value is no plain value.
        EmptyResult: No document is in a cell.
    """
    begun, path = time.monotonic(), os.fspath(options.path)
    jobs: list[SidecarJob] = []

    def plan(dry: DryRun) -> None:
        dry.reads(size for _, size in _units(jobs, options.overwrite))
        for job in jobs:
            job.foresee(dry, options.overwrite)

    def execute() -> None:
        try:
            _read(jobs, options)
            for job in jobs:
                job.write(options)
        finally:
            if not all(job.store.is_local for job in jobs):
                forget_copies()  # of columns

    recipe = None if is_dataset(path) else Recipe.load(path)
    with storage_options({} if recipe is None else _storage(recipe)):
        jobs += [_of_dataset(options)] if recipe is None else _of_recipe(recipe, options)
        perform(plan, execute)
    return CellsReport(path, [job.report for job in jobs], time.monotonic() - begun)


def _of_dataset(options: Cells) -> SidecarJob:
    path = os.fspath(options.path)
    if not options.by and not options.where:
        raise ConfigError(
            "nothing says what makes cells",
            file=path,
            kind="missing-option",
            fix="Give columns with --by, or a recipe with 'cells' or 'where'.",
        )
    split = TRAIN_OR_ALL if options.split is None else options.split
    rule = Rule(tuple(columns_of(options.by)), dict(options.where or {}))
    return SidecarJob(open_dataset(path, split=split, raw=True), rule)


def _of_recipe(recipe: Recipe, options: Cells) -> list[SidecarJob]:
    """Return the sidecars that a recipe and the recipes in it need, each once."""
    given = [name for name in ("by", "where", "split") if getattr(options, name)]
    if given:
        raise ConfigError(
            f"--{given[0]} is for a dataset: a recipe says what makes its cells",
            file=recipe.file,
            kind="bad-option",
            fix="Give the dataset, or change the recipe.",
        )
    jobs: dict[tuple[str, str], SidecarJob] = {}
    for owner, place, member, rule in rules(recipe):
        with recipe_line(owner, place):
            dataset = _opened(owner, member)
            job = SidecarJob(dataset, rule)
        jobs.setdefault((job.store.url, job.path), job)
    if not jobs:
        raise ConfigError(
            "the recipe needs no cells",
            file=recipe.file,
            kind="bad-recipe",
            fix="Add 'blend: {cells: {of: DATASET, by: [COLUMN, ...]}}', or 'where' to a source.",
        )
    return list(jobs.values())


def _opened(recipe: Parsed, member: Member) -> Dataset:
    """Return the dataset of a source as a plan opens it, but without a view."""
    if member.path is None:
        raise ConfigError("cells are those of one dataset", kind="unsupported", fix="Give its 'path'.")
    given = {name: getattr(member, name) for name in ("dataset_config", "split_config", "tokens")}
    split = TRAIN_OR_ALL if member.split is None else member.split
    known = {name: value for name, value in given.items() if value is not None}
    return open_dataset(join_url(recipe.base, member.path), split=split, raw=True, **known)


def _storage(recipe: Parsed) -> dict[str, dict[str, Any]]:
    """Return the options of object stores of a recipe and the recipes in it."""
    found = recipe.storage()
    for nested in recipe.nested.values():
        found = {**_storage(nested), **found}
    return found


def _units(jobs: Sequence[SidecarJob], overwrite: bool) -> list[tuple[Reading, int]]:
    """Return the units of all sidecars. Datasets that were made from the same file of documents share its unit."""
    found: dict[str, tuple[Reading, int]] = {}
    for job in jobs:
        for unit, size in job.units(overwrite):
            known, most = found.get(unit.of, (unit, 0))
            wanted = tuple(dict.fromkeys((*known.wanted, *unit.wanted)))
            found[unit.of] = replace(known, wanted=wanted), max(most, size)
    return list(found.values())


def _read(jobs: Sequence[SidecarJob], options: Cells) -> None:
    """Read the columns of all sidecars: the files that were not read before, or have changed."""
    found = _units(jobs, options.overwrite)
    units, sizes = [unit for unit, _ in found], [size for _, size in found]
    first = jobs[0]
    with Work(first.store.below(CELLS), first.path.rpartition("/")[2]) as work:
        key = key_of(*(f"{unit} {unit.wanted}" for unit in units))
        work.begin({"verb": "cells", "units": key})
        where = Where("reading", key, work.scratch)
        with Progress.of_files("reading", sizes, options.progress) as bar:
            run_largest_first(
                read_unit, units, sizes, workers=options.workers, progress=bar, preload=_PRELOAD, where=where
            )
        work.finish()


class SidecarJob:
    """A sidecar to make.

    Args:
        dataset: the dataset, opened without a view.
        rule: what makes cells.
    """

    def __init__(self, dataset: Dataset, rule: Rule) -> None:
        self.dataset, self.rule = dataset, rule
        self.store, self.path = cells_path(dataset.url, rule, dataset.split)
        self.kept = ColumnStore(f"{canonical_location(self.store.url)}/{CELLS}/{FOLDER}")
        self.specs = specs_of(rule)
        self.tests = tuple(Test(name, given) for name, given in sorted(rule.where.items()))
        for test in self.tests:
            test.check()
        self.origins = Origins(dataset)
        self._identities: dict[str, tuple[Any, ...]] = {}
        names = [spec.name for spec in self.specs] + [test.name for test in self.tests]
        self.series = {name: self._series(name) for name in dict.fromkeys(names)}
        self.report = SidecarReport(dataset.url, dataset.split, str(rule), self.store.locate(self.path), len(dataset))
        for name, series in self.series.items():
            column = ColumnReport(name, series.wanted.place, series.wanted.name, len(series.leaves))
            self.report.columns.append(column)

    def _series(self, name: str) -> Series:
        found = self.origins.find(name)
        if found.wanted.place == INDEX:
            return Series(self.dataset, found)
        if found.samples:
            starts = np.arange(0, len(self.dataset), _SAMPLES)
            return Series(self.dataset, found, tuple(f"samples from {start:,}" for start in starts.tolist()), starts)
        return Series(self.dataset, found, tuple(self.origins.leaves(found.wanted)))

    def _sources(self, series: Series) -> list[DocumentFile | tuple[Dataset, int, int]]:
        """Return what a column is read from, in the order of its leaves."""
        if series.found.samples:
            ends = [*series.starts.tolist()[1:], len(self.dataset)]
            return [(self.dataset, start, end) for start, end in zip(series.starts.tolist(), ends, strict=True)]
        files = [self.origins.documents(path) for path in series.leaves]
        return [file for file in files if file is not None]

    def _identity(self, wanted: Wanted, source: DocumentFile | tuple[Dataset, int, int]) -> tuple[Any, ...]:
        """Return what changes if a file of documents, or its attributes, changes."""
        if not isinstance(source, DocumentFile):
            return (source[0].fingerprint(),)
        own = (source.size, source.version)
        if not wanted.set:
            return own
        beside = source.store().stat(source.attributes(wanted.set))
        return (*own, beside.size, beside.version)

    def units(self, overwrite: bool) -> Iterator[tuple[Reading, int]]:
        """Yield the units that must be read, with the bytes that they read."""
        wanted: dict[str, list[tuple[ColumnStore, Wanted, tuple[Any, ...]]]] = {}
        sources: dict[str, DocumentFile | tuple[Dataset, int, int]] = {}
        sizes: Counter[str] = Counter()
        for series, column in zip(self.series.values(), self.report.columns, strict=True):
            column.reused = 0
            if series.wanted.place == INDEX:
                continue
            if series.wanted.set:
                files = [source for source in self._sources(series) if isinstance(source, DocumentFile)]
                check_others(files, series.wanted.set)
            for source in self._sources(series):
                unit = Reading((), source)
                identity = self._identity(series.wanted, source)
                if not overwrite and self.kept.read(series.wanted, unit.of, identity) is not None:
                    column.reused += 1
                    continue
                if overwrite:
                    self.kept.forget(series.wanted, unit.of)
                sources[unit.of] = source
                wanted.setdefault(unit.of, []).append((self.kept, series.wanted, identity))
                whole = isinstance(source, DocumentFile) and not series.wanted.set
                sizes[unit.of] += source.size if whole and isinstance(source, DocumentFile) else _size(identity)
        for name, columns in wanted.items():
            yield Reading(tuple(columns), sources[name]), sizes[name]

    def foresee(self, dry: DryRun, overwrite: bool) -> None:
        """Add the job to a dry run."""
        units = list(self.units(overwrite))
        reused = sum(column.reused for column in self.report.columns)
        if reused:
            dry.skipped["columns of files that were read before"] = (
                dry.skipped.get("columns of files that were read before", 0) + reused
            )
        if not units and not overwrite:
            self._load()
            if self._is_current():
                dry.skipped["sidecars that are up to date"] = dry.skipped.get("sidecars that are up to date", 0) + 1
                self.report.up_to_date = True
                return
        for unit, _ in units:
            for kept, wanted, _ in unit.wanted:
                dry.writes(kept.store, kept.path(wanted, unit.of))
        dry.writes(self.store, self.path)

    def _load(self) -> None:
        """Open the columns, which were read."""
        for series in self.series.values():
            series.data = []
            for source in self._sources(series) if series.wanted.place != INDEX else ():
                unit = Reading((), source)
                data = self.kept.read(series.wanted, unit.of, self._identity(series.wanted, source))
                if data is None:
                    raise FeedmillError(
                        "the column has changed while it was read", file=unit.of, kind="changed", fix="Run it again."
                    )
                series.data.append(data)

    def _is_current(self) -> bool:
        """Return whether the sidecar is there, and was made from these columns."""
        try:
            table = read_cells(self.store, self.path)
        except FeedmillError:
            return False
        facts = table.facts.get("columns")
        digests = {name: each.get("digest") for name, each in facts.items()} if isinstance(facts, dict) else {}
        return (
            table.rule == self.rule
            and table.base == self.dataset.fingerprint()
            and table.documents == len(self.dataset)
            and digests == {name: series.digest for name, series in self.series.items()}
        )

    def write(self, options: Cells) -> None:
        """Write the sidecar, unless it is up to date, and complete the report."""
        self._load()
        self.report.up_to_date = not options.overwrite and self._is_current()
        table = read_cells(self.store, self.path) if self.report.up_to_date else self._written(options)
        report = self.report
        report.outside, report.unmatched = table.outside, int(table.facts["unmatched"])
        for name, column in zip(self.series, report.columns, strict=True):
            known = table.facts["columns"][name]
            column.missing, column.missing_in = known["missing"], known["missing_in"]
            column.values, column.edges = known["values"], known["edges"]
        total = max(1, sum(cell.documents for cell in table.cells))
        report.cells = [
            CellReport(label, cell.documents, cell.tokens, cell.documents / total, cell.documents < FEW)
            for label, cell in zip(table.names(), table.cells, strict=True)
        ]

    def spans(self) -> Iterator[Span]:
        """Yield all samples in blocks."""
        dataset = self.dataset
        if self.origins.by_file:
            for path, first, count in self.origins.files:
                for low in range(0, count, AT_ONCE):
                    high = min(low + AT_ONCE, count)
                    yield Span(first + low, first + high, _InFile(self.origins, path, low, high).locate)
            return
        for low in range(0, len(dataset), AT_ONCE):
            high = min(low + AT_ONCE, len(dataset))
            yield Span(low, high, _InDataset(self.origins, low, high).locate)

    def _written(self, options: Cells) -> CellTable:
        """Write the sidecar."""
        coders = [Coder(spec, self.series[spec.name], self.spans) for spec in self.specs]
        tests = Tests(self.tests, [self.series[test.name] for test in self.tests])
        combinations = Combinations(coders, self.dataset.url)
        missing: dict[str, Counter[str]] = {spec.name: Counter() for spec in self.specs}
        unmatched = 0
        make_folder(os.fspath(cache_folder()))
        with tempfile.TemporaryFile(dir=cache_folder()) as provisional:
            with Progress("coding", len(self.dataset), "documents", options.progress) as bar:
                for span in self.spans():
                    values, absent = [], np.zeros(len(span), np.bool_)
                    for coder in coders:
                        codes, without = coder.codes(span)
                        if without is not None:
                            missing[coder.spec.name].update(self._counted(coder.series, span, without))
                            absent |= codes < 0
                        values.append(codes)
                    if self.tests:
                        failed = ~tests.passed(span)
                        unmatched += int(failed.sum())
                        absent |= failed
                    out = np.full(len(span), OUTSIDE, np.uint16)
                    if absent.any():
                        inside = np.flatnonzero(~absent)
                        out[inside] = combinations.codes([each[inside] for each in values], len(inside))
                    else:
                        out[:] = combinations.codes(values, len(span))
                    provisional.write(out.data)
                    bar.advance(len(span))
            self._refuse(missing, unmatched, bool(combinations.keys), options)
            values_of, lut = combinations.final()
            facts = {"columns": self._facts(coders, missing), "unmatched": unmatched}

            tokens = _has_tokens(self.dataset)
            # Without a mask, all tokens contribute to the loss. Masks are read where a recipe counts loss tokens.
            learned = np.zeros(OUTSIDE + 1) if tokens and _has_no_masks(self.dataset) else None

            def pieces() -> Iterator[npt.NDArray[np.uint16]]:
                provisional.seek(0)
                lengths = self._lengths()
                while data := provisional.read(2 * AT_ONCE):
                    codes = lut[np.frombuffer(data, np.uint16)]
                    if learned is not None:
                        learned[:] += np.bincount(codes, next(lengths), OUTSIDE + 1)
                    yield codes

            return write_cells(
                self.store,
                self.path,
                self.rule,
                self.dataset.fingerprint(),
                len(self.dataset),
                values_of,
                pieces(),
                self._lengths() if tokens else None,
                loss_tokens=None if learned is None else lambda: [int(each) for each in learned[: len(values_of)]],
                facts=facts,
            )

    def _lengths(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield tokens of the samples, in the pieces in which codes are read."""
        for low in range(0, len(self.dataset), AT_ONCE):
            yield costs_of(self.dataset, "tokens", low, min(low + AT_ONCE, len(self.dataset)))

    def _counted(self, series: Series, span: Span, absent: npt.NDArray[np.bool_]) -> Counter[str]:
        """Return how many samples without a value each file has."""
        if series.wanted.place == INDEX:
            return Counter({"index": int(absent.sum())})
        leaf = span.block(series).leaf
        if isinstance(leaf, int):
            return Counter({series.leaves[leaf]: int(absent.sum())})
        counts = np.bincount(leaf[absent])
        return Counter({series.leaves[number]: int(counts[number]) for number in np.flatnonzero(counts).tolist()})

    def _facts(self, coders: Sequence[Coder], missing: Mapping[str, Counter[str]]) -> dict[str, Any]:
        """Return what the sidecar says of its columns."""
        known = {coder.spec.name: coder for coder in coders}
        found = {}
        for name, series in self.series.items():
            coder = known.get(name)
            counts = missing.get(name, Counter[str]())
            found[name] = {
                "place": series.wanted.place,
                "column": series.wanted.name,
                "digest": series.digest,
                "values": 0 if coder is None else len(coder.values),
                "edges": coder.edges.tolist() if coder is not None and len(coder.edges) else None,
                "missing": counts.total(),
                "missing_in": {
                    relative(path, canonical_location(self.store.url)): count
                    for path, count in sorted(counts.items())[:_FILES]
                },
            }
        return found

    def _refuse(self, missing: Mapping[str, Counter[str]], unmatched: int, some: bool, options: Cells) -> None:
        """Raise an error if no sample is in a cell, or if one lacks a value and this is not allowed."""
        if options.require_values:
            for name, counts in missing.items():
                if counts.total():
                    files = ", ".join(f"{path} ({count:,})" for path, count in counts.most_common(3))
                    raise ConfigError(
                        f"{counts.total():,} documents have no value of {name!r}: {files}",
                        file=self.dataset.url,
                        kind="missing-field",
                        fix=f"Add the values, give them one ({{column: {name}, missing: none}}), or remove"
                        " --require-values to leave them in no cell.",
                    )
        if not some:
            skipped = {f"without {name!r}": counts.total() for name, counts in missing.items() if counts.total()}
            refuse_empty(
                0,
                len(self.dataset),
                file=self.dataset.url,
                skipped={**skipped, "'where' does not hold": unmatched},
                fix="Check the columns and the values of 'where'.",
                allow=None,
            )


def _size(identity: tuple[Any, ...]) -> int:
    """Return the bytes of attributes, or of a range of samples about nothing."""
    return int(identity[2]) if len(identity) == 4 else 1


def _has_tokens(dataset: Dataset) -> bool:
    return isinstance(dataset, TokenDataset) or dataset.lengths is not None


def _has_no_masks(dataset: Dataset) -> bool:
    return isinstance(dataset, TokenDataset) and dataset.masks is None


@dataclass(frozen=True)
class _InFile:
    """Rows of a file of token data."""

    origins: Origins
    path: str
    low: int
    high: int

    def locate(self, series: Series) -> Block:
        leaves = {path: number for number, path in enumerate(series.leaves)}
        return self.origins.locate(self.path, np.arange(self.low, self.high), leaves)


@dataclass(frozen=True)
class _InDataset:
    """Samples of a dataset."""

    origins: Origins
    low: int
    high: int

    def locate(self, series: Series) -> Block:
        numbers = np.arange(self.low, self.high)
        if series.found.samples:
            leaf = np.searchsorted(series.starts, numbers, side="right") - 1
            return Block(leaf, numbers - series.starts[leaf])
        leaves = {path: number for number, path in enumerate(series.leaves)}
        return self.origins.locate_samples(numbers, leaves)
