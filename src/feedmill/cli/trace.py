"""``feedmill trace``: show the samples of a step, or the steps of a sample or a raw document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feedmill.cli.options import GlobalBatch, Json, RecipePath, Samples
from feedmill.cli.output import emit, table
from feedmill.cli.preview import print_shown

Step = Annotated[int | None, typer.Option("--step", metavar="N", min=0, help="Show the samples of this step; from 0.")]
Rank = Annotated[
    int | None, typer.Option("--rank", metavar="R", min=0, help="Only the part of this rank; requires --world.")
]
World = Annotated[
    int | None,
    typer.Option(
        "--world", metavar="N", min=1, help="Number of ranks; without --rank, show which rank sees each sample."
    ),
]
Key = Annotated[str | None, typer.Option("--key", metavar="K", help="Show when the sample with this key is seen.")]
Document = Annotated[
    int | None,
    typer.Option("--document", "-d", metavar="N", min=0, help="Like --key, by index in its source; requires --source."),
]
Source = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Name of the source, as 'plan' shows it.")]
SourceDocument = Annotated[
    str | None,
    typer.Option(
        "--source-document",
        metavar="FILE:LINE|ID",
        help="Show the files that hold a raw document, the rules that dropped it, and when it is seen.",
    ),
]
Steps = Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help="Like --samples, in steps.")]
FromState = Annotated[
    Path | None, typer.Option("--from-state", metavar="FILE", help="JSON state from which the run was resumed.")
]
FirstStep = Annotated[
    int, typer.Option("--first-step", metavar="S", min=0, help="Number of the first step after the state.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="append|skip|change", help="What may differ from the run of the state; repeatable."
    ),
]
Origins = Annotated[
    bool, typer.Option("--origins", help="Show the raw file and line of each sample, through filter and tokenize.")
]
Show = Annotated[bool, typer.Option("--show", help="Show the content of the samples.")]


def trace(
    recipe: RecipePath,
    step: Step = None,
    global_batch: GlobalBatch = None,
    rank: Rank = None,
    world: World = None,
    key: Key = None,
    document: Document = None,
    source: Source = None,
    source_document: SourceDocument = None,
    samples: Samples = None,
    steps: Steps = None,
    from_state: FromState = None,
    first_step: FirstStep = 0,
    allow: Allow = None,
    origins: Origins = False,
    show: Show = False,
    json: Json = False,
) -> None:
    """Show which samples a step sees (--step), or when a sample (--key) or raw document is seen."""
    from feedmill.tracing.trace import trace as look

    report = look(
        recipe,
        step=step,
        global_batch=global_batch,
        rank=rank,
        world=world,
        key=key,
        document=document,
        source=source,
        source_document=source_document,
        samples=samples,
        steps=steps,
        from_state=from_state,
        first_step=first_step,
        allow=allow or (),
        origins=origins,
        show=show,
    )
    printed = _print_documents if source_document is not None else _print_times if step is None else _print_step
    emit(report.as_dict(), json, lambda: printed(report.plan, report.facts, report.shown))


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


def _cell(value: Any, missing: str = "?") -> Any:
    if isinstance(value, tuple):
        return f"[{value[0]:,}, {value[1]:,})"
    return missing if value is None else value
