"""Options of the verbs that write and read token files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, Literal

from feedmill.errors import ConfigError
from feedmill.jobs.options import (
    AllowEmpty,
    Arg,
    DryRunnable,
    Flag,
    Inner,
    Opt,
    Options,
    Path,
    Paths,
    Processes,
    PythonOnly,
    TokenFiles,
    WithProgress,
)
from feedmill.jobs.policy import METAVAR, RAISE, OnError

if TYPE_CHECKING:
    from feedmill.documents.file import DocumentFile
    from feedmill.formats.tokens.base import Tokens
    from feedmill.tokens.chat.reader import ChatSpec
    from feedmill.tokens.sentences import Sentences
    from feedmill.tokens.tokenizer import Tokenizer

Backend = Literal["auto", "fastokens", "hf", "sentencepiece", "ranks"]
ChatForm = Literal["auto", "messages", "sharegpt", "prompt", "preference"]
ChatMask = Literal["auto", "generation", "turns", "last", "none"]
LossRule = Literal["mask", "datatrove"]
Rule = Literal["missing", "always"]
TemplateSource = Literal["auto", "flags", "file", "class", "transformers4", "transformers5"]
Order = Literal["feedmill", "modalities", "datatrove"]
SplitPlan = Mapping[str, Sequence[int | Sequence[int]]]
Given = str | bool | None
"""A special token by its name, ``auto``, or none."""
Files = Annotated[Paths, Arg("INPUT...", "Token files or JSONL files, or folders of them; paths or URLs.")]
File = Annotated[Path, Arg("OUTPUT", "The file to write; its suffix selects the format.")]


class NumberedFiles(Options, kw_only=True):
    """Outputs of a size."""

    max_file_size: Annotated[
        int | str | None,
        Opt(
            "SIZE",
            "Write numbered files of at most this size, such as 2GB or 500MiB.",
            more="A longer document has a file of its own. ``{part}`` in the path is the number; by default"
            " ``_{part}`` is added to it.",
        ),
    ] = None


class Rewriting(TokenFiles, AllowEmpty, DryRunnable, Processes, WithProgress, kw_only=True):
    """Documents of token files in new files."""

    overwrite: Annotated[bool, Flag("Replace existing files.")] = False


class Seeded(Options, kw_only=True):
    """A random order."""

    seed: Annotated[int | None, Opt("N", "Seed of the order; default: a random one, which is shown.")] = None


class NumberedByTokens(NumberedFiles, kw_only=True):
    """Outputs of a size, or of a number of tokens."""

    max_tokens_per_file: Annotated[int | None, Opt("N", "Start a new file at N tokens; requires {part} in OUTPUT.")] = (
        None
    )


def _formats(words: list[str]) -> list[str]:
    return [name for word in words for name in word.split(",") if name]


def _rule(always: bool) -> Rule:
    return "always" if always else "missing"


def _arguments(words: list[str]) -> Mapping[str, Any]:
    from feedmill.tokens.chat.values import parse_variables

    return parse_variables(words, "--processor-args")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _variables(words: list[str]) -> Mapping[str, Any]:
    from feedmill.tokens.chat.values import parse_variables

    return parse_variables(words)


TemplateArgs = Annotated[
    Mapping[str, Any] | None,
    Opt(
        "KEY=VALUE",
        "Set a variable of the chat template, such as enable_thinking=false. May be repeated.",
        text=list[str],
        parse=_variables,
        more="In Python a mapping of values that JSON can hold. A row's own ``chat_template_kwargs`` come before.",
    ),
]


class Tokenizing(AllowEmpty, DryRunnable, Processes, WithProgress, kw_only=True):
    """Documents as tokens, in units; see `feedmill.tokens.job`."""

    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid document, or skip and count it.")] = RAISE
    overwrite: Annotated[bool, Flag("Replace existing output.")] = False
    unit_bytes: Annotated[int, PythonOnly("Approximate bytes of input per unit of work.")] = 8 << 20


class Tokenize(Tokenizing, NumberedFiles, AllowEmpty, DryRunnable, Processes, WithProgress):
    """Tokenize documents to token files of one or more formats in one pass.

    After a kill, the same command resumes. The result does not depend on the number of workers.
    """

    inputs: Annotated[
        Sequence[Path | DocumentFile] | Path,
        Arg("INPUT...", "Files or folders of documents: JSONL (also .gz, .zst), Parquet, Arrow, .txt; or URLs."),
    ]
    output: Annotated[
        Path | Mapping[str, Path],
        Opt(
            "PATH",
            "Output path; each format adds its suffix.",
            "--output -o",
            more="Or a mapping from format to path.",
        ),
    ]
    _: KW_ONLY
    tokenizer: Annotated[
        Path | Tokenizer,
        Opt(
            "PATH",
            "tokenizer.json, .model, .tiktoken, tekken.json, their folder, or a model in the Hugging Face cache.",
            "-t",
            more="For a loaded tokenizer, `backend`, `tokenizer_pattern` and `template_source` are ignored.",
        ),
    ]
    formats: Annotated[
        Sequence[str],
        Opt(
            "FORMAT",
            "pbin (default), ds, megatron, dolma, vla-text; comma-separated.",
            "--to",
            text=list[str],
            parse=_formats,
        ),
    ] = ("pbin",)
    text: Annotated[str, Opt("PATH", "Field of the text, path (.a.b[0]) or jq expression.")] = "text"
    kind: Annotated[
        str | None,
        Opt(
            "KIND",
            "Kind of documents to read from folders: lines, text, parquet, arrow.",
            more="None detects it, and raises an error for a folder with several.",
        ),
    ] = None
    eos: Annotated[
        Given,
        Opt(
            "TOKEN",
            "Special token after each document; none; auto: that of the tokenizer's files.",
            more="None and False are none. An ordinary word of the vocabulary is an error.",
        ),
    ] = "auto"
    bos: Annotated[Given, Opt("TOKEN", "Special token before each document; none; auto, as --eos.")] = "none"
    rule: Annotated[
        Rule,
        Opt(
            "",
            "Add BOS and EOS even if the document already has them.",
            "--always-add",
            text=bool,
            parse=_rule,
            more="With ``always``; with ``missing`` only if it does not.",
        ),
    ] = "missing"
    template: Annotated[
        bool,
        Flag(
            "Apply the tokenizer's own template to each document.",
            more='datatrove with an EOS is ``template=False, rule="always"``.',
        ),
    ] = True
    template_source: Annotated[
        TemplateSource,
        Opt(
            "WHERE",
            "auto: as AutoTokenizer, if its releases agree; transformers4 or transformers5: one of them; file:"
            " tokenizer.json alone; flags: add_bos_token, add_eos_token beside it.",
        ),
    ] = "auto"
    specials_as_text: Annotated[bool, Flag("Encode special tokens that occur in a text as plain text.")] = False
    token_size: Annotated[int | None, Opt("BYTES", "Bytes per token; default: by the rule of the format.")] = None
    seq_len: Annotated[
        int | None,
        Opt(
            "N",
            "vla-text: sequence length of the training program.",
            min=1,
            more="Sequences have one token more.",
        ),
    ] = None
    shard_sequences: Annotated[int | None, Opt("N", "vla-text: sequences per shard; default: 8192.", min=1)] = None
    loss: Annotated[
        bool | LossRule | None,
        Opt(
            "RULE",
            "Write a loss mask from no_loss_ranges: mask, datatrove (truncates), none.",
            more="True is `loss_rule`.",
        ),
    ] = None
    loss_rule: Annotated[LossRule, PythonOnly("The rule of ``loss=True``.")] = "mask"
    chat: Annotated[
        ChatForm | None,
        Opt(
            "FORM",
            "Read conversations: auto, messages, sharegpt, prompt (completion), preference (chosen, rejected).",
            more="``auto`` is the form of the first row; ``preference`` has two outputs. The chat template makes the"
            " text, and a loss mask is written beside the tokens. BOS, EOS and the template of texts are not added,"
            " unless `bos` or `eos` name a token.",
        ),
    ] = None
    chat_template: Annotated[
        Path | None, Opt("FILE|NAME", "Chat template; default: that of the tokenizer's files.")
    ] = None
    chat_mask: Annotated[
        ChatMask,
        Opt(
            "RULE",
            "What is in the loss: auto, generation, turns, last, none (all).",
            more="``generation``: what the template marks; ``turns``: the answers of the assistant; ``last``: only the"
            " last one; ``auto`` is ``generation`` if the template has such blocks, else ``turns``.",
        ),
    ] = "auto"
    chat_template_args: TemplateArgs = None
    backend: Annotated[Backend, Opt("NAME", "auto, fastokens, hf, sentencepiece, or ranks.", "--tokenizer-backend")] = (
        "auto"
    )
    tokenizer_pattern: Annotated[
        str | None,
        Opt(
            "NAME",
            "How a tiktoken file splits texts: name of an encoding (cl100k_base), or a regular expression.",
        ),
    ] = None
    tokenizer_name: Annotated[
        str | None, PythonOnly("Name of the tokenizer in ``.ds.metadata``; default: `tokenizer` as given.")
    ] = None
    chats: Annotated[ChatSpec | None, Inner("How conversations become texts.")] = None
    keep_empty: Annotated[bool, Inner("Whether a text without tokens is an empty document, else an invalid one.")] = (
        False
    )
    sentences: Annotated[Sentences | None, Inner("How documents become a sequence per sentence (megatron).")] = None
    deal: Annotated[int, Inner("Deal documents to n parts, and write one part after the other.")] = 1

    @property
    def mask(self) -> LossRule | None:
        """Rule of the loss mask; None for no mask."""
        from feedmill.tokens.tokenizer import is_nothing

        if isinstance(self.loss, bool):
            return self.loss_rule if self.loss else None
        return None if is_nothing(self.loss) else self.loss


class Decode(Options):
    """Show documents of token files as text."""

    path: Annotated[Path, Arg("PATH", "Token files: .pbin, .ds, .idx or .bin, .npy.")]
    _: KW_ONLY
    document: Annotated[Sequence[int] | None, Opt("N", "Document to show, from 0; repeatable.", "-d")] = None
    first: Annotated[int, Opt("N", "Number of documents to show from the start.", min=0)] = 3
    tokenizer: Annotated[str | None, Opt("PATH", "Tokenizer; default: that of the manifest.", "-t")] = None
    tokenizer_backend: Annotated[Backend, Opt("NAME", "auto, fastokens or hf.")] = "auto"
    max_tokens: Annotated[int | None, Opt("N", "Maximum number of tokens per document; 0: all.", min=0)] = 500
    skip_special: Annotated[bool, Flag("Omit special tokens.")] = False
    ids: Annotated[bool, Flag("Also show the ids.")] = False


def _markers(text: str) -> tuple[int, int]:
    begin, _, end = text.partition(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in (begin.strip(), end.strip())):
        raise ConfigError(f"{text!r} is not a pair of markers", kind="bad-mask", fix="Write two token ids: 5,6.")
    return int(begin), int(end)


class Merge(Seeded, NumberedByTokens, Rewriting):
    """Merge the documents of token files, or the lines of JSONL files, into one file.

    Token sizes must be equal, and so must the tokenizers that manifests name. Loss masks are copied.
    """

    inputs: Files
    output: File
    _: KW_ONLY
    order: Annotated[
        Literal["stored", "datatrove"], Opt("", "One file after another, or the order of datatrove's merger.")
    ] = "stored"
    chunk: Annotated[
        int | None,
        Opt("N", "Merge chunks of N tokens (datatrove's order).", more="The tail of a file is dropped."),
    ] = None
    max_tokens: Annotated[int | None, Opt("N", "Stop at N tokens.")] = None
    learn_between: Annotated[
        tuple[int, int] | None,
        Opt(
            "B,E",
            "Write a loss mask: only tokens between these ids contribute to the loss.",
            text=str,
            parse=_markers,
        ),
    ] = None


class Shuffle(Seeded, NumberedByTokens, Rewriting):
    """Write all documents of token files, or all lines of JSONL files, in a shuffled order.

    Memory use is 8 bytes per document and one batch; the data stays on disk.
    """

    inputs: Files
    output: File
    _: KW_ONLY
    order: Annotated[Order, Opt("", "Feedmill's own order, or that of another tool, bit for bit.")] = "feedmill"
    chunk: Annotated[
        int | None,
        Opt(
            "N",
            "Shuffle chunks of N tokens instead of documents.",
            more="A document that spans several chunks becomes one document per chunk. With datatrove's order the tail"
            " of each file is dropped.",
        ),
    ] = None
    documents_too: Annotated[bool, Flag("With --chunk: shuffle the documents first.")] = False


def parse_ratio(text: str) -> dict[str, float]:
    """Return weights by name, from ``8,1,1`` or ``train=8,val=2``. Raises `ConfigError`."""
    entries = [entry.strip() for entry in text.split(",")]
    names = [entry.partition("=")[0].strip() for entry in entries]
    weights = [entry.partition("=")[2] for entry in entries]
    if "=" not in text and 2 <= len(entries) <= 3:
        names, weights = ["train", "val", "test"][: len(entries)], entries
    try:
        if len(set(names)) < len(names):
            raise ValueError
        return dict(zip(names, map(float, weights), strict=True))
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a ratio", kind="bad-option", fix="Write 8,1,1 or train=8,val=1,test=1."
        ) from None


def _read_plan(path: str) -> dict[str, Any]:
    from feedmill.formats.yamls import read_yaml
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    plan = read_yaml(open_store(folder).read(name), path).value
    if not isinstance(plan, dict) or not all(isinstance(entries, list) for entries in plan.values()):
        raise ConfigError(
            "a plan names its parts, each with a list of documents",
            file=path,
            kind="bad-option",
            fix="For example: {train: [[0, 900]], val: [[900, 950], 960]}.",
        )
    return {str(name): entries for name, entries in plan.items()}


class Split(Seeded, Rewriting):
    """Split documents into parts: consecutive chunks, a random ratio with exact sizes, or an exact plan."""

    inputs: Files
    output: Annotated[Path, Arg("OUTPUT", "Files to write, e.g. 'x.{part}.pbin'.")]
    _: KW_ONLY
    chunks: Annotated[int | None, Opt("N", "Number of parts; each has consecutive documents.")] = None
    ratio: Annotated[
        Mapping[str, float] | None,
        Opt(
            "R",
            "Random parts: 8,1,1 (train, val, test) or train=9,val=1.",
            text=str,
            parse=parse_ratio,
            more="In Python, part -> weight. Sizes are exact, and parts keep the stored order.",
        ),
    ] = None
    plan: Annotated[
        SplitPlan | None,
        Opt(
            "FILE",
            "YAML or JSON file that lists the documents of each part by index.",
            text=str,
            parse=_read_plan,
            more="In Python, part -> documents. A document can be in several parts; those in no part are dropped.",
        ),
    ] = None


class Index(DryRunnable, WithProgress):
    """Write Modalities' raw index of a JSONL file, or the document bounds of a .pbin or a flat token file."""

    path: Annotated[Path, Arg("FILE", "A .jsonl, .pbin, .bin or .npy file; a path or a URL.")]
    output: Annotated[
        Path | None,
        Opt(
            "FILE",
            "Path of the index of a JSONL file.",
            "--output -o",
            more="Bounds are always written next to their file.",
        ),
    ] = None
    _: KW_ONLY
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at a line that is not JSON, or skip and count it.")] = RAISE
    workers: Annotated[int | None, Opt("N", "Number of processes.", min=1)] = None
    overwrite: Annotated[bool, Flag("Replace existing files.")] = False
    eos: Annotated[int | None, Opt("ID", "Flat token files: id of the end-of-text token.", "--eos-id", min=0)] = None
    token_size: Annotated[int | None, Opt("1|2|4|8", "Flat token files without a header: bytes per token.")] = None
    vocab_size: Annotated[int | None, Opt("N", "Flat token files: report ids that are not below N.", min=1)] = None


