"""``feedmill filter``: keep or drop documents by attributes, or by length and index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from feedmill.cli.command import command
from feedmill.cli.merge import show
from feedmill.cli.output import counted, echo_wrapped, emit, emit_report, show_dry_run
from feedmill.filtering import Filter
from feedmill.jobs.options import call

if TYPE_CHECKING:
    from feedmill.curation.mix.counts import Counts
    from feedmill.curation.mix.report import MixReport


@command(Filter, engines=True)
def filter(options: Filter, json: bool) -> None:
    from feedmill.filtering import filter as run

    paths: Any = options.inputs
    *inputs, output = paths
    if not inputs:
        documents: Any = call(run, options, inputs=output)
        emit(documents.as_dict(), json, lambda: show_documents(documents))
        return
    report: Any = call(run, options, inputs=inputs, output=output)
    emit_report(report, json, lambda: show(report))


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
