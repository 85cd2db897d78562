"""``feedmill filter``: some documents of token files, or some lines of JSONL files."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.merge import show
from feedmill.cli.options import (
    AllowEmpty,
    DropLoss,
    Json,
    MixedTokenizers,
    OverwriteFiles,
    TokenInputs,
    TokenOutput,
    TokenSize,
)
from feedmill.cli.output import emit


def filter(
    inputs: TokenInputs,
    output: TokenOutput,
    min_length: Annotated[
        int | None, typer.Option("--min-length", metavar="N", help="Tokens at least (JSONL: bytes of the line).")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", metavar="N", help="Tokens at most (JSONL: bytes of the line).")
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="FILE", help="Only documents whose numbers are in this file.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option("--drop", metavar="FILE", help="No documents whose numbers are in this file.")
    ] = None,
    token_size: TokenSize = None,
    mixed_tokenizers: MixedTokenizers = False,
    drop_loss: DropLoss = False,
    allow_empty: AllowEmpty = False,
    overwrite: OverwriteFiles = False,
    json: Json = False,
) -> None:
    """Write those documents that pass every test given, in their stored order; count the others by reason."""
    from feedmill.tokens.filter import filter as filter_files

    report = filter_files(
        inputs,
        output,
        min_length=min_length,
        max_length=max_length,
        keep=None if keep is None else read_numbers(keep),
        drop=None if drop is None else read_numbers(drop),
        token_size=token_size,
        mixed_tokenizers=mixed_tokenizers,
        drop_loss=drop_loss,
        allow_empty=allow_empty,
        overwrite=overwrite,
        progress=not json,
    )
    emit(report.as_dict(), json, lambda: show(report))


def read_numbers(path: str) -> list[int]:
    """Numbers of a text file, one a line; blank lines and what follows a ``#`` do not count. Raises `DataError`."""
    from feedmill.errors import DataError
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    numbers = []
    for number, line in enumerate(open_store(folder).read(name).decode("utf-8-sig", "replace").splitlines(), 1):
        word = line.partition("#")[0].strip()
        if word and not (word.isascii() and word.isdigit() and len(word) < 19):
            raise DataError(
                f"{word[:40]!r} is no number of a document",
                file=path,
                record=f"line {number}",
                kind="bad-list",
                fix="Write one number a line, from 0.",
            )
        if word:
            numbers.append(int(word))
    return numbers
