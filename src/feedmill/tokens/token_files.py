"""Token files as the output of `tokenize`: one file per format, or numbered files of at most a given size.

Documents have the order of the inputs. A numbered file ends before the first document with which it would be larger. So
the ends depend only on the documents, the format and the size, and the files of a format are the same whatever other
formats are written. Each numbered file is written by one unit, which reads the parts of pieces that it needs.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.lineage.runs import Encoded, Runs, decode_runs
from feedmill.documents.lineage.sidecar import Origins, lineage_path, sequences_of
from feedmill.documents.units import cut, together
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form, TokenWriter
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest, with_files, write_manifest
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import Where
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.jobs.work import Work
from feedmill.kernels.bounds import ranges
from feedmill.storage import Store, open_store
from feedmill.storage.hashed import hashed_store
from feedmill.tokens.ends import Given
from feedmill.tokens.job import Counts, EncodeJob, JobOptions
from feedmill.tokens.options import LossRule, Rule
from feedmill.tokens.outputs import FORMATS, Output, data_files, sizes_of, write_documents
from feedmill.tokens.spill import Documents, read_lengths, read_piece
from feedmill.tokens.targets import (
    ends_of,
    file_bytes,
    files_of_part,
    has_parts,
    higher_parts,
    larger_files,
    numbered_target,
    part_path,
    remove_part,
    that_fit,
)
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.tokens.work import EncodedUnit

if TYPE_CHECKING:
    from feedmill.formats.tokens.dolma import DolmaWriter
    from feedmill.tokens.chat.reader import ChatSpec
    from feedmill.tokens.sentences import Sentences
    from feedmill.tokens.template import TemplateSource
    from feedmill.tokens.tokenizer import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions(JobOptions):
    """Options of `tokenize`; see there.

    Attributes:
        keep_empty: whether a text without tokens is an empty document; otherwise it is an invalid one.
        sentences: how documents are split into sentences, one sequence each, or None. Only for ``megatron``.
        deal: write documents 0, n, 2n ... first, then 1, n + 1, ..., as a tool does that deals lines to n parts.
    """

    formats: tuple[str, ...]
    backend: Backend
    tokenizer_pattern: str | None
    text: str
    kind: str | None
    eos: Given
    bos: Given
    rule: Rule
    template: bool
    template_source: TemplateSource
    specials_as_text: bool
    token_size: int | None
    seq_len: int | None
    shard_sequences: int | None
    max_file_size: int | None
    loss: bool
    loss_rule: LossRule
    tokenizer_name: str | None
    chat: ChatSpec | None = None
    keep_empty: bool = False
    deal: int = 1
    sentences: Sentences | None = None


@dataclass
class TokenizeReport(Counts):
    """Report of a run.

    Attributes:
        outputs: format -> path of the file that identifies the output; of numbered files, a pattern of all of them.
        numbered_files: format -> number of files, with `max_file_size`.
        bos, eos: tokens added around each document, or None; `rule`: when they are added.
        template: whether the tokenizer's template was applied; `template_adds`: its tokens and the file defining it;
            `has_template`: whether there is one.
        settings: what settings next to the tokenizer changed, and the pattern of a tiktoken file.
        switched_off: disabled settings of the tokenizer that would make ids random, with their values.
        token_bytes: format -> bytes per token; not for ``vla-text``, which is JSON.
        skipped_files: files in the folders that were not read; `skipped_files_examples`: the first hundred.
        notes: notes for the user; `warnings`: those of them that concern every conversation, which were logged.
        left_over: tokens at the end that do not fill a sequence of ``vla-text`` and are dropped.
        chat: form and mask rule of conversations; None for texts.
    """

    outputs: dict[str, str]
    bos: str | None = None
    eos: str | None = None
    rule: str = "missing"
    template: bool = True
    template_adds: str | None = None
    has_template: bool = True
    settings: list[str] = field(default_factory=list)
    switched_off: dict[str, Any] = field(default_factory=dict)
    token_bytes: dict[str, int] = field(default_factory=dict)
    left_over: int = 0
    numbered_files: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped_files: int = 0
    skipped_files_examples: list[str] = field(default_factory=list)
    chat: dict[str, str] | None = None

    def restore(self, manifests: Sequence[TokenManifest]) -> None:
        """See `Counts.restore`."""
        super().restore(manifests)
        self.left_over = max(int(manifest.options.get("left_over", 0)) for manifest in manifests)

    def written_files(self) -> list[str] | None:
        """See `JobReport`."""
        paths = [(path, name) for name, given in self.outputs.items() for path in numbered_paths(given)]
        unknown = any("{part" in path for path, _ in paths)  # in a dry run
        return None if unknown else [file for path, name in paths for file in files_of_part(path, name)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece to be read, and where its documents come from.

    Attributes:
        path: path of the piece; `documents`, `tokens`: their numbers in it.
        line: line of the first input file (from 0) at which the piece begins.
        files: URLs of its input files; `ends`: the row at which each but the last ends.
        rows: rows of its documents, see `PieceFacts`.
    """

    path: str
    documents: int
    tokens: int
    line: int
    files: tuple[str, ...]
    ends: tuple[int, ...]
    rows: Encoded

    @classmethod
    def of(cls, done: EncodedUnit, line: int) -> Piece:
        """Return the piece of a finished unit."""
        facts, files = done.facts, tuple(unit.file.url for unit in done.task.units)
        return cls(done.task.path, facts.documents, facts.tokens, line, files, tuple(facts.ends), facts.rows)

    def origin(self, row: int) -> tuple[str, int]:
        """Return the input file of a row, and its line there (from 1)."""
        number = bisect_right(self.ends, row)
        return self.files[number], self.line + row - (self.ends[number - 1] if number else 0) + 1

    def origins(
        self, origins: Origins, inputs: Mapping[str, dict[str, Any]], first: int, last: int, step: int = 1
    ) -> None:
        """Append documents [first, last), or every `step`-th of them, to the lineage of an output.

        `inputs` are facts by URL, as in its manifest.
        """
        runs = decode_runs(*self.rows).part(first, last)
        facts = [inputs[url] for url in self.files]
        numbers = np.array([origins.number(one["path"], one["bytes"]) for one in facts], np.int64)
        rows = ranges(runs.start, runs.length)[::step]
        file = np.searchsorted(np.asarray(self.ends, np.int64), rows, side="right")
        begin = np.concatenate(([-self.line], np.asarray(self.ends, np.int64)))
        origins.add(Runs.of(numbers[file], rows - begin[file]))


