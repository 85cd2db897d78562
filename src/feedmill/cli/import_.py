"""``feedmill import``: make documents or a prepared dataset from files."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.output import (
    counted,
    echo_dry_run,
    emit,
    facts,
    human_rate,
    human_size,
    printable,
    show_left_out,
    would_write,
)
from feedmill.importing.options import Import
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.importing.report import ImportReport


@command(Import, optional=("out",))
def import_(options: Import, json: bool) -> str:
    from feedmill.importing.import_data import import_data as run

    paths: Any = options.sources
    if len(paths) < 2:
        raise typer.BadParameter("name at least one source, and the output folder", param_hint="'SRC... OUT'")
    report = call(run, options, sources=paths[:-1], out=paths[-1])
    emit(report.as_dict(), json, lambda: show(report))
    out = quote(report.path)
    return f"tag {out} -t gopher_v2" if report.type == "documents" else f"show {out}"


def _shown(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8" else encoding


def show(report: ImportReport) -> None:
    """Print what was recognized, written and left out."""
    if report.dry_run is not None:
        echo_dry_run(report.dry_run)
    noun = "documents" if report.type == "documents" else "samples"
    reused = f" ({report.reused:,} of an interrupted run)" if report.reused else ""
    splits = ", ".join(f"{name} {count:,}" for name, count in report.splits.items())
    encodings = report.encodings.most_common()
    rate = human_rate(report.input_bytes / max(report.seconds, 1e-9), "B").replace(" B/s", "B/s")
    facts(
        [
            ("output" if report.dry_run else "wrote", report.path),
            ("type", report.type + (f" ({report.sample_type})" if report.sample_type else "")),
            *(("recognized", printable(line)) for line in report.recognized),
            (noun, report.samples),
            ("splits", splits or None),
            (
                "encodings",
                ", ".join(f"{n:,} {'file' if n == 1 else 'files'} as {_shown(name)}" for name, n in encodings) or None,
            ),
            ("read", f"{counted(report.files, 'file')}, {human_size(report.input_bytes)}"),
            ("shards", None if report.dry_run else f"{report.outputs:,}{reused}, {human_size(report.bytes)}"),
            *(would_write(report.dry_run) if report.dry_run else ()),
            ("time", None if report.dry_run else f"{report.seconds:.2f} s, {rate}"),
        ]
    )
    show_left_out(report.left_out)
    if report.left_out and not report.dry_run:
        typer.echo(f"all names are in {printable(report.path.rstrip('/'))}/.feedmill/left_out.jsonl", err=True)
