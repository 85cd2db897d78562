"""Implement ``preprocess_data``: run Feedmill's tokenizing job with the arguments of Megatron-LM's tool.

Each key of the documents becomes one pair of files, ``PREFIX_KEY_document.bin`` and ``.idx``, equal to the original's
byte for byte. A text without tokens is a document without a sequence. With ``--split-sentences`` the files are
``PREFIX_KEY_sentence.bin`` and ``.idx``, and a document has a sequence for each sentence with tokens.
"""

from __future__ import annotations

import glob
import json
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from feedmill.compat.megatron.settings import FLAGS, PREPROCESS
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.settings import Fate
from feedmill.jobs.policy import POLICIES, RAISE
from feedmill.tokens.template import TemplateSource

if TYPE_CHECKING:
    from feedmill.tokens.job import TokenizeReport
    from feedmill.tokens.tokenizer import Tokenizer

HUGGING_FACE = "HuggingFaceTokenizer"
SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
VOCABULARIES = ("GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase")
TIKTOKEN = "TikTokenizer"
ENGLISH = "english"
KINDS = (HUGGING_FACE, *SENTENCEPIECE, *VOCABULARIES, TIKTOKEN)


@dataclass(slots=True)
class Preprocessed:
    """What was written: the report of each key, and notes on arguments without effect."""

    keys: dict[str, TokenizeReport]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {"keys": {key: report.as_dict() for key, report in self.keys.items()}, "notes": self.notes}


class Arguments(ArgumentParser):
    """A parser of Megatron-LM's syntax (``--json-keys text title``) that reports wrong usage like the other commands.

    Args:
        command: name of the command; `help`: its line in the help.
        fail: reports wrong usage, and does not return.
    """

    def __init__(self, command: str, help: str, fail: Callable[[str], NoReturn]) -> None:
        super().__init__(prog=f"feedmill compat megatron {command}", description=help)
        self._fail = fail

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        self._fail(message)


def _parser(fail: Callable[[str], NoReturn]) -> Arguments:
    """Return the parser of the tool's arguments, and of Feedmill's own."""
    parser = Arguments("preprocess_data", "Tokenize JSON lines into Megatron-LM's .bin and .idx.", fail)
    add = parser.add_argument
    add("--input", required=True, help="a file of JSON lines; with --partitions above 1 also a pattern of files")
    add("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys of the texts (text)")
    add("--output-prefix", required=True, metavar="PREFIX", help="the files are PREFIX_KEY_document.bin and .idx")
    add("--split-sentences", action="store_true", help="a sequence for each sentence, by Punkt of NLTK")
    add("--keep-newlines", action="store_true", help="white space after a sentence belongs to it")
    add("--lang", default=ENGLISH, metavar="LANGUAGE", help="language of the sentences (english)")
    add("--punkt", metavar="FOLDER", help="parameters punkt_tab; default: in the folders of NLTK_DATA (new)")
    add("--append-eod", action="store_true", help="append the end-of-document token to each document")
    add("--partitions", type=int, default=1, metavar="N", help="deal lines to N parts, which are joined (1)")
    add("--keep-sequential-samples", action="store_true", help="keep the order of lines with several partitions")
    add("--workers", type=int, metavar="N", help="processes (one per core)")
    add("--tokenizer-type", choices=KINDS, required=True, help="kind of tokenizer")
    add("--tokenizer-model", metavar="PATH", help="the tokenizer: a folder or a file")
    add("--vocab-file", metavar="FILE", help="vocab.json or vocab.txt, instead of --tokenizer-model")
    add("--merge-file", metavar="FILE", help="merges.txt beside vocab.json")
    add("--tokenizer-hf-no-include-special-tokens", action="store_true", help="without the tokenizer's template")
    add("--on-error", choices=list(POLICIES), default=RAISE, help="stop at an invalid document, or skip it (new)")
    add("--overwrite", action="store_true", help="replace existing files (new)")
    add("--json", action="store_true", help="print a JSON report (new)")
    for name, setting in PREPROCESS.settings.items():
        if setting.fate is not Fate.MAPPED:
            form: dict[str, Any] = {"action": "store_true"} if name in FLAGS else {"nargs": "*", "default": None}
            add(f"--{name.replace('_', '-')}", help=f"{setting.fate}: {setting.words}", **form)
    return parser