def numbered_beside(out: Output) -> list[str]:
    """Return the numbered files of an earlier run beside a single token file, with which they would be read."""
    return higher_parts(numbered_target(out.url), 0) if targets()[out.format].form == "tokens" else []


def already_exists(url: str) -> ConfigError:
    """Return the error for an output that must not be replaced."""
    fix = "Add --overwrite to replace it, or choose another output."
    return ConfigError("the output already exists", file=url, kind="exists", fix=fix)


class TokenFiles:
    """Output of `tokenize`: token files of one or more formats, with documents in the order of the inputs."""

    in_units = False

    def __init__(
        self,
        outputs: Sequence[Output],
        files: Sequence[DocumentFile],
        tokenizer: Tokenizer,
        options: TokenizeOptions,
        report: TokenizeReport,
    ) -> None:
        self.outputs, self.files, self.options, self.report = outputs, files, options, report
        self.store, self.url = outputs[0].store, outputs[0].url
        self._tokenizer_name = options.tokenizer_name or tokenizer.name

    @property
    def name(self) -> str:
        """See `JobOutput`."""
        return self.outputs[0].stem

    def planned(self) -> Iterator[tuple[Store, str]]:
        """See `JobOutput`."""
        for out in self.outputs:
            if out.sequence:
                yield out.store, f"{out.stem}/"
            else:
                yield from ((out.store, path) for path in data_files(out.format, out.stem))

    def identity(self) -> Iterator[str]:
        """See `JobOutput`."""
        yield self._tokenizer_name
        yield from (f"{out.format} {out.dtype.str} {out.url}" for out in self.outputs)
        yield from (f"{out.sequence} {out.shard}" for out in self.outputs if out.sequence)
        yield from (f"{file.url} {file.version} {file.rows}" for file in self.files)
        if self.options.deal > 1:
            yield f"dealt to {self.options.deal}"

    def units(self, unit_bytes: int) -> list[tuple[Unit, ...]]:
        """See `JobOutput`."""
        return list(together(cut(self.files, unit_bytes), unit_bytes))

    def manifests(self) -> Iterator[TokenManifest | None]:
        """See `JobOutput`."""
        for out in self.outputs:
            manifest = read_manifest(out.store, out.path)
            yield manifest if manifest is not None and manifest.sizes == out.sizes() else None

    def existing(self) -> ConfigError | None:
        """See `JobOutput`."""
        url = next((out.url for out in self.outputs if out.sizes()), None)
        return None if url is None else already_exists(url)

    @contextmanager
    def opened(self, job: EncodeJob, work: Work) -> Iterator[Callable[[EncodedUnit, int], None]]:
        """See `JobOutput`."""
        del work
        loss, sentences = job.spec.how.loss, job.spec.how.sentences is not None
        origins, inputs = Origins("tokenize"), {str(facts["path"]): facts for facts in job.inputs}
        lengths: list[npt.NDArray[np.int64]] = []  # of documents that are cut into sequences
        with ExitStack() as stack:
            written = [out.hashed() for out in self.outputs]
            writers = [
                (out, stack.enter_context(out.open(self._tokenizer_name, loss, sentences))) for out, _ in written
            ]

            pieces: list[Piece] = []

            def add(done: EncodedUnit, line: int) -> None:
                piece = Piece.of(done, line)
                if self.options.deal > 1:
                    pieces.append(piece)
                    return
                piece.origins(origins, inputs, 0, piece.documents)
                for documents in read_piece(piece.path):
                    if any(out.sequence for out in self.outputs):
                        lengths.append(documents.lengths)
                    for out, writer in writers:
                        add_documents(writer, out.format, documents, piece)

            yield add
            for piece, documents, first in dealt(pieces, self.options.deal):
                piece.origins(origins, inputs, first, piece.documents, self.options.deal)
                for _, writer in writers:
                    writer.add(documents.tokens, documents.lengths, documents.loss)
            self.report.left_over = sum(getattr(writer, "left_over", 0) for _, writer in writers)
            for out in self.outputs:
                write_manifest(out.store, out.path, self._manifest(job, out))
                out.store.delete(lineage_path(out.path))
        for out, hashes in written:
            sequences = None
            if out.sequence:
                sequences = sum(map(int, map(np.sum, lengths))) // out.sequence, sequences_of(lengths, out.sequence)
            write_lineage(out.store, out.path, origins, sequences)
            manifest = with_files(self._manifest(job, out), out.sizes(), hashes)
            write_manifest(out.store, out.path, manifest)
            for path in reversed(numbered_beside(out)) if self.options.overwrite else ():
                remove_part(path, out.format)  # from the last one on, so that a killed run finds the others

    def _manifest(self, job: EncodeJob, out: Output) -> TokenManifest:
        given, report = self.options, self.report
        options: dict[str, Any] = {
            "text": given.text,
            "rule": given.rule,
            "template": report.template,
            "template_adds": report.template_adds,
            "specials_as_text": given.specials_as_text,
            "on_error": given.on_error,
            "blank_lines": report.blank,
        }
        if report.skipped_files:
            options["skipped_files"] = {"count": report.skipped_files, "examples": report.skipped_files_examples}
        if report.switched_off:
            options["switched_off"] = report.switched_off
        if out.sequence:
            options |= {"sequence": out.sequence, "shard_sequences": out.shard, "left_over": report.left_over}
        if given.sentences is not None:
            options["sentences"] = {"punkt": given.sentences.identity, "keep_newlines": given.sentences.keep_newlines}
        if given.loss:
            options["loss"] = given.loss_rule
        if job.spec.chat is not None:
            options["chat"] = {"form": job.spec.chat.form, "mask": job.spec.chat.rule}
            options["chat"] |= {"side": job.spec.chat.side} if job.spec.chat.side else {}
            options["chat"] |= {"date": job.spec.chat.today} if job.spec.chat.today else {}
        if report.tokens_in_loss is not None:
            options["tokens_in_loss"] = report.tokens_in_loss
        if report.checks:
            options["checks"] = {name: asdict(one) for name, one in sorted(report.checks.items())}
        return job.manifest(out.format, report.documents, report.tokens, options)


