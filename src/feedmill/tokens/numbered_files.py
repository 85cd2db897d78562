"""Numbered token files of at most a given size, as the output of `tokenize`.

A file ends before the first document with which it would be larger. So the ends depend only on the documents, the
format and the size, and the files of a format are the same whatever other formats are written. Each file is written by
one unit, which reads the parts of pieces that it needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from feedmill.documents.lineage.sidecar import Origins, lineage_path
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest, with_files, write_manifest
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import Where
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import Policy, run
from feedmill.jobs.work import Work
from feedmill.storage import Store, open_store
from feedmill.storage.hashed import hashed_store
from feedmill.tokens.job import EncodeJob
from feedmill.tokens.outputs import FORMATS, Output, sizes_of, write_documents
from feedmill.tokens.spill import read_lengths, read_piece
from feedmill.tokens.targets import (
    ends_of,
    file_bytes,
    has_parts,
    higher_parts,
    larger_files,
    part_path,
    remove_part,
    that_fit,
)
from feedmill.tokens.token_files import (
    Piece,
    TokenFiles,
    add_documents,
    already_exists,
    numbered_beside,
    write_lineage,
)
from feedmill.tokens.work import EncodedUnit

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
        raise ConfigError(f"--max-file-size {max_size} is invalid", kind="bad-limit", fix="Use for example 1GB.")
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
                kind="no-part",
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
                kind="no-part",
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
                kind="too-many-files",
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
