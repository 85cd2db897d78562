"""Convert token files between formats: the same documents, one output per file. Tokens are never detokenized.

Rows with a column of token ids (`feedmill.formats.tokens.rows`) are one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from feedmill.converting import vlatext
from feedmill.converting.engine import Conversion
from feedmill.converting.job import Bad, ConvertWork, Done
from feedmill.converting.options import Convert
from feedmill.converting.preview import Loss, Preview, named
from feedmill.converting.targets.tokens import (
    ENDINGS,
    Batch,
    Sequences,
    TokenFiles,
    corpus_of,
    read_corpus,
    read_sequences,
)
from feedmill.converting.units import Shared, Source, Target, Unit
from feedmill.documents.lineage.samples import StoredRows, add_samples
from feedmill.documents.lineage.sidecar import Origins, Runs
from feedmill.errors import ConfigError
from feedmill.formats.format import TOKENS
from feedmill.formats.registry import by_name, targets
from feedmill.formats.sniff import open_raw, sniff
from feedmill.formats.tokens.base import Form, Int64s
from feedmill.formats.tokens.levanter import LevanterCache
from feedmill.formats.tokens.rows import TokenRows
from feedmill.formats.tokens.vla_text import SEQUENCES
from feedmill.samples.open import token_column
from feedmill.storage import open_store
from feedmill.tokens.corpus import Corpus, Documents, open_corpus
from feedmill.tokens.outputs import SUFFIXES

ROWS = "rows"
_TOGETHER = 1 << 20
_BATCH = 4096


@dataclass(frozen=True, slots=True)
class TokenSource(Source):
    """The documents of token files.

    Attributes:
        url, kind: the source and its format.
        loss: whether the loss masks are kept.
        beside: parts next to the ids in a ``vla-text`` source, which are skipped.
    """

    url: str
    kind: str
    loss: bool
    beside: frozenset[str] = frozenset()

    def read(self, unit: Unit, bad: list[Bad]) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the documents of a file of the source; of the whole source if the unit's path is empty."""
        if self.kind == "vla-text":
            yield from read_sequences(self.url, self.beside)
            return
        if self.kind == ROWS:
            yield from _read_rows(self.url, self.loss)
            return
        path = unit.what[0]
        corpus = corpus_of(path or self.url, None if path else _largest(self.url))
        yield from read_corpus(corpus, loss=self.loss)

    def add_origins(self, origins: Origins, unit: Unit, done: Done) -> bool:
        """See `Source`."""
        if self.kind in ("vla-text", ROWS):
            return add_samples(origins, StoredRows.of(open_raw(self.url)[0]), np.arange(done.samples))
        corpus = corpus_of(unit.what[0] or self.url, None if unit.what[0] else _largest(self.url))
        for (url, size), count in zip(corpus.main_files(), np.diff(corpus.firsts).tolist(), strict=True):
            origins.add(Runs.whole(origins.number(url, size), count))
        return True

    def lengths(self) -> Iterator[Int64s]:
        """Yield the number of tokens of the documents of the whole source, int64[n] each."""
        units = Documents(corpus_of(self.url, _largest(self.url)))
        for first in range(0, len(units), _TOGETHER):
            yield units.lengths(np.arange(first, min(first + _TOGETHER, len(units))))


def plan_tokens(source: str, destination: str, to: str, kind: str, options: Convert, work: ConvertWork) -> Conversion:
    """Plan the conversion of token files.

    Raises:
        ConfigError: an option is invalid for this source or format. Other errors are those of opening the source.
    """
    corpus_of.cache_clear()
    _refuse_options(source, to, options)
    plan = Preview("tokens", source, destination, kind, to)
    if kind == "vla":
        kind = plan.kind = "vla-text"
    identity: dict[str, Any] = {"source": source, "kind": kind, "to": to}
    identity |= options.identity()
    loss, tokenizer, size = False, None, options.token_size or 4
    beside: frozenset[str] = frozenset()
    if kind == "vla-text":
        files, plan.count, beside = vlatext.files_of(source)
        identity["files"] = files
        if beside:
            padding = " (padding tokens are kept as tokens)" if "attention_mask.pth" in beside else ""
            plan.losses.append(Loss(f"the parts {named(sorted(beside))} beside the ids{padding}", content=True))
        units = [Unit(0, ("", vlatext.name_of(source)), plan.count)]
    elif (rows := token_rows(source)) is not None:
        kind = ROWS
        identity["files"] = rows.fingerprint()
        plan.count, loss = len(rows), rows.shards[0].load_loss is not None
        tokenizer = rows.about.get("tokenizer")
        units = [Unit(0, ("", vlatext.name_of(source)), plan.count)]
        if rows.beside:
            noun = "columns" if isinstance(rows, TokenRows) else "fields"
            plan.losses.append(Loss(f"the {noun} {named(sorted(rows.beside))} beside the ids", content=True))
    else:
        corpus = open_corpus([source], token_size=options.token_size or _largest(source), mixed=True)
        identity["files"] = corpus.facts()
        plan.count = len(corpus)
        Documents(corpus)  # raises if an index is missing
        loss, size = corpus.has_loss, corpus.token_size
        tokenizer = corpus.name or (corpus.tokenizer.name if corpus.tokenizer is not None else None)
        units = _units(corpus, source, to)
    wanted = targets()[to]
    if loss and "loss" not in wanted.keeps:
        fix = "Convert to a format of documents."
        plan.losses.append(Loss("the loss masks of tokens", content=True, fix=fix))
    if kind == "dolma":
        plan.losses.append(Loss("ids and source files of the documents"))
    form = Form(to, max(size, _sizes(to)[0]), tokenizer, loss and "loss" in wanted.keeps)
    reads = TokenSource(source, kind, form.loss, beside)
    target: Target = TokenFiles(destination, False, kind, form)
    if wanted.form == "sequences":
        target = Sequences(destination, False, (options.seq_len or 0) + 1, options.max_shard_samples or SEQUENCES)
        units = [Unit(0, ("", ""), plan.count or 0)]
        fix = "Convert to another token format to keep them."
        plan.losses.append(Loss("document boundaries, and the tokens after the last sequence", content=True, fix=fix))
    plan.outputs = len(units)
    shared = Shared(reads, target, work.folder, work.place.url)
    return Conversion(plan, units, shared, identity, noun="documents")