def preprocess_data(
    words: Sequence[str], fail: Callable[[str], NoReturn], *, progress: bool | None = None
) -> tuple[Preprocessed, Namespace]:
    """Run the tool.

    Args:
        words: its command line.
        fail: called if an argument is unknown, missing or has a value of another type.
        progress: as for `tokenize`.

    Raises:
        ConfigError: an argument is unsupported, or the output exists. Other errors are those of `tokenize`.
    """
    from feedmill.tokens.options import Tokenize
    from feedmill.tokens.verbs.tokenize import tokenize_documents

    given = _parser(fail).parse_args(list(words))
    notes = PREPROCESS.take(_unmapped(given)).notes
    if given.partitions < 1:
        raise ConfigError(f"--partitions {given.partitions} is invalid", kind="bad-option", fix="Use 1 or more.")
    twice = len(set(given.json_keys)) < len(given.json_keys)
    if twice:
        raise ConfigError("a key was passed twice", kind="bad-option", fix="Pass each key of --json-keys once.")
    sentences = None
    if given.split_sentences:
        from feedmill.tokens.sentences import find_sentences

        sentences = find_sentences(given.lang, given.punkt, keep_newlines=given.keep_newlines)
    tokenizer = _tokenizer(given)
    inputs = _inputs(given)
    deal = 1 if given.keep_sequential_samples else given.partitions
    reports = {}
    for key in given.json_keys:
        options = Tokenize(
            inputs,
            {"megatron": f"{given.output_prefix}_{key}_{'document' if sentences is None else 'sentence'}"},
            tokenizer=tokenizer,
            on_error=given.on_error,
            text=_expression(key),
            kind="lines",
            eos=_eod(tokenizer, given) if given.append_eod else None,
            bos=None,
            rule="always",
            template=not given.tokenizer_hf_no_include_special_tokens,
            keep_empty=True,
            deal=deal,
            sentences=sentences,
            workers=given.workers,
            overwrite=given.overwrite,
            progress=progress,
        )
        reports[key] = tokenize_documents(options)
    return Preprocessed(reports, [*notes, *_without_sentences(given)]), given


def _unmapped(given: Namespace) -> dict[str, Any]:
    """Return the arguments that are given and not used, each with its value: a word, several, or True."""
    names = PREPROCESS.names(Fate.REFUSED, Fate.NO_EFFECT)
    found = {name: value for name in names if (value := getattr(given, name)) not in (None, False)}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in found.items()}


def _without_sentences(given: Namespace) -> list[str]:
    """Return notes on arguments about sentences that have no effect, because documents are not split."""
    passed = {"--lang": given.lang != ENGLISH, "--keep-newlines": given.keep_newlines, "--punkt": bool(given.punkt)}
    why = "documents are not split into sentences without --split-sentences"
    return [f"{name} has no effect: {why}" for name in passed if passed[name] and not given.split_sentences]


def _expression(key: str) -> str:
    """Return the expression of a top-level key of a document."""
    return key if re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII) else f".[{json.dumps(key)}]"


def _inputs(given: Namespace) -> list[str]:
    """Return the input files: as the original, a pattern only if there are several partitions; sorted."""
    if "://" in given.input:
        return [given.input]
    found = sorted(glob.glob(given.input)) if given.partitions > 1 else [given.input]
    if not found or not os.path.isfile(found[0]):
        raise NotFound(
            "there is no such file",
            file=given.input,
            kind="no-documents",
            fix="Pass a file of JSON lines, or a pattern of them with --partitions.",
        )
    return found


def _tokenizer(given: Namespace) -> Tokenizer:
    """Return the tokenizer that the arguments name. Raises as `load_tokenizer`, and `ConfigError` if there is none."""
    from feedmill.tokens.tokenizer import load_tokenizer

    path, source = given.tokenizer_model, "auto"
    if path is None and given.vocab_file is not None:
        path = os.path.dirname(given.vocab_file) or "."
        beside = given.merge_file is None or (os.path.dirname(given.merge_file) or ".") == path
        named = os.path.basename(given.vocab_file) in ("vocab.json", "vocab.txt")
        if not beside or not named or os.path.basename(given.merge_file or "merges.txt") != "merges.txt":
            raise ConfigError(
                "the vocabulary and its merges must be in one folder, as vocab.json (or vocab.txt) and merges.txt",
                file=given.vocab_file,
                kind="no-tokenizer",
                fix="Copy or link them there.",
            )
    if path is None:
        raise ConfigError(
            f"{given.tokenizer_type} needs the path of the tokenizer",
            kind="missing-option",
            fix="Add --tokenizer-model, or --vocab-file and --merge-file. Nothing is downloaded.",
        )
    backend = "sentencepiece" if given.tokenizer_type in SENTENCEPIECE else "auto"
    if given.tokenizer_type != HUGGING_FACE:
        source = "file"
    wanted: TemplateSource = source  # type: ignore[assignment]
    return load_tokenizer(path, backend, template_source=wanted)  # type: ignore[arg-type]


def _eod(tokenizer: Tokenizer, given: Namespace) -> str:
    if tokenizer.declared_eos is None:
        raise ConfigError(
            "the tokenizer's files do not define an EOS token, which --append-eod appends",
            file=str(tokenizer.path),
            kind="unknown-token",
            fix=f"Set eos_token in tokenizer_config.json beside it, or omit --append-eod ({given.tokenizer_type}).",
        )
    return tokenizer.declared_eos
