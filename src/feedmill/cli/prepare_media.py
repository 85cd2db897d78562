"""``feedmill prepare-media``: store sizes and durations of media of a prepared dataset or a plain folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.options import DryRun, Json, MediaThreads, on_engine
from feedmill.cli.output import emit_report, facts
from feedmill.cli.prepare import ByExtension, ByGlob, ByHeader, Media, media_filter

if TYPE_CHECKING:
    from feedmill.indexing.prepare_media import MediaReport

MediaTarget = Annotated[
    str, typer.Argument(metavar="PATH", help="A prepared dataset, or a folder of media files; a path or URL.")
]


@on_engine
def prepare_media(
    path: MediaTarget,
    media_metadata: Media = False,  # noqa: ARG001 - always on for this verb
    media_by_extension: ByExtension = False,
    media_by_header: ByHeader = False,
    media_by_glob: ByGlob = None,
    dry_run: DryRun = False,
    workers: MediaThreads = None,
    json: Json = False,
) -> None:
    """Store sizes of images, durations and rates of audio and video in the index, without scanning the shards again.

    A plain folder gets an index of its media metadata only. Invalid media files are reported and skipped.
    """
    from feedmill.indexing.prepare_media import prepare_media as work

    media = media_filter(True, media_by_extension, media_by_header, media_by_glob)
    report = work(path, media, workers=workers, dry_run=dry_run, progress=not json)
    emit_report(report, json, lambda: show(report))


def show(report: MediaReport) -> None:
    """Print what was done."""
    per_second = report.files / max(report.seconds, 1e-9)
    facts(
        [
            ("media of", f"{report.path} ({'plain folder' if report.kind == 'folder' else 'prepared dataset'})"),
            ("files", report.files),
            ("images", report.images or None),
            ("audio, video", report.av or None),
            ("broken", len(report.broken) or None),
            ("gone", report.gone or None),
            ("in the index", report.media),
            ("time", f"{report.seconds:.2f} s, {per_second:,.0f} files/s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in report.broken:
        typer.echo(f"broken: {error}", err=True)