def dealt(pieces: Sequence[Piece], parts: int) -> Iterator[tuple[Piece, Documents, int]]:
    """Yield each piece once for each part, with the documents of the part in it and the number of the first of them.

    Document k of all pieces belongs to part k mod `parts`. The pieces of part 0 come first.
    """
    for part in range(parts):
        before = 0
        for piece in pieces:
            first, before = (part - before) % parts, before + piece.documents
            number = -first
            chosen: list[Documents] = []
            for documents in read_piece(piece.path):
                count = len(documents.lengths)
                mine = (np.arange(number, number + count) % parts == 0) & (np.arange(number, number + count) >= 0)
                inside = np.repeat(mine, documents.lengths)
                marks = None if documents.loss is None else documents.loss[inside]
                chosen.append(Documents(documents.tokens[inside], documents.lengths[mine], marks, None))
                number += count
            if first < piece.documents:
                tokens, lengths = (np.concatenate(part) for part in zip(*(one[:2] for one in chosen), strict=True))
                masks = [each.loss for each in chosen if each.loss is not None]
                yield piece, Documents(tokens, lengths, np.concatenate(masks) if masks else None, None), first


def write_lineage(
    store: Store, path: str, origins: Origins, sequences: tuple[int, npt.NDArray[np.int64]] | None = None
) -> None:
    """Write the lineage of a published token file; for `sequences` see `Origins.encoded`."""
    data = origins.encoded(store.locate(path), store.stat(path).size, sequences)
    store.write_bytes(lineage_path(path), data)


