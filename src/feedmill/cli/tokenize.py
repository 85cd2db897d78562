"""``feedmill tokenize``: tokenize documents into token files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.options import AllowEmpty, DryRun, Json, MaxFileSize, on_engine
from feedmill.cli.output import counted, emit_report, facts, human_rate, human_size
from feedmill.jobs.policy import METAVAR

if TYPE_CHECKING:
    from feedmill.tokens.token_files import TokenizeReport

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...", help="Files or folders of documents: JSONL (also .gz, .zst), Parquet, Arrow, .txt; or URLs."
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="Output path; each format adds its suffix.")
]
TokenizerPath = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        "-t",
        metavar="PATH",
        help="tokenizer.json, .model, .tiktoken, tekken.json, their folder, or a model in the Hugging Face cache.",
    ),
]
To = Annotated[
    list[str] | None,
    typer.Option("--to", metavar="FORMAT", help="pbin (default), ds, megatron, dolma, vla-text; comma-separated."),
]
Text = Annotated[
    str, typer.Option("--text", metavar="PATH", help="Field of the text, path (.a.b[0]) or jq expression.")
]
Kind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Kind of documents to read from folders: lines, text, parquet, arrow."),
]
Eos = Annotated[
    str,
    typer.Option(
        "--eos", metavar="TOKEN", help="Special token after each document; none; auto: that of the tokenizer's files."
    ),
]
Bos = Annotated[
    str, typer.Option("--bos", metavar="TOKEN", help="Special token before each document; none; auto, as --eos.")
]
AlwaysAdd = Annotated[bool, typer.Option("--always-add", help="Add BOS and EOS even if the document already has them.")]
Template = Annotated[
    bool, typer.Option("--template/--no-template", help="Apply the tokenizer's own template to each document.")
]
TemplateFrom = Annotated[
    str,
    typer.Option(
        "--template-source",
        metavar="WHERE",
        help="auto: as AutoTokenizer, if its releases agree; transformers4 or transformers5: one of them; file:"
        " tokenizer.json alone; flags: add_bos_token, add_eos_token beside it.",
    ),
]
SpecialsAsText = Annotated[
    bool, typer.Option("--specials-as-text", help="Encode special tokens that occur in a text as plain text.")
]
TokenSize = Annotated[
    int | None,
    typer.Option("--token-size", metavar="BYTES", help="Bytes per token; default: by the rule of the format."),
]
SeqLen = Annotated[
    int | None, typer.Option("--seq-len", metavar="N", min=1, help="vla-text: sequence length of the training program.")
]
ShardSequences = Annotated[
    int | None,
    typer.Option("--shard-sequences", metavar="N", min=1, help="vla-text: sequences per shard; default: 8192."),
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="RULE", help="Write a loss mask from no_loss_ranges: mask, datatrove (truncates), none."
    ),
]
Chat = Annotated[
    str | None,
    typer.Option(
        "--chat",
        metavar="FORM",
        help="Read conversations: auto, messages, sharegpt, prompt (completion), preference (chosen, rejected).",
    ),
]
ChatTemplatePath = Annotated[
    str | None,
    typer.Option("--chat-template", metavar="FILE|NAME", help="Chat template; default: that of the tokenizer's files."),
]
ChatMaskRule = Annotated[
    str,
    typer.Option("--chat-mask", metavar="RULE", help="What is in the loss: auto, generation, turns, last, none (all)."),
]
ChatTemplateArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--chat-template-args",
        metavar="KEY=VALUE",
        help="Set a variable of the chat template, such as enable_thinking=false. May be repeated.",
    ),
]
BackendName = Annotated[
    str, typer.Option("--tokenizer-backend", metavar="NAME", help="auto, fastokens, hf, sentencepiece, or ranks.")
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-pattern",
        metavar="NAME",
        help="How a tiktoken file splits texts: name of an encoding (cl100k_base), or a regular expression.",
    ),
]
OnErrorPolicy = Annotated[
    str,
    typer.Option("--on-error", metavar=METAVAR, help="Stop at an invalid document, or skip and count it."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per core.")]


@on_engine
def tokenize(
    inputs: Inputs,
    output: Output,
    tokenizer: TokenizerPath,
    to: To = None,
    text: Text = "text",
    kind: Kind = None,
    eos: Eos = "auto",
    bos: Bos = "none",
    always_add: AlwaysAdd = False,
    template: Template = True,
    template_source: TemplateFrom = "auto",
    specials_as_text: SpecialsAsText = False,
    token_size: TokenSize = None,
    seq_len: SeqLen = None,
    shard_sequences: ShardSequences = None,
    max_file_size: MaxFileSize = None,
    loss: Loss = None,
    chat: Chat = None,
    chat_template: ChatTemplatePath = None,
    chat_mask: ChatMaskRule = "auto",
    chat_template_args: ChatTemplateArgs = None,
    tokenizer_backend: BackendName = "auto",
    tokenizer_pattern: Pattern = None,
    on_error: OnErrorPolicy = "raise",
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Tokenize documents to token files of one or more formats in one pass.

    After a kill, the same command resumes. The result does not depend on the number of workers.
    """
    from feedmill.tokens.preload import load_ahead

    if tokenizer_backend in ("auto", "fastokens") and chat is None:
        load_ahead(tokenizer)
    from feedmill.tokens.tokenize import tokenize as tokenize_documents

    choices: dict[str, Any] = {"backend": tokenizer_backend, "on_error": on_error}  # checked there
    report = tokenize_documents(
        inputs,
        output,
        tokenizer=tokenizer,
        tokenizer_pattern=tokenizer_pattern,
        formats=[name for item in to or ["pbin"] for name in item.split(",") if name],
        text=text,
        kind=kind,
        eos=eos,
        bos=bos,
        rule="always" if always_add else "missing",
        template=template,
        template_source=template_source,  # type: ignore[arg-type]
        specials_as_text=specials_as_text,
        token_size=token_size,
        seq_len=seq_len,
        shard_sequences=shard_sequences,
        max_file_size=max_file_size,
        chat=chat,  # type: ignore[arg-type]
        chat_template=chat_template,
        chat_mask=chat_mask,  # type: ignore[arg-type]
        chat_template_args=_variables(chat_template_args),
        loss=loss,  # type: ignore[arg-type]
        allow_empty=allow_empty,
        overwrite=overwrite,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
        **choices,
    )
    emit_report(report, json, lambda: show(report))


