"""``feedmill serve``: look at datasets and recipes in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.options import LossLog, ShownPaths, ShownTokenizer, Trust


def serve(
    paths: ShownPaths,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port; default 7788 or the next free one."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Another name of this machine in addresses; repeatable."),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token/--no-token", help="Only those who have the printed address may read.")
    ] = True,
    loss: LossLog = None,
    tokenizer: ShownTokenizer = None,
    trust: Trust = False,
    edit: Annotated[
        bool, typer.Option("--edit", help="Let pages save copies of recipes with other weights; never over a file.")
    ] = False,
) -> None:
    """Look at samples, steps, mixtures and findings in a browser, until Ctrl-C. Nothing is written without --edit."""
    from feedmill.web.serve import serve as serve_pages

    def started(address: str) -> None:
        typer.echo(address)
        typer.echo("press Ctrl-C to stop", err=True)

    serve_pages(
        paths,
        host=host,
        port=port,
        token=token,
        loss=loss,
        tokenizer=tokenizer,
        trust=trust,
        edit=edit,
        names=names or (),
        on_start=started,
    )
