"""Tokenizing: documents of any kind into token files of any formats, in one pass.

The inputs are cut into units (`feedmill.documents.units`). Workers leave the tokens of each unit in a piece, in a
folder beside the output; the pieces are put together in order while later ones are still made. So the bytes do not
depend on the number of workers or on where units end, and a run that was killed is continued by the same command:
pieces that are whole, and belong to the same inputs, options and tokenizer, are used again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xxhash

from feedmill.documents.file import DocumentFile
from feedmill.documents.find import Found, find_documents
from feedmill.documents.units import UNIT_BYTES, cut, together
from feedmill.errors import ConfigError, EmptyResult
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest, write_manifest
from feedmill.jobs.policy import RAISE, SKIP, OnError, on_error_policy
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.unfinished import is_unfinished
from feedmill.jobs.work import Work, tidy
from feedmill.tokens.counting import Counts, in_order
from feedmill.tokens.encode import Encoding
from feedmill.tokens.outputs import Output, plan_outputs
from feedmill.tokens.pieces import read_piece
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.tokenizer import Backend, Tokenizer, load_tokenizer
from feedmill.tokens.work import EXAMPLES, Done, Recipe, Task, identity_of, offer, tasks_of, work

Rule = Literal["missing", "always"]
LossRule = Literal["mask", "datatrove"]
AUTO = "auto"
PRELOAD = ("feedmill.tokens.work", "feedmill.tokens.engines", "fastokens")  # what workers import


@dataclass
class TokenizeReport(Counts):
    """What a run wrote.

    Attributes:
        outputs: format -> path of the file by which it is recognised.
        bos, eos: the tokens put around each document, or None; `rule` says when.
        template: whether the tokenizer's own template was applied; `template_adds`: what it adds, and by which file.
        switched_off: settings of the tokenizer that would draw ids at random, with their values.
        token_bytes: format -> bytes of a token, but for ``vla-text``, which is JSON.
        skipped_files: files in the folders that were not read; `skipped_files_examples`: the first hundred.
        left_over: tokens at the end that fill no sequence of ``vla-text``, and are in none.
    """

    outputs: dict[str, str]
    bos: str | None = None
    eos: str | None = None
    rule: str = "missing"
    template: bool = True
    template_adds: str | None = None
    switched_off: dict[str, Any] = field(default_factory=dict)
    token_bytes: dict[str, int] = field(default_factory=dict)
    left_over: int = 0
    skipped_files: int = 0
    skipped_files_examples: list[str] = field(default_factory=list)


def tokenize(
    inputs: Sequence[str | os.PathLike[str] | DocumentFile],
    output: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    formats: Sequence[str] = ("pbin",),
    backend: Backend = "auto",
    text: str = "text",
    kind: str | None = None,
    eos: str | None = AUTO,
    bos: str | None = None,
    rule: Rule = "missing",
    template: bool = True,
    template_source: TemplateSource = "auto",
    specials_as_text: bool = False,
    token_size: int | None = None,
    seq_len: int | None = None,
    shard_sequences: int | None = None,
    loss: bool = False,
    loss_rule: LossRule = "mask",
    on_error: OnError = RAISE,
    allow_empty: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    tokenizer_name: str | None = None,
    unit_bytes: int = UNIT_BYTES,
    progress: bool | None = None,
) -> TokenizeReport:
    """Tokenize documents into token files.

    Args:
        inputs: files, folders, URLs or patterns, see `feedmill.documents.find`.
        output: a path without suffix (each format adds its own), or a mapping from format to path.
        tokenizer: see `load_tokenizer`.
        formats: some of ``pbin``, ``ds``, ``megatron``, ``dolma``, ``vla-text``.
        kind: which documents of folders are read: ``lines``, ``text``, ``parquet`` or ``arrow``. None: those that there
            are; it is an error if a folder has several kinds.
        text: the field of the text, a path like ``.a.b[0]``, or a jq expression.
        eos, bos: tokens for the end and the beginning of each document; None for none. ``auto``: the EOS that the
            tokenizer's own files name.
        rule: ``missing`` adds them where the document does not have them already, ``always`` to every document.
        template: apply the tokenizer's own template. datatrove with an EOS is ``template=False, rule="always"``.
        template_source: where that template is, see `load_tokenizer`; not used for a tokenizer that is loaded.
        specials_as_text: encode special tokens that stand in a text as plain text.
        token_size: bytes of a token, in place of each format's rule.
        seq_len: of the training program that ``vla-text`` is for: sequences have one token more.
        shard_sequences: sequences of a shard of ``vla-text``; None for 8,192.
        loss: write a mask from the documents' ``no_loss_ranges`` (``.ds`` only); `loss_rule` ``datatrove`` cuts
            documents that end in such a range, as datatrove does.
        on_error: what a document that cannot be tokenized does: end the job, or be left out, counted and listed.
        allow_empty: write the outputs even if there is not one document.
        workers: processes; None for one per core. Each uses one core.
        overwrite: replace files that are there.
        tokenizer_name: what ``.ds.metadata`` calls the tokenizer; by default as it was given.
        unit_bytes: about how much input is one unit of work.
        progress: whether to draw a bar; None: where stderr is a terminal.

    Raises:
        ConfigError: the options contradict each other, name a token that is not there, or the output exists.
        DataError: a document cannot be tokenized (`on_error` is ``raise``), or a file is damaged.
        EmptyResult: there is not one document, or all were skipped.
        NotFound, MissingExtra, StorageError: as their names say.
    """
    begin = time.perf_counter()
    source: TemplateSource = template_source if template else "file"  # without a template no setting can contradict it
    loaded = (
        tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer, backend, template_source=source)
    )
    eos = _eos(loaded, eos)
    bos_id, eos_id = (None if t is None else loaded.require(t, kind) for t, kind in ((bos, "BOS"), (eos, "EOS")))
    on_error = on_error_policy(on_error)
    _check(formats if not isinstance(output, Mapping) else list(output), rule, loss, loss_rule)
    outputs = plan_outputs(
        output,
        formats,
        vocab_size=loaded.vocab_size,
        base_vocab_size=loaded.base_vocab_size,
        largest=max(bos_id or 0, eos_id or 0),
        token_size=token_size,
        seq_len=seq_len,
        shard=shard_sequences,
    )
    how = Encoding(
        bos=bos_id,
        eos=eos_id,
        always=rule == "always",
        template=template,
        ordinary=specials_as_text,
        limit=min(int(np.iinfo(out.dtype).max) for out in outputs),
        dtype="<u2" if loaded.size <= 1 << 16 else "<u4",
        loss=loss,
        cut=loss_rule == "datatrove",
    )
    for token in (t for t in (bos, eos) if t is not None and loaded.require(t) > how.limit):
        what = f"the id of {token!r} does not fit the output (ids up to {how.limit} do)"
        raise ConfigError(what, kind="bad-token-size", fix="Use a larger token size.")
    origins = any(out.format == "dolma" for out in outputs)
    recipe = Recipe(
        str(loaded.path),
        loaded.backend,
        identity_of(loaded),
        text,
        how,
        on_error == "skip",
        origins,
        template_source=loaded.template_source,
    )
    report = TokenizeReport(
        {out.format: out.url for out in outputs},
        tokenizer=loaded.name,
        backend=loaded.backend,
        fallback=loaded.fallback,
        bos=bos,
        eos=eos,
        rule=rule,
        template=template and loaded.around is not None,
        template_adds=str(loaded.around) if template and loaded.around is not None else None,
        switched_off=loaded.switched_off,
        token_bytes={out.format: out.dtype.itemsize for out in outputs if out.format != "vla-text"},
    )
    given = _find(inputs, kind)
    report.skipped_files, report.skipped_files_examples = len(given.skipped), given.skipped[:EXAMPLES]
    job = _Job(outputs, recipe, given.files, loaded, tokenizer_name or loaded.name, report, unit_bytes)
    job.run(workers, overwrite, progress, allow_empty)
    report.seconds = time.perf_counter() - begin
    return report


def _find(inputs: Sequence[str | os.PathLike[str] | DocumentFile], kind: str | None) -> Found:
    """The files of the inputs; one that is named twice is read twice."""
    found = Found()
    for item in inputs:
        if isinstance(item, DocumentFile):
            found.files.append(item)
            continue
        given = find_documents([item], kind=kind, unnamed=None)
        found.files += given.files
        found.skipped += given.skipped
    return found


def _eos(tokenizer: Tokenizer, eos: str | None) -> str | None:
    if eos != AUTO:
        return eos
    if tokenizer.declared_eos is None:
        raise ConfigError(
            "the tokenizer's files do not say which token ends a document",
            file=str(tokenizer.path),
            kind="no-eos",
            fix="Name it with --eos, or say --eos none. Its special tokens: "
            + (", ".join(tokenizer.special_tokens()) or "none"),
        )
    return tokenizer.declared_eos


def _check(formats: Sequence[str], rule: str, loss: bool, loss_rule: str) -> None:
    for value, known in (
        (rule, ("missing", "always")),
        (loss_rule, ("mask", "datatrove")),
    ):
        if value not in known:
            raise ConfigError(f"{value!r} is not known here", fix=f"Use {' or '.join(known)}.")
    if loss and "ds" not in formats:
        raise ConfigError("only '.ds' keeps a loss mask", kind="no-loss-mask", fix="Add --to ds.")
    if len(set(formats)) < len(formats):
        raise ConfigError("a format is named twice", fix="Name each once.")


class _Job:
    """One run, from units to published files."""

    def __init__(
        self,
        outputs: list[Output],
        recipe: Recipe,
        files: list[DocumentFile],
        tokenizer: Tokenizer,
        tokenizer_name: str,
        report: TokenizeReport,
        unit_bytes: int,
    ) -> None:
        self.outputs, self.recipe, self.files = outputs, recipe, files
        self.tokenizer, self.tokenizer_name, self.report = tokenizer, tokenizer_name, report
        self.unit_bytes = unit_bytes
        words = [recipe.key(), tokenizer_name, *(f"{o.format} {o.dtype.str} {o.url}" for o in outputs)]
        words += [f"{o.sequence} {o.shard}" for o in outputs if o.sequence]
        words += [f"{file.url} {file.version} {file.rows}" for file in files]
        self.job = xxhash.xxh3_64_hexdigest("\n".join(words).encode())

    def run(self, workers: int | None, overwrite: bool, progress: bool | None, allow_empty: bool) -> None:
        first = self.outputs[0]
        identity = {"verb": "tokenize", "job": self.job}
        if not overwrite and not is_unfinished(first.store, first.stem, identity):
            if self._complete():
                tidy(first.store, first.stem)  # a worker of a killed run may have left something late
                self.report.refuse_empty(first.url, allow_empty)
                return
            self._refuse()
        with Work(first.store, first.stem) as job:
            job.begin(identity, keep_staged=True)
            units = list(together(cut(self.files, self.unit_bytes), self.unit_bytes))
            tasks = tasks_of(job, units, self.recipe, workers)
            self.report.files, self.report.units = len(self.files), len(tasks)
            offer(self.tokenizer)
            try:
                self._assemble(tasks, workers, progress, allow_empty)
            except EmptyResult:
                job.finish()  # no piece is of use to another run
                raise
            job.finish()

    def _complete(self) -> bool:
        """Whether every output is there and this very job made it; then the report tells of it."""
        found = [read_manifest(out.store, out.path) for out in self.outputs]
        for manifest, out in zip(found, self.outputs, strict=True):
            if manifest is None or manifest.options.get("job") != self.job or manifest.sizes != out.sizes():
                return False
        manifest = found[0]
        if manifest is not None:
            report = self.report
            report.complete, report.documents, report.tokens = True, manifest.documents, manifest.tokens
            report.skipped, report.skipped_examples = manifest.skipped, manifest.skipped_examples
            report.files, report.bytes = len(self.files), sum(file.size for file in self.files)
            report.left_over = max(int(m.options.get("left_over", 0)) for m in found if m is not None)
        return True

    def _refuse(self) -> None:
        for out in self.outputs:
            if out.sizes():
                raise ConfigError(
                    "there is something already",
                    file=out.url,
                    kind="exists",
                    fix="Add --overwrite to replace it, or choose another output.",
                )

    def _assemble(self, tasks: list[Task], workers: int | None, progress: bool | None, allow_empty: bool) -> None:
        total = sum(task.bytes for task in tasks)
        with ExitStack() as stack:
            writers = [stack.enter_context(out.open(self.tokenizer_name, self.recipe.how.loss)) for out in self.outputs]
            bar = stack.enter_context(Progress("tokenizing", total, "B", progress))
            results = run(work, tasks, workers=workers, preload=PRELOAD)
            for done, line in in_order(tasks, results, self.report):
                for documents in read_piece(done.task.path):
                    for writer, out in zip(writers, self.outputs, strict=True):
                        self._add(writer, out, documents, done, line)
                bar.advance(done.task.bytes)
                bar.note(f"{self.report.tokens / max(bar.elapsed, 1e-9) / 1e6:.1f} M tokens/s")
            self.report.refuse_empty(self.outputs[0].url, allow_empty)
            self.report.left_over = sum(getattr(writer, "left_over", 0) for writer in writers)
            for out in self.outputs:
                write_manifest(out.store, out.path, self._manifest(out, {}))
        for out in self.outputs:
            write_manifest(out.store, out.path, self._manifest(out, out.sizes()))

    def _add(self, writer: Any, out: Output, documents: Any, done: Done, line: int) -> None:
        if out.format == "dolma":
            origins = []
            for key, row in documents.origins:
                file, number = done.task.place(done.facts, row)
                path, number = file.url, line + number + 1
                origins.append((str(key) if key is not None else f"{path}-{number}", path, number))
            writer.add(documents.tokens, documents.lengths, None, origins=origins)
        else:
            writer.add(documents.tokens, documents.lengths, documents.loss if out.format == "ds" else None)

    def _manifest(self, out: Output, sizes: dict[str, int]) -> TokenManifest:
        how, report = self.recipe.how, self.report
        inputs = [{"path": f.url, "bytes": f.size, "version": f.version} for f in self.files]
        options = {
            "job": self.job,
            "text": self.recipe.text,
            "rule": report.rule,
            "template": report.template,
            "template_adds": report.template_adds,
            "specials_as_text": how.ordinary,
            "on_error": SKIP if self.recipe.skip else RAISE,
            "blank_lines": report.blank,
        }
        if report.skipped_files:
            options["skipped_files"] = {"count": report.skipped_files, "examples": report.skipped_files_examples}
        if report.switched_off:
            options["switched_off"] = report.switched_off
        if out.sequence:
            options |= {"sequence": out.sequence, "shard_sequences": out.shard, "left_over": report.left_over}
        if how.loss:
            options["loss"] = "datatrove" if how.cut else "mask"
        return TokenManifest(
            out.format,
            report.documents,
            report.tokens,
            tokenizer=self.tokenizer.facts(),
            bos=how.bos,
            eos=how.eos,
            inputs=inputs,
            skipped=report.skipped,
            skipped_examples=report.skipped_examples,
            options=options,
            sizes=sizes,
        )
