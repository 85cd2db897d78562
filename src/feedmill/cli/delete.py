"""``feedmill delete``: samples taken out of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.dialogue import confirm
from feedmill.cli.options import DryRun, Json, Yes
from feedmill.cli.output import counted, emit_report, facts, human_size
from feedmill.cli.reshard import Processes
from feedmill.jobs.policy import METAVAR, on_error_policy

if TYPE_CHECKING:
    from feedmill.writing.rewrite import RewriteReport


def delete(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A prepared dataset on a local disk.")],
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="Keys of the samples to delete.")] = None,
    list_file: Annotated[
        str | None, typer.Option("--keys-from", metavar="FILE", help="A file with one key on each line.")
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar=METAVAR, help="Stop at a key that does not exist, or skip it.")
    ] = "raise",
    yes: Yes = False,
    dry_run: DryRun = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Delete samples by key; only the shards that hold them are rewritten.

    After a kill, the same command finishes the work.
    """
    from feedmill.writing.delete import delete as delete_samples

    wanted = [*(keys or ()), *(listed(list_file) if list_file is not None else ())]
    if wanted and not dry_run:
        what = (
            f"Delete {counted(len(wanted), 'sample')} from {dataset}? Their shards are rewritten, and no copy is kept."
        )
        confirm(what, yes)
    report = delete_samples(
        dataset,
        wanted,
        on_error=on_error_policy(on_error),
        dry_run=dry_run,
        workers=workers,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def listed(path: str) -> list[str]:
    """Return the keys in a text file, one on each line. Raises DataError if it is not UTF-8."""
    from feedmill.errors import DataError
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    store = open_store(folder)
    try:
        lines = store.read(name).decode("utf-8-sig").split("\n")
        return [line.removesuffix("\r") for line in lines if line.strip()]  # a key may contain other white space
    except UnicodeDecodeError as error:
        raise DataError(
            "the list of keys is not UTF-8 text", file=path, offset=error.start, fix="Save it as UTF-8."
        ) from None


def show(report: RewriteReport) -> None:
    """Print the report: counts, bytes written and time."""
    facts(
        [
            ("deleted", counted(report.samples, "sample")),
            ("shards rewritten", f"{report.rewritten:,} of {report.shards + report.removed:,}"),
            ("shards removed", report.removed or None),
            ("written", human_size(report.bytes)),
            ("not there", ", ".join(report.missing[:8]) + (" ..." if len(report.missing) > 8 else "") or None),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
