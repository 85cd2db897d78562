"""Output of the verbs: JSON documents for programs, text and tables for display."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

import typer

from feedmill.errors import FeedmillError
from feedmill.samples.text import human_size, printable

if TYPE_CHECKING:
    from feedmill.curation.mix.report import Counts, MixReport
    from feedmill.jobs.dry_run import DryRun, PlannedFile
    from feedmill.jobs.reports import LeftOut
    from feedmill.tokens.rewrite import TokensReport as Rewritten


class Report(Protocol):
    """Report of a verb that can run dry; see `feedmill.jobs.dry_run.JobReport`."""

    dry_run: DryRun | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""


__all__ = [
    "counted",
    "echo_dry_run",
    "echo_wrapped",
    "emit",
    "emit_report",
    "facts",
    "fail",
    "human_rate",
    "human_size",
    "json_wanted",
    "printable",
    "remember_json",
    "show_dry_run",
    "show_left_out",
    "table",
    "to_json",
    "would_write",
]
_JSON = "feedmill.json"
_FILES = 20
"""Number of files that a dry run names, and of reasons for what is left out; ``--json`` has all."""
_NAME, _LONG = 12, 32
"""Minimum width of a table's columns when cells are folded: the first column, and any other."""


def emit(data: Any, as_json: bool, human: Callable[[], None]) -> None:
    """Print `data` as one JSON document on stdout, or call `human` to print it for display."""
    if as_json:
        typer.echo(to_json(data))
    else:
        human()


def emit_report(report: Report, as_json: bool, human: Callable[[], None]) -> None:
    """Print the report of a verb that can run dry: as `emit`, or what the real run would do."""
    dry = report.dry_run
    emit(report.as_dict(), as_json, human if dry is None else lambda: show_dry_run(dry))


def warn(warnings: Iterable[str]) -> None:
    """Print warnings of a report to the error stream."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def show_dry_run(dry: DryRun) -> None:
    """Print what the real run would do: one line for each file up to `_FILES`, and counts."""
    echo_dry_run(dry)
    facts(
        [
            ("would read", f"{counted(dry.files, 'file')}, {human_size(dry.bytes)}" if dry.files else None),
            *((name, value if isinstance(value, str) else f"{value:,}") for name, value in dry.counts.items()),
            *would_write(dry),
            *(("would skip", f"{count:,} {printable(reason)}") for reason, count in dry.skipped.items()),
        ]
    )
    for warning in dry.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)


def echo_dry_run(dry: DryRun) -> None:
    """Print the first line of a dry run, which says whether there is anything to do."""
    nothing = not dry.outputs and not dry.deletes
    typer.echo(f"dry run: {'there is nothing to write' if nothing else 'nothing was written'}")


def show_left_out(left_out: LeftOut) -> None:
    """Print on stderr what is left out, one line for each of the first `_FILES` reasons."""
    lines = left_out.lines()
    for line in lines[:_FILES]:
        typer.echo(f"left out: {printable(line)}", err=True)
    if len(lines) > _FILES:
        typer.echo(f"left out: for {counted(len(lines) - _FILES, 'more reason')}", err=True)


def would_write(dry: DryRun) -> list[tuple[str, str]]:
    """Return the files that the real run would write and delete, for `facts`: the first ones, and how many more."""
    found = [("would replace" if out.replaces else "would write", _planned(out)) for out in dry.outputs[:_FILES]]
    if len(dry.outputs) > _FILES:
        found.append(("and", counted(len(dry.outputs) - _FILES, "more file")))
    found += [("would delete", _shown(path)) for path in dry.deletes[:_FILES]]
    if len(dry.deletes) > _FILES:
        found.append(("and delete", counted(len(dry.deletes) - _FILES, "more file")))
    return found


def _planned(out: PlannedFile) -> str:
    return _shown(out.path) + ("" if out.bytes is None else f" ({human_size(out.bytes)})")


def _shown(path: str) -> str:
    """Return a path as the user would write it: below the current folder, or in full."""
    here = os.path.join(os.getcwd(), "")
    return printable(path.removeprefix(here) or path)


def to_json(data: Any) -> str:
    """Return `data` as indented JSON: numpy values as numbers and lists, other types as ``str(value)``."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(data, default=str, option=options).decode()
    except TypeError:  # file names that are not UTF-8, or integers beyond 64 bits
        import json

        return json.dumps(_plain(data), indent=2)


