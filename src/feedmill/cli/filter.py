"""``feedmill filter``: keep or drop documents by attributes, or by length and index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.merge import show
from feedmill.cli.options import (
    AllowEmpty,
    AllowStale,
    DropLoss,
    DryRun,
    Ids,
    Json,
    MixedTokenizers,
    OverwriteFiles,
    TokenSize,
    on_engine,
)
from feedmill.cli.output import counted, echo_wrapped, emit, emit_report, show_dry_run

if TYPE_CHECKING:
    from feedmill.curation.mix.counts import Counts
    from feedmill.curation.mix.report import MixReport


@on_engine
def filter(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG | INPUT... OUTPUT",
            help="A configuration for documents with attributes; or token or JSONL files, then the output.",
        ),
    ],
    min_length: Annotated[
        int | None,
        typer.Option("--min-length", metavar="N", help="Minimum number of tokens (JSONL: bytes of the line)."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", metavar="N", help="Maximum number of tokens (JSONL: bytes of the line)."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="FILE", help="Keep only documents whose indices are in this file.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option("--drop", metavar="FILE", help="Drop documents whose indices are in this file.")
    ] = None,
    token_size: TokenSize = None,
    mixed_tokenizers: MixedTokenizers = False,
    drop_loss: DropLoss = False,
    dry_run: DryRun = False,
    allow_stale: AllowStale = False,
    id_: Ids = None,
    allow_empty: AllowEmpty = False,
    overwrite: OverwriteFiles = False,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="CONFIG: processes; default: one per core.")
    ] = None,
    json: Json = False,
) -> None:
    """Write the documents that pass: by attributes (CONFIG), or from token files and JSONL files by length and index.

    A CONFIG can also replace spans of text, and sample and merge streams; see docs/filter.md.
    """
    from feedmill import filtering

    run: Any = filtering.filter  # `filter` dispatches between its two overloads
    report = run(
        inputs[0] if len(inputs) == 1 else inputs[:-1],
        None if len(inputs) == 1 else inputs[-1],
        min_length=min_length,
        max_length=max_length,
        keep=None if keep is None else read_numbers(keep),
        drop=None if drop is None else read_numbers(drop),
        token_size=token_size,
        mixed_tokenizers=mixed_tokenizers,
        drop_loss=drop_loss,
        dry_run=dry_run,
        allow_stale=allow_stale,
        id=id_,
        allow_empty=allow_empty,
        overwrite=overwrite,
        workers=workers,
        progress=not json,
    )
    if len(inputs) == 1:
        emit(report.as_dict(), json, lambda: show_documents(report))
    else:
        emit_report(report, json, lambda: show(report))


def read_numbers(path: str) -> list[int]:
    """Return the numbers in a text file, one per line. Blank lines and ``#`` comments are ignored.

    Raises:
        DataError: a line is not a whole number.
    """
    from feedmill.errors import DataError
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    numbers = []
    for number, line in enumerate(open_store(folder).read(name).decode("utf-8-sig", "replace").splitlines(), 1):
        word = line.partition("#")[0].strip()
        if word and not (word.isascii() and word.isdigit() and len(word) < 19):
            raise DataError(
                f"{word[:40]!r} is not a document number",
                file=path,
                record=f"line {number}",
                kind="bad-list",
                fix="Write one whole number per line, counted from 0.",
            )
        if word:
            numbers.append(int(word))
    return numbers


def show_dropped(counts: Counts) -> None:
    """Print what each rule dropped. Short rules on scores of one tagger are printed together, below its name."""
    groups: dict[str, list[str]] = {}
    for rule, _ in counts.dropped.most_common():
        tagger, _, kind = rule.partition(" ")[2].rpartition("__")
        is_short = rule.startswith("keep ") and bool(kind and tagger)
        groups.setdefault(f"keep {tagger}" if is_short else rule, []).append(rule)
    for name, rules in groups.items():
        if len(rules) == 1:
            echo_wrapped(f"  dropped {_dropped(counts, rules[0], rules[0])}")
            continue
        echo_wrapped(f"  dropped {sum(counts.dropped[rule] for rule in rules):,} by {name}:")
        short = {rule: rule.removeprefix(f"{name}__") for rule in rules}
        idle = [short[rule] for rule in rules if not counts.dropped[rule] and not counts.matched[rule]]
        for rule in rules:
            if short[rule] not in idle:
                echo_wrapped(f"    {_dropped(counts, rule, short[rule])}")
        if idle:
            echo_wrapped(f"    0 by {', '.join(idle)}")


def _dropped(counts: Counts, rule: str, shown: str) -> str:
    """Return what a rule dropped: the documents that no earlier rule drops, and all that it would drop alone."""
    number, alone = counts.dropped[rule], counts.matched[rule]
    ids = ", ".join(str(one) for one in counts.examples.get(rule, []))
    some = f": {ids}{', ...' if number > 3 else ''}" if number else ""
    return f"{number:,} by {shown}{f' ({alone:,} alone)' if alone > number else ''}{some}"


def show_documents(report: MixReport) -> None:
    """Print how many documents each stream kept, and how many each rule dropped."""
    if report.dry_run is not None:
        show_dry_run(report.dry_run)
    for one in report.streams:
        counts = one.counts
        done = f", {one.finished_before} of them before" if one.finished_before else ""
        what = "would be kept" if report.dry_run is not None else f"kept in {counted(len(one.outputs), 'file')}{done}"
        times = "" if counts.written == counts.kept else f", written {counts.written:,} times"
        typer.echo(f"{typer.style(one.name, bold=True)}: {counts.kept:,} of {counts.read:,} documents {what}{times}")
        show_dropped(counts)
        if one.replaces:
            typer.echo(f"  replaced {counted(counts.replaced, 'span')}")
    if report.absent:
        typer.echo(f"not in the first rows, as it is written for some documents only: {', '.join(report.absent)}")
    for warning in report.warnings if report.dry_run is None else ():  # a dry run has shown them
        typer.echo(f"warning: {warning}", err=True)