def add_documents(writer: TokenWriter, format: str, documents: Documents, piece: Piece) -> None:
    """Append documents of a piece, with their origins or loss mask if the format keeps them."""
    loss = documents.loss if "loss" in targets()[format].keeps else None
    if format != "dolma":
        writer.add(documents.tokens, documents.lengths, loss)
        return
    origins = []
    for key, row in documents.origins or ():
        path, number = piece.origin(row)
        origins.append((str(key) if key is not None else f"{path}-{number}", path, number))
    cast("DolmaWriter", writer).add(documents.tokens, documents.lengths, loss, origins=origins)


NUMBER = "_{part}"
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")
FEW = 1 << 25
"""Number of tokens below which this process writes the files itself: starting processes would take longer."""


def numbered(outputs: Sequence[Output], max_size: int, overwrite: bool = False) -> list[Output]:
    """Return the outputs as numbered files: with ``{part}`` in the name, and `max_size`.

    Raises:
        ConfigError: the size is invalid, a format has no such files, or the single file of an earlier run exists and
            `overwrite`, with which the numbered files replace it, is not set.
    """
    if max_size < 1:
        raise ConfigError(f"--max-file-size {max_size} is invalid", kind="bad-option", fix="Use for example 1GB.")
    for out in outputs:
        if targets()[out.format].form != "tokens":
            raise ConfigError(
                f"--max-file-size is unsupported for {out.format}, which has shards of sequences",
                file=out.url,
                kind="unknown-option",
                fix="Set --shard-sequences, and write the other formats in a run of their own.",
            )
        if has_parts(out.store.url) or part_path(out.stem, "\0").count("\0") > 1:
            raise ConfigError(
                "{part} can only be once in the output, in the name of the file",
                file=out.url,
                kind="bad-option",
                fix="Remove the others.",
            )
        if has_parts(out.stem) or not out.sizes():
            continue
        if (dry := active()) is not None:
            dry.deletes_all(out.store, [out.path])
        if not overwrite:
            raise ConfigError(
                "this file exists already, and would be read together with the numbered files",
                file=out.url,
                kind="exists",
                fix="Add --overwrite to replace it, or choose another output.",
            )
    return [
        replace(out, max_size=max_size)
        if has_parts(out.stem)
        else replace(out, stem=out.stem + NUMBER, max_size=max_size, single=out.stem)
        for out in outputs
    ]


