"""Token files as the output of `tokenize`: one file per format, with documents in the order of the inputs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.lineage.runs import Encoded, Runs, decode_runs
from feedmill.documents.lineage.sidecar import Origins, lineage_path, sequences_of
from feedmill.documents.units import cut, together
from feedmill.errors import ConfigError
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import TokenWriter
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest, with_files, write_manifest
from feedmill.jobs.work import Work
from feedmill.kernels.bounds import ranges
from feedmill.storage import Store
from feedmill.tokens.job import EncodeJob
from feedmill.tokens.outputs import Output, data_files
from feedmill.tokens.spill import Documents, read_piece
from feedmill.tokens.targets import higher_parts, numbered_target, remove_part
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.tokens.work import EncodedUnit

if TYPE_CHECKING:
    from feedmill.formats.tokens.dolma import DolmaWriter
    from feedmill.tokens.tokenize import TokenizeOptions, TokenizeReport


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
