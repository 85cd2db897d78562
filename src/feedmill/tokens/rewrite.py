"""Write documents of a corpus to files in a given order: the core of merge, shuffle, split and filter.

Documents are gathered in batches of bounded size from mapped files. Within a batch they are read in stored order, and
adjacent documents at once, so that a merge copies and a shuffle reads forward.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.jsonl.splits import splits_name
from feedmill.formats.offsets import hash_words
from feedmill.formats.tokens.base import Form, Int64s, Tokens
from feedmill.formats.tokens.manifest import TokenManifest, with_files, write_manifest
from feedmill.jobs.engine import need_one_machine
from feedmill.jobs.progress import Progress
from feedmill.jobs.work import Work
from feedmill.storage import Store, canonical_location, open_store, split_url
from feedmill.storage.hashed import hashed_store
from feedmill.storage.remote.claims import Claim
from feedmill.tokens.corpus import Corpus, Mapped
from feedmill.tokens.orders import Numbers
from feedmill.tokens.outputs import FORMATS, LINES, main_file, sizes_of, write_documents
from feedmill.tokens.targets import Part, higher_parts, remove_part
from feedmill.tokens.units import Spans, Units

BATCH = 2 << 20
"""Bytes of tokens gathered at once; data that stays in the processor's cache is written fastest."""
_BLOCK = 1 << 16

Mask = Callable[[Tokens, Int64s, int], npt.NDArray[np.bool_]]
"""Function that returns the loss mask, bool[tokens], from ids, lengths, and the number of the first document."""

Copy = Callable[[Iterable[tuple[int, int, int, int, int]], npt.NDArray[Any]], None]


class WrittenFile(msgspec.Struct, frozen=True):
    """A finished file: its path as given, and its numbers of documents and tokens."""

    path: str
    documents: int
    tokens: int