def numbered_paths(pattern: str) -> list[str]:
    """Return the paths of the numbered files that a report names by one pattern.

    >>> numbered_paths("x_{00008..00010}.ds")
    ['x_00008.ds', 'x_00009.ds', 'x_00010.ds']
    """
    found = _NUMBERS.search(pattern)
    if found is None:
        return [pattern]
    low, high = found.groups()
    return [_NUMBERS.sub(f"{number:0{len(low)}d}", pattern) for number in range(int(low), int(high) + 1)]


def refuse_numbered(outputs: Sequence[Output], overwrite: bool = False) -> None:
    """Raise `ConfigError` if a single file has ``{part}`` in its path, or an earlier run's numbered files beside it.

    Args:
        outputs: the single files.
        overwrite: whether the numbered files are removed once their single file is complete.
    """
    for out in outputs:
        if has_parts(out.url):
            raise ConfigError(
                "{part} is for the numbers of several files, but one file is written",
                file=out.url,
                kind="bad-option",
                fix="Add --max-file-size, or remove {part} from the output.",
            )
        beside = numbered_beside(out)
        if (dry := active()) is not None:
            dry.deletes_all(out.store, [os.path.basename(path) for path in beside])
        if beside and not overwrite:
            raise ConfigError(
                f"{len(beside):,} numbered files of an earlier run exist ({os.path.basename(beside[0])}, ...), and"
                " would be read together with this file",
                file=out.url,
                kind="exists",
                fix="Add --overwrite to replace them, or choose another output.",
            )


class Span(NamedTuple):
    """Documents `first` to `last` of a piece."""

    piece: Piece
    first: int
    last: int


@dataclass(slots=True)
class File:
    """Content of one file to write."""

    spans: list[Span] = field(default_factory=list)
    documents: int = 0
    tokens: int = 0

    def add(self, piece: Piece, first: int, last: int, tokens: int) -> None:
        """Append documents of a piece that have this many tokens."""
        self.spans.append(Span(piece, first, last))
        self.documents += last - first
        self.tokens += tokens


def divide(pieces: Iterable[Piece], form: Form, max_size: int) -> Iterator[File]:
    """Yield the content of each file; of one empty file if there are no documents.

    The lengths of documents are read only of pieces in which a file ends.
    """
    file, count = File(), 0
    for piece in pieces:
        if file_bytes(form, file.tokens + piece.tokens, file.documents + piece.documents) <= max_size:
            file.add(piece, 0, piece.documents, piece.tokens)
            continue
        lengths = read_lengths(piece.path)
        ends, first = ends_of(lengths, np.ones(len(lengths), np.int64)), 0
        while first < len(lengths):
            fit = that_fit(form, max_size, ends, first, (file.tokens, file.documents))
            if fit == 0 and file.documents == 0:
                fit = 1  # a document that is longer than a file
            if fit:
                file.add(piece, first, first + fit, int(ends[0][first + fit] - ends[0][first]))
                first += fit
            if first < len(lengths):
                yield file
                file, count = File(), count + 1
    if file.documents or not count:
        yield file


@dataclass(frozen=True, slots=True)
class Target:
    """The files of one format: their folder, name with ``{part}``, form, and what their manifests have in common."""

    folder: str
    stem: str
    form: Form
    manifest: TokenManifest


