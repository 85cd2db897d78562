"""What a step saw, and when a sample is seen: the work of ``feedmill trace``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError, FeedmillError
from feedmill.loading.state import read_state
from feedmill.planning import ledger
from feedmill.planning.overview import bound_plan
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.resuming.resume import Allowed
from feedmill.samples.preview import as_shown

_ALLOW = ("append", "skip", "change")

Start = tuple[int, int]
"""Position of the first step, and its number."""


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a step saw, or when samples are seen.

    Attributes:
        plan: the plan itself; not in `as_dict`.
        facts: of a step ``entries``, one for each sample; else ``found``, one for each sample that was asked for, with
            the positions at which it is ``seen``.
        shown: the content of the samples, as `feedmill.samples.preview.as_shown` gives it, if it was asked for.
    """

    plan: Plan
    facts: dict[str, Any]
    shown: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.facts)


def trace(
    recipe: str | os.PathLike[str] | Recipe | Plan,
    *,
    step: int | None = None,
    global_batch: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    key: str | None = None,
    document: int | None = None,
    source: str | None = None,
    samples: int | None = None,
    steps: int | None = None,
    from_state: str | os.PathLike[str] | None = None,
    first_step: int = 0,
    allow: Sequence[str] = (),
    show: bool = False,
) -> TraceReport:
    """Return which samples a step sees, or at which positions and steps a sample is seen.

    Args:
        recipe: path or URL of a recipe, or one that is loaded, or its plan.
        step: the step, from 0.
        global_batch: samples per step over all ranks.
        rank, world: of a step: only this rank's part; without `rank`, which rank sees each sample.
        key, document, source: in place of `step`, a sample: its key, or its number in its source.
        samples, steps: look at the first N samples of the plan, or steps of `global_batch`.
        from_state, first_step, allow: JSON file with the loader state from which the run was resumed, the number of
            the first step after it, and what differs from that run: ``"append"``, ``"skip"``, ``"change"``.
        show: with the content of the samples.

    Raises:
        ConfigError: it is not clear what to trace, or the state is of another run.
        FeedmillError: there is no such step or sample; or as `Recipe.load` and `Recipe.plan` do.
    """
    backwards = key is not None or document is not None
    if (step is None) == (not backwards) or (key is not None and document is not None):
        raise ConfigError("it is not clear what to trace", fix="Give one of --step, --key and --document.")
    plan, path = bound_plan(recipe)
    by_budget = global_batch is None and plan.dealing is not None and plan.dealing.budget is not None
    if step is not None and global_batch is None and not (by_budget and world is not None):
        fix = "Give the number of ranks: --world." if by_budget else "Give the samples per step over all ranks."
        raise ConfigError("steps by budget need --world" if by_budget else "steps need --global-batch", fix=fix)
    if steps is not None and global_batch is None:
        raise ConfigError("--steps needs --global-batch", fix="Give the samples per step over all ranks, or --samples.")
    start = (_position(None if from_state is None else Path(from_state), plan, allow), first_step)
    if step is not None:
        facts, shown = _forwards(plan, step, global_batch, rank, world, start, show)
        return TraceReport(plan, {"recipe": path, **facts}, shown)
    if steps is not None:
        assert global_batch is not None
        samples = start[0] + steps * global_batch
        samples = samples if plan.length is None else min(samples, plan.length)
    ranks = world if by_budget else None
    wanted = _wanted(plan, key, document, source)
    facts, shown = _backwards(plan, wanted, samples, global_batch, ranks, start, show)
    return TraceReport(plan, {"recipe": path, **facts}, shown)


def _position(path: Path | None, plan: Plan, allow: Sequence[str]) -> int:
    """Return the position that a loader's state is at, checked against the plan."""
    unknown = [name for name in allow if name not in _ALLOW]
    if unknown or (allow and path is None):
        raise ConfigError(
            f"--allow {unknown[0]} is unknown" if unknown else "--allow needs a state",
            fix=f"Use one of: {', '.join(_ALLOW)}; with --from-state.",
        )
    if path is None:
        return 0
    import orjson

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
    plan: Plan,
    step: int,
    global_batch: int | None,
    rank: int | None,
    world: int | None,
    start: Start,
    show: bool,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a step sees, and the content of its samples if they are shown."""
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
    facts = {
        "step": step,
        "global_batch": global_batch,
        "rank": rank,
        "world": world,
        "first": found.first,
        "stop": found.stop,
        "entries": rows,
    }
    return facts, shown


def _wanted(plan: Plan, key: str | None, document: int | None, source: str | None) -> list[tuple[str, int]]:
    """Return the samples to trace: source and number."""
    if key is not None:
        return ledger.find(plan, key, source)
    if source is None and len(plan.names) > 1:
        raise ConfigError("--document needs --source", fix=f"Give one of: {', '.join(plan.names)}.")
    return [(source or plan.names[0], document or 0)]


def _backwards(
    plan: Plan,
    wanted: list[tuple[str, int]],
    samples: int | None,
    global_batch: int | None,
    world: int | None,
    start: Start,
    show: bool,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """When samples are seen, and their content if they are shown."""
    if samples is None and plan.length is None:
        raise ConfigError(
            "the plan is endless, so a sample has endless positions",
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
    facts = {"samples": plan.length if samples is None else samples, "found": found}
    return facts, contents if show else []


def _contents(plan: Plan, wanted: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return samples as `preview` shows them; one that cannot be read is shown by its error."""
    out = []
    for name, index in wanted:
        dataset = plan.source(name)
        try:
            out.append(as_shown(dataset.locate(index), dataset.read([index])[0]))
        except FeedmillError as error:
            where = {"file": dataset.url, "offset": 0, "length": 0, "index": index}
            out.append({"key": "?", "source": where, "parts": {"error": str(error)}})
    return out
