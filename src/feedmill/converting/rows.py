"""Convert rows (JSON lines as a file or tree, Parquet, Hugging Face datasets) to JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedmill.converting.engine import Conversion, surveyed
from feedmill.converting.facts import with_classes
from feedmill.converting.fates import Changed
from feedmill.converting.fields import Taken, row_of, wanted
from feedmill.converting.job import Bad, ConvertWork, Done, bad_sample
from feedmill.converting.jsontypes import columns_of, has_json, has_number, merge_columns, types_in, weight
from feedmill.converting.lines import line_files, parse, rows_in, stem
from feedmill.converting.losses import all_bytes, classes_lost, dropped
from feedmill.converting.options import Convert
from feedmill.converting.preview import Loss, Preview, named
from feedmill.converting.survey import Columns, Survey, changes_in, known_kinds, merge, names, survey
from feedmill.converting.table import is_one_file
from feedmill.converting.targets.lines import LineRows
from feedmill.converting.targets.parquet import ParquetRows, Rows
from feedmill.converting.units import Shared, Source, Target, Unit, opened, read_each
from feedmill.documents.lineage.samples import StoredRows, add_samples, size_of
from feedmill.documents.lineage.sidecar import Origins, Runs
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.hub_splits import FolderSplits, folder_splits, splits_in, unknown_split
from feedmill.formats.jsonl import LINE_SUFFIXES
from feedmill.formats.jsonl import splits as jsonl_splits
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.jsonl.splits import LineSplits
from feedmill.formats.registry import targets
from feedmill.formats.tables.dataset import TableDataset
from feedmill.jobs.policy import skips
from feedmill.storage import open_store
from feedmill.writing.copying import mean_size

ROWS_EACH = 100_000
_BATCH = 1024
_NUMBERS = ("int", "big", "float", "number", "bool")
"""Types of JSON of which a list is read back from a table as an array."""
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class RowSource(Source):
    """Rows of a dataset, or of a tree of JSON lines.

    Attributes:
        url, split: the dataset.
        fields: names or patterns of the columns to keep; all if empty.
        skip: whether rows that cannot be converted are skipped.
        tree: the folder of a tree of JSON lines; empty if the source is opened as a dataset.
        drop: columns to drop.
        target: the target, if rows that its columns cannot store must be skipped before they are written.
    """

    url: str
    split: str | None
    fields: tuple[str, ...]
    skip: bool
    tree: str = ""
    drop: frozenset[str] = frozenset()
    target: ParquetRows | None = None

    def read(self, unit: Unit, bad: list[Bad]) -> Iterator[Rows]:
        """Yield the rows of a unit with their numbers, in batches of about 32 MiB."""
        batch: Rows = []
        size = 0
        for number, row in self.rows(unit, bad):
            batch.append((number, row))
            size += weight(row)
            if size >= _GROUP_BYTES:
                yield self._storable(batch, bad)
                batch, size = [], 0
        if batch:
            yield self._storable(batch, bad)

    def numbers(self, item: Rows) -> Sequence[int]:
        """See `Source`."""
        return [number for number, _ in item]

    def add_origins(self, origins: Origins, unit: Unit, done: Done) -> bool:
        """See `Source`."""
        if not self.tree:
            return add_samples(origins, StoredRows.of(opened(self.url, self.split)), done.numbers)
        url = open_store(self.tree).locate(unit.what[0])
        origins.add(Runs.of(origins.number(url, size_of(url)), done.numbers))
        return True

    def rows(self, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and values of each row of a unit."""
        for number, row in self._lines(unit, bad) if self.tree else self._samples(unit, bad):
            if self.fields or self.drop:
                row = {n: v for n, v in row.items() if wanted(n, self.fields) and n not in self.drop}
            yield number, row

    def _lines(self, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
        path = unit.what[0]
        for number, line in rows_in(self.tree, path):
            try:
                yield number, parse(line)
            except DataError as error:
                self._refuse(open_store(self.tree).locate(path), f"line {number + 1}", number, error, bad)

    def _samples(self, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
        dataset = opened(self.url, self.split)
        _, start, stop = unit.what
        for low in range(start, stop, _BATCH):
            for number, sample in read_each(dataset, range(low, min(low + _BATCH, stop))):
                if isinstance(sample, FeedmillError):
                    self._refuse(dataset.url, f"row {number}", number, sample, bad)
                    continue
                try:
                    yield number, row_of(dataset, sample)
                except (DataError, NotFound) as error:
                    self._refuse(dataset.url, f"row {number}", number, error, bad)

    def _storable(self, batch: Rows, bad: list[Bad]) -> Rows:
        """Return the rows of a batch that the columns can store; the others are added to `bad`."""
        if self.target is None:
            return batch
        try:
            self.target.refuse(batch)
        except DataError:
            kept = []
            for number, row in batch:
                try:
                    self.target.refuse([(number, row)])
                except DataError as error:
                    self._refuse(self.url, f"row {number}", number, error, bad)
                else:
                    kept.append((number, row))
            return kept
        return batch

    def _refuse(self, file: str, record: str, number: int, error: FeedmillError, bad: list[Bad]) -> None:
        error.file, error.record = error.file or file, error.record or record
        if not self.skip:
            error.fix = f"{error.fix or 'Fix it.'} To skip and list such rows, add --on-error skip."
            raise error
        bad.append(bad_sample(number, f"{file.rpartition('/')[2]}, {record}", f"{error.what} ({error.kind})"))


def plan_rows(source: str, destination: str, to: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    """Plan the conversion of rows.

    Raises:
        ConfigError: an option is invalid for this source. Other errors are those of opening the source.
    """
    opened.cache_clear()
    is_file = is_one_file(destination, to)
    keeps, table = targets()[to].keeps, targets()[to].form == "table"
    reads = RowSource(source, options.split, tuple(options.fields), skips(options.on_error))
    stems: tuple[str, ...] = ()
    plan = Preview("rows", source, destination, kind, to)
    splits: LineSplits | None = None
    identity: dict[str, Any] = {"source": source, "kind": kind, "to": to}
    if kind == "jsonl" and skips(options.on_error):
        kind = "documents"  # read line by line, so that an invalid line can be skipped
    if kind == "documents":
        if options.split is not None and plan.kind == "jsonl":
            raise ConfigError(
                "files of JSON lines have no splits if invalid lines are skipped",
                file=source,
                fix="Omit --split, or remove invalid lines with 'feedmill edit repair' first.",
            )
        tree, files = line_files(source)
        known = FolderSplits(splits_in([file.path for file in files]))
        if tree == source:
            known = folder_splits(open_store(tree), LINE_SUFFIXES)
        if options.split is not None:
            if options.split not in known.files:
                raise unknown_split(source, options.split, known)
            files = [file for file in files if file.path in known.files[options.split]]
        elif known.files and is_file:
            plan.losses.append(Loss(f"the splits {named(known.files)}: all rows are combined; select one with --split"))
        divided = [f.path for f in files if open_store(tree).exists(jsonl_splits.splits_name(f.path))]
        if divided:
            kept = "kept only if one .jsonl becomes one .jsonl or a prepared folder, without --on-error skip"
            plan.losses.append(Loss(f"the splits of {named(divided)} ({kept})"))
        reads = replace(reads, tree=tree)
        stems = tuple(stem(f.path) for f in files)
        units = [Unit(n, (f.path, 0, 0)) for n, f in enumerate(files)]
        _unique(files, source)
        identity["files"] = [[f.path, f.size, f.version] for f in files]
    else:
        dataset = opened(source, options.split)
        plan.count = len(dataset)
        units = _ranges(dataset, options)
        identity["fingerprint"] = dataset.fingerprint()
        if "splits" in keeps and is_file and isinstance(dataset, JsonlDataset) and options.split is None:
            splits = dataset.line_splits
            identity["splits"] = None if splits is None else {n: p.ranges for n, p in splits.parts.items()}
        plan.losses = _splits_lost(dataset, options, kept=splits is not None)
    identity |= options.identity()
    plan.outputs = 1 if is_file else len(units)
    lines = kind in ("jsonl", "documents")
    target: Target
    if table:
        settings = reads, units, options, work, identity
        types = surveyed("columns", survey_types, join_types, *settings) if lines else {}
        plan.losses += _losses_of_types(types) if types else []
        columns = Columns({}, {}, typed=True)
        target = ParquetRows(
            destination, is_file, _BATCH, columns, types, source, options.split, tuple(options.fields), stems
        )
        if not lines:
            target.check()
        reads = replace(reads, target=target if reads.skip and types else None)
    else:
        changed: Changed = {}
        if not lines:
            dataset = opened(source, options.split)
            found = known_kinds(dataset.schema, options.fields) if isinstance(dataset, TableDataset) else None
            found = found or surveyed("survey", survey_kinds, merge, reads, units, options, work, identity)
            changed, losses = changes_in("lines", found)
            texts = [name for name in types_in(getattr(dataset, "schema", None)) if wanted(name, options.fields)]
            losses += [Loss(f"types of {named(texts)}: JSON text becomes values")] if texts else []
            plan.losses += [*losses, *classes_lost(with_classes(dataset), options)]
            drop = dropped(Columns({}, changed, typed=True))
            if drop and drop >= set(names(found)):
                raise all_bytes(names(found))
            reads = replace(reads, drop=drop)
        target = LineRows(destination, is_file, to, splits, stems, frozenset(changed))
    shared = Shared(reads, target, work.folder, work.place.url)
    return Conversion(plan, units, shared, identity, noun="rows")


def _losses_of_types(types: dict[str, Any]) -> list[Loss]:
    """Return what columns of JSON rows change."""
    out = [Loss("the difference between missing names and null")]
    whole = [name for name, each in types.items() if has_number(each)]
    if whole:
        out.append(Loss(f"types of {named(whole)}: integers among floats become floats"))
    mixed = [name for name, each in types.items() if has_json(each)]
    if mixed:
        out.append(Loss(f"types of {named(mixed)}: values without a common type become JSON text"))
    lists = [n for n, each in types.items() if isinstance(each, list) and each[1] in _NUMBERS]
    if lists:
        out.append(Loss(f"types of {named(lists)}: lists of numbers become arrays"))
    return out


def _unique(files: Sequence[Any], source: str) -> None:
    seen: dict[str, str] = {}
    for file in files:
        if stem(file.path) in seen:
            raise ConfigError(
                f"{seen[stem(file.path)]!r} and {file.path!r} would become the same output",
                file=source,
                kind="name-clash",
                fix="Rename one of them.",
            )
        seen[stem(file.path)] = file.path


def _ranges(dataset: Dataset, options: Convert) -> list[Unit]:
    """Return units of consecutive rows, each within one file of the source."""
    most = options.max_shard_samples or ROWS_EACH
    if options.shard_bytes is not None and len(dataset):
        most = max(1, min(most, options.shard_bytes // max(1, mean_size(dataset))))
    counts = getattr(dataset, "counts", None)
    ends = np.cumsum(counts).tolist() if counts is not None and len(counts) else [len(dataset)]
    units: list[Unit] = []
    begin = 0
    for end in ends:
        for start in range(begin, end, most):
            stop = min(start + most, end)
            units.append(Unit(len(units), ("", start, stop), stop - start))
        begin = end
    return units


def _splits_lost(dataset: Dataset, options: Convert, *, kept: bool) -> list[Loss]:
    """Return the loss of the splits, unless they are kept."""
    if options.split is None and not kept and list(dataset.splits.values()) not in ([], [len(dataset)]):
        return [Loss(f"the splits {named(dataset.splits)}: all rows are combined; select one with --split")]
    return []


def join_types(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the merged types of several units."""
    out: dict[str, Any] = {}
    for each in found:
        out = merge_columns(out, each)
    return out


def survey_types(source: RowSource, unit: Unit) -> dict[str, Any]:
    """Return the column types of a unit's rows. Invalid rows are skipped here; the conversion handles them."""
    return columns_of(row for _, row in replace(source, skip=True).rows(unit, []))


def survey_kinds(source: RowSource, unit: Unit) -> Survey:
    """Return the kinds of the values of a unit's rows. Invalid rows are skipped here; the conversion handles them."""
    rows = replace(source, skip=True).rows(unit, [])
    return survey((number, Taken(str(number), row, typed=True)) for number, row in rows)
