"""Tokenize documents into token files of any formats in one pass, by `feedmill.tokens.job`.

There is one file per format, or numbered files of at most a given size (`NumberedFiles`). Documents have the order of
the inputs. A numbered file ends before the first document with which it would be larger. So the ends depend only on the
documents, the format and the size, and the files of a format are the same whatever other formats are written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np

from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.find import DocumentFiles, find_documents
from feedmill.documents.lineage.sidecar import Origins, Runs
from feedmill.documents.read import cut, together
from feedmill.errors import ConfigError
from feedmill.formats.registry import targets
from feedmill.formats.tokens.base import Form, Int64s
from feedmill.formats.tokens.manifest import TokenManifest, read_manifest
from feedmill.jobs.dry_run import DryRun
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.jobs.work import Work
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.limits import parse_size
from feedmill.tokens.corpus import Corpus
from feedmill.tokens.encode import Encoding, does_not_fit, larger_size
from feedmill.tokens.job import EXAMPLES, EncodeJob, EncodeSpec, TokenizeReport
from feedmill.tokens.options import Tokenize
from feedmill.tokens.outputs import (
    FileTask,
    Output,
    already_exists,
    data_files,
    documents_of,
    file_bytes,
    has_parts,
    higher_parts,
    larger_files,
    new_file,
    numbered_target,
    part_path,
    plan_outputs,
    remove_part,
    that_fit,
    warn_of_large_files,
)
from feedmill.tokens.spill import Piece, Pieces
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.tokenizer import Ends, Tokenizer, ends_of, load_tokenizer


@verb(Tokenize)
def tokenize(options: Tokenize) -> TokenizeReport:
    """Outputs do not depend on the number of workers. A dry run tokenizes the first documents of each file.

    Raises:
        ConfigError: options contradict each other or name an unknown token, or the output exists.
        DataError: a document cannot be tokenized (`on_error` is ``raise``), or a file is corrupt.
        EmptyResult: there are no documents, or all were skipped.
        NotFound: an input or the tokenizer does not exist.
        MissingExtra: an optional package is required.
        StorageError: the output cannot be written.
    """
    if options.chat is not None:
        from feedmill.tokens.chat.job import tokenize_chats

        return tokenize_chats(_find(options).files, options, tokenize_documents)
    if options.chat_template_args:
        raise ConfigError(
            "chat_template_args has no effect without chat",
            kind="unknown-option",
            fix="Pass chat='auto' (--chat auto), or omit it.",
        )
    return tokenize_documents(options)


def tokenize_documents(options: Tokenize) -> TokenizeReport:
    """Tokenize documents, or conversations of a known form; see `tokenize`."""
    begin = time.perf_counter()
    output, size = options.output, parse_size(options.max_file_size, "--max-file-size")
    formats = tuple(output if isinstance(output, Mapping) else options.formats)
    options = replace(options, formats=formats, on_error=on_error_policy(options.on_error))
    tokenizer = _loaded(options)
    ends = ends_of(tokenizer, options.bos, options.eos)
    _check(options)
    outputs = _planned(options, size, tokenizer, ends)
    spec = _spec(tokenizer, options, outputs, ends)
    report = _report_of(tokenizer, options, outputs, ends)
    found = _find(options)
    report.skipped_files, report.skipped_files_examples = len(found.skipped), found.skipped[:EXAMPLES]
    if size is None:
        warn_of_large_files(outputs, sum(file.size for file in found.files))
    kind = TokenFiles if size is None else NumberedFiles
    EncodeJob(kind(outputs, found.files, tokenizer, options, report), spec, tokenizer, options).run()
    report.seconds = time.perf_counter() - begin
    return report


def _loaded(options: Tokenize) -> Tokenizer:
    """Return the tokenizer, loaded as the options say unless the caller has done so."""
    given = options.tokenizer
    if isinstance(given, Tokenizer):
        return given
    # Without a template no setting can contradict it.
    source: TemplateSource = options.template_source if options.template else "file"
    return load_tokenizer(given, options.backend, template_source=source, pattern=options.tokenizer_pattern)


def _planned(options: Tokenize, size: int | None, tokenizer: Tokenizer, ends: Ends) -> list[Output]:
    """Return the outputs, numbered if files have a maximum size."""
    around = tokenizer.around if options.template else None
    certain = [ends.bos_id or 0, ends.eos_id or 0, *(() if around is None else (*around.before, *around.after))]
    # Chat templates write added tokens, which the formats' rules may leave out.
    every = 0 if options.chats is None else tokenizer.size
    outputs = plan_outputs(
        options.output,
        options.formats,
        vocab_size=max(tokenizer.vocab_size, every),
        base_vocab_size=tokenizer.base_vocab_size,
        largest=max(*certain, every - 1),
        token_size=options.token_size,
        seq_len=options.seq_len,
        shard=options.shard_sequences,
    )
    if size is not None:
        return numbered(outputs, size, options.overwrite)
    refuse_numbered(outputs, options.overwrite)
    return outputs


def _report_of(tokenizer: Tokenizer, options: Tokenize, outputs: Sequence[Output], ends: Ends) -> TokenizeReport:
    """Return the report of a run that begins: what decides the ids, and where they go."""
    around = tokenizer.around if options.template else None
    return TokenizeReport(
        {out.format: out.url for out in outputs},
        bos=ends.bos,
        eos=ends.eos,
        rule=options.rule,
        template=around is not None,
        template_adds=None if around is None else str(around),
        has_template=tokenizer.around is not None,
        chat=None if options.chats is None else {"form": options.chats.form, "mask": options.chats.rule},
        settings=tokenizer.settings,
        switched_off=tokenizer.switched_off,
        token_bytes={out.format: out.dtype.itemsize for out in outputs if not out.sequence},
    )


def _spec(tokenizer: Tokenizer, options: Tokenize, outputs: Sequence[Output], ends: Ends) -> EncodeSpec:
    """Return how documents are encoded for all outputs. Raises ConfigError if one cannot store BOS or EOS."""
    limit = min(int(np.iinfo(out.dtype).max) for out in outputs)
    for token, number in ((ends.bos, ends.bos_id), (ends.eos, ends.eos_id)):
        if number is not None and number > limit:
            raise ConfigError(does_not_fit(number, limit, repr(token)), kind="bad-token-size", fix=larger_size(number))
    how = Encoding(
        bos=ends.bos_id,
        eos=ends.eos_id,
        always=options.rule == "always",
        template=options.template,
        ordinary=options.specials_as_text,
        limit=limit,
        dtype="<u2" if tokenizer.size <= 1 << 16 else "<u4",
        loss=options.mask is not None,
        keep_empty=options.keep_empty,
        sentences=options.sentences,
        cut=options.mask == "datatrove",
        chat=options.chats is not None,
    )
    origins = any(out.format == "dolma" for out in outputs)
    skip = skips(options.on_error)
    return EncodeSpec.of(tokenizer, how, options.text, skip=skip, origins=origins, chat=options.chats)


def _find(options: Tokenize) -> DocumentFiles:
    """Return the files of the inputs. A file that was passed twice is read twice."""
    found, inputs = DocumentFiles(), options.inputs
    for item in [inputs] if isinstance(inputs, str | os.PathLike) else inputs:
        if isinstance(item, DocumentFile):
            found.files.append(item)
            continue
        given = find_documents([item], kind=options.kind, unnamed=None)
        found.files += given.files
        found.skipped += given.skipped
    return found


def _check(options: Tokenize) -> None:
    for value, known in (
        (options.rule, ("missing", "always")),
        (options.mask or options.loss_rule, ("mask", "datatrove")),
    ):
        if value not in known:
            raise ConfigError(f"unknown value {value!r}", fix=f"Use {' or '.join(known)}.")
    if options.mask and not any("loss" in targets()[name].keeps for name in options.formats if name in targets()):
        raise ConfigError("'vla-text' cannot store a loss mask", kind="unsupported", fix="Write another format too.")
    if options.sentences is not None and (options.mask or options.formats != ("megatron",)):
        raise ConfigError(
            "only Megatron-LM's files store sentences, without a loss mask",
            kind="bad-option",
            fix="Write the format megatron alone.",
        )
    if len(set(options.formats)) < len(options.formats):
        raise ConfigError("a format was passed twice", fix="Pass each format once.")


def numbered_beside(out: Output) -> list[str]:
    """Return the numbered files of an earlier run beside a single token file, with which they would be read."""
    return higher_parts(numbered_target(out.url), 0) if targets()[out.format].form == "tokens" else []


class TokenFiles:
    """Output of `tokenize`: token files of one or more formats, with documents in the order of the inputs."""

    in_units = False

    def __init__(
        self,
        outputs: Sequence[Output],
        files: Sequence[DocumentFile],
        tokenizer: Tokenizer,
        options: Tokenize,
        report: TokenizeReport,
    ) -> None:
        self.outputs, self.files, self.options, self.report = outputs, files, options, report
        self.store, self.url = outputs[0].store, outputs[0].url
        self._tokenizer_name = options.tokenizer_name or tokenizer.name

    @property
    def name(self) -> str:
        """See `JobOutput`."""
        return self.outputs[0].stem

    def plan(self, dry: DryRun) -> None:
        """See `JobOutput`."""
        for out in self.outputs:
            dry.deletes_all(out.store, self._replaced(out))
        for out in self.outputs:
            for path in [f"{out.stem}/"] if out.sequence else data_files(out.format, out.stem):
                dry.writes(out.store, path)

    def _replaced(self, out: Output) -> list[str]:
        """Return the files of an earlier run that are deleted, in the store of the output."""
        return [os.path.basename(path) for path in numbered_beside(out)]

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
    def opened(self, job: EncodeJob, work: Work) -> Iterator[Callable[[Piece], None]]:
        """See `JobOutput`."""
        how, sizes = job.spec.how, {file.url: file.size for file in self.files}
        origins = Origins("tokenize")
        lengths: list[Int64s] = []  # of documents that are cut into sequences

        def copy(piece: Piece, first: int = 0, step: int = 1) -> None:
            units = Pieces([piece], {name: origins.number(name, sizes[name]) for name in piece.files})
            numbers = range(first, piece.facts.documents, step)
            origins.add(Runs.of(*units.origins(np.asarray(numbers, np.int64))))
            for documents in documents_of(units, numbers, loss=piece.facts.loss, ids=piece.facts.origins):
                if any(out.sequence for out in self.outputs):
                    lengths.append(documents.lengths)
                for file in files:
                    file.add(*documents)

        with ExitStack() as stack:
            files = [
                stack.enter_context(
                    new_file(
                        out.store,
                        out.path,
                        out.form(self._tokenizer_name, how.loss, how.sentences is not None),
                        lambda: origins,
                        lambda _, out=out: self._manifest(job, out),  # type: ignore[misc]
                        (out.sequence, lengths) if out.sequence else None,
                    )
                )
                for out in self.outputs
            ]
            pieces: list[Piece] = []
            yield pieces.append if self.options.deal > 1 else copy
            for part in range(self.options.deal):
                before = 0
                for piece in pieces:
                    copy(piece, (part - before) % self.options.deal, self.options.deal)
                    before += piece.facts.documents
            self.report.left_over = sum(getattr(file.writer, "left_over", 0) for file in files)
        if not work.scratch.is_local:
            forget_copies()
        for out in self.outputs:
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
        if given.mask:
            options["loss"] = given.mask
        if job.spec.chat is not None:
            options["chat"] = {"form": job.spec.chat.form, "mask": job.spec.chat.rule}
            options["chat"] |= {"side": job.spec.chat.side} if job.spec.chat.side else {}
            options["chat"] |= {"date": job.spec.chat.today} if job.spec.chat.today else {}
        if report.tokens_in_loss is not None:
            options["tokens_in_loss"] = report.tokens_in_loss
        if report.checks:
            options["checks"] = {name: asdict(check) for name, check in sorted(report.checks.items())}
        return job.manifest(out.format, report.documents, report.tokens, options)


NUMBER = "_{part}"


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
        if beside and not overwrite:
            raise ConfigError(
                f"{len(beside):,} numbered files of an earlier run exist ({os.path.basename(beside[0])}, ...), and"
                " would be read together with this file",
                file=out.url,
                kind="exists",
                fix="Add --overwrite to replace them, or choose another output.",
            )


def cut_in_order(corpus: Corpus, form: Form, limit: int) -> list[range]:
    """Return the documents of each file in stored order, as `cut_by_size` does; one empty file if there are none.

    The bounds of documents are loaded only of files of the corpus in which a file ends.
    """
    files: list[range] = []
    begin, have = 0, (0, 0)
    for base, (_, shard) in zip(corpus.firsts.tolist(), corpus.shards, strict=False):
        count = shard.documents or 0
        if file_bytes(form, have[0] + shard.tokens, have[1] + count) <= limit:
            have = have[0] + shard.tokens, have[1] + count
            continue
        ends, first = (shard.bounds, np.arange(count + 1)), 0
        while first < count:
            last = that_fit(form, limit, ends, first, have) + first
            last += last == first and not have[1]  # a document that is longer than a file
            have = have[0] + int(shard.bounds[last] - shard.bounds[first]), have[1] + last - first
            if last < count:
                files.append(range(begin, base + last))
                begin, have = base + last, (0, 0)
            first = last
    return files if files and begin == len(corpus) else [*files, range(begin, len(corpus))]


class NumberedFiles(TokenFiles):
    """Output of `tokenize` with a size of files: numbered token files of one or more formats."""

    in_units = True

    @property
    def name(self) -> str:
        """See `JobOutput`. The name of a single file."""
        return self.outputs[0].stem.replace(NUMBER, "") or self.outputs[0].stem

    def _replaced(self, out: Output) -> list[str]:
        """See `TokenFiles`. The single file."""
        return [replace(out, stem=out.single).path] if out.single else []

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
            whole = [manifest for manifest in files if manifest is not None]
            same = {manifest.options.get("job") for manifest in whole}
            if not whole or len(whole) < len(files) or len(same) > 1 or higher_parts(out.url, len(files)):
                yield None
                continue
            self._tell(out, [(manifest.tokens, manifest.documents) for manifest in whole])
            documents, tokens = (
                sum(manifest.documents for manifest in whole),
                sum(manifest.tokens for manifest in whole),
            )
            yield msgspec.structs.replace(whole[0], documents=documents, tokens=tokens)

    def existing(self) -> ConfigError | None:
        """See `JobOutput`."""
        for out in self.outputs:
            others = higher_parts(out.url, 0)
            if others:
                return already_exists(others[0])
        return None

    @contextmanager
    def opened(self, job: EncodeJob, work: Work) -> Iterator[Callable[[Piece], None]]:
        """See `JobOutput`."""
        pieces: list[Piece] = []
        yield lambda piece: pieces.append(piece) if piece.facts.documents else None
        units = Pieces(pieces, job.numbers)
        files = job.files(units, work.scratch, self.options.overwrite)
        tasks: list[FileTask] = []
        for out in self.outputs:
            form = out.form(self._tokenizer_name, job.spec.how.loss)
            files.forms[out.format] = form, self._manifest(job, out)
            rows = cut_in_order(units.corpus, form, out.max_size)
            self._check(out, len(rows))
            for number, row in enumerate(rows):
                path, options = part_path(out.url, number), {"file": number, "files": len(rows)}
                tasks.append(FileTask(len(files.rows), path, out.format, units.inputs_of(row), options))
                files.rows.append(row)
        written = list(job.write(files, tasks, len(self.outputs)))
        for out in self.outputs:
            done = zip(tasks, written, strict=True)
            self._tell(out, [(file.tokens, file.documents) for task, file in done if task.format == out.format])
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
        manifest = super()._manifest(job, out)
        return msgspec.structs.replace(manifest, options={**manifest.options, "max_file_size": out.max_size})


def _whole(out: Output, number: int) -> TokenManifest | None:
    """Return the manifest of a numbered file; None if it is missing or does not match the file."""
    part = replace(out, stem=part_path(out.stem, number))
    manifest = read_manifest(part.store, part.path)
    return manifest if manifest is not None and manifest.sizes and manifest.sizes == part.sizes() else None
