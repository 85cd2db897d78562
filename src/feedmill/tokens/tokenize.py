"""Tokenize documents into token files of any formats in one pass; see `feedmill.tokens.job`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.documents.file import DocumentFile
from feedmill.documents.find import DocumentFiles, find_documents
from feedmill.documents.units import UNIT_BYTES
from feedmill.errors import ConfigError
from feedmill.formats.registry import targets
from feedmill.jobs.dry_run import can_run_dry
from feedmill.jobs.policy import RAISE, OnError, on_error_policy, skips
from feedmill.storage.limits import parse_size
from feedmill.tokens.encode import Encoding, does_not_fit, larger_size
from feedmill.tokens.ends import AUTO, Ends, Given, ends_of, is_nothing
from feedmill.tokens.job import EncodeJob
from feedmill.tokens.outputs import Output, plan_outputs
from feedmill.tokens.targets import warn_of_large_files
from feedmill.tokens.template import TemplateSource
from feedmill.tokens.token_files import (
    ChatForm,
    ChatMask,
    LossRule,
    NumberedFiles,
    Rule,
    TokenFiles,
    TokenizeOptions,
    TokenizeReport,
    numbered,
    refuse_numbered,
)
from feedmill.tokens.tokenizer import Backend, Tokenizer, load_tokenizer
from feedmill.tokens.work import EXAMPLES, EncodeSpec

if TYPE_CHECKING:
    pass


@can_run_dry
def tokenize(
    inputs: Sequence[str | os.PathLike[str] | DocumentFile] | str | os.PathLike[str],
    output: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    formats: Sequence[str] = ("pbin",),
    backend: Backend = "auto",
    tokenizer_pattern: str | None = None,
    text: str = "text",
    kind: str | None = None,
    eos: Given = AUTO,
    bos: Given = None,
    rule: Rule = "missing",
    template: bool = True,
    template_source: TemplateSource = "auto",
    specials_as_text: bool = False,
    token_size: int | None = None,
    seq_len: int | None = None,
    shard_sequences: int | None = None,
    max_file_size: int | str | None = None,
    loss: bool | LossRule | None = False,
    loss_rule: LossRule = "mask",
    on_error: OnError = RAISE,
    allow_empty: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    tokenizer_name: str | None = None,
    chat: ChatForm | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    chat_mask: ChatMask = "auto",
    chat_template_args: Mapping[str, Any] | None = None,
    unit_bytes: int = UNIT_BYTES,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    progress: bool | None = None,
) -> TokenizeReport:
    """Tokenize documents into token files.

    Args:
        inputs: files, folders, URLs or patterns, see `feedmill.documents.find`.
        output: a path without suffix (each format adds its own), or a mapping from format to path.
        tokenizer, tokenizer_pattern: see `load_tokenizer`. Ignored for a loaded tokenizer: `backend`,
            `tokenizer_pattern`, `template_source`.
        formats: one or more of ``pbin``, ``ds``, ``megatron``, ``dolma``, ``vla-text``.
        kind: type of files to read from folders: ``lines``, ``text``, ``parquet`` or ``arrow``. None detects it, and
            raises an error for a folder with several types.
        text: field of the text, a path like ``.a.b[0]``, or a jq expression.
        eos, bos: special tokens for the end and the beginning of each document. ``none``, ``null``, None and False: no
            token; ``auto``: that of the tokenizer's files. An ordinary word of the vocabulary is an error.
        rule: ``missing`` adds them only if the document does not have them already, ``always`` to every document.
        template: apply the tokenizer's template. datatrove with an EOS is ``template=False, rule="always"``.
        template_source: where the template is defined; see `load_tokenizer`.
        specials_as_text: encode special tokens that occur in a text as plain text.
        token_size: bytes per token; default: chosen by each format.
        seq_len: for ``vla-text``, the sequence length of the training program; sequences have one token more.
        shard_sequences: for ``vla-text``, sequences per shard; default: 8,192.
        max_file_size: write numbered files of at most this many bytes, such as ``1GB``; a longer document has a file of
            its own. ``{part}`` in the path is the number; by default ``_{part}`` is added to it. Not for ``vla-text``.
        loss: write a loss mask from the documents' ``no_loss_ranges`` beside the tokens (not for ``vla-text``); also
            the name of a rule, or ``none``. `loss_rule` ``datatrove`` cuts documents that end in such a range, as
            datatrove does.
        on_error: ``raise`` at a document that cannot be tokenized, or ``skip`` and list it.
        allow_empty: write the outputs even if there are no documents.
        workers: number of processes, one core each; default: one per core.
        overwrite: overwrite existing files.
        tokenizer_name: name of the tokenizer in ``.ds.metadata``; default: `tokenizer` as given.
        chat: read conversations instead of texts: ``messages``, ``sharegpt``, ``prompt`` (and completion) or
            ``preference`` (chosen and rejected, in two outputs); ``auto`` is the form of the first row. The tokenizer's
            own chat template makes the text, and a loss mask is written beside the tokens. BOS, EOS and the template of
            texts are not added, unless `bos` or `eos` name a token.
        chat_template: a file with the template, or the name of one of the tokenizer's templates; default: the
            tokenizer's default.
        chat_mask: what contributes to the loss: ``generation`` (what the template marks), ``turns`` (the answers of the
            assistant), ``last`` (only the last one), ``none`` (everything, without a mask); ``auto`` is ``generation``
            if the template has such blocks, else ``turns``.
        chat_template_args: further variables of the template, such as ``{"enable_thinking": False}``, with values that
            JSON can hold. A row's own ``chat_template_kwargs`` come before them.
        unit_bytes: approximate bytes of input per unit of work.
        dry_run: write nothing; the report has what would be written. The first documents of each file are tokenized.
        progress: whether to show a progress bar; None: only if stderr is a terminal.

    Raises:
        ConfigError: options contradict each other or name an unknown token, or the output exists.
        DataError: a document cannot be tokenized (`on_error` is ``raise``), or a file is corrupt.
        EmptyResult: there are no documents, or all were skipped.
        NotFound: an input or the tokenizer does not exist.
        MissingExtra: an optional package is required.
        StorageError: the output cannot be written.
    """
    options = TokenizeOptions(
        formats=tuple(output) if isinstance(output, Mapping) else tuple(formats),
        on_error=on_error_policy(on_error),
        backend=backend,
        tokenizer_pattern=tokenizer_pattern,
        text=text,
        kind=kind,
        eos=eos,
        bos=bos,
        rule=rule,
        template=template,
        template_source=template_source,
        specials_as_text=specials_as_text,
        token_size=token_size,
        seq_len=seq_len,
        shard_sequences=shard_sequences,
        max_file_size=parse_size(max_file_size, "--max-file-size"),
        loss=loss is True or not is_nothing(loss),
        loss_rule=loss_rule if isinstance(loss, bool | None) or is_nothing(loss) else loss,
        allow_empty=allow_empty,
        workers=workers,
        overwrite=overwrite,
        tokenizer_name=tokenizer_name,
        unit_bytes=unit_bytes,
        progress=progress,
    )
    several = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if chat is None:
        if chat_template_args:
            raise ConfigError(
                "chat_template_args has no effect without chat",
                kind="unknown-option",
                fix="Pass chat='auto' (--chat auto), or omit it.",
            )
        return tokenize_as(several, output, tokenizer, options)
    from feedmill.tokens.chat.job import tokenize_chats

    files = _find(several, kind).files
    return tokenize_chats(
        several, files, output, tokenizer, options, chat, chat_template, chat_mask, chat_template_args, tokenize_as
    )


def tokenize_as(
    inputs: Sequence[str | os.PathLike[str] | DocumentFile],
    output: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    given: str | os.PathLike[str] | Tokenizer,
    options: TokenizeOptions,
) -> TokenizeReport:
    """Tokenize documents with all options of `TokenizeOptions`; see `tokenize`."""
    begin = time.perf_counter()
    tokenizer = _loaded(given, options)
    ends = ends_of(tokenizer, options.bos, options.eos)
    _check(options)
    outputs = _planned(output, options, tokenizer, ends)
    spec = _spec(tokenizer, options, outputs, ends)
    report = _report_of(tokenizer, options, outputs, ends)
    found = _find(inputs, options.kind)
    report.skipped_files, report.skipped_files_examples = len(found.skipped), found.skipped[:EXAMPLES]
    if options.max_file_size is None:
        warn_of_large_files(outputs, sum(file.size for file in found.files))
    kind = TokenFiles if options.max_file_size is None else NumberedFiles
    EncodeJob(kind(outputs, found.files, tokenizer, options, report), spec, tokenizer, options).run()
    report.seconds = time.perf_counter() - begin
    return report


def _loaded(given: str | os.PathLike[str] | Tokenizer, options: TokenizeOptions) -> Tokenizer:
    """Return the tokenizer, loaded as the options say unless the caller has done so."""
    if isinstance(given, Tokenizer):
        return given
    # Without a template no setting can contradict it.
    source: TemplateSource = options.template_source if options.template else "file"
    return load_tokenizer(given, options.backend, template_source=source, pattern=options.tokenizer_pattern)


def _planned(
    output: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    options: TokenizeOptions,
    tokenizer: Tokenizer,
    ends: Ends,
) -> list[Output]:
    """Return the outputs, numbered if files have a maximum size."""
    around = tokenizer.around if options.template else None
    certain = [ends.bos_id or 0, ends.eos_id or 0, *(() if around is None else (*around.before, *around.after))]
    # Chat templates write added tokens, which the formats' rules may leave out.
    every = 0 if options.chat is None else tokenizer.size
    outputs = plan_outputs(
        output,
        options.formats,
        vocab_size=max(tokenizer.vocab_size, every),
        base_vocab_size=tokenizer.base_vocab_size,
        largest=max(*certain, every - 1),
        token_size=options.token_size,
        seq_len=options.seq_len,
        shard=options.shard_sequences,
    )
    if options.max_file_size is not None:
        return numbered(outputs, options.max_file_size, options.overwrite)
    refuse_numbered(outputs, options.overwrite)
    return outputs


def _report_of(tokenizer: Tokenizer, options: TokenizeOptions, outputs: Sequence[Output], ends: Ends) -> TokenizeReport:
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
        chat=None if options.chat is None else {"form": options.chat.form, "mask": options.chat.rule},
        settings=tokenizer.settings,
        switched_off=tokenizer.switched_off,
        token_bytes={out.format: out.dtype.itemsize for out in outputs if not out.sequence},
    )


def _spec(tokenizer: Tokenizer, options: TokenizeOptions, outputs: Sequence[Output], ends: Ends) -> EncodeSpec:
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
        loss=options.loss,
        keep_empty=options.keep_empty,
        sentences=options.sentences,
        cut=options.loss_rule == "datatrove",
        chat=options.chat is not None,
    )
    origins = any(out.format == "dolma" for out in outputs)
    skip = skips(options.on_error)
    return EncodeSpec.of(tokenizer, how, options.text, skip=skip, origins=origins, chat=options.chat)


def _find(inputs: Sequence[str | os.PathLike[str] | DocumentFile], kind: str | None) -> DocumentFiles:
    """Return the files of the inputs. A file that was passed twice is read twice."""
    found = DocumentFiles()
    for item in inputs:
        if isinstance(item, DocumentFile):
            found.files.append(item)
            continue
        given = find_documents([item], kind=kind, unnamed=None)
        found.files += given.files
        found.skipped += given.skipped
    return found


def _check(options: TokenizeOptions) -> None:
    for value, known in (
        (options.rule, ("missing", "always")),
        (options.loss_rule, ("mask", "datatrove")),
    ):
        if value not in known:
            raise ConfigError(f"unknown value {value!r}", fix=f"Use {' or '.join(known)}.")
    if options.loss and not any("loss" in targets()[name].keeps for name in options.formats if name in targets()):
        raise ConfigError("'vla-text' cannot store a loss mask", kind="unsupported", fix="Write another format too.")
    if options.sentences is not None and (options.loss or options.formats != ("megatron",)):
        raise ConfigError(
            "only Megatron-LM's files store sentences, without a loss mask",
            kind="bad-option",
            fix="Write the format megatron alone.",
        )
    if len(set(options.formats)) < len(options.formats):
        raise ConfigError("a format was passed twice", fix="Pass each format once.")