@lru_cache(8)
def token_rows(url: str) -> TokenRows | LevanterCache | None:
    """Return the rows at a path or URL as documents of tokens; None if they have no column of token ids."""
    if is_tokens(sniff(url).kind) and sniff(url).format.flat:
        return None
    dataset, _ = open_raw(url)
    if isinstance(dataset, LevanterCache):
        return dataset
    column = token_column(dataset)
    return None if column is None else TokenRows(dataset, column)


def is_tokens(kind: str) -> bool:
    """Return whether a format is one of token files."""
    format = by_name().get(kind)
    return format is not None and format.family in TOKENS


def _read_rows(url: str, loss: bool) -> Iterator[Batch]:
    """Yield the rows as documents, in batches."""
    rows = token_rows(url)
    assert rows is not None
    shard = rows.shards[0]
    masked = loss and shard.load_loss is not None
    for low in range(0, len(rows), _BATCH):
        numbers = np.arange(low, min(low + _BATCH, len(rows)))
        lengths = np.diff(shard.bounds[low : low + len(numbers) + 1])
        spans = numbers, np.zeros(len(numbers), np.int64), lengths
        mask = np.concatenate(rows.read_loss(*spans)) if masked else None
        yield np.concatenate(rows.read_tokens(*spans)), lengths, mask


def _refuse_options(source: str, to: str, options: Convert) -> None:
    if (targets()[to].form == "sequences") != (options.seq_len is not None):
        raise ConfigError(
            "--seq-len is required for 'vla-text', and unsupported for other formats",
            kind="missing-option" if options.seq_len is None else "unknown-option",
            fix="Add --seq-len N, as set in the training program." if options.seq_len is None else "Omit --seq-len.",
        )
    if options.split is not None or options.fields:
        raise ConfigError("token files have no splits or fields", file=source, fix="Omit --split and --fields.")
    if options.token_size is not None and options.token_size not in _sizes(to):
        raise ConfigError(f"{to} cannot store tokens of {options.token_size} bytes", kind="bad-token-size")


def _sizes(to: str) -> list[int]:
    """Return the token sizes that conversions write, ascending: those of the format, but 2 or 4 for Dolma."""
    return [size for size in sorted(targets()[to].token_sizes) if to != "dolma" or size > 1]


def _largest(source: str) -> int:
    """Return the largest token size of the source's files, in bytes: all outputs have the same form."""
    from feedmill.tokens.corpus import open_sets

    return min(4, max(shard.dtype.itemsize for dataset in open_sets(source) for shard in dataset.shards))


def _units(corpus: Corpus, source: str, to: str) -> list[Unit]:
    """Return a unit per file; its output has the same name with another suffix."""
    root = open_store(source).url.rstrip("/") if _is_folder(source) else ""
    units: list[Unit] = []
    seen: dict[str, str] = {}
    for number, (store, shard) in enumerate(corpus.shards):
        path = store.locate(shard.path)
        name = path.removeprefix(root + "/") if root and path.startswith(root + "/") else path.rpartition("/")[2]
        stem = name.rpartition(".")[0]
        if stem in seen:
            raise ConfigError(
                f"{seen[stem]!r} and {name!r} would become the same output",
                file=source,
                kind="name-clash",
                fix="Rename one of them.",
            )
        seen[stem] = name
        units.append(Unit(number, (path, stem + ENDINGS.get(to, "")), shard.documents or 0))
    return units


def _is_folder(source: str) -> bool:
    return not source.endswith(tuple(SUFFIXES))
