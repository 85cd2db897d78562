"""``feedmill decode``: show documents of token files as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.options import Json
from feedmill.cli.output import emit, printable

if TYPE_CHECKING:
    from feedmill.tokens.decode import Decoded

TokensPath = Annotated[str, typer.Argument(metavar="PATH", help="Token files: .pbin, .ds, .idx or .bin, .npy.")]
Documents = Annotated[
    list[int] | None, typer.Option("--document", "-d", metavar="N", help="Document to show, from 0; repeatable.")
]
First = Annotated[int, typer.Option("--first", metavar="N", min=0, help="Number of documents to show from the start.")]
TokenizerPath = Annotated[
    str | None,
    typer.Option("--tokenizer", "-t", metavar="PATH", help="Tokenizer; default: that of the manifest."),
]
BackendName = Annotated[str, typer.Option("--tokenizer-backend", metavar="NAME", help="auto, fastokens or hf.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=0, help="Maximum number of tokens per document; 0: all.")
]
SkipSpecial = Annotated[bool, typer.Option("--skip-special", help="Omit special tokens.")]
Ids = Annotated[bool, typer.Option("--ids", help="Also show the ids.")]


def decode(
    path: TokensPath,
    document: Documents = None,
    first: First = 3,
    tokenizer: TokenizerPath = None,
    tokenizer_backend: BackendName = "auto",
    max_tokens: MaxTokens = 500,
    skip_special: SkipSpecial = False,
    ids: Ids = False,
    json: Json = False,
) -> None:
    """Show documents of token files as text."""
    from feedmill.tokens.decode import decode as decode_tokens

    backend: Any = tokenizer_backend  # checked there
    found = decode_tokens(
        path,
        document=document,
        first=first,
        tokenizer=tokenizer,
        tokenizer_backend=backend,
        max_tokens=max_tokens,
        skip_special=skip_special,
        ids=ids,
    )
    emit([one.as_dict() for one in found], json, lambda: show(found))


def show(documents: list[Decoded]) -> None:
    """Print documents for display."""
    for one in documents:
        cut = ", the beginning" if one.cut else ""
        typer.echo(typer.style(f"document {one.document} ({one.tokens:,} tokens{cut})", bold=True))
        if one.ids is not None:
            typer.echo(" ".join(map(str, one.ids)))
        typer.echo(printable(one.text))