def _plain(value: Any) -> Any:
    """Return `value` as types that the standard ``json`` module supports."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist"):  # numpy's
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else str(value)


def fail(error: FeedmillError, *, as_json: bool = False) -> None:
    """Print an error: one message on stderr, and with ``--json`` a document ``{"error": ...}`` on stdout."""
    with contextlib.suppress(OSError):  # a stream that cannot be written may be the error
        if as_json:
            typer.echo(to_json({"error": error.as_dict()}))
    with contextlib.suppress(OSError):
        typer.echo(f"error: {printable(str(error))}", err=True)


def remember_json(ctx: typer.Context, wanted: bool) -> bool:
    """Store the ``--json`` option in the context (callback), so that errors are printed as JSON too."""
    ctx.meta[_JSON] = wanted
    return wanted


def json_wanted(ctx: typer.Context) -> bool:
    """Return whether ``--json`` was passed to the verb of this context."""
    return bool(ctx.meta.get(_JSON))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table. Columns of numbers are right-aligned, with thousands separators.

    Short cells are never wrapped: if the columns do not fit the terminal, each row is printed as a list.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    cells = [[_cell(value) for value in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    console = _console()
    if sum(_least(n, width) for n, width in enumerate(widths)) + 3 * len(widths) - 1 > console.width:
        _turned(columns, cells, title)
        return
    grid = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[number], int | float) for line in lines)
        whole = _least(number, widths[number]) == widths[number]
        justify: Any = "right" if numeric else "left"
        grid.add_column(Text(name), justify=justify, overflow="fold", no_wrap=whole)
    for line in cells:
        grid.add_row(*map(Text, line))
    console.print(grid)


def _least(number: int, width: int) -> int:
    """Return the minimum width of a column: its full width, unless it is the first column or long (foldable)."""
    return min(width, _NAME if number == 0 else _LONG)


def _turned(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    """Print each row as a list of names and values."""
    if title is not None:
        typer.echo(title)
    width = max(map(len, columns))
    for line in cells:
        typer.echo("")
        for name, text in zip(columns, line, strict=True):
            if text:
                typer.echo(f"{name.ljust(width)}  {text}")
    typer.echo("")


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values in two columns; values that are None are skipped. Plain text: rich is slow to import."""
    shown = [(name, _cell(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        typer.echo(f"{typer.style(name.ljust(width), bold=True)}  {text}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 shard"``, ``"2 shards"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_rate(count: float, noun: str) -> str:
    """Return a rate for display: ``"2.4 M tokens/s"``, ``"310 tokens/s"``."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit} {noun}/s"
    return f"{count:.0f} {noun}/s"


def echo_wrapped(text: str) -> None:
    """Print a line, on a terminal broken between words; further lines are indented more."""
    import textwrap

    indent = " " * (len(text) - len(text.lstrip()) + 4)
    console = _console()
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    typer.echo(text)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)


def show_written(report: Rewritten) -> None:
    """Print which files a verb over token files wrote, and what it dropped."""
    lines = any(done.path.endswith(".jsonl") for done in report.outputs)
    shown = report.outputs if len(report.outputs) <= 20 else report.outputs[:20]
    for done in shown:
        documents, amount = f"{done.documents:,} documents", f"{done.tokens:,} tokens"
        if lines:
            documents, amount = f"{done.documents:,} lines", f"{done.tokens:,} bytes"
        typer.echo(f"{done.path}: {documents}, {amount}")
    if len(report.outputs) > len(shown):
        typer.echo(f"... and {len(report.outputs) - len(shown)} more files")
    facts(
        [
            ("seed", None if report.seed is None else str(report.seed)),
            ("finished earlier", f"{report.resumed} files" if report.resumed else None),
            *((f"dropped, {reason}", count) for reason, count in report.left_out.items()),
        ]
    )
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)


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
    elif report.computed:
        typer.echo(f"computed first: the attributes {', '.join(report.computed)}")
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
    warn(report.warnings if report.dry_run is None else ())  # a dry run has shown them


def _console() -> Any:
    from rich.console import Console

    # Output to a file must not be wrapped at 80 characters.
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console
