"""``feedmill edit prepare-media``: store sizes and durations of media of a prepared dataset or a plain folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from feedmill.cli.command import command
from feedmill.cli.output import emit_report, facts
from feedmill.indexing.options import MediaChoice, PrepareMedia
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.indexing.prepare_media import MediaReport


class ChosenMedia(MediaChoice, PrepareMedia, kw_only=True):
    __doc__ = PrepareMedia.__doc__


@command(ChosenMedia, engines=True, optional=("media",))
def prepare_media(options: ChosenMedia, json: bool) -> None:
    from feedmill.indexing.prepare_media import prepare_media as run

    report = call(run, options, media=replace(options, media_metadata=True).media_filter())
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
