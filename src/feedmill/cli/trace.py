"""``feedmill trace``: what a step saw, and when a sample is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feedmill.cli.options import GlobalBatch, Json, RecipePath, Samples
from feedmill.cli.output import emit, table
from feedmill.cli.preview import as_shown, print_shown
from feedmill.errors import ConfigError, FeedmillError

_ALLOW = ("append", "skip", "change")

Start = tuple[int, int]
"""Position of the first step, and its number."""


def trace(
    recipe: RecipePath,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="Say what this step sees; from 0.")
    ] = None,
    global_batch: GlobalBatch = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank's part; with --world.")
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(
            "--world", metavar="W", min=1, help="Ranks of the run; without --rank: say which rank sees each sample."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="Say when the sample with this key is seen.")
    ] = None,
    index: Annotated[
        int | None,
        typer.Option("--document", metavar="N", min=0, help="As --key, by number in its source; with --source."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Name of the source, as 'plan' shows it.")
    ] = None,
    samples: Samples = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help="As --samples, in steps.")] = None,
    from_state: Annotated[
        Path | None, typer.Option("--from-state", metavar="FILE", help="JSON state from which the run went on.")
    ] = None,
    first_step: Annotated[
        int, typer.Option("--first-step", metavar="S", min=0, help="Number of the first step after it.")
    ] = 0,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="append|skip|change", help="What differs from the state's run; repeatable."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the content of the samples.")] = False,
    json: Json = False,
) -> None:
    """Say which samples a step sees (--step), or at which positions and steps a sample is seen (--key)."""
    from feedmill.planning.recipes.recipe import Recipe

    backwards = key is not None or index is not None
    if (step is None) == (not backwards) or (key is not None and index is not None):
        raise ConfigError("it is not clear what to trace", fix="Give one of --step, --key and --document.")
    plan = Recipe.load(recipe).plan()
    by_budget = global_batch is None and plan.dealing is not None and plan.dealing.budget is not None
    if step is not None and global_batch is None and not (by_budget and world is not None):
        fix = "Give the number of ranks: --world." if by_budget else "Give the samples per step over all ranks."
        raise ConfigError("steps by budget need --world" if by_budget else "steps need --global-batch", fix=fix)
    if steps is not None and global_batch is None:
        raise ConfigError("--steps needs --global-batch", fix="Give the samples per step over all ranks, or --samples.")
    start = (_position(from_state, plan, allow or []), first_step)
    if step is not None:
        _forwards(plan, recipe, step, global_batch, rank, world, start, show, json)
        return
    if steps is not None:
        assert global_batch is not None
        samples = start[0] + steps * global_batch
        samples = samples if plan.length is None else min(samples, plan.length)
    ranks = world if by_budget else None
    _backwards(plan, recipe, _wanted(plan, key, index, source), samples, global_batch, ranks, start, show, json)


def _position(path: Path | None, plan: Any, allow: list[str]) -> int:
    """The position that a loader's state is at, checked against the plan."""
    unknown = [name for name in allow if name not in _ALLOW]
    if unknown or (allow and path is None):
        raise ConfigError(
            f"--allow {unknown[0]} is unknown" if unknown else "--allow needs a state",
            fix=f"Use one of: {', '.join(_ALLOW)}; with --from-state.",
        )
    if path is None:
        return 0
    import orjson

    from feedmill.loading.state import read_state
    from feedmill.planning.resuming.resume import Allowed

    try:
        state = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(
            f"the state cannot be read ({error})", file=str(path), fix="Save loader.state_dict() as JSON."
        ) from None
    seed = state.get("seed") if isinstance(state, dict) else None
    try:
        allowed = Allowed(**dict.fromkeys(allow, True))
        return read_state(state, plan, seed if isinstance(seed, int) else plan.seed, allowed)
    except FeedmillError as error:
        error.file = error.file or str(path)
        raise


