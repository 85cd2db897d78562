"""``feedmill plan``: show what a recipe draws, before a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedmill.cli.command import command, filled
from feedmill.cli.output import counted, emit, human_size, table
from feedmill.errors import ConfigError
from feedmill.jobs.options import Flag, call
from feedmill.planning.options import PlanOptions

_MOST_SHARES = 20
_LOW_FILL = 0.95


class PlanOrSchema(PlanOptions, kw_only=True):
    __doc__ = PlanOptions.__doc__

    schema: Annotated[bool, Flag("Print the JSON schema of recipes and exit.")] = False


@command(PlanOrSchema, optional=("recipe",))
def plan(options: PlanOrSchema, json: bool) -> str | None:
    from feedmill.planning.overview import plan as run

    if options.schema:
        from feedmill.planning.recipes.recipe import Recipe

        emit(Recipe.json_schema(), True, lambda: None)
        return ""
    if not options.recipe:
        raise ConfigError(
            "the recipe is missing", kind="bad-option", fix="Pass the path of a recipe: feedmill plan RECIPE."
        )
    report = call(run, options)
    emit(report.as_dict(), json, lambda: _print(report.plan, report.facts))
    if not options.proxy:
        return None
    return filled("trace {recipe} --proxy {proxy} --step 0 --global-batch 8 --show", options)


def _print(plan: Any, data: dict[str, Any]) -> None:
    typer.echo(str(plan))
    typer.echo("")
    packing = data["packing"]
    unit = "samples" if packing is None else f"rows of {_widths(packing)} tokens"
    budget = "endless; give a budget to see draws" if data["budget"] is None else f"{data['budget']:,} {unit}"
    parts = [f"budget: {budget}"]
    if data["tokens"] is not None:
        parts.append(f"about {data['tokens']:,} tokens")
    if data["bytes"] is not None:
        parts.append(f"about {human_size(data['bytes'])} to read")
    typer.echo(", ".join(parts))
    if data["remote"] is not None:
        reads = data["remote"]
        typer.echo(
            f"remote reads: about {counted(reads['requests'], 'request')} and {human_size(reads['bytes'])} for"
            f" {counted(reads['samples'], 'sample')}, at least {reads['seconds']:,.1f} s (one rank, 20 ms, 200 MB/s)"
        )
        if reads["advice"]:
            typer.echo(f"  {reads['advice']}")
    if packing is not None and packing["fill"] is not None:
        padding = packing["slots"] - packing["tokens"]
        typer.echo(
            f"packing: {packing['documents']:,} documents, {padding:,} slots of padding ({1 - packing['fill']:.4%}),"
            f" {packing['left_out']:,} tokens dropped"
            + ("" if packing.get("media") is None else f", {packing['media']:.2f} media a row")
        )
        for each in packing["widths"]:
            typer.echo(
                f"  from row {each['start']:,}: {each['rows']:,} rows of {each['width']:,} tokens,"
                f" {each['documents']:,} documents, {each['tokens']:,} tokens, {1 - each['fill']:.4%} padding,"
                f" {each['left_out']:,} tokens dropped"
            )
    for each in getattr(plan, "whole", ()):
        typer.echo(f"  {each}".replace("\n", "\n  "))
    for name, used in (packing or {}).get("used_up", {}).items():
        typer.echo(
            f"  {used['rows']:,} rows are short because their {name} are used up, and have {used['free']:,} free slots:"
            f" allow more {name} in a row for fuller ones"
        )
    if packing is not None and packing["buffer"] is not None:
        apart = packing["passes_apart"]
        how = ", and no row holds two passes of a source" if apart else ", across the ends of passes and stages"
        typer.echo(f"  up to {packing['buffer']:,} documents are packed together{how}")
        more = data["length"] is None or packing["documents"] > packing["buffer"]
        if apart and more and packing["fill"] < _LOW_FILL:
            typer.echo(
                "  a pass fills few rows, hence the padding: 'buffer: N' in 'pack' packs N documents and mixes passes"
            )
    columns = [
        "source",
        "samples",
        "used",
        "tokens",
        "asked",
        "realized",
        "token share",
        "loss tokens",
        "loss share",
        "drawn",
        "repeats",
        "in the target",
        "epochs begun",
        "to read",
    ]
    from feedmill.planning.report import shown  # the parts of plans are slow to import

    rows = [_cells(row) for row in shown(data["sources"], data["groups"])]
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] != "" for row in rows)]
    table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    if note := plan.report(data["budget"]).unit_note:
        typer.echo(note)
    for group in data["groups"]:
        typer.echo(f"{group['prefix']}: of {group['cells']:,} cells those that repeat most (--json has all)")
    if data["proxy"] is not None:
        typer.echo(str(plan.report(data["budget"]).proxy))
    for note in data["notes"]:
        typer.echo(f"note: {note}")
    for proof in data["max_repeats"]:
        most = proof["max_repeats"] * proof["samples"]
        stage = "" if proof["stage"] is None else f" in stage {proof['stage']}"
        typer.echo(
            f"max_repeats of {proof['name']}{stage}: at most {proof['drawn_at_most']:,} drawn"
            f" <= {proof['max_repeats']} x {proof['samples']:,} = {most:,}"
        )
    if data["ranks"] is not None:
        _print_ranks(data["ranks"])
    if data["plot"]:
        typer.echo(f"plot: {data['plot']}")


def _widths(packing: dict[str, Any]) -> str:
    """Return the tokens in rows; those of stages with a seq_len of their own, in order."""
    return ", then ".join(f"{each['width']:,}" for each in packing["widths"]) or f"{packing['width']:,}"


def _print_ranks(ranks: dict[str, Any]) -> None:
    world, steps = ranks["world_size"], ranks["steps"]
    typer.echo("")
    size = f"{ranks['batch_size']:,}" if ranks["budget"] is None else ranks["budget"]["budget"]
    typer.echo(f"{world:,} ranks x {size}, {ranks['dealing']}, in the first {steps:,} steps:")
    shares = sorted(ranks["shares"], key=lambda share: share["least"] - share["most"])
    names = ("realised", "least", "most")
    rows = [[share["source"], *(f"{share[name]:.2%}" for name in names)] for share in shares[:_MOST_SHARES]]
    table(["source", "share", "least on a rank", "most on a rank"], rows)
    if len(shares) > _MOST_SHARES:
        typer.echo(f"... and {len(shares) - _MOST_SHARES:,} sources that are spread more evenly (--json has all)")
    if ranks["unknown"] is not None:
        typer.echo(f"cost of the ranks: {ranks['unknown']}")
        return
    typer.echo(f"{ranks['by']} of the costliest rank, by the mean over ranks (at least {_bound(ranks):.3f}):")
    rows = [[cost["dealing"], f"{cost['mean']:.3f}", f"{cost['worst']:.3f}"] for cost in ranks["costs"]]
    table(["dealt", "mean over steps", "worst step"], rows)
    used = ranks["budget"]
    if used is not None:
        typer.echo(
            f"{used['samples']:,.1f} samples per step; the ranks use {used['fill']:.2%} of their budget; a rank exceeds"
            f" it in {used['over']:.2%} of the steps, and takes {used['worst']:.2%} of it at most"
        )


def _bound(ranks: dict[str, Any]) -> float:
    return float(max(cost["lower_bound"] for cost in ranks["costs"]))


def _cells(row: dict[str, Any]) -> list[Any]:
    drawn = row["drawn"] if row["exact"] or row["drawn"] is None else f"≈{row['drawn']:,}"
    cells = [
        row["name"],
        row["samples"],
        row["used"],
        row["tokens"],
        None if row["weight_asked"] is None else f"{row['weight_asked']:.4%}",
        None if row["weight_realised"] is None else f"{row['weight_realised']:.4%}",
        None if row["token_share"] is None else f"{row['token_share']:.4%}",
        row["loss_tokens"],
        None if row["loss_share"] is None else f"{row['loss_share']:.4%}",
        drawn,
        None if row["repeats"] is None else round(row["repeats"], 3),
        None if row["target_repeats"] is None else round(row["target_repeats"], 3),
        row["epochs"],
        None if row["drawn_bytes"] is None else human_size(row["drawn_bytes"]),
    ]
    return ["" if cell is None else cell for cell in cells]