class Lengths(Processes, WithProgress):
    """Count the tokens of samples of text and media as the processor of a model makes them; no medium is decoded.

    Lengths are kept in the cache folder, and a second run reuses them. After a kill, the same command resumes.
    """

    path: Annotated[Path, Arg("DATASET", "A prepared dataset with media metadata; a path or a URL.")]
    _: KW_ONLY
    processor: Annotated[Path, Opt("DIR", "Folder of the checkpoint: its processor and its tokenizer.json.")]
    messages: Annotated[str, Opt("PART", "Part with the conversation, as JSON.")] = "json"
    text: Annotated[
        str | None, Opt("PART", "Part with a plain text that has the placeholders, instead of a conversation.")
    ] = None
    chat_template: Annotated[
        Path | None, Opt("FILE|NAME", "Chat template; default: that of the processor's folder.")
    ] = None
    chat_template_args: TemplateArgs = None
    processor_args: Annotated[
        Mapping[str, Any] | None,
        Opt(
            "KEY=VALUE",
            "A parameter with which the processor is called, such as do_pan_and_scan=true. May be repeated.",
            text=list[str],
            parse=_arguments,
            more="In Python a mapping of values that JSON can hold.",
        ),
    ] = None
    media: Annotated[
        Sequence[str] | None,
        Opt("NAMES", "Parts whose media the model gets, such as jpg,png; default: all.", text=str, parse=_names),
    ] = None
    measure: Annotated[bool, Flag("Run the processor itself on each sample: slow, for processors without a rule.")] = (
        False
    )
    check_samples: Annotated[
        int | None,
        Opt("N", "Compare N samples with the processor itself, extremes first; exit status 1 if any differs.", min=1),
    ] = None
    split: Annotated[str | None, Opt("NAME", "Split to count; default: train if there is one, as in recipes.")] = None


