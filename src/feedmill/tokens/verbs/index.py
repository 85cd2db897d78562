"""Write index files next to data: Modalities' raw index of JSONL, and the bounds of a ``.pbin`` or a flat file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Where, current, key_of
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.work import alone
from feedmill.storage import Store, canonical_location, open_store, split_url
from feedmill.tokens.options import Index


@dataclass
class IndexReport(JobReport):
    """Report of `index`.

    Attributes:
        path, index: the file and its index.
        kind: ``raw`` (lines of JSONL) or ``bounds`` (documents of tokens).
        entries: number of lines or documents in the index.
        dropped: number of invalid lines that were skipped.
        bad: line, byte and reason of the first hundred of them.
    """

    path: str
    index: str
    kind: str
    entries: int
    dropped: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)


@verb(Index)
def index(options: Index) -> IndexReport:
    """Bounds are written next to their file. A dry run reads the lines, to find invalid ones.

    Raises:
        ConfigError: the index exists, or the file has another format.
        DataError: a line is not JSON, or the file is corrupt.
    """
    path = os.fspath(options.path)
    output = None if options.output is None else os.fspath(options.output)
    skip_bad = skips(on_error_policy(options.on_error))
    _, name = split_url(path)
    if name.endswith(".pbin"):
        return _index_pbin(path, output)
    if options.eos is not None or name.endswith((".bin", ".npy")):
        return _index_flat(path, output, options)
    if not name.endswith(".jsonl") and output is None:
        raise ConfigError(
            "only JSONL, .pbin and flat token files can be indexed",
            file=path,
            kind="unknown-format",
            fix="For lines of JSON in a file of another name, say where the index goes (--output); for tar shards and"
            " Energon's .jsonl.idx there is 'feedmill prepare'.",
        )
    return _index_lines(path, output, options, skip_bad=skip_bad)


def _index_pbin(path: str, output: str | None) -> IndexReport:
    """Write the bounds of documents of a ``.pbin``; always, as they are the same at any time."""
    from feedmill.formats.tokens.manifest import bounds_path
    from feedmill.formats.tokens.pbin import documents_of, write_bounds

    folder, name = split_url(path)
    store = open_store(folder)
    if output is not None:
        raise ConfigError("bounds are always written next to their file", file=output, fix="Omit --output.")
    bounds = bounds_path(name)

    def execute() -> IndexReport:
        with alone(store, bounds) as work:
            where = Where("indexing", key_of(store.locate(name), store.stat(name).version), work)
            (entries,) = run(partial(write_bounds, store), [name], where=where)
        return IndexReport(path, store.locate(bounds), "bounds", entries)

    return perform(lambda dry: _planned(dry, store, name, bounds, "bounds", documents_of(store, name)), execute)


def _index_lines(path: str, output: str | None, options: Index, *, skip_bad: bool) -> IndexReport:
    """Write the raw index of a file of JSON lines. Raises as `index`."""
    workers, progress = options.workers, options.progress
    from feedmill.formats.tokens.pbin import write_pairs
    from feedmill.formats.tokens.raw_index import index_lines, raw_index_path

    folder, name = split_url(path)
    store = open_store(folder)
    target = output or store.locate(raw_index_path(name))
    out_folder, out_name = split_url(target)
    out_store = open_store(out_folder)
    if (canonical_location(out_folder), out_name) == (canonical_location(folder), name):
        raise ConfigError("the index would replace the file itself", file=target, fix="Pass another --output.")
    if not options.overwrite and out_store.exists(out_name):
        raise ConfigError(
            "the index already exists",
            file=target,
            kind="exists",
            fix="Add --overwrite (Modalities: --file_existence_policy override) to replace it.",
        )
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress("indexing", store.stat(name).size, "B", progress))
        shared = None if current() is None else stack.enter_context(alone(out_store, out_name))
        found = index_lines(store, name, drop=skip_bad, workers=workers, progress=bar, folder=shared)
        bad = [line._asdict() for line in found.bad]
        lines = len(found.starts)

        def execute() -> IndexReport:
            with out_store.write(out_name) as file:
                write_pairs(file, found.starts, found.lengths)
            return IndexReport(path, target, "raw", lines)

        report = perform(lambda dry: _planned(dry, store, name, out_name, "raw", lines, out_store), execute)
    return replace(report, path=path, index=target, dropped=found.dropped, bad=bad)


def _planned(
    dry: DryRun, store: Store, name: str, index: str, kind: str, entries: int, out: Store | None = None
) -> IndexReport:
    """Add an index to a dry run; return the expected report."""
    out = out or store
    dry.reads([store.stat(name).size])
    dry.writes(out, index)
    dry.counts["lines" if kind == "raw" else "documents"] = entries
    return IndexReport(store.locate(name), out.locate(index), kind, entries)


def _index_flat(path: str, output: str | None, options: Index) -> IndexReport:
    """Write the bounds of documents of a flat token file. Raises as `index`."""
    eos, token_size, vocab_size = options.eos, options.token_size, options.vocab_size
    from feedmill.formats.tokens.flat_files import flat_bounds, is_flat, write_flat_bounds
    from feedmill.formats.tokens.manifest import bounds_path

    folder, name = split_url(path)
    store = open_store(folder)
    store.stat(name)  # raises if there is no such file
    if output is not None:
        raise ConfigError("bounds are always written next to their file", file=output, fix="Omit --output.")
    if not name.endswith((".bin", ".npy")) or not is_flat(store, name):
        raise ConfigError(
            "this is not a flat token file: it has another suffix, or an index of documents beside it",
            file=path,
            kind="unknown-format",
            fix="Omit --eos-id, or pass a .bin or .npy without .idx or .csv.gz.",
        )
    if eos is None:
        raise ConfigError(
            "the id of the end-of-text token is missing",
            file=path,
            kind="unknown-token",
            fix="Pass --eos-id, 50256 for GPT-2's tokenizer.",
        )
    bounds = bounds_path(name)
    if store.exists(bounds) and not options.overwrite:
        raise ConfigError(
            "the index already exists", file=store.locate(bounds), kind="exists", fix="Add --overwrite to replace it."
        )
    sizes: dict[str, Any] = {"token_size": token_size, "vocab_size": vocab_size}
    return perform(
        lambda dry: _planned(dry, store, name, bounds, "bounds", len(flat_bounds(store, name, eos, **sizes)[1]) - 1),
        lambda: IndexReport(path, store.locate(bounds), "bounds", write_flat_bounds(store, name, eos, **sizes)),
    )