def _variables(words: list[str] | None) -> dict[str, Any] | None:
    if not words:
        return None
    from feedmill.tokens.chat.variables import parse_variables

    return parse_variables(words)


def show(report: TokenizeReport) -> None:
    """Print what was done."""
    rate = report.bytes / max(report.seconds, 1e-9)
    speed = f", {human_size(rate)}/s, {human_rate(report.tokens / max(report.seconds, 1e-9), 'tokens')}"
    reused = f" ({report.reused} of {report.units} units finished by an earlier run)" if report.reused else ""
    engine = f"{report.tokenizer} ({report.backend})"
    facts(
        [
            *(("wrote", path + _size(report, name)) for name, path in report.outputs.items()),
            ("documents", report.documents),
            ("tokens", report.tokens),
            ("in the loss", _in_loss(report)),
            ("checks", _checks(report)),
            ("read", f"{human_size(report.bytes)} in {counted(report.files, 'file')}{reused}"),
            ("tokenizer", engine),
            ("settings", ", ".join(report.settings) or None),
            ("around documents", _around(report)),
            (
                "left over",
                f"{report.left_over:,} tokens at the end do not fill a sequence" if report.left_over else None,
            ),
            ("blank lines", report.blank or None),
            ("skipped files", _skipped_files(report)),
            ("skipped", counted(report.skipped, "document") if report.skipped else None),
            ("time", f"{report.seconds:.2f} s" + ("" if report.complete else speed)),
        ]
    )
    if report.complete:
        typer.echo("The output is already complete: nothing was done. Add --overwrite to tokenize again.")
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    for name, value in report.switched_off.items():
        typer.echo(f"note: {name} {value} of the tokenizer is disabled, so that token ids are deterministic", err=True)
    if report.fallback:
        typer.echo(f"warning: the slow tokenizer backend was used: {report.fallback}", err=True)
    if not report.documents:
        typer.echo("warning: the output has no documents", err=True)
    for item in report.skipped_examples:
        typer.echo(f"skipped: {item.file} line {item.line}: {item.reason}", err=True)
    if report.skipped > len(report.skipped_examples):
        typer.echo(f"skipped: and {report.skipped - len(report.skipped_examples):,} more", err=True)


def _in_loss(report: TokenizeReport) -> str | None:
    """Return how many tokens contribute to the loss, for display; None without a mask."""
    if report.tokens_in_loss is None:
        return None
    return f"{report.tokens_in_loss:,} tokens, {100 * report.tokens_in_loss / max(report.tokens, 1):.1f} %"


def _checks(report: TokenizeReport) -> str | None:
    """Return the result of the checks of conversations, for display; None for texts."""
    if report.chat is None:
        return None
    if report.checks:
        return f"{counted(len(report.checks), 'finding')}, see the notes"
    loss = "" if report.chat["mask"] == "none" else ", and all have something to learn"
    return f"all answers end in a stop token, all keys have an effect{loss}"


def _skipped_files(report: TokenizeReport) -> str | None:
    """Return the number of files that were not read and the first of them, for display."""
    if not report.skipped_files:
        return None
    shown = ", ".join(report.skipped_files_examples[:5])
    return f"{report.skipped_files:,} ({shown}{', ...' if report.skipped_files > 5 else ''})"


def _size(report: TokenizeReport, format: str) -> str:
    size, files = report.token_bytes.get(format), report.numbered_files.get(format)
    count = f"{counted(files, 'file')}, " if files else ""
    return f" ({count}{size} bytes a token)" if size else ""


def _around(report: TokenizeReport) -> str:
    """Return which tokens are added to each document, for display."""
    when = "always" if report.rule == "always" else "where missing"
    ends = [f"{kind} {token} {when}" for kind, token in (("BOS", report.bos), ("EOS", report.eos)) if token is not None]
    return ", ".join([*(ends or ["no BOS, no EOS"]), _template(report)])


def _template(report: TokenizeReport) -> str:
    if not report.template:
        return "template off" if report.has_template else "the tokenizer has no template"
    return "template on" + (f": {report.template_adds}" if report.template_adds else "")