@dataclass(frozen=True, slots=True)
class Shared:
    """What all units of the stage share: targets by format, the folder of marks, and whether others are replaced."""

    targets: dict[str, Target]
    marks: str
    overwrite: bool


@dataclass(frozen=True, slots=True)
class FileTask:
    """A file to write: its format, number, the number of files, its content and the facts of its inputs."""

    format: str
    number: int
    count: int
    file: File
    inputs: list[dict[str, Any]]

    def __str__(self) -> str:
        return f"file {self.number} of {self.format}"


def write_file(shared: Shared, task: FileTask) -> None:
    """Write a file with its manifest, unless its mark is there.

    Raises:
        ConfigError: the file exists, and is not of this job.
    """
    target, file = shared.targets[task.format], task.file
    store, stem, marks = open_store(target.folder), part_path(target.stem, task.number), open_store(shared.marks)
    main, mark = stem + FORMATS[task.format][0], f"{task.format}-{task.number:06d}"
    if _marked(marks, mark) == (sizes := sizes_of(task.format, store, stem)):
        return
    manifest = msgspec.structs.replace(
        target.manifest,
        documents=file.documents,
        tokens=file.tokens,
        inputs=task.inputs,
        options={**target.manifest.options, "file": task.number, "files": task.count},
    )
    if sizes and not shared.overwrite:
        _refuse_other(store, main, manifest)
    view, hashes = hashed_store(store)
    origins, inputs = Origins("tokenize"), {str(facts["path"]): facts for facts in task.inputs}
    with write_documents(view, main, target.form) as writer:
        for piece, first, last in file.spans:
            piece.origins(origins, inputs, first, last)
            for documents in read_piece(piece.path, first, last):
                add_documents(writer, task.format, documents, piece)
        write_manifest(store, main, manifest)  # sizes are known when the files are published
        store.delete(lineage_path(main))
    write_lineage(store, main, origins)
    sizes = sizes_of(task.format, store, stem)
    write_manifest(store, main, with_files(manifest, sizes, hashes))
    marks.write_bytes(mark, msgspec.json.encode(sizes))


def _marked(marks: Store, name: str) -> dict[str, int] | None:
    """Return the sizes of a file that an earlier run has finished; None if there is none."""
    try:
        return msgspec.json.decode(marks.read(name), type=dict[str, int])
    except (NotFound, msgspec.MsgspecError):
        return None


def _refuse_other(store: Store, main: str, manifest: TokenManifest) -> None:
    found = read_manifest(store, main)
    if found is None or found.options.get("job") != manifest.options["job"]:
        raise already_exists(store.locate(main))