class Numbers(Options, kw_only=True):
    """Convert between tokens, samples, batches and steps; rounds to whole steps."""

    seq_len: Annotated[int | None, Opt("N", "Tokens per sample.", min=1)] = None
    ranks: Annotated[int, Opt("N", "Data-parallel degree.", min=1)] = 1
    micro_batch: Annotated[int, Opt("N", "Samples per rank and forward pass.", min=1)] = 1
    accumulation: Annotated[int, Opt("N", "Forward passes per step.", min=1)] = 1
    tokens: Annotated[int | None, Opt("N", "Convert N tokens.", min=0)] = None
    samples: Annotated[int | None, Opt("N", "Convert N samples.", min=0)] = None
    steps: Annotated[int | None, Opt("N", "Convert N steps.", min=0)] = None
    data: Annotated[str | None, Opt("FILE", "Convert the number of windows of a token file or folder.")] = None
    lines: Annotated[str | None, Opt("FILE", "Convert the number of lines of a JSONL file or its .idx.")] = None
    checkpoint: Annotated[str | None, Opt("FOLDER", "Read the numbers from the name of a checkpoint folder.")] = None
    own_targets: Annotated[bool, Flag("With --data: consecutive samples share no token.")] = False


DATA = "# data: "
"""Begins the line of a list of documents that has the number and the digest of all documents that it counts in."""


