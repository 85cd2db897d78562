"""Convert token files between formats: the same documents, one output per file. Tokens are never detokenized.

The target is token files, or fixed-length sequences in VLA Foundry's tars.

Rows with a column of token ids (`feedmill.formats.tokens.rows`) are one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.converting import vlatext
from feedmill.converting.engine import Conversion
from feedmill.converting.job import Bad, ConvertWork, Done
from feedmill.converting.options import Convert
from feedmill.converting.preview import Loss, Preview, named
from feedmill.converting.units import Add, Hashed, Shared, Source, Target, Unit, Written
from feedmill.documents.lineage.samples import StoredRows, add_samples
from feedmill.documents.lineage.sidecar import Origins, Runs, lineage_path, sequences_of
from feedmill.errors import ConfigError, DataError
from feedmill.formats.format import TOKENS
from feedmill.formats.registry import by_name, targets
from feedmill.formats.sniff import open_raw, sniff
from feedmill.formats.tokens.base import Form, Int64s, Tokens
from feedmill.formats.tokens.levanter import LevanterCache
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path
from feedmill.formats.tokens.rows import TokenRows
from feedmill.formats.tokens.vla_text import MANIFEST, SEQUENCES, shard_files, write_vla_text
from feedmill.samples.open import token_column
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.tokens.corpus import SUFFIXES, Corpus, Documents, gathered, main_file, open_corpus
from feedmill.tokens.outputs import FORMATS, NewFile, new_file

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


ENDINGS = {name: target.strip[-1] for name, target in targets().items() if target.form == "tokens"}
"""Suffix of the tokens of each format."""
Batch = tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]
"""Concatenated token ids, number of tokens of each document, and the loss mask of the ids or None."""


@dataclass(frozen=True, slots=True)
class TokenFiles(Target):
    """A token file with its index and manifest per unit.

    Attributes:
        kind: format of the source.
        form: how documents are stored.
    """

    kind: str
    form: Form
    keeps_empty: ClassVar[bool] = True

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        name, ending = unit.what[1], ENDINGS[self.form.format]
        return main_file(name if name.endswith(ending) else name + ending)

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. The manifest keeps the tokenizer of the source."""

        def add(item: Batch) -> Sequence[bytes]:
            file.add(*item)
            return document_hashes(item)

        def manifest(file: NewFile) -> TokenManifest:
            return self._manifest(unit.what[0], file.documents, file.tokens)

        with new_file(store, path, self.form, lambda: None, manifest) as file:
            yield add

    def _manifest(self, source: str, documents: int, tokens: int) -> TokenManifest:
        corpus = corpus_of(source, None) if source and self.kind != "vla-text" else None
        known = corpus.manifests[0] if corpus is not None else None
        return TokenManifest(
            self.form.format,
            documents,
            tokens,
            tokenizer=None if known is None else known.tokenizer,
            bos=None if known is None else known.bos,
            eos=None if known is None else known.eos,
            inputs=[] if corpus is None else [_input(fact) for fact in corpus.facts()],
            options={"verb": "convert", "from": self.kind},
        )

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:
        """See `Target`."""
        return [file for unit in units for file in self._files(self.path(unit))], ""

    def _files(self, path: str) -> list[str]:
        stem = path.rpartition(".")[0]
        return [*(stem + suffix for suffix in FORMATS[self.form.format]), manifest_path(path)]

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        return [file for each in done for file in self._files(each.path) if store.exists(file)]

    def lineage(self, path: str) -> str:
        """See `Target`."""
        return lineage_path(path)

    def read_back(self, written: Written) -> Hashed:
        """See `Target`."""
        url = join_url(self.destination, written.done.path)
        corpus = open_corpus([url], mixed=True)
        if self.form.loss and not corpus.has_loss:
            raise DataError("the loss mask is missing", file=url, kind="verification-failed")
        for batch in read_corpus(corpus, loss=self.form.loss):
            yield document_hashes(batch), ()

    def record(self, written: Written, number: int) -> str:  # noqa: ARG002
        """See `Target`."""
        return f"document {number}"


