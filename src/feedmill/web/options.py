"""Options of the verbs that show data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated

from feedmill.jobs.options import Arg, Flag, Opt, Path, Paths, PythonOnly
from feedmill.samples.options import Trust

Shown = Annotated[Paths | Path, Arg("PATH...", "Datasets of any format, recipes, pipelines, telemetry.")]


class Pages(Trust, kw_only=True):
    """What pages show besides the data."""

    loss: Annotated[str | None, Opt("FILE", "Loss log of the run: CSV, JSON lines or TensorBoard.", "--loss-log")] = (
        None
    )
    tokenizer: Annotated[
        str | Sequence[str] | None,
        Opt("PATH", "Tokenizer that decodes token files, or encodes texts; repeatable.", "-t"),
    ] = None


class Serve(Pages):
    """Look at samples, steps, mixtures and findings in a browser, until Ctrl-C. Nothing is written without --edit."""

    paths: Shown
    _: KW_ONLY
    port: Annotated[int | None, Opt("N", "Port; default 7788 or the next free one.", min=0, max=65535)] = None
    host: Annotated[str, Opt("ADDRESS", "Address to listen on.")] = "127.0.0.1"
    names: Annotated[
        Sequence[str], Opt("HOST", "Another name of this machine in addresses; repeatable.", "--name")
    ] = ()
    token: Annotated[bool, Flag("Only those who have the printed address may read.")] = True
    edit: Annotated[bool, Flag("Let pages save copies of recipes with other weights; never over a file.")] = False
    on_start: Annotated[Callable[[str], None], PythonOnly("Called with the address when it can be opened.")] = print


class Report(Pages):
    """Write datasets, recipes and runs to one HTML file that opens offline: samples, findings, mixtures, steps."""

    paths: Shown
    output: Annotated[Path, Opt("FILE", "The file to write.", "--output -o")] = "report.html"
    _: KW_ONLY
    compare: Annotated[bool, Flag("Also compare the two paths: datasets, recipes, or runs of pipelines.")] = False
    check: Annotated[bool, Flag("Check the datasets, which reads all of their bytes.")] = True
    overwrite: Annotated[bool, Flag("Replace existing files.")] = False
