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
    from feedmill.jobs.dry_run import DryRun, PlannedFile
    from feedmill.jobs.left_out import LeftOut


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
        grid.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
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


def _console() -> Any:
    from rich.console import Console

    # Output to a file must not be wrapped at 80 characters.
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console