@dataclass
class Report:
    """Report of a verb.

    Attributes:
        verb: name of the verb.
        inputs: files read.
        outputs: files written: path, documents, tokens (bytes if documents are lines).
        documents, tokens: totals of all outputs.
        seed: seed of the order; None if nothing was drawn.
        left_out: reason -> number of dropped documents or tokens.
        notes: notes for the user.
        resumed: number of files that an earlier run had finished.
    """

    verb: str
    inputs: int
    outputs: list[WrittenFile]
    seed: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resumed: int = 0

    @property
    def documents(self) -> int:
        return sum(done.documents for done in self.outputs)

    @property
    def tokens(self) -> int:
        return sum(done.tokens for done in self.outputs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        outputs = [{"path": d.path, "documents": d.documents, "tokens": d.tokens} for d in self.outputs]
        return {**asdict(self), "outputs": outputs, "documents": self.documents, "tokens": self.tokens}


@dataclass(slots=True, kw_only=True)
class Rewriting:
    """One run of a verb; created by `start`.

    Attributes:
        identity: values that determine the output bytes.
        options: options for the manifests.
        seed: the given seed, or one drawn at the first start; `seeded`: whether it is used.
        known: files that an earlier run finished, by path; `written`: all finished files.
    """

    work: Work
    identity: Mapping[str, Any]
    corpus: Corpus
    form: Form
    options: dict[str, Any]
    seed: int
    seeded: bool
    overwrite: bool
    progress: bool | None
    known: dict[str, WrittenFile]
    written: list[WrittenFile] = field(default_factory=list)

    def write(
        self,
        units: Units,
        parts: Sequence[Part],
        *,
        mask: Mask | None = None,
        numbered: str = "",
        allow_empty: bool = False,
        left_out: dict[str, int] | None = None,
    ) -> list[WrittenFile]:
        """Write parts of the corpus, each atomically, except parts that an earlier run finished.

        Args:
            mask: returns the loss mask, instead of the masks of the corpus.
            numbered: the target with ``{part}``, if parts are numbered from 0. Higher-numbered parts of an earlier run
                are removed when the new parts are complete.
            allow_empty: accept parts without any documents.
            left_out: reason -> number of dropped documents, for the error about an empty result.

        Raises:
            EmptyResult: the parts have no documents.
            ConfigError: a target exists already, or is an input.
        """
        lines = self.form.format == LINES
        target = parts[0].path if len(parts) == 1 else numbered
        kept, noun = sum(len(part.numbers) for part in parts), "line" if lines else "document"
        refuse_empty(kept, len(units), noun, file=target or None, skipped=left_out, allow=allow_empty)
        higher = higher_parts(numbered, len(parts))
        _refuse_inputs(self.corpus, [*(part.path for part in parts), *higher])
        if not self.work.resumed:
            for store, main in (_main(path) for path in (*(part.path for part in parts), *higher)):
                if not self.overwrite and store.exists(main):
                    raise ConfigError(
                        "the file already exists",
                        file=store.locate(main),
                        kind="exists",
                        fix="Choose another file, or add --overwrite (Modalities: --file_existence_policy override).",
                    )
            self.work.begin(self.identity, seed=self.seed)  # also for a single file: its manifest is written after it
        inputs = [] if lines else self.corpus.facts()
        unit = "B" if lines else "tokens"
        with self.corpus.mapped() as mapped, Progress("writing", self.corpus.tokens, unit, self.progress) as bar:
            for part in parts:
                done = self.known.get(part.path)
                store, main = _main(part.path)
                if done is None or not store.exists(main):
                    done = self._write_part(units, part, mapped, bar, mask, inputs)
                    self.work.units.add(done.path, msgspec.json.encode(done))
                self.written.append(done)
        for path in reversed(higher):  # a killed run then finds the remaining ones
            remove_part(path, self.form.format)
        return self.written

    def _write_part(
        self, units: Units, part: Part, mapped: Mapped, bar: Progress, mask: Mask | None, inputs: list[dict[str, Any]]
    ) -> WrittenFile:
        store, main = _main(part.path)
        name, form, documents, tokens = split_url(part.path)[1], self.form, 0, 0
        view, hashes = hashed_store(store)
        with Claim(store, name), write_documents(view, name, form) as writer:
            carried = form.loss and mask is None
            for ids, lengths, loss in gathered(self.corpus, mapped, units, part.numbers, carried):
                writer.add(ids, lengths, loss if mask is None else mask(ids, lengths, documents))
                documents, tokens = documents + len(lengths), tokens + len(ids)
                bar.advance(len(ids))
            if form.format != LINES:
                manifest = _manifest(self.corpus, form, documents, tokens, inputs, self.options)
                write_manifest(store, main, manifest)  # sizes are known when the files are published
        if form.format != LINES:
            sizes = sizes_of(form.format, store, main.removesuffix(FORMATS[form.format][0]))
            write_manifest(store, main, with_files(manifest, sizes, hashes))
        return WrittenFile(part.path, documents, tokens)

    def finish(self, **fields: Any) -> Report:
        """End the job after all files are written, and return the report."""
        self.work.finish()
        shards, lines = self.corpus.shards, self.corpus.format == LINES
        notes = [f"{store.locate(shard.path)}: {remark}" for store, shard in shards for remark in shard.remarks]
        notes += [
            f"{store.locate(shard.path)}: its splits are not copied; divide the output with 'feedmill prepare FILE"
            " --split-ratio 8,1,1'"
            for store, shard in shards
            if lines and store.exists(splits_name(shard.path))
        ]
        return Report(
            self.options["verb"],
            len(shards),
            self.written,
            seed=self.seed if self.seeded else None,
            resumed=len(self.known),
            notes=notes,
            **fields,
        )


@contextlib.contextmanager
def start(
    target: str,
    corpus: Corpus,
    form: Form,
    options: dict[str, Any],
    *,
    seed: int | None = None,
    seeded: bool = True,
    overwrite: bool = False,
    progress: bool | None = None,
    **more: Any,
) -> Iterator[Rewriting]:
    """Lock the target for a run of a verb; nothing is written yet.

    To resume a killed run, repeat the call: the journal has its seed and finished files.

    Args:
        options: the verb and other options for the manifests.
        seed: seed of the order; None draws one. It is used and reported only if `seeded`.
        overwrite: replace existing files.
        progress: whether to show a progress bar, see `Progress`.
        more: further values that determine the output bytes and are not in manifests.

    Raises:
        ConfigError: the target is an input, another unfinished job writes there, or a number has more than 64 bits.
        StorageError: another process is writing there (kind ``busy``).
    """
    _refuse_inputs(corpus, [target])
    need_one_machine("one process writes the documents of token files in order")
    seed = seed if seeded else 0
    facts = {"inputs": corpus.facts(), "form": asdict(form), "target": target, **options, **more, "seed": seed}
    try:
        text = orjson.dumps(facts, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"invalid option ({error})", kind="bad-number", fix="Use smaller numbers.") from None
    folder, name = split_url(target)
    identity = {"verb": "rewrite", "job": hash_words([text])}
    with Work(open_store(folder), name) as work:
        work.refuse_other(identity, overwrite=overwrite)
        known = {}
        if work.is_of(identity):
            work.begin(identity)
            for path, noted in work.units.read().items():
                with contextlib.suppress(msgspec.MsgspecError):
                    known[path] = msgspec.json.decode(noted, type=WrittenFile)
        seed = work.noted.get("seed", seed) if work.resumed else seed
        seed = secrets.randbits(31) if seed is None else seed
        yield Rewriting(
            work=work,
            identity=identity,
            corpus=corpus,
            form=form,
            options={**options, "seed": seed} if seeded else options,
            seed=seed,
            seeded=seeded,
            overwrite=overwrite,
            progress=progress,
            known=known,
        )


def _refuse_inputs(corpus: Corpus, targets: Sequence[str]) -> None:
    """Raise `ConfigError` if a target is also an input, under any name: it would be overwritten."""
    inputs = {_place(store.locate(main_file(shard.path))) for store, shard in corpus.shards}
    for target in targets:
        if _place(main_file(target)) in inputs:
            raise ConfigError(
                "the output is one of the inputs", file=target, fix="Choose another output.", kind="exists"
            )


def _place(path: str) -> tuple[str, str]:
    folder, name = split_url(path)
    return canonical_location(folder), name


def _main(path: str) -> tuple[Store, str]:
    """Return the path of the file that identifies a target."""
    folder, name = split_url(path)
    return open_store(folder), main_file(name)


def gathered(
    corpus: Corpus, mapped: Mapped, units: Units, numbers: Numbers, loss: bool
) -> Iterator[tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]]:
    """Yield the tokens of units in batches: concatenated ids, tokens per document, and the mask if `loss`."""
    for low in range(0, len(numbers), _BLOCK):
        block = np.asarray(numbers[low : low + _BLOCK], np.int64)
        spans = units.spans(block)
        ends = np.cumsum(spans.length)
        first = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            limit = base + BATCH // corpus.dtype.itemsize
            last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
            batch = Spans(*(column[first:last] for column in spans))
            yield (
                _gather(mapped.tokens, mapped.copy, batch, corpus.dtype),
                batch.length,
                _gather(mapped.loss, None, batch, np.dtype(np.bool_)) if loss else None,
            )
            mapped.was_read((int(ends[last - 1]) - base) * corpus.dtype.itemsize)
            first = last


