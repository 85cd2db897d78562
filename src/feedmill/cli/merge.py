"""``feedmill merge``: merge token files or JSONL files into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from feedmill.cli.options import (
    AllowEmpty,
    DropLoss,
    DryRun,
    Json,
    MaxFileSize,
    MaxPerFile,
    MixedTokenizers,
    OverwriteFiles,
    Processes,
    Seed,
    TokenInputs,
    TokenOutput,
    TokenSize,
    on_engine,
)
from feedmill.cli.output import emit_report, facts

if TYPE_CHECKING:
    from feedmill.tokens.rewrite import Report


@on_engine
def merge(
    inputs: TokenInputs,
    output: TokenOutput,
    order: Annotated[
        Literal["stored", "datatrove"],
        typer.Option("--order", help="One file after another, or the order of datatrove's merger."),
    ] = "stored",
    seed: Seed = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", metavar="N", help="Merge chunks of N tokens (datatrove's order).")
    ] = None,
    max_tokens_per_file: MaxPerFile = None,
    max_file_size: MaxFileSize = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="Stop at N tokens.")] = None,
    token_size: TokenSize = None,
    mixed_tokenizers: MixedTokenizers = False,
    drop_loss: DropLoss = False,
    allow_empty: AllowEmpty = False,
    learn_between: Annotated[
        str | None,
        typer.Option(
            "--learn-between",
            metavar="B,E",
            help="Write a loss mask: only tokens between these ids contribute to the loss.",
        ),
    ] = None,
    dry_run: DryRun = False,
    overwrite: OverwriteFiles = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Merge the documents of token files, or the lines of JSONL files, into one file.

    Token sizes must be equal, and so must the tokenizers that manifests name. Loss masks are copied.
    """
    from feedmill.tokens.merge import merge as merge_files

    report = merge_files(
        inputs,
        output,
        order=order,
        seed=seed,
        chunk=chunk,
        max_tokens_per_file=max_tokens_per_file,
        max_file_size=max_file_size,
        max_tokens=max_tokens,
        token_size=token_size,
        mixed_tokenizers=mixed_tokenizers,
        drop_loss=drop_loss,
        allow_empty=allow_empty,
        learn_between=None if learn_between is None else _markers(learn_between),
        overwrite=overwrite,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def _markers(text: str) -> tuple[int, int]:
    from feedmill.errors import ConfigError

    begin, _, end = text.partition(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in (begin.strip(), end.strip())):
        raise ConfigError(f"{text!r} is not a pair of markers", kind="bad-mask", fix="Write two token ids: 5,6.")
    return int(begin), int(end)


def show(report: Report) -> None:
    """Print which files a verb over token files wrote, and what it dropped."""
    lines = any(done.path.endswith(".jsonl") for done in report.outputs)
    shown = report.outputs if len(report.outputs) <= 20 else report.outputs[:20]
    for done in shown:
        documents, amount = f"{done.documents:,} documents", f"{done.tokens:,} tokens"
        if lines:
            documents, amount = f"{done.documents:,} lines", f"{done.tokens:,} bytes"
        typer.echo(f"{done.path}: {documents}, {amount}")
    if len(report.outputs) > len(shown):
        typer.echo(f"... and {len(report.outputs) - len(shown)} more files")
    facts(
        [
            ("seed", None if report.seed is None else str(report.seed)),
            ("finished earlier", f"{report.resumed} files" if report.resumed else None),
            *((f"dropped, {reason}", count) for reason, count in report.left_out.items()),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
