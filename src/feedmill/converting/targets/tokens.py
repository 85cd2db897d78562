"""Write tokenized documents as token files, or as fixed-length sequences in VLA Foundry's tars."""

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
from feedmill.converting.job import Done
from feedmill.converting.units import Add, Hashed, Source, Target, Unit, Written
from feedmill.documents.lineage.sidecar import lineage_path, sequences_of
from feedmill.errors import DataError
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form, Int64s, Tokens
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path
from feedmill.formats.tokens.vla_text import MANIFEST, shard_files, write_vla_text
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.tokens.corpus import Corpus, Documents, gathered, open_corpus
from feedmill.tokens.outputs import FORMATS, main_file
from feedmill.tokens.writer import NewFile, new_file

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
