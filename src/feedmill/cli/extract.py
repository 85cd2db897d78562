"""``feedmill extract``: make documents from web archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from feedmill.cli.engines import on_engine
from feedmill.cli.options import AllowEmpty, Json, Processes
from feedmill.cli.output import counted, emit, facts, human_rate, human_size, printable
from feedmill.cli.tag import Modules

if TYPE_CHECKING:
    from feedmill.curation.extract.extract import ExtractReport
    from feedmill.curation.extract.linearizers import Name

_SHOWN = 20
"""Number of reasons shown."""


@on_engine
def extract(
    archives: Annotated[
        list[str],
        typer.Argument(metavar="ARCHIVE...", help="WARC files (.warc, .warc.gz, .warc.zst, .wet.gz), folders, URLs."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder to write documents/ into.")],
    linearizer: Annotated[
        str, typer.Option("--linearizer", metavar="NAME", help="HTML to text: resiliparse or trafilatura.")
    ] = "resiliparse",
    taggers: Annotated[
        list[str] | None,
        typer.Option("--tagger", "-t", metavar="NAME", help="Tagger of the texts, or NAME=PATH; repeatable."),
    ] = None,
    html_taggers: Annotated[
        list[str] | None,
        typer.Option("--html-tagger", metavar="NAME", help="Tagger of the HTML, such as cc_re; repeatable."),
    ] = None,
    only_tagged: Annotated[
        bool, typer.Option("--only-tagged", help="Leave out pages in which the HTML taggers find nothing.")
    ] = False,
    tagger_modules: Modules = None,
    source: Annotated[str, typer.Option("--source", metavar="NAME", help="The source of the documents.")] = "web",
    status: Annotated[
        list[int] | None,
        typer.Option("--status", metavar="CODE", help="HTTP status of pages to read; repeatable; default: 200."),
    ] = None,
    mime: Annotated[
        list[str] | None,
        typer.Option("--mime", metavar="TYPE", help="Type of pages to read; repeatable; default: HTML and XHTML."),
    ] = None,
    max_page_size: Annotated[
        str, typer.Option("--max-page-size", metavar="SIZE", help="Leave out larger pages.")
    ] = "16MB",
    page_timeout: Annotated[
        float, typer.Option("--page-timeout", metavar="SECONDS", help="Leave out pages that take longer.")
    ] = 20.0,
    keep_html: Annotated[bool, typer.Option("--keep-html", help="Keep the HTML in metadata.html.")] = False,
    workers: Processes = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Extract up-to-date archives, too.")] = False,
    allow_empty: AllowEmpty = False,
    json: Json = False,
) -> None:
    """Make documents from the pages of web archives: decode them, extract their text, tag them.

    Run it again after a kill or with more archives: documents that are up to date are kept. What it leaves out is
    reported with the reason.
    """
    from feedmill.curation.extract.extract import extract as run
    from feedmill.documents.warc.pages import HTML

    report = run(
        archives,
        output,
        linearizer=cast("Name", linearizer),  # checked there
        taggers=taggers or (),
        html_taggers=html_taggers or (),
        only_tagged=only_tagged,
        tagger_modules=tagger_modules or (),
        source=source,
        status=status or (200,),
        mime=mime or HTML,
        max_page_size=max_page_size,
        page_timeout=page_timeout,
        keep_html=keep_html,
        workers=workers,
        overwrite=overwrite,
        allow_empty=allow_empty,
        progress=not json,
    )
    emit(report.as_dict(), json, lambda: show(report))


def show(report: ExtractReport) -> None:
    """Print what was written and left out."""
    reused = f" ({report.reused:,} up to date)" if report.reused else ""
    skipped = ", ".join(f"{count:,} {kind}" for kind, count in report.skipped.items())
    rate = human_rate(report.documents / max(report.seconds, 1e-9), "documents")
    facts(
        [
            ("wrote", report.output),
            ("archives", f"{report.archives:,}{reused}, {human_size(report.input_bytes)}"),
            ("documents", f"{report.documents:,}, {human_size(report.bytes)}"),
            ("attributes", ", ".join(report.attributes) or None),
            ("other records", skipped or None),
            ("time", f"{report.seconds:.2f} s, {rate}"),
        ]
    )
    for pattern in report.missing:
        typer.echo(f"warning: {printable(pattern)}: no web archives match this pattern", err=True)
    lines = report.left_out.lines()
    for line in lines[:_SHOWN]:
        typer.echo(f"left out: {printable(line)}", err=True)
    if len(lines) > _SHOWN:
        typer.echo(f"left out: for {counted(len(lines) - _SHOWN, 'more reason')}", err=True)