def _forwards(
    plan: Any,
    recipe: str,
    step: int,
    global_batch: int | None,
    rank: int | None,
    world: int | None,
    start: Start,
    show: bool,
    json: bool,
) -> None:
    from feedmill.planning import ledger

    begins: dict[str, Any] = {"start": start[0], "first_step": start[1]}
    if rank is None and world is not None:
        ranks = None if global_batch is not None else world  # a budget is that of each rank
        found = ledger.batch(plan, step, global_batch, world_size=ranks, **begins)
        dealt = ledger.ranks_of(plan, step, global_batch, world, **begins)
        owner = {position: number for number, part in enumerate(dealt) for position in part.tolist()}
    else:
        found = ledger.batch(plan, step, global_batch, rank=rank, world_size=world, **begins)
        owner = {}
    entries = ledger.entries(plan, found.positions)
    rows = [entry.as_dict() | ({"rank": owner[entry.position]} if owner else {}) for entry in entries]
    shown = _contents(plan, [(entry.source, entry.index) for entry in entries]) if show else []
    for row, content in zip(rows, shown, strict=False):
        row["parts"] = content["parts"]
    data = {
        "recipe": recipe,
        "step": step,
        "global_batch": global_batch,
        "rank": rank,
        "world": world,
        "first": found.first,
        "stop": found.stop,
        "entries": rows,
    }
    emit(data, json, lambda: _print_step(plan, data, shown))


def _wanted(plan: Any, key: str | None, index: int | None, source: str | None) -> list[tuple[str, int]]:
    """The samples to trace: source and number."""
    from feedmill.planning import ledger

    if key is not None:
        return ledger.find(plan, key, source)
    if source is None and len(plan.names) > 1:
        raise ConfigError("--document needs --source", fix=f"Give one of: {', '.join(plan.names)}.")
    return [(source or plan.names[0], index or 0)]


def _backwards(
    plan: Any,
    recipe: str,
    wanted: list[tuple[str, int]],
    samples: int | None,
    global_batch: int | None,
    world: int | None,
    start: Start,
    show: bool,
    json: bool,
) -> None:
    from feedmill.planning import ledger

    if samples is None and plan.length is None:
        raise ConfigError(
            "the plan is endless, and so are a sample's positions",
            kind="endless",
            fix="Say how far to look: --samples N, or --steps N --global-batch G.",
        )
    seen = [
        ledger.occurrences(
            plan,
            name,
            index,
            samples=samples,
            global_batch=global_batch,
            world_size=world,
            start=start[0],
            first_step=start[1],
        )
        for name, index in wanted
    ]
    contents = _contents(plan, wanted)
    found = []
    for (name, index), times, content in zip(wanted, seen, contents, strict=True):
        parts = {"parts": content["parts"]} if show else {}
        rows = [occurrence.as_dict() for occurrence in times]
        found.append({"source": name, "index": index, "key": content["key"], "times": len(rows), **parts, "seen": rows})
    data = {"recipe": recipe, "samples": plan.length if samples is None else samples, "found": found}
    emit(data, json, lambda: _print_times(plan, data, contents if show else []))


def _contents(plan: Any, wanted: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Samples as `preview` shows them; one that cannot be read is shown by its error."""
    out = []
    for name, index in wanted:
        dataset = plan.source(name)
        try:
            out.append(as_shown(dataset.locate(index), dataset.read([index])[0]))
        except FeedmillError as error:
            where = {"file": dataset.url, "offset": 0, "length": 0, "index": index}
            out.append({"key": "?", "source": where, "parts": {"error": str(error)}})
    return out


def _print_step(plan: Any, data: dict[str, Any], shown: list[dict[str, Any]]) -> None:
    ranks = "" if data["rank"] is None else f", rank {data['rank']} of {data['world']}"
    count = len({entry["position"] for entry in data["entries"]})
    some = "" if count == data["stop"] - data["first"] else f"{count:,} of the "
    typer.echo(f"step {data['step']:,}{ranks}: {some}positions [{data['first']:,}, {data['stop']:,})")
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
    print_shown(shown)


def _cell(value: Any, missing: str = "?") -> Any:
    if isinstance(value, tuple):
        return f"[{value[0]:,}, {value[1]:,})"
    return missing if value is None else value