class Listed(list[int]):
    """Numbers of documents of a file, and the `data` in which they count: its number of documents and its digest."""

    data: tuple[int, str] | None = None


def read_numbers(path: str) -> Listed:
    """Return the numbers in a text file, one per line. Blank lines and ``#`` comments are ignored.

    Raises:
        DataError: a line is not a whole number.
    """
    from feedmill.errors import DataError
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    numbers = Listed()
    for number, line in enumerate(open_store(folder).read(name).decode("utf-8-sig", "replace").splitlines(), 1):
        if line.startswith(DATA):
            count, _, digest = line.removeprefix(DATA).strip().partition(" ")
            numbers.data = (int(count) if count.isascii() and count.isdigit() else -1), digest
        word = line.partition("#")[0].strip()
        if word and not (word.isascii() and word.isdigit() and len(word) < 19):
            raise DataError(
                f"{word[:40]!r} is not a document number",
                file=path,
                record=f"line {number}",
                kind="bad-option",
                fix="Write one whole number per line, counted from 0.",
            )
        if word:
            numbers.append(int(word))
    return numbers


_NUMBERS = "In Python, the indices."


class Passing(TokenFiles, AllowEmpty, DryRunnable, WithProgress, kw_only=True):
    """Which documents of token files pass."""

    min_length: Annotated[int | None, Opt("N", "Minimum number of tokens (JSONL: bytes of the line).")] = None
    max_length: Annotated[int | None, Opt("N", "Maximum number of tokens (JSONL: bytes of the line).")] = None
    keep: Annotated[
        Sequence[int] | None,
        Opt("FILE", "Keep only documents whose indices are in this file.", text=str, parse=read_numbers, more=_NUMBERS),
    ] = None
    drop: Annotated[
        Sequence[int] | None,
        Opt("FILE", "Drop documents whose indices are in this file.", text=str, parse=read_numbers, more=_NUMBERS),
    ] = None
    predicate: Annotated[
        Callable[[int, Tokens], bool] | None,
        PythonOnly("For token files: called with the number and the tokens of a document; returns whether to keep it."),
    ] = None
    overwrite: Annotated[bool, Flag("Replace existing files.")] = False


class FilterTokens(Passing):
    """Write the documents of token files or JSONL files that pass, in stored order."""

    inputs: Files
    output: File
