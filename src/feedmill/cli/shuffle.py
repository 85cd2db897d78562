"""``feedmill shuffle``: shuffle documents, lines or chunks of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from feedmill.cli.merge import show
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
from feedmill.cli.output import emit_report


@on_engine
def shuffle(
    inputs: TokenInputs,
    output: TokenOutput,
    seed: Seed = None,
    order: Annotated[
        Literal["feedmill", "modalities", "datatrove"],
        typer.Option("--order", help="Feedmill's own order, or that of another tool, bit for bit."),
    ] = "feedmill",
    chunk: Annotated[
        int | None, typer.Option("--chunk", metavar="N", help="Shuffle chunks of N tokens instead of documents.")
    ] = None,
    documents_too: Annotated[
        bool, typer.Option("--documents-too", help="With --chunk: shuffle the documents first.")
    ] = False,
    max_tokens_per_file: MaxPerFile = None,
    max_file_size: MaxFileSize = None,
    token_size: TokenSize = None,
    mixed_tokenizers: MixedTokenizers = False,
    drop_loss: DropLoss = False,
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
    overwrite: OverwriteFiles = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Write all documents of token files, or all lines of JSONL files, in a shuffled order.

    Memory use is 8 bytes per document and one batch; the data stays on disk.
    """
    from feedmill.tokens.shuffle import shuffle as shuffle_files

    report = shuffle_files(
        inputs,
        output,
        seed=seed,
        order=order,
        chunk=chunk,
        documents_too=documents_too,
        max_tokens_per_file=max_tokens_per_file,
        max_file_size=max_file_size,
        token_size=token_size,
        mixed_tokenizers=mixed_tokenizers,
        drop_loss=drop_loss,
        allow_empty=allow_empty,
        overwrite=overwrite,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))
