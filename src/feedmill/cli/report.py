"""``feedmill report``: datasets and recipes as one HTML file."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.options import Json, LossLog, OverwriteFiles, ShownPaths, ShownTokenizer, Trust
from feedmill.cli.output import emit, human_size


def report(
    paths: ShownPaths,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = "report.html",
    compare: Annotated[
        bool, typer.Option("--compare", help="Also compare the two paths: datasets, recipes, or runs of pipelines.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the datasets, which reads all of their bytes.")
    ] = True,
    loss: LossLog = None,
    tokenizer: ShownTokenizer = None,
    trust: Trust = False,
    overwrite: OverwriteFiles = False,
    json: Json = False,
) -> None:
    """Write datasets, recipes and runs to one HTML file that opens offline: samples, findings, mixtures, steps."""
    from feedmill.web.report import report as write_report

    done = write_report(
        paths, output, compare=compare, check=check, loss=loss, tokenizer=tokenizer, trust=trust, overwrite=overwrite
    )

    def show() -> None:
        typer.echo(f"wrote {done.path}, {human_size(done.bytes)}, {done.findings:,} findings")
        for problem in done.problems:
            typer.echo(f"not shown: {problem}", err=True)

    emit(done.as_dict(), json, show)