@dataclass(frozen=True, slots=True)
class Sequences(Target):
    """Concatenated documents in fixed-length sequences, as ``vla-text``.

    Attributes:
        length: tokens per sequence, including the last one, which is only a target.
        per_shard: sequences per shard.
    """

    length: int
    per_shard: int
    keeps_empty: ClassVar[bool] = True

    def path(self, unit: Unit) -> str:  # noqa: ARG002
        """See `Target`."""
        return MANIFEST

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. Tokens after the last complete sequence are dropped, with a note."""
        rest: Tokens = np.zeros(0, np.int64)

        def add(item: Batch) -> Sequence[bytes]:
            nonlocal rest
            tokens, lengths, _ = item
            writer.add(tokens, lengths)
            together = np.concatenate((rest, tokens.astype(np.int64)))
            count = len(together) // self.length
            rest = together[count * self.length :]
            return document_hashes((together[: count * self.length], np.full(count, self.length, np.int64), None))

        folder, name = split_url(self.destination)
        with write_vla_text(open_store(folder), name, self.length, self.per_shard) as writer:
            yield add
        if len(rest):
            extra["notes"] = [f"{len(rest):,} tokens after the last sequence are dropped"]

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        return [MANIFEST], r"shard-\d+\.tar"

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        folder, name = split_url(self.destination)
        return [*(path.removeprefix(f"{name}/") for path in shard_files(open_store(folder), name)), MANIFEST]

    def lineage(self, path: str) -> str:
        """See `Target`."""
        return lineage_path(path)

    def sequences(self, source: Source, done: Done) -> tuple[int, Int64s]:
        """See `Target`."""
        return done.samples, sequences_of(source.lengths(), self.length)

    def read_back(self, written: Written) -> Hashed:  # noqa: ARG002
        """See `Target`."""
        for batch in read_sequences(self.destination):
            yield document_hashes(batch), ()

    def record(self, written: Written, number: int) -> str:  # noqa: ARG002
        """See `Target`."""
        return f"document {number}"


def _input(fact: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest entry of a source file, without facts that differ between copies of it."""
    return {"path": fact["path"].rpartition("/")[2], "bytes": fact["bytes"], "documents": fact["documents"]}


@lru_cache(64)
def corpus_of(url: str, token_size: int | None) -> Corpus:
    """Return the documents of a file or folder. It is opened once per process."""
    return open_corpus([url], token_size=token_size, mixed=True)


def read_corpus(corpus: Corpus, *, loss: bool) -> Iterator[Batch]:
    """Yield the documents of a corpus in order, in batches."""
    units = Documents(corpus)
    with corpus.mapped() as mapped:
        yield from gathered(corpus, mapped, units, range(len(units)), loss)


def read_sequences(url: str, beside: frozenset[str] = frozenset()) -> Iterator[Batch]:
    """Yield the sequences of ``vla-text`` as documents, in batches. The parts `beside` the ids are skipped."""
    for sequences in vlatext.sequences_of(url, beside):
        yield np.concatenate(sequences), np.asarray([len(s) for s in sequences], np.int64), None


def document_hashes(batch: Batch) -> list[bytes]:
    """Return the xxh3-128 digest of each document: its ids as 32 bits, and its loss mask if any. 16 bytes each."""
    tokens, lengths, loss = batch
    ids = np.ascontiguousarray(tokens, "<u4").view(np.uint8).data
    ends = np.cumsum(lengths).tolist()
    out = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        hasher = xxhash.xxh3_128(ids[4 * start : 4 * end])
        if loss is not None:
            hasher.update(b"\0")
            hasher.update(np.packbits(loss[start:end]).tobytes())
        out.append(hasher.digest())
    return out
