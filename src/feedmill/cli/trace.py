"""``feedmill trace``: show the samples of a step, or the steps of a sample or a raw document."""

from __future__ import annotations

from typing import Any

import typer

from feedmill.cli.command import command
from feedmill.cli.output import counted, emit, table
from feedmill.cli.show import print_shown
from feedmill.jobs.options import call
from feedmill.tracing.options import Trace


@command(Trace)
def trace(options: Trace, json: bool) -> None:
    from feedmill.tracing.trace import trace as run

    report = call(run, options)
    printed = _print_times if options.step is None else _print_step
    printed = printed if options.source_document is None else _print_documents
    printed = printed if options.losses is None else _print_losses
    printed = printed if report.plan is not None else _print_groups
    emit(report.as_dict(), json, lambda: _print(report, printed))


def _print(report: Any, printed: Any) -> None:
    if report.facts["proxy"] is not None:
        typer.echo(f"of a {report.facts['proxy']}: other runs of this recipe draw other samples")
    printed(report.plan, report.facts, report.shown)


def _print_step(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    ranks = "" if data["rank"] is None else f", rank {data['rank']} of {data['world']}"
    count = len({entry["position"] for entry in data["entries"]})
    part = "" if count == data["stop"] - data["first"] else f"{count:,} of the "
    typer.echo(f"step {data['step']:,}{ranks}: {part}positions [{data['first']:,}, {data['stop']:,})")
    columns = ["position", "source", "file", "offset", "key", "sample", "epoch"]
    fields = ["position", "source", "file", "offset", "key", "index", "epoch"]
    if data["rank"] is None and data["world"] is not None:
        columns.insert(1, "rank")
        fields.insert(1, "rank")
    if plan.skip is not None:
        columns.insert(1, "unskipped")
        fields.insert(1, "unskipped")
    if any("span" in entry for entry in data["entries"]):
        columns.append("tokens")
        fields.append("span")
    table(columns, [[_cell(entry.get(field)) for field in fields] for entry in data["entries"]])
    for entry in data["entries"]:
        if "problem" in entry:
            typer.echo(f"position {entry['position']:,} cannot be read: {entry['problem']}")
    _print_origins(data["entries"], "position")
    print_shown(shown)


def _print_groups(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:  # noqa: ARG001
    columns = ["group", "commit", "number", "answers", "version", "reward"]
    if "step" in data:
        typer.echo(
            f"step {data['step']:,} of run {data['run']!r}, policy {data['version']}:"
            f" {counted(len(data['groups']), 'group')} of {counted(data['horizon'], 'commit')}"
        )
    else:
        columns.append("steps")
    rows = [{**row, "reward": f"{row['reward']:.4g}"} for row in data["groups"]]
    rows = [{**row, "steps": ", ".join(map(str, row["steps"]))} if "steps" in row else row for row in rows]
    table(columns, [[row[name] for name in columns] for row in rows])
    for reason, count in data.get("left_out", {}).items():
        typer.echo(f"left out: {count:,} {reason}")


def _print_times(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    for sample in data["found"]:
        times = sample["times"]
        typer.echo(
            f"{sample['key']} (sample {sample['index']:,} of {sample['source']}):"
            f" {times:,} time{'' if times == 1 else 's'} in {data['samples']:,} samples"
        )
        columns = ["position", "epoch"]
        columns += ["step"] if any(row["step"] is not None for row in sample["seen"]) else []
        columns += ["unskipped"] if plan.skip is not None else []
        fields = list(columns)
        if any("span" in row for row in sample["seen"]):
            columns, fields = [*columns, "tokens"], [*columns, "span"]
        if times:
            table(columns, [[_cell(row.get(name), "") for name in fields] for row in sample["seen"]])
    _print_origins(data["found"], "index")
    print_shown(shown)


def _print_origins(entries: list[dict[str, Any]], name: str) -> None:
    for entry in entries:
        for origin in entry.get("origins", ()):
            place = f"{origin['file']}:{origin['line']}"
            if origin["line"] is None:
                place = f"unknown, because {origin['file']} has no lineage (row {origin['row']:,})"
            typer.echo(f"{name} {entry[name]:,}: {place}")
            for one in origin["through"]:
                typer.echo(f"  {one['verb']}: {one['file']}, {_row(one)}")
            if "text" in origin:
                typer.echo(origin["text"])
        if entry.get("origins") == []:
            typer.echo(f"{name} {entry[name]:,}: unknown, because its format has no lineage")


def _row(one: dict[str, Any]) -> str:
    return f"{one['noun']} {one['row'] + (one['noun'] != 'row'):,}"


def _print_documents(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:  # noqa: ARG001
    for document in data["documents"]:
        typer.echo(typer.style(f"{document['file']}:{document['line']}", bold=True))
        if "text" in document:
            typer.echo(document["text"])
        for line in document["summary"]:
            typer.echo(f"  {line}")
        if not document["artefacts"]:
            typer.echo("  no other file was made from it")
        times = document["times"]
        typer.echo(f"  seen {times:,} time{'' if times == 1 else 's'} in {data['samples']:,} samples")
        if document["seen"]:
            columns = ["position", "source", "index", "epoch"]
            columns += ["step"] if any(row["step"] is not None for row in document["seen"]) else []
            columns += ["span"] if any(row["span"] is not None for row in document["seen"]) else []
            rows = [[_cell(row[name], "") for name in columns] for row in document["seen"]]
            table([{"span": "tokens", "index": "sample"}.get(name, name) for name in columns], rows)
        if times > len(document["seen"]):
            typer.echo(f"  and {times - len(document['seen']):,} more")


def _print_losses(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:  # noqa: ARG001
    how = "exact means" if data["exact"] else "estimated from the shares of batches, with standard errors"
    typer.echo(f"losses of {data['lines']:,} lines: {how}")
    rows = [
        [row["name"], f"{row['amount']:,}", *("" if row[name] is None else f"{row[name]:.4f}" for name in columns)]
        for columns in [("loss",) if data["exact"] else ("loss", "error")]
        for row in data["sources"]
    ]
    table(["source" if data["by"] is None else data["by"], data["unit"], "loss", "±"][: len(rows[0])], rows)
    for group in data["together"]:
        mean = "" if group["loss"] is None else f"; together {group['loss']:.4f} ± {group['error']:.4f}"
        names = ", ".join(group["names"][:12]) + (", ..." if len(group["names"]) > 12 else "")
        typer.echo(f"cannot be separated, because their shares change together: {names}{mean}")
    for reason, count in data["left_out"].items():
        typer.echo(f"left out: {count:,} {reason}")
    if data["not_seen"]:
        names = ", ".join(data["not_seen"][:12]) + (", ..." if len(data["not_seen"]) > 12 else "")
        typer.echo(f"in no batch of the log: {names}")


def _cell(value: Any, missing: str = "?") -> Any:
    if isinstance(value, tuple):
        return f"[{value[0]:,}, {value[1]:,})"
    return missing if value is None else value
