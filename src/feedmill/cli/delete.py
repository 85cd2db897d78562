"""``feedmill edit delete``: samples taken out of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.dialogue import confirm
from feedmill.cli.output import counted, emit_report, facts, human_size
from feedmill.jobs.options import Flag, Opt, call
from feedmill.writing.options import Delete

if TYPE_CHECKING:
    from feedmill.writing.rewrite import RewriteReport


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
    emit_report(report, json, lambda: show(report))


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