class NumberedFiles(TokenFiles):
    """Output of `tokenize` with a size of files: numbered token files of one or more formats."""

    in_units = True

    @property
    def name(self) -> str:
        """See `JobOutput`. The name of a single file."""
        return self.outputs[0].stem.replace(NUMBER, "") or self.outputs[0].stem

    def identity(self) -> Iterator[str]:
        """See `JobOutput`."""
        yield from super().identity()
        yield from (f"{out.format} at most {out.max_size}" for out in self.outputs)

    def manifests(self) -> Iterator[TokenManifest | None]:
        """See `JobOutput`. Yield one for the files of each format, with their sums."""
        for out in self.outputs:
            first = _whole(out, 0)
            count = 0 if first is None else first.options.get("files")
            files = [_whole(out, number) for number in range(count if isinstance(count, int) else 0)]
            whole = [found for found in files if found is not None]
            same = {found.options.get("job") for found in whole}
            if not whole or len(whole) < len(files) or len(same) > 1 or higher_parts(out.url, len(files)):
                yield None
                continue
            self._tell(out, [(found.tokens, found.documents) for found in whole])
            documents, tokens = sum(found.documents for found in whole), sum(found.tokens for found in whole)
            yield msgspec.structs.replace(whole[0], documents=documents, tokens=tokens)

    def existing(self) -> ConfigError | None:
        """See `JobOutput`."""
        for out in self.outputs:
            found = higher_parts(out.url, 0)
            if found:
                return already_exists(found[0])
        return None

    @contextmanager
    def opened(self, job: EncodeJob, work: Work) -> Iterator[Callable[[EncodedUnit, int], None]]:
        """See `JobOutput`."""
        pieces: list[Piece] = []

        def add(done: EncodedUnit, line: int) -> None:
            if done.facts.documents:
                pieces.append(Piece.of(done, line))

        yield add
        facts = {str(file["path"]): file for file in job.inputs}
        shared = Shared({}, os.path.join(work.folder, job.marks), self.options.overwrite)
        tasks: list[FileTask] = []
        for out in self.outputs:
            form = out.form(self._tokenizer_name, job.spec.how.loss)
            manifest = msgspec.structs.replace(self._manifest(job, out), inputs=[])
            shared.targets[out.format] = Target(out.store.url, out.stem, form, manifest)
            files = list(divide(pieces, form, out.max_size))
            self._check(out, len(files))
            tasks += [_task(out.format, number, len(files), file, facts) for number, file in enumerate(files)]
            self._tell(out, [(file.tokens, file.documents) for file in files])
        total = sum(out.dtype.itemsize for out in self.outputs) * self.report.tokens
        workers = 1 if self.report.tokens < FEW else self.options.workers
        where = Where("writing", job.key, work.scratch)
        with Progress("writing", total, "B", self.options.progress) as bar:
            bar.of_sizes([task.file.tokens * shared.targets[task.format].form.token_size for task in tasks])
            for _ in run(write_file, tasks, workers=workers, progress=bar, policy=Policy(shared=shared), where=where):
                pass
        for out in self.outputs:
            for path in reversed(higher_parts(out.url, self.report.numbered_files[out.format])):
                remove_part(path, out.format)  # from the last one on, so that a killed run finds the others
            if out.single and self.options.overwrite:
                remove_part(replace(out, stem=out.single).url, out.format)

    def _check(self, out: Output, count: int) -> None:
        """Raise `ConfigError` if there are too many files for their names, or others with higher numbers."""
        if len(part_path(out.stem, count - 1)) > len(part_path(out.stem, 0)):
            raise ConfigError(
                f"there would be {count:,} files, more than their names have digits for",
                file=out.url,
                kind="too-large",
                fix="Use a larger --max-file-size, or more digits, such as {part:7}.",
            )
        higher = [] if self.options.overwrite else higher_parts(out.url, count)
        if higher:
            raise already_exists(higher[0])

    def _tell(self, out: Output, files: Sequence[tuple[int, int]]) -> None:
        """Report the files of a format, of which each has these tokens and documents."""
        count = len(files)
        digits = len(part_path(out.stem, 0)) - len(part_path(out.stem, ""))
        numbers = f"{0:0{digits}d}..{count - 1:0{digits}d}"
        self.report.outputs[out.format] = part_path(out.url, 0) if count == 1 else part_path(out.url, f"{{{numbers}}}")
        self.report.numbered_files[out.format] = count
        note = larger_files(out.form(self._tokenizer_name, loss=False), files, out.max_size)
        if note:
            self.report.notes.append(note)

    def _manifest(self, job: EncodeJob, out: Output) -> TokenManifest:
        found = super()._manifest(job, out)
        return msgspec.structs.replace(found, options={**found.options, "max_file_size": out.max_size})


def _whole(out: Output, number: int) -> TokenManifest | None:
    """Return the manifest of a numbered file; None if it is missing or does not match the file."""
    one = replace(out, stem=part_path(out.stem, number))
    manifest = read_manifest(one.store, one.path)
    return manifest if manifest is not None and manifest.sizes and manifest.sizes == one.sizes() else None


def _task(format: str, number: int, count: int, file: File, facts: Mapping[str, dict[str, Any]]) -> FileTask:
    names = dict.fromkeys(name for span in file.spans for name in span.piece.files)
    return FileTask(format, number, count, file, [facts[name] for name in names])
