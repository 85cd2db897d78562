"""``feedmill edit``: the verbs that change a prepared dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.dialogue import confirm
from feedmill.cli.output import counted, emit_report, facts, human_size, warn
from feedmill.indexing.options import MediaChoice, PrepareMedia, Repair
from feedmill.jobs.options import Flag, Opt, call
from feedmill.mounting.options import Mount
from feedmill.writing.options import AddParts, Append, Delete, Reshard

if TYPE_CHECKING:
    from feedmill.indexing.prepare_media import MediaReport
    from feedmill.indexing.repair import RepairReport
    from feedmill.writing.rewrite import RewriteReport
    from feedmill.writing.write import WriteReport


@command(Append)
def append(options: Append, json: bool) -> None:
    from feedmill.writing.append import append as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_shards(report))


@command(AddParts)
def add_parts(options: AddParts, json: bool) -> None:
    from feedmill.writing.add_parts import add_parts as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_added(report))


def _show_added(report: RewriteReport) -> None:
    """Print the report: counts, bytes written and time."""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", report.shards),
            ("written", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    for warning in report.warnings:
        typer.echo(f"note: {warning}", err=True)


class DeleteListed(Delete, kw_only=True):
    __doc__ = Delete.__doc__

    keys_from: Annotated[
        str | None, Opt("FILE", "A file with one key on each line; .jsonl: the keys of a skip list.")
    ] = None
    yes: Annotated[bool, Flag("Do not ask.", "--yes -y")] = False


@command(DeleteListed, optional=("keys",))
def delete(options: DeleteListed, json: bool) -> None:
    from feedmill.writing.delete import delete as run

    wanted = [*options.keys, *(listed(options.keys_from) if options.keys_from is not None else ())]
    if wanted and not options.dry_run:
        what = f"Delete {counted(len(wanted), 'sample')} from {options.url}? Their shards are rewritten, and no copy is"
        confirm(f"{what} kept.", options.yes)
    report = call(run, options, keys=wanted)
    emit_report(report, json, lambda: _show_deleted(report))


def listed(path: str) -> list[str]:
    """Return the keys in a text file, one on each line, or in a skip list. Raises DataError if it is neither."""
    import json

    from feedmill.errors import DataError
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    store = open_store(folder)
    try:
        lines = store.read(name).decode("utf-8-sig").split("\n")
        if name.endswith(".jsonl"):
            return [str(json.loads(line)["key"]) for line in lines if line.strip()]
        return [line.removesuffix("\r") for line in lines if line.strip()]  # a key may contain other white space
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        what = f"this is not a list of objects with a 'key' ({error})"
        raise DataError(what, file=path, fix="Pass a skip list, or a text file with one key on each line.") from None
    except UnicodeDecodeError as error:
        raise DataError(
            "the list of keys is not UTF-8 text", file=path, offset=error.start, fix="Save it as UTF-8."
        ) from None


def _show_deleted(report: RewriteReport) -> None:
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
    warn(report.warnings)


@command(Reshard, engines=True)
def reshard(options: Reshard, json: bool) -> None:
    from feedmill.writing.reshard import reshard as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_shards(report))


def _show_shards(report: WriteReport) -> None:
    """Print what was written."""
    reused = f" ({report.reused} of an interrupted run)" if report.reused else ""
    facts(
        [
            ("wrote", report.path),
            ("samples", report.samples),
            ("shards", f"{report.shards:,}{reused}"),
            ("size", human_size(report.bytes)),
            ("time", f"{report.seconds:.2f} s, {report.samples / max(report.seconds, 1e-9):,.0f} samples/s"),
        ]
    )
    warn(report.warnings)


_SHOWN = 20
"""Number of keys of lost samples that are printed for a shard."""


@command(Repair)
def repair(options: Repair, json: bool) -> None:
    """Exit status 1 if damage remains."""
    from feedmill.indexing.repair import repair as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_repaired(report))
    if report.remaining:
        raise typer.Exit(1)


def _show_repaired(report: RepairReport) -> None:
    """Print what was removed, what damage remains, and what is indexed."""
    for item in report.dropped:
        more = f" and {len(item.keys) - _SHOWN:,} more (see the report)" if len(item.keys) > _SHOWN else ""
        keys = f", samples {', '.join(item.keys[:_SHOWN])}{more}" if item.keys else ""
        typer.echo(
            f"removed: {item.bytes:,} bytes from byte {item.offset:,} of {item.file}{keys}; kept in {item.saved}"
        )
        typer.echo(f"  because {item.why}")
    for error in report.remaining:
        typer.echo(f"not in the index: {error}")
    if not report.dropped and not report.remaining:
        typer.echo("no problems found")
    if report.prepared is not None:
        samples, shards = counted(report.prepared.samples, "sample"), counted(report.prepared.shards, "shard")
        typer.echo(f"indexed: {samples} in {shards}")
        warn(report.prepared.warnings)


@command(Mount, json=False)
def mount(options: Mount) -> None:
    from feedmill.mounting.mount import mount as run

    def ready() -> None:
        if not options.detach:
            typer.echo(f"{options.url} is mounted at {options.mountpoint}; press Ctrl-C to unmount", err=True)

    call(run, options, ready=ready)


class ChosenMedia(MediaChoice, PrepareMedia, kw_only=True):
    __doc__ = PrepareMedia.__doc__


@command(ChosenMedia, engines=True, optional=("media",))
def prepare_media(options: ChosenMedia, json: bool) -> None:
    from feedmill.indexing.prepare_media import prepare_media as run

    report = call(run, options, media=replace(options, media_metadata=True).media_filter())
    emit_report(report, json, lambda: show_media(report))


def show_media(report: MediaReport) -> None:
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
    warn(report.warnings)
    for error in report.broken:
        typer.echo(f"broken: {error}", err=True)
