"""``feedmill extract``: make documents from web archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from feedmill.cli.options import AllowEmpty, DryRun, Json, Processes, on_engine
from feedmill.cli.output import emit_report, facts, human_rate, human_size, printable, show_left_out
from feedmill.cli.tag import Modules, Taggers

if TYPE_CHECKING:
    from feedmill.curation.extract.extract import ExtractReport
    from feedmill.curation.extract.linearizers import Name


Archives = Annotated[
    list[str],
    typer.Argument(metavar="ARCHIVE...", help="WARC files (.warc, .warc.gz, .warc.zst, .wet.gz), folders, URLs."),
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder to write documents/ into.")]
Linearizer = Annotated[
    str, typer.Option("--linearizer", metavar="NAME", help="HTML to text: resiliparse or trafilatura.")
]
HtmlTaggers = Annotated[
    list[str] | None,
    typer.Option("--html-tagger", metavar="NAME", help="Tagger of the HTML, such as cc_re; repeatable."),
]
OnlyTagged = Annotated[
    bool, typer.Option("--only-tagged", help="Leave out pages in which the HTML taggers find nothing.")
]
Source = Annotated[str, typer.Option("--source", metavar="NAME", help="The source of the documents.")]
Status = Annotated[
    list[int] | None,
    typer.Option("--status", metavar="CODE", help="HTTP status of pages to read; repeatable; default: 200."),
]
Mime = Annotated[
    list[str] | None,
    typer.Option("--mime", metavar="TYPE", help="Type of pages to read; repeatable; default: HTML and XHTML."),
]
MaxPageSize = Annotated[str, typer.Option("--max-page-size", metavar="SIZE", help="Leave out larger pages.")]
PageTimeout = Annotated[
    float, typer.Option("--page-timeout", metavar="SECONDS", help="Leave out pages that take longer.")
]
KeepHtml = Annotated[bool, typer.Option("--keep-html", help="Keep the HTML in metadata.html.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Extract up-to-date archives, too.")]


@on_engine
def extract(
    archives: Archives,
    output: Output,
    linearizer: Linearizer = "resiliparse",
    taggers: Taggers = None,
    html_taggers: HtmlTaggers = None,
    only_tagged: OnlyTagged = False,
    tagger_modules: Modules = None,
    source: Source = "web",
    status: Status = None,
    mime: Mime = None,
    max_page_size: MaxPageSize = "16MB",
    page_timeout: PageTimeout = 20.0,
    keep_html: KeepHtml = False,
    dry_run: DryRun = False,
    workers: Processes = None,
    overwrite: Overwrite = False,
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
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


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
    show_left_out(report.left_out)
