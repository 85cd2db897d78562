"""``feedmill tokens decode``: show documents of token files as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit, printable
from feedmill.jobs.options import call
from feedmill.tokens.options import Decode

if TYPE_CHECKING:
    from feedmill.tokens.verbs.decode import Decoded


@command(Decode)
def decode(options: Decode, json: bool) -> None:
    from feedmill.tokens.verbs.decode import decode as run

    found = call(run, options)
    emit([one.as_dict() for one in found], json, lambda: show(found))


def show(documents: list[Decoded]) -> None:
    """Print documents for display."""
    for one in documents:
        cut = ", the beginning" if one.cut else ""
        typer.echo(typer.style(f"document {one.document} ({one.tokens:,} tokens{cut})", bold=True))
        if one.ids is not None:
            typer.echo(" ".join(map(str, one.ids)))
        typer.echo(printable(one.text))
