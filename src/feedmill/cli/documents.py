"""``feedmill documents``: the verbs on documents that are not on the front page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedmill.cli.command import command, filled
from feedmill.cli.edit import listed
from feedmill.cli.engines import SKIPPED
from feedmill.cli.output import (
    counted,
    emit,
    emit_report,
    facts,
    human_rate,
    human_size,
    printable,
    show_left_out,
    table,
    warn,
)
from feedmill.cli.tag import of_model
from feedmill.curation.options import NPY, Decontaminate, Embed, Extract, Stat
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.jobs.options import Flag, Opt, call
from feedmill.storage import paths_of
from feedmill.tracing.options import Forget

if TYPE_CHECKING:
    from feedmill.curation.decontaminate.job import DecontaminateReport
    from feedmill.curation.embed import EmbedReport
    from feedmill.curation.extract.extract import ExtractReport
    from feedmill.curation.series import Series
    from feedmill.curation.stat import StatReport, Stats
    from feedmill.planning.recipes.statistics import StatisticsReport
    from feedmill.tracing.forget import ForgetReport


@command(Extract, engines=True)
def extract(options: Extract, json: bool) -> None:
    from feedmill.curation.extract.extract import extract as run

    report = call(run, options)
    emit_report(report, json, lambda: show_extracted(report))


def show_extracted(report: ExtractReport) -> None:
    """Print what was written and left out."""
    reused = f" ({report.reused:,} up to date)" if report.reused else ""
    skipped = ", ".join(f"{count:,} {kind}" for kind, count in report.skipped.items())
    rate = human_rate(report.documents / max(report.seconds, 1e-9), "documents")
    facts(
        [
            ("wrote", report.output),
            ("archives", f"{report.archives:,}{reused}, {human_size(report.input_bytes)}"),
            ("documents", f"{report.documents:,}, {human_size(report.bytes)}"),
            ("attributes", ", ".join(report.attributes) or None),
            ("other records", skipped or None),
            ("time", f"{report.seconds:.2f} s, {rate}"),
        ]
    )
    for pattern in report.missing:
        typer.echo(f"warning: {printable(pattern)}: no web archives match this pattern", err=True)
    show_left_out(report.left_out)


@command(Decontaminate, engines=True)
def decontaminate(options: Decontaminate, json: bool) -> None:
    from feedmill.curation.decontaminate.job import decontaminate as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_found(report))


def _show_found(report: DecontaminateReport) -> None:
    """Print the leaked questions by benchmark, and an example of each."""
    warn(report.warnings)
    if report.skipped:
        typer.echo("nothing to do: an earlier run did all of this")
    typer.echo(
        f"{counted(report.flagged, 'document')} of {report.documents:,} in {counted(report.files, 'file')} have"
        f" questions of benchmarks, in attributes/{report.name}"
    )
    for one in report.benchmarks:
        lost = [f"{one[kind]:,} {words}" for kind, words in _HIDDEN.items() if one[kind]]
        typer.echo(
            f"  {one['benchmark']}: {one['leaked']:,} of {counted(one['questions'], 'question')} in"
            f" {counted(one['documents'], 'document')}, {one['with_answer']:,} with an answer"
            + (f"; cannot be found: {', '.join(lost)}" if lost else "")
        )
        for example in one["unmarked_examples"][:1]:
            typer.echo(
                f"    not marked: {example['id']}, in {counted(example['documents'], 'document')}:"
                f" {_one_line(example['question'])}"
            )
        for example in one["examples"][:1]:
            typer.echo(f"    {example['id']}: {_one_line(example['question'])}")
            where = f"{example['file']}, line {example['line']}"
            typer.echo(f"    {where}: {_one_line(example['text'])} ({example['share']:.0%})")


_HIDDEN = {"empty": "without text", "short": "too short", "common": "made of common phrases"}


def _one_line(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


@command(Embed, engines=True)
def embed(options: Embed, json: bool) -> str | None:
    from feedmill.curation.embed import embed as run

    report = call(run, options)
    emit_report(report, json, lambda: _show_vectors(report))
    if options.output is not None or options.to != NPY:
        return ""  # 'dedupe' reads what lies beside the documents
    if options.name is not None:
        return None
    from feedmill.curation.models.files import name_of, parse

    return filled(
        f"dedupe {{documents}} --near --by embeddings --embeddings {name_of(parse(options.model)[0])}", options
    )


def _of_embedder(counts: dict[str, int]) -> str:
    """Return what a model of texts or images read, as text."""
    return counted(counts["images"], "image") if "images" in counts else of_model(counts)


def _show_vectors(report: EmbedReport) -> None:
    """Print what was done."""
    reused = f" ({report.reused} up to date)" if report.reused else ""
    facts(
        [
            ("files", f"{report.files:,}{reused}"),
            ("vectors", f"{report.rows:,} of {report.dimension:,} numbers"),
            ("model", _of_embedder(report.model) if report.model else None),
            ("embeddings", ", ".join(report.outputs)),
            ("time", f"{report.seconds:.2f} s"),
        ]
    )
    warn(report.warnings)
    show_left_out(report.left_out)


@command(Forget)
def forget(options: Forget, json: bool) -> None:
    from feedmill.tracing.forget import forget as run

    ids = str(options.ids)
    wanted = listed(ids[1:]) if ids.startswith("@") else [one for one in ids.split(",") if one]
    try:
        done = call(run, options, ids=wanted)
    except NotFound as error:
        if os.path.isfile(ids) and error.kind == "no-such-sample":
            error.fix = f"{ids} is a file: pass @{ids} to search for the ids in it."
        raise
    emit(done.as_dict(), json, lambda: _show_forgotten(done))


MOST_QUESTIONS, MOST_DOCUMENTS = 100, 3
"""Questions, and documents of each, that are printed."""


def _show_forgotten(report: ForgetReport) -> None:
    questions = report.questions
    for question, one in list(questions.items())[:MOST_QUESTIONS]:
        documents = one["documents"]
        typer.echo(typer.style(question, bold=True) + f": in {counted(len(documents), 'document')}")
        for document in documents[:MOST_DOCUMENTS]:
            typer.echo(f"  {document}")
        if len(documents) > MOST_DOCUMENTS:
            typer.echo(f"  and {len(documents) - MOST_DOCUMENTS:,} more")
        _show_seen(one["seen"])
    if len(questions) > MOST_QUESTIONS:
        typer.echo(f"and {len(questions) - MOST_QUESTIONS:,} more questions; --json and --report have all")
    for forgotten in report.documents:
        if not forgotten.questions:
            document = forgotten.document
            typer.echo(typer.style(forgotten.asked, bold=True) + f": {document.file}:{document.row + 1}")
            for line in document.summary():
                typer.echo(f"  {line}")
            _show_seen(forgotten.seen)
    for path, count in report.unused.items():
        typer.echo(f"{path}: {counted(count, 'marked document')}, from which nothing of this was made")
    rows = sum(map(len, report.files.values()))
    typer.echo(f"{counted(rows, 'row')} of {counted(len(report.files), 'file')} hold them; nothing was changed")
    for path in report.written:
        typer.echo(f"wrote {path}")


def _show_seen(seen: dict[str, Any]) -> None:
    for recipe, one in seen.items():
        steps = ", ".join(f"{step:,}" for step in one["steps"][:10])
        more = ", ..." if len(one["steps"]) > 10 else ""
        typer.echo(f"  {recipe}: seen {counted(one['times'], 'time')}{f', in steps {steps}{more}' if steps else ''}")


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
    emit(report.as_dict(bins), json, lambda: _show_stat(report, bins))
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


def _show_stat(report: StatReport, bins: int) -> None:
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
    warn(report.warnings)
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
