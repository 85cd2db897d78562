"""Rows of named values: JSON lines (a file, or a tree), Parquet, Hugging Face's datasets; to lines or Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from feedmill.converting.engine import Conversion, Different, Unit, Written, compare
from feedmill.converting.finishing import join, join_parquet
from feedmill.converting.job import Bad, ConvertWork, Done, bad_sample, read_hashes, write_hashes
from feedmill.converting.jsontypes import (
    canonical,
    columns_of,
    fit,
    has_json,
    merge_columns,
    schema_of,
    types_in,
    unfit,
    weight,
)
from feedmill.converting.lines import FileRange, Line, line_files, parse, rows_in, stem
from feedmill.converting.plan import Loss, Options, Plan, named
from feedmill.converting.reading import read_each, refuse_twofold_columns
from feedmill.converting.said import described
from feedmill.converting.shards import arrow_table
from feedmill.converting.table import is_one_file
from feedmill.converting.taking import KEY, digest, simple
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats import jsonl, jsonl_splits
from feedmill.formats.base import Dataset
from feedmill.formats.documents import rows_of as split_lines
from feedmill.formats.documents import whole_lines, write_rows
from feedmill.formats.jsonl import JsonlDataset
from feedmill.formats.jsonl_splits import LineSplits
from feedmill.formats.rows import RowSample
from feedmill.formats.sniff import open_raw
from feedmill.formats.tables import TableDataset
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.samples.encode import encode_json
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.storage.codec import compression, unpacked
from feedmill.storage.local import LocalStore

ROWS_EACH = 100_000
_BATCH = 1024
_GROUP_BYTES = 32 << 20

Rows = list[tuple[int, dict[str, Any]]]
"""Rows with their numbers."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What every process needs.

    Attributes:
        tree: the folder of a tree of lines; empty where the source is opened as a dataset.
        columns: of Parquet that is made of JSON: name -> type.
        drop: columns that are left out.
        piece: whether outputs are pieces of one file, and lie in the folder of the job.
    """

    source: str
    split: str | None
    destination: str
    to: str
    fields: tuple[str, ...]
    skip: bool
    folder: str
    notes: str
    piece: bool
    tree: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()


@lru_cache(8)
def opened(source: str, split: str | None) -> Dataset:
    """A dataset, undecoded, once for each process."""
    return open_raw(source, split=split)[0]


def plan_rows(source: str, destination: str, to: str, kind: str, options: Options, work: ConvertWork) -> Conversion:
    """The conversion of rows. Raises as opening the source does, and `ConfigError` for options that are invalid."""
    opened.cache_clear()
    is_file = is_one_file(destination, to)
    shared = Shared(
        source,
        options.split,
        destination,
        to,
        options.fields,
        options.on_error == "skip",
        work.folder,
        work.place.url,
        is_file,
    )
    plan = Plan("rows", source, destination, kind, to)
    splits: LineSplits | None = None
    identity: dict[str, Any] = {"source": source, "kind": kind, "to": to}
    if kind == "jsonl" and options.on_error == "skip":
        kind = "documents"  # read line by line, where a bad one can be passed over
    if kind == "documents":
        if options.split is not None:
            raise ConfigError(
                "files of JSON lines have no splits"
                + (" where bad lines are left out" if plan.kind == "jsonl" else ""),
                file=source,
                fix="Leave --split out"
                + (", or take bad lines out with 'feedmill repair' first." if plan.kind == "jsonl" else "."),
            )
        tree, files = line_files(source)
        divided = [f.path for f in files if open_store(tree).exists(jsonl_splits.splits_name(f.path))]
        if divided:
            kept = "kept where a .jsonl becomes one .jsonl or a prepared folder, and no bad line is left out"
            plan.losses.append(Loss(f"the splits of {named(divided)} ({kept})"))
        shared = replace(shared, tree=tree)
        units = [Unit(n, (f.path, 0, 0)) for n, f in enumerate(files)]
        _unique(files, source)
        identity["files"] = [[f.path, f.size, f.version] for f in files]
    else:
        dataset = opened(source, options.split)
        refuse_twofold_columns(dataset)
        plan.count = len(dataset)
        units = _ranges(dataset, options)
        identity["fingerprint"] = dataset.fingerprint()
        if to == "jsonl" and is_file and isinstance(dataset, JsonlDataset) and options.split is None:
            splits = dataset.line_splits
            identity["splits"] = None if splits is None else {n: p.ranges for n, p in splits.parts.items()}
        plan.losses, drop = _said(dataset, to, options, kept=splits is not None)
        shared = replace(shared, drop=drop)
    identity |= options.identity()
    plan.outputs = 1 if is_file else len(units)
    if to == "parquet" and kind in ("jsonl", "documents"):
        columns = _surveyed(shared, units, options, work, identity)
        identity["columns"] = columns
        shared = replace(shared, columns=columns)
        mixed = [name for name, each in columns.items() if has_json(each)]
        plan.losses.append(Loss("absent names and null are one; whole numbers may become floats"))
        if mixed:
            plan.losses.append(Loss(f"one type for {named(mixed)}: what has none is text of JSON there"))
    finish = partial(_finish, shared, splits)
    writes = ([] if is_file else [output_path(shared, unit) for unit in units], "")
    return Conversion(plan, units, convert_unit, shared, identity, finish, check_unit, writes, is_file, "rows")


def _unique(files: Sequence[Any], source: str) -> None:
    seen: dict[str, str] = {}
    for file in files:
        if stem(file.path) in seen:
            raise ConfigError(
                f"{seen[stem(file.path)]!r} and {file.path!r} would have one name",
                file=source,
                kind="name-clash",
                fix="Rename one of them.",
            )
        seen[stem(file.path)] = file.path


def _ranges(dataset: Dataset, options: Options) -> list[Unit]:
    """Runs of rows, each within one file of the source."""
    most = options.samples_per_shard or ROWS_EACH
    if options.shard_size is not None and len(dataset):
        mean = int(described(dataset).get("bytes") or 0) // len(dataset)
        most = max(1, min(most, options.shard_size // max(1, mean)))
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


def _said(dataset: Dataset, to: str, options: Options, *, kept: bool) -> tuple[list[Loss], frozenset[str]]:
    """What is lost of a table or of lines, and the columns that are left out for it; `kept` are its splits."""
    losses = []
    if options.split is None and not kept and list(dataset.splits.values()) not in ([], [len(dataset)]):
        losses.append(Loss(f"the splits {named(dataset.splits)}: all rows stand together; take one with --split"))
    if not isinstance(dataset, TableDataset) or to == "parquet" or dataset.schema is None:
        return losses, frozenset()
    taken = [f for f in dataset.schema if _wanted(f.name, options.fields)]
    binary = [f.name for f in taken if "binary" in str(f.type)]
    if binary:
        fix = "Take other columns with --fields, or convert to another format: JSON has no place for bytes."
        losses.append(Loss(f"the bytes of {named(binary)}", content=True, fix=fix))
    if any(word in str(f.type) for f in taken for word in ("timestamp", "date", "time", "decimal", "duration")):
        losses.append(Loss("moments and decimals become text"))
    return losses, frozenset(binary)


def _wanted(name: str, fields: Sequence[str]) -> bool:
    return not fields or any(fnmatchcase(name, pattern) for pattern in fields)


def _surveyed(
    shared: Shared, units: Sequence[Unit], options: Options, work: ConvertWork, identity: dict[str, Any]
) -> dict[str, Any]:
    """The types of all columns; noted, so that going on with a conversion does not read everything again."""
    import orjson

    begun = work.identity()
    known = begun.pop("columns", None)
    if known is not None and begun == orjson.loads(orjson.dumps(identity)):
        return dict(known)
    out: dict[str, Any] = {}
    with Progress("looking at", len(units), "files", enabled=options.progress) as bar:
        found = run(
            survey_unit, units, workers=options.workers, preload=(__name__,), policy=Policy(shared=shared), progress=bar
        )
        with closing(found):
            for each in found:
                out = merge_columns(out, each)
    return out


def survey_unit(shared: Shared, unit: Unit) -> dict[str, Any]:
    """The types of the columns of a unit's rows; bad rows are left to the conversion itself."""
    return columns_of(row for _, row in rows_of(replace(shared, skip=True), unit, []))


