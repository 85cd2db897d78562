"""Write documents of a corpus to files in a given order: the job of merge, shuffle, split and filter.

The run computes the order and which documents go to which file. The files are units of one stage (see
`feedmill.tokens.outputs`), which run on processes of this machine or on an engine. The run then removes files of an
earlier run, and reports.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson

from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.jsonl.splits import splits_name
from feedmill.formats.offsets import hash_words
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form
from feedmill.formats.tokens.dolma import FORMAT as DOLMA
from feedmill.formats.tokens.manifest import TokenManifest
from feedmill.jobs.dry_run import DryRun, JobReport, active, perform
from feedmill.jobs.work import Work, foresee
from feedmill.storage import canonical_location, join_url, open_store, split_url
from feedmill.storage.limits import parse_size
from feedmill.tokens.corpus import LINES, Chunks, Corpus, Numbers, Units, format_of, in_blocks, lengths_of, main_file
from feedmill.tokens.outputs import (
    FORMATS,
    Files,
    FileTask,
    Mask,
    WrittenFile,
    cut_by_size,
    data_files,
    ends_of,
    file_bytes,
    files_of_part,
    higher_parts,
    larger_files,
    main_of,
    need_parts,
    numbered_target,
    part_path,
    remove_marks,
    remove_part,
    warn_of_one_file,
    write_files,
)

PARALLEL_FROM = 64 << 20
"""Bytes of tokens from which several files are written by several processes."""


class Part(NamedTuple):
    """One file to write: its path or URL, and the numbers of the units it contains, in order."""

    path: str
    numbers: Numbers


def numbered_parts(target: str, rows: Sequence[Numbers]) -> list[Part]:
    """Return a part for each list of units, numbered if the target stands for several files."""
    return [Part(part_path(target, number), row) for number, row in enumerate(rows)]


@dataclass
class TokensReport(JobReport):
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
        """Number of documents of all outputs."""
        return sum(done.documents for done in self.outputs)

    @property
    def tokens(self) -> int:
        """Number of tokens of all outputs."""
        return sum(done.tokens for done in self.outputs)

    def written_files(self) -> list[str]:
        """See `JobReport`."""
        return [name for done in self.outputs for name in files_of_part(done.path, format_of(done.path))]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        outputs = [{"path": d.path, "documents": d.documents, "tokens": d.tokens} for d in self.outputs]
        return {**JobReport.as_dict(self), "outputs": outputs, "documents": self.documents, "tokens": self.tokens}


@dataclass(slots=True, kw_only=True)
class Rewriting:
    """One run of a verb; created by `start`.

    Attributes:
        work: the job; None if it is only planned.
        checked: whether files that exist are known to be of this job.
        key: identifies the outputs.
        options: options for the manifests.
        seed: the given seed, or one drawn at the first start; `seeded`: whether it is used; `seed_known`: whether the
            next run has it, too: a dry run draws one for itself.
        workers: processes that write files; None for one per core if there is enough to do.
        writing: whether outputs may have been written.
        written: all finished files.
        left_out, notes: see `TokensReport`.
    """

    work: Work | None
    checked: bool
    key: str
    corpus: Corpus
    form: Form
    options: dict[str, Any]
    seed: int
    seeded: bool
    seed_known: bool
    overwrite: bool
    workers: int | None
    progress: bool | None
    writing: bool = False
    written: list[WrittenFile] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def divide(
        self,
        units: Units,
        numbers: Numbers,
        output: str,
        *,
        tokens: int | None = None,
        size: int | None = None,
        most: int | None = None,
        beyond: bool = False,
        mask: Mask | None = None,
        empty: bool = False,
    ) -> list[WrittenFile]:
        """Write units in an order to one file, or to numbered files of about these tokens or at most this size.

        Args:
            tokens, most, beyond: see `divided`.
            mask, empty: see `write`.
        """
        rows = divided(units, numbers, at_least=tokens, most=most, beyond=beyond)
        if size is not None:
            rows = divided_by_size(units, rows[0], self.form, size)
        elif len(rows) == 1:
            warn_of_one_file(output, min(self.corpus.tokens, most or self.corpus.tokens) * self.form.token_size)
        done = self.write(units, numbered_parts(output, rows), mask=mask, numbered=output, allow_empty=empty)
        if isinstance(units, Chunks):
            lost = {"tokens in tails shorter than a chunk": units.left_out, "documents without tokens": units.empty}
            self.left_out |= {reason: count for reason, count in lost.items() if count}
        beyond_limit = len(units) - sum(map(len, rows))
        if beyond_limit:
            what = "chunks" if isinstance(units, Chunks) else "documents"
            self.left_out[f"{what} beyond the limit of tokens"] = beyond_limit
        counts = [(file.tokens, 0 if self.form.format == LINES else file.documents) for file in done]
        if size is not None and (note := larger_files(self.form, counts, size)):
            self.notes.append(note)
        return done

    def write(
        self,
        units: Units,
        parts: Sequence[Part],
        *,
        mask: Mask | None = None,
        numbered: str = "",
        allow_empty: bool = False,
    ) -> list[WrittenFile]:
        """Write parts of the corpus as the units of a stage, except parts that an earlier run finished.

        Args:
            mask: returns the loss mask, instead of the masks of the corpus.
            numbered: the target with ``{part}``, if parts are numbered from 0. Higher-numbered parts of an earlier run
                are removed when the new parts are complete.
            allow_empty: accept parts without any documents.

        Raises:
            EmptyResult: the parts have no documents.
            ConfigError: a target exists already, or is an input.
        """
        target = parts[0].path if len(parts) == 1 else numbered
        kept, noun = sum(len(part.numbers) for part in parts), "line" if self.form.format == LINES else "document"
        refuse_empty(kept, len(units), noun, file=target or None, skipped=self.left_out, allow=allow_empty)
        higher = higher_parts(numbered, len(parts))
        _refuse_inputs(self.corpus, [*(part.path for part in parts), *higher])
        perform(partial(self._plan, units, parts, higher), partial(self._execute, units, parts, higher, mask))
        return self.written

    def _execute(self, units: Units, parts: Sequence[Part], higher: Sequence[str], mask: Mask | None) -> None:
        assert self.work is not None
        with self.work.beginning():
            if not self.work.noted.get("checked"):
                self._refuse_existing([*(part.path for part in parts), *higher])
                self.work.note(checked=True)  # what is there from now on is of this job
        self.writing, lines = True, self.form.format == LINES
        unit = "B" if lines else "tokens"
        job = Files(
            units=units,
            rows=[part.numbers for part in parts],
            forms={self.form.format: (self.form, self._manifest())},
            verb=self.options["verb"],
            options={name: value for name, value in self.options.items() if name != "verb"},
            inputs=self.corpus.main_files(),
            facts=[] if lines else self.corpus.facts(),
            mask=mask,
            folder=self.work.scratch,
            key=self.key,
        )
        tasks = [FileTask(number, part.path, self.form.format) for number, part in enumerate(parts)]
        self.written += write_files(job, tasks, self._workers(), self.corpus.tokens, unit, self.progress)
        for path in reversed(higher):  # a killed run then finds the remaining ones
            remove_part(path, self.form.format)

    def _plan(self, units: Units, parts: Sequence[Part], higher: Sequence[str], dry: DryRun) -> None:
        """Add the parts to a dry run, and to `written` as they would be written."""
        if not self.checked:
            self._refuse_existing([*(part.path for part in parts), *higher])
        lines = self.form.format == LINES
        dry.reads(store.stat(shard.path).size for store, shard in self.corpus.shards)
        for part in parts:
            documents = int(in_blocks(units.documents, part.numbers).sum())
            done = WrittenFile(part.path, documents, int(lengths_of(units, part.numbers).sum()))
            store, main = main_of(part.path)
            exact = len(parts) == 1 or not self.seeded or self.seed_known
            size = file_bytes(self.form, done.tokens, 0 if lines else documents) if exact else None
            stem = "" if lines else main.removesuffix(FORMATS[self.form.format][0])
            for number, path in enumerate([main] if lines else data_files(self.form.format, stem)):
                dry.writes(store, path, None if number else size)
            self.written.append(done)
        for store, main in map(main_of, higher):
            dry.deletes_all(store, [main])
        noun = ("lines", "bytes") if lines else ("documents", "tokens")
        dry.counts |= {noun[0]: sum(d.documents for d in self.written), noun[1]: sum(d.tokens for d in self.written)}
        if self.seeded:
            dry.counts["seed"] = str(self.seed) if self.seed_known else "drawn at random"

    def _manifest(self) -> TokenManifest:
        """Return what the manifests of all files have in common."""
        corpus = self.corpus
        known = [manifest for manifest in corpus.manifests if manifest is not None]
        ends = {(manifest.bos, manifest.eos) for manifest in known}
        bos, eos = ends.pop() if len(known) == len(corpus.manifests) and len(ends) == 1 else (None, None)
        return TokenManifest(self.form.format, 0, 0, tokenizer=corpus.tokenizer, bos=bos, eos=eos, options=self.options)

    def _workers(self) -> int | None:
        """Return the number of processes."""
        small = self.corpus.tokens * self.corpus.dtype.itemsize < PARALLEL_FROM
        return 1 if self.workers is None and small else self.workers

    def _refuse_existing(self, targets: Sequence[str]) -> None:
        for store, main in map(main_of, targets):
            if not self.overwrite and store.exists(main):
                raise ConfigError(
                    "the file already exists",
                    file=store.locate(main),
                    kind="exists",
                    fix="Choose another file, or add --overwrite (Modalities: --file_existence_policy override).",
                )

    def finish(self) -> TokensReport:
        """End the job after all files are written, and return the report."""
        if self.work is not None:
            self.work.finish()
        shards, lines = self.corpus.shards, self.corpus.format == LINES
        notes = [f"{store.locate(shard.path)}: {remark}" for store, shard in shards for remark in shard.remarks]
        notes += [
            f"{store.locate(shard.path)}: its splits are not copied; divide the output with 'feedmill prepare FILE"
            " --split-ratio 8,1,1'"
            for store, shard in shards
            if lines and store.exists(splits_name(shard.path))
        ]
        return TokensReport(
            self.options["verb"],
            len(shards),
            self.written,
            seed=self.seed if self.seeded and self.seed_known else None,
            resumed=sum(done.reused for done in self.written),
            left_out=self.left_out,
            notes=notes + self.notes,
        )


def form_for(target: str, corpus: Corpus, *, drop_loss: bool = False) -> Form:
    """Return the form in which a corpus is stored under a name.

    Args:
        drop_loss: drop the loss masks of the corpus.

    Raises:
        ConfigError: the format cannot store the corpus.
    """
    format = format_of(target)
    if (format == LINES) != (corpus.format == LINES):
        raise ConfigError(
            "lines of text can only be written to '.jsonl' files, and tokens cannot",
            file=target,
            kind="mixed-formats",
            fix="Use the suffix of the inputs for the output. To tokenize text, use 'feedmill tokenize'.",
        )
    written = {name: form for name, form in targets().items() if form.form == "tokens" and name != DOLMA}
    if format not in (*written, LINES):
        ends = ", ".join(form.strip[-1] for form in written.values())
        raise ConfigError(
            f"merging and shuffling do not write {format} files",
            file=target,
            kind="unknown-format",
            fix=f"Use a target that ends in {ends} or .jsonl.",
        )
    loss = corpus.has_loss and not drop_loss
    size = corpus.token_size
    name = corpus.tokenizer.name if corpus.tokenizer is not None and not corpus.name else corpus.name
    least = 1 if format == LINES else min(written[format].token_sizes)
    return Form(format, max(size, least), name or None, loss)


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
    workers: int | None = None,
    progress: bool | None = None,
    **more: Any,
) -> Iterator[Rewriting]:
    """Lock the target for a run of a verb; nothing is written yet.

    To resume a killed run, repeat the call: the work folder has its seed and the marks of finished files.

    Args:
        options: the verb and other options for the manifests.
        seed: seed of the order; None draws one. It is used and reported only if `seeded`.
        overwrite: replace existing files.
        workers: processes that write files; None for one per core if there is enough to do.
        progress: whether to show a progress bar, see `Progress`.
        more: further values that determine the output bytes and are not in manifests.

    Raises:
        ConfigError: the target is an input, another unfinished job writes there, or a number has more than 64 bits.
        StorageError: another process is writing there (kind ``busy``).
    """
    _refuse_inputs(corpus, [target])
    seed = seed if seeded else 0
    drawn = seed is None
    facts = {"inputs": corpus.facts(), "form": asdict(form), "target": target, **options, **more, "seed": seed}
    try:
        text = orjson.dumps(facts, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"invalid option ({error})", kind="bad-option", fix="Use smaller numbers.") from None
    folder, name = split_url(target)
    store, identity = open_store(folder), {"verb": "rewrite", "job": hash_words([text])}
    first = secrets.randbits(31) if seed is None else seed

    def rewriting(work: Work | None, noted: Mapping[str, Any]) -> Rewriting:
        seed = int(noted.get("seed", first))
        return Rewriting(
            work=work,
            checked=bool(noted.get("checked")),
            key=hash_words([text, str(seed)]),
            corpus=corpus,
            form=form,
            options={**options, "seed": seed} if seeded else options,
            seed=seed,
            seeded=seeded,
            seed_known=not drawn or "seed" in noted,
            overwrite=overwrite,
            workers=workers,
            progress=progress,
        )

    if active() is not None:
        yield rewriting(None, foresee(store, name, identity, overwrite=overwrite))
        return
    with Work(store, name) as work:
        with work.beginning():  # parts of a job array must have the same seed
            work.refuse_other(identity, overwrite=overwrite)
            if not work.begin(identity, seed=first):
                remove_marks(work.scratch)
        run = rewriting(work, work.noted)
        try:
            yield run
        except BaseException:
            if not run.writing:
                work.abandon()
            raise


def _refuse_inputs(corpus: Corpus, targets: Sequence[str]) -> None:
    """Raise `ConfigError` if a target is also an input, under any name or through a link: it would be overwritten."""
    paths = [store.locate(main_file(shard.path)) for store, shard in corpus.shards]
    inputs = {*map(_place, paths), *map(canonical_location, paths)}
    for target in targets:
        if _place(main_file(target)) in inputs:
            raise ConfigError(
                "the output is one of the inputs", file=target, fix="Choose another output.", kind="exists"
            )


def _place(path: str) -> str:
    """Return where a file is put, which replaces a link of its name."""
    folder, name = split_url(path)
    return join_url(canonical_location(folder), name)


def divided(
    units: Units, numbers: Numbers, *, at_least: int | None = None, most: int | None = None, beyond: bool = False
) -> list[Numbers]:
    """Divide a sequence of units into files by their tokens.

    Args:
        at_least: a file ends with the unit that brings it to this many tokens. None writes one file.
        most: the sequence ends with the unit that brings it to this many tokens.
        beyond: a file ends only if it has more than `at_least` tokens, as in datatrove's tokenizer.

    Returns:
        The numbers of each file; at least one file.
    """
    for name, value in (("tokens per file", at_least), ("tokens", most)):
        if value is not None and value < 1:
            raise ConfigError(f"a limit of {value} {name}", kind="bad-option", fix="Give 1 or more.")
    if at_least is None and most is None:
        return [numbers]
    ends = np.cumsum(lengths_of(units, numbers))
    count = len(ends)
    if most is not None:
        count = min(count, int(np.searchsorted(ends, most, side="left")) + 1)
    if at_least is None:
        return [numbers[:count]]
    out, first = [], 0
    while first < count:
        base = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, base + at_least, side="right" if beyond else "left")) + 1
        last = max(first + 1, min(last, count))
        out.append(numbers[first:last])
        first = last
    return out or [numbers[:0]]


def limited(output: str, tokens: int | None, size: int | str | None) -> tuple[str, int | None]:
    """Return the output and the limit of bytes per file, for a limit of tokens or a size.

    Raises:
        ConfigError: both are given, the size is invalid, or the output has no ``{part}`` for a limit of tokens.
    """
    limit = parse_size(size, "--max-file-size")
    if tokens is not None:
        need_parts(output, "a limit of tokens per file")
    if limit is None:
        return output, None
    if tokens is not None:
        raise ConfigError(
            "files cannot be limited by tokens and by size",
            kind="bad-option",
            fix="Use either --max-tokens-per-file or --max-file-size.",
        )
    return numbered_target(output), limit


def divided_by_size(units: Units, numbers: Numbers, form: Form, limit: int) -> list[Numbers]:
    """Return the numbers of each file, at least one, so that no file is larger than `limit` unless by one unit."""
    if form.format == LINES:
        documents = np.isin(np.asarray(numbers, np.int64), units.corpus.firsts[1:] - 1).astype(np.int64)
    else:
        documents = in_blocks(units.documents, numbers)
    pieces = cut_by_size(form, ends_of(lengths_of(units, numbers), documents), limit)
    return [numbers[piece] for piece in pieces] or [numbers[:0]]
