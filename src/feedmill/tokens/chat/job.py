"""Tokenize conversations: the job of `feedmill.tokens.tokenize`, once, or once for each side of preference pairs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from feedmill.documents.batch import BadDocument, Record
from feedmill.documents.file import DocumentFile
from feedmill.documents.read import cut, read_documents
from feedmill.documents.textpath import load_json
from feedmill.errors import ConfigError, DataError
from feedmill.tokens.chat.checks import added, remarks
from feedmill.tokens.chat.forms import COLUMNS, SIDES, form_of
from feedmill.tokens.chat.reader import ChatSpec
from feedmill.tokens.kinds.model import find_tokenizer, is_pieces
from feedmill.tokens.tokenizer import AUTO, Tokenizer, ends_of, load_tokenizer

if TYPE_CHECKING:
    from feedmill.tokens.job import TokenizeReport
    from feedmill.tokens.options import Tokenize

Output = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]
logger = logging.getLogger("feedmill")


def tokenize_chats(
    files: Sequence[DocumentFile], options: Tokenize, run: Callable[[Tokenize], TokenizeReport]
) -> TokenizeReport:
    """Tokenize conversations. Raises as `feedmill.tokens.tokenize`.

    Args:
        files: the files of the inputs.
        run: runs the job for one output.
    """
    _refuse_options(options)
    tokenizer = _for_templates(options)
    form = _first_form(files) if options.chat == AUTO else str(options.chat)
    name = None if options.chat_template is None else os.fspath(options.chat_template)
    eos = None if options.eos == AUTO else ends_of(tokenizer, None, options.eos).eos
    rule = options.chat_mask
    spec = ChatSpec.of(tokenizer, form, name, rule, options.chat_template_args, closed=eos is not None)
    chosen = replace(
        options,
        tokenizer=tokenizer,
        chats=spec,
        template=False,
        eos=eos,
        rule="always",
        loss=spec.rule != "none",
        text=f"chat ({form})",
    )
    if form == "preference":
        report = _pairs(chosen, spec, run)
    else:
        report = run(chosen)
    if rule == AUTO and spec.rule == "turns":
        report.notes.append("the chat template has no {% generation %} blocks: the mask has the turns of the assistant")
    for every, remark in remarks(report.checks, report.documents):
        if every:
            logger.warning("%s", remark)
        (report.warnings if every else report.notes).append(remark)
    return report


def _for_templates(options: Tokenize) -> Tokenizer:
    """Return the tokenizer, which reads special tokens in texts.

    Raises:
        ConfigError: special tokens in a text, which templates write, would be plain text; or as `load_tokenizer`.
    """
    given, source = options.tokenizer, options.template_source
    if isinstance(given, Tokenizer) and given.reads_special:
        return given
    path = given.path if isinstance(given, Tokenizer) else find_tokenizer(os.fspath(given))
    source = "class" if is_pieces(path) or source == "auto" else source
    found = load_tokenizer(path if isinstance(given, Tokenizer) else given, options.backend, template_source=source)
    if not found.reads_special:
        raise ConfigError(
            f"chat templates write special tokens as text, which {found.kind} encodes as plain text",
            file=str(found.path),
            kind="unsupported-tokenizer",
            fix="Use the tokenizer.json of the model.",
        )
    return found


def _pairs(options: Tokenize, spec: ChatSpec, run: Callable[[Tokenize], TokenizeReport]) -> TokenizeReport:
    """Write both sides of pairs: document i of one output belongs to document i of the other."""
    reports = [
        run(replace(options, output=_of_side(options.output, side), chats=replace(spec, side=side))) for side in SIDES
    ]
    chosen, rejected = reports
    if chosen.documents != rejected.documents or chosen.skipped != rejected.skipped:
        raise DataError(
            f"{chosen.documents:,} chosen and {rejected.documents:,} rejected documents: the pairs do not match",
            file=next(iter(rejected.outputs.values())),
            kind="wrong-count",
            fix="Fix the documents that were skipped on one side only, and run the command again with --overwrite.",
        )
    sides = list(zip(SIDES, reports, strict=True))
    outputs = {f"{name} ({side})": url for side, one in sides for name, url in one.outputs.items()}
    numbers = {f"{name} ({side})": count for side, one in sides for name, count in one.numbered_files.items()}
    learned = [one.tokens_in_loss for one in reports if one.tokens_in_loss is not None]
    return replace(
        chosen,
        outputs=outputs,
        token_bytes={name: chosen.token_bytes[name.split(" ")[0]] for name in outputs},
        numbered_files=numbers,
        tokens=chosen.tokens + rejected.tokens,
        tokens_in_loss=sum(learned) if learned else None,
        checks=added(chosen.checks, rejected.checks),
        complete=chosen.complete and rejected.complete,
        seconds=chosen.seconds + rejected.seconds,
    )


def _of_side(output: Output, side: str) -> Output:
    if isinstance(output, Mapping):
        return {name: _named(os.fspath(path), side) for name, path in output.items()}
    return _named(os.fspath(output), side)


def _named(path: str, side: str) -> str:
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    return f"{folder}{slash}{stem}_{side}{dot}{suffix}"


def _refuse_options(options: Tokenize) -> None:
    for wrong, what, fix in (
        (options.specials_as_text, "--specials-as-text", "A template writes special tokens as text."),
        (options.mask, "--loss", "Use --chat-mask."),
        (options.text != "text", "--text", "Name the columns messages, conversations, prompt, chosen ..."),
    ):
        if wrong:
            raise ConfigError(f"{what} cannot be combined with --chat", kind="unknown-option", fix=fix)


class _Forms:
    """Reader whose texts are the forms of rows."""

    columns: tuple[str, ...] = COLUMNS

    def read(self, block: bytes | memoryview) -> None:
        """Return None: rows are read one by one."""

    def records(self, rows: Sequence[Any]) -> Iterator[Record]:
        """Yield the form of each line or row."""
        for row in rows:
            try:
                row = load_json(row) if isinstance(row, bytes) else row
                if not isinstance(row, dict):
                    raise BadDocument(f"it is {json.dumps(row)[:40]}, not an object with a conversation")
                yield Record(form_of(row))
            except BadDocument as error:
                yield Record(None, str(error))

    def close(self) -> None:
        """Do nothing."""


def _first_form(files: Sequence[DocumentFile]) -> str:
    """Return the form of the first row that has one. Raises ConfigError if the first rows have none."""
    why = "there are no rows"
    for unit in cut(files, 1 << 20):
        for batch in read_documents(unit, _Forms()):
            if batch.texts:
                return batch.texts[0]
            if batch.bad:
                why = batch.bad[0][1]
                break
        if why != "there are no rows":
            raise ConfigError(
                f"no conversation in the first rows: {why}",
                file=unit.file.url,
                kind="bad-document",
                fix="Pass the form, such as --chat messages, and check the names of the fields.",
            )
    raise ConfigError(why, kind="bad-document", fix="Check the inputs.")