def _gather(
    files: Sequence[npt.NDArray[Any]], copy: Copy | None, spans: Spans, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the concatenated tokens of spans. Adjacent spans are copied at once; one range is not copied."""
    shard, start, length = spans
    breaks = np.flatnonzero((shard[1:] != shard[:-1]) | (start[1:] != start[:-1] + length[:-1])) + 1
    first = np.concatenate(([0], breaks))
    to = np.cumsum(length) - length  # position of each span in the output
    total = int(length.sum())
    begins = start[first]
    sizes = np.add.reduceat(length, first)
    if len(first) == 1:
        piece = files[int(shard[0])][int(begins[0]) : int(begins[0]) + total]
        return piece.astype(dtype, copy=False)
    out = np.empty(total, dtype)
    order = np.lexsort((begins, shard[first]))
    columns = (shard[first], begins, begins + sizes, to[first], to[first] + sizes)
    pieces = zip(*(column[order].tolist() for column in columns), strict=True)
    if copy is not None:
        copy(pieces, out)
        return out
    for file, low, high, at, end in pieces:
        out[at:end] = files[file][low:high]
    return out


def _manifest(
    corpus: Corpus, form: Form, documents: int, tokens: int, inputs: list[dict[str, Any]], options: dict[str, Any]
) -> TokenManifest:
    known = [manifest for manifest in corpus.manifests if manifest is not None]
    ends = {(manifest.bos, manifest.eos) for manifest in known}
    bos, eos = ends.pop() if len(known) == len(corpus.manifests) and len(ends) == 1 else (None, None)
    return TokenManifest(
        form.format, documents, tokens, tokenizer=corpus.tokenizer, bos=bos, eos=eos, inputs=inputs, options=options
    )