def rows_of(shared: Shared, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and values of each row of a unit; a bad one is entered in `bad`, or raised."""
    for number, row in _tree_rows(shared, unit, bad) if shared.tree else _set_rows(shared, unit, bad):
        if shared.fields or shared.drop:
            row = {n: v for n, v in row.items() if _wanted(n, shared.fields) and n not in shared.drop}
        yield number, row


def _tree_rows(shared: Shared, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
    path = unit.what[0]
    for number, line in rows_in(shared.tree, path):
        try:
            yield number, parse(line)
        except DataError as error:
            _refuse(shared, open_store(shared.tree).locate(path), f"line {number + 1}", number, error, bad)


def _set_rows(shared: Shared, unit: Unit, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
    dataset = opened(shared.source, shared.split)
    _, start, stop = unit.what
    for low in range(start, stop, _BATCH):
        for number, sample in read_each(dataset, range(low, min(low + _BATCH, stop))):
            if isinstance(sample, FeedmillError):
                _refuse(shared, dataset.url, f"row {number}", number, sample, bad)
                continue
            try:
                yield number, row_of(dataset, sample)
            except (DataError, NotFound) as error:
                _refuse(shared, dataset.url, f"row {number}", number, error, bad)


def row_of(dataset: Dataset, sample: Any) -> dict[str, Any]:
    """The values of a sample, as JSON knows them."""
    if not isinstance(sample, RowSample):
        return parse(sample.raw("json"))
    types = types_in(getattr(dataset, "schema", None))
    row = {n: unfit(v, types[n]) if n in types else simple(v) for n, v in sample.row.items()}
    return {KEY: sample.key, **row} if getattr(dataset, "key_column", None) == KEY else row


def _refuse(shared: Shared, file: str, record: str, number: int, error: FeedmillError, bad: list[Bad]) -> None:
    error.file, error.record = error.file or file, error.record or record
    if not shared.skip:
        error.fix = f"{error.fix or 'Fix it.'} To leave such rows out and have them listed: --on-error skip."
        raise error
    bad.append(bad_sample(number, f"{file.rpartition('/')[2]}, {record}", f"{error.what} ({error.kind})"))


def row_digest(row: Mapping[str, Any]) -> bytes:
    """The hash of a row: of its values, whatever their order."""
    return digest("", {"row": encode_json(canonical(simple(dict(row))))})


def output_path(shared: Shared, unit: Unit) -> str:
    """Where the rows of a unit go; in the folder of the job for a piece."""
    if shared.piece:
        return f"{unit.number:06d}.piece"
    return f"{stem(unit.what[0]) if shared.tree else f'part-{unit.number:06d}'}.{shared.to}"


def convert_unit(shared: Shared, unit: Unit) -> Done:
    """Write one output, and note it."""
    store: Store = LocalStore(shared.folder) if shared.piece else open_store(shared.destination)
    path = output_path(shared, unit)
    bad: list[Bad] = []
    hashes: list[bytes] = []
    with ExitStack() as stack:
        write = None
        for batch in _batches(shared, unit, bad):
            if shared.skip and shared.columns:
                batch = _storable(shared, batch, bad)
            write = write or _writer(stack, shared, store, path)
            hashes += [row_digest(row) for _, row in batch]
            write(batch)
    done = Done(unit.number, "", 0, "", 0, bad)
    if hashes:
        entry = store.stat(path)
        place = f"{shared.folder}/{path}" if shared.piece else path
        done = Done(unit.number, place, entry.size, entry.version, len(hashes), bad)
    write_hashes(shared.notes, done.number, b"".join(hashes))
    return done


def _batches(shared: Shared, unit: Unit, bad: list[Bad]) -> Iterator[Rows]:
    """The rows of a unit with their numbers, some at a time."""
    batch: Rows = []
    size = 0
    for number, row in rows_of(shared, unit, bad):
        batch.append((number, row))
        size += weight(row)
        if size >= _GROUP_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _writer(stack: ExitStack, shared: Shared, store: Store, path: str) -> Any:
    """A function that writes rows, given with their numbers."""
    if shared.to != "parquet":
        lines = stack.enter_context(write_rows(store, path, kind=compression(f"x.{shared.to}")))
        return lambda rows: lines([row.line if isinstance(row, Line) else encode_json(row) for _, row in rows])
    import pyarrow.parquet as pq

    columns = shared.columns
    schema = schema_of(columns) if columns else _kept_schema(shared)
    file = stack.enter_context(store.write(path))
    writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True))

    def write(rows: Rows) -> None:
        if columns:
            writer.write_table(_table(columns, schema, rows, shared.source))
            return
        dataset = opened(shared.source, shared.split)
        assert isinstance(dataset, TableDataset)
        writer.write_table(dataset.arrow_rows([number for number, _ in rows]).select(schema.names).cast(schema))

    return write


def _table(columns: Mapping[str, Any], schema: Any, rows: Rows, source: str) -> Any:
    try:
        fitted = [{n: fit(v, columns[n]) for n, v in row.items()} for _, row in rows]
    except KeyError as error:
        raise DataError(
            f"the name {error} was not there when the source was surveyed",
            file=source,
            kind="changed",
            fix="The source changed meanwhile: run it again with --overwrite.",
        ) from None
    return arrow_table(fitted, schema, source)


def _storable(shared: Shared, batch: Rows, bad: list[Bad]) -> Rows:
    """The rows of a batch that the columns can hold; others are entered in `bad`."""
    schema = schema_of(shared.columns)
    try:
        _table(shared.columns, schema, batch, shared.source)
    except DataError:
        kept = []
        for number, row in batch:
            try:
                _table(shared.columns, schema, [(number, row)], shared.source)
            except DataError as error:
                _refuse(shared, shared.source, f"row {number}", number, error, bad)
            else:
                kept.append((number, row))
        return kept
    return batch


def _kept_schema(shared: Shared) -> Any:
    """The columns of a table that are taken, as they are."""
    dataset = opened(shared.source, shared.split)
    assert isinstance(dataset, TableDataset) and dataset.schema is not None
    import pyarrow as pa

    kept = [f for f in dataset.schema if _wanted(f.name, shared.fields)]
    return pa.schema(kept, metadata=dataset.schema.metadata)


def _finish(shared: Shared, splits: LineSplits | None, store: Store, done: Sequence[Done]) -> list[str]:
    paths = [each.path for each in done if each.samples]
    if not shared.piece:
        return paths
    _, name = split_url(shared.destination)
    if shared.to == "parquet":
        join_parquet(store, name, paths)
        return [name]
    join(store, name, paths)
    if shared.to == "jsonl":
        offsets = jsonl.write_index(store, name)
        if splits is None:
            return [name, jsonl.idx_name(name)]
        jsonl_splits.write_splits(store, name, splits.moved(offsets))
        return [name, jsonl.idx_name(name), jsonl_splits.splits_name(name)]
    return [name]


def check_unit(shared: Shared, item: Written) -> Different | None:
    """Read an output back through the destination's own reader, and compare."""
    done, first, at = item
    wanted = read_hashes(shared.notes, done.number)
    rows = _read_table(shared, done, first) if shared.to == "parquet" else _read_lines(shared, done, at)
    low = 0
    while batch := list(islice(rows, _BATCH)):
        found = compare(wanted[low : low + len(batch)], [row_digest(row) for row in batch], [""] * len(batch))
        if found is not None:
            return Different(low + found.number, f"row {first + low + found.number}")
        low += len(batch)
    return None if low == done.samples else Different(low, f"row {first + low}")


def _read_lines(shared: Shared, done: Done, at: int) -> Iterator[dict[str, Any]]:
    """The rows of a file of lines, or of the part of one that a piece has become."""
    if not shared.piece:
        for _, line in rows_in(shared.destination, done.path):
            yield parse(line)
        return
    folder, name = split_url(shared.destination)
    raw = io.BufferedReader(FileRange(open_store(folder), name, at, at + done.size), 1 << 20)
    with unpacked(raw, compression(name), file=shared.destination) as stream:
        for lines in whole_lines(stream):
            yield from map(parse, split_lines(lines))


def _read_table(shared: Shared, done: Done, first: int) -> Iterator[dict[str, Any]]:
    if not shared.piece:
        first = 0
    dataset = opened(shared.destination if shared.piece else join_url(shared.destination, done.path), None)
    for low in range(first, first + done.samples, _BATCH):
        high = min(low + _BATCH, first + done.samples, len(dataset))
        for sample in dataset.read_raw(range(low, high)) if low < high else []:
            yield row_of(dataset, sample)
