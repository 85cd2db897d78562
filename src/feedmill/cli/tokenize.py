"""``feedmill tokenize``: tokenize documents into token files."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit_report, facts, human_rate, human_size
from feedmill.jobs.options import call
from feedmill.tokens.options import Tokenize

if TYPE_CHECKING:
    from feedmill.tokens.job import TokenizeReport


def load(options: Tokenize) -> None:
    """Start loading the fast engine, if it is likely to be needed."""
    from feedmill.tokens.preload import load_ahead

    if options.backend in ("auto", "fastokens") and options.chat is None:
        load_ahead(str(options.tokenizer))


@command(Tokenize, engines=True, begin=load)
def tokenize(options: Tokenize, json: bool) -> str:
    from feedmill.tokens.verbs.tokenize import tokenize as run

    report = call(run, options)
    emit_report(report, json, lambda: show(report))
    written = next(iter(report.outputs.values()), "{")
    return "" if "{" in written else f"show {quote(written)}"  # else numbered files


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
