"""``feedmill documents stat``: counts and distributions of documents and attributes, or of the episodes of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from feedmill.cli.command import command
from feedmill.cli.engines import SKIPPED
from feedmill.cli.output import counted, emit, facts, human_size, table
from feedmill.curation.options import Stat
from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.options import Flag, Opt, call
from feedmill.storage import paths_of

if TYPE_CHECKING:
    from feedmill.curation.series import Series
    from feedmill.curation.stat import StatReport, Stats
    from feedmill.planning.recipes.statistics import StatisticsReport

_SHARES = (0.05, 0.5, 0.95)
_COLUMNS = ("mean", "min", "5 %", "median", "95 %", "max")
_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SOURCES = 10


class DrawnStat(Stat, kw_only=True):
    __doc__ = Stat.__doc__

    plot: Annotated[bool, Flag("Draw a histogram of each distribution.")] = False
    plot_to: Annotated[str | None, Opt("FILE", "Write the histograms as a picture (.png, .jpg).")] = None
    bins: Annotated[int, Opt("N", "Number of bins of a histogram.", min=1, max=1000)] = 20


@command(DrawnStat, engines=True)
def stat(options: DrawnStat, json: bool) -> None:
    from feedmill.curation.stat import stat as run

    recipe = _recipe(options)
    if recipe is not None:
        from feedmill.planning.recipes.recipe import Recipe

        statistics = Recipe.load(recipe).statistics(progress=options.progress)
        emit(statistics.as_dict(), json, lambda: _show_features(statistics))
        return
    if options.plot_to is not None:
        from feedmill.samples.sheet import check_picture

        check_picture(options.plot_to)
    try:
        report = call(run, options)
    except FeedmillError as error:
        if error.kind in ("no-documents", "mixed-formats") and any(map(_has_episodes, paths_of(options.patterns))):
            error.fix = "These are robot episodes: their statistics are those of a recipe, see docs/formats/lerobot.md."
        raise
    bins = options.bins if options.plot else 0
    if json:  # an error of drawing is then the only document
        _picture(report, options.bins, options.plot_to)
    emit(report.as_dict(bins), json, lambda: _show(report, bins))
    if not json:
        _picture(report, options.bins, options.plot_to)
    if report.failed:
        raise typer.Exit(SKIPPED)


def _has_episodes(path: str) -> bool:
    from feedmill.planning.recipes.compile import is_episodes

    try:
        return is_episodes(path)
    except FeedmillError:
        return False


def _recipe(options: DrawnStat) -> str | None:
    """Return the recipe whose robot episodes are meant; None for documents. Raises `ConfigError`."""
    paths = paths_of(options.patterns)
    recipes = [path for path in paths if path.endswith((".yaml", ".yml"))]
    if not recipes:
        return None
    plain = DrawnStat(patterns=options.patterns)
    given = [each.name for each in fields(options) if getattr(options, each.name) != getattr(plain, each.name)]
    others = [name.replace("_", "-") for name in given if name not in ("patterns", "progress")]
    if len(paths) > 1 or others:
        raise ConfigError(
            f"statistics of a recipe are of it alone: found {', '.join([*paths, *(f'--{name}' for name in others)])}",
            kind="bad-option",
            fix=f"Run 'feedmill documents stat {recipes[0]}'.",
        )
    return recipes[0]


def _show_features(report: StatisticsReport) -> None:
    shares = [(name, f"{float(share):.4%}") for name, share in report.shares.items()]
    table(("source", "share"), shares)
    names = ("mean", "std", "min", "q01", "q50", "q99", "max")
    rows = []
    for feature, values in report.features.items():
        for number in range(len(values["mean"])):
            label = f"{feature}[{number}]"
            rows.append((label, *(f"{values[name][number]:.6g}" for name in names)))
    table(("feature", *names), rows)
    for note in report.notes:
        typer.echo(f"note: {note}")
    if report.folder is None:
        return
    typer.echo(f"statistics: {report.folder} ({report.computed} computed, {report.known} known)")


def _picture(report: StatReport, bins: int, path: str | None) -> None:
    if path is None:
        return
    from feedmill.samples.chart import Histogram, draw_histograms

    draw_histograms([Histogram(name, *each.histogram(bins)) for name, each in report.stats.series.items()], path)


def _show(report: StatReport, bins: int) -> None:
    stats = report.stats
    facts(
        [
            ("files", report.files),
            ("size", human_size(report.bytes)),
            ("rows", stats.rows),
            ("documents", stats.documents or None),
            ("attributes", len(stats.attributes) or None),
            ("time", f"{report.seconds:.2f} s, {human_size(report.bytes / max(report.seconds, 1e-9))}/s"),
        ]
    )
    if stats.documents:
        _show_documents(stats)
    if stats.attributes:
        _show_attributes(stats)
    for name, series in stats.series.items() if bins else ():
        _draw(name, series, bins)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in report.failed:
        typer.echo(f"error: {error}", err=True)
    if report.failed:
        typer.echo(f"{counted(len(report.failed), 'invalid file')} skipped", err=True)


def _show_documents(stats: Stats) -> None:
    named = {"characters": stats.characters, "bytes": stats.bytes, "words": stats.words}
    rows = [(name, number(series.total), *_row(series)) for name, series in named.items()]
    table(("of documents", "all", *_COLUMNS), rows)
    if len(stats.sources) > 1:
        sources = sorted(stats.sources.items(), key=lambda item: (-item[1], item[0]))
        shown = [(name or "(none)", f"{n:,}", f"{n / stats.documents:.1%}") for name, n in sources[:_SOURCES]]
        if len(sources) > _SOURCES:
            rest = sum(n for _, n in sources[_SOURCES:])
            shown.append((f"{len(sources) - _SOURCES} others", f"{rest:,}", f"{rest / stats.documents:.1%}"))
        table(("source", "documents", "share"), shown)


def _show_attributes(stats: Stats) -> None:
    found = stats.attributes.items()
    scores = [(name, f"{a.rows:,}", f"{a.empty:,}", f"{a.spans:,}", *_row(a.score)) for name, a in found]
    table(("score of", "rows", "empty", "spans", *_COLUMNS), scores)
    lengths = [(name, *_row(a.length)) for name, a in found if a.length.count]
    if lengths:
        table(("length of spans", *_COLUMNS), lengths)


def _row(series: Series) -> tuple[str, ...]:
    if not series.count:
        return ("",) * len(_COLUMNS)
    low, median, high = series.quantiles(_SHARES)
    return tuple(number(value) for value in (series.mean, series.low, low, median, high, series.high))


def number(value: float) -> str:
    """Return a number for display: whole, or four digits.

    >>> number(12345.0), number(0.123456), number(1e-7)
    ('12,345', '0.1235', '1e-07')
    """
    return f"{value:,.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:,.4g}"


def _draw(name: str, series: Series, bins: int) -> None:
    edges, counts = series.histogram(bins)
    typer.echo(f"\n{typer.style(name, bold=True)}  ({series.count:,})")
    for line in bars(edges.tolist(), counts.tolist()):
        typer.echo(line)


def bars(edges: Sequence[float], counts: Sequence[int]) -> list[str]:
    """Return one line per bin: its lower edge, a bar, and the count.

    >>> print(chr(10).join(bars([0, 1, 2], [3, 6])))
    0  ████████████████████ 3
    1  ████████████████████████████████████████ 6
    """
    most = max(counts, default=0) or 1
    labels = [number(edge) for edge in edges[:-1]]
    width = max(map(len, labels), default=0)
    lines = []
    for label, count in zip(labels, counts, strict=True):
        eighths = round(count / most * _WIDTH * 8)
        whole, part = divmod(max(eighths, 1) if count else 0, 8)
        lines.append(f"{label:>{width}}  {'█' * whole}{_EIGHTHS[part] if part else ''} {count:,}")
    return lines
