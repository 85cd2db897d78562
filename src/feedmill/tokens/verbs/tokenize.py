"""Tokenize documents into token files of any formats in one pass; see `feedmill.tokens.job`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from feedmill.documents.file import DocumentFile
from feedmill.documents.find import DocumentFiles, find_documents
from feedmill.errors import ConfigError
from feedmill.formats.registry import targets
from feedmill.jobs.options import verb
from feedmill.jobs.policy import on_error_policy, skips
from feedmill.storage.limits import parse_size
from feedmill.tokens.encode import Encoding, does_not_fit, larger_size
from feedmill.tokens.ends import Ends, ends_of
from feedmill.tokens.job import EXAMPLES, EncodeJob, EncodeSpec
from feedmill.tokens.options import Tokenize
from feedmill.tokens.outputs import Output, plan_outputs, warn_of_large_files
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.token_files import (
    NumberedFiles,
    TokenFiles,
    TokenizeReport,
    numbered,
    refuse_numbered,
)
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer


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
