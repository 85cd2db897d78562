"""Trace samples: which samples a step sees, and at which steps a sample is seen. The work of ``feedmill trace``.

Use it after a loss spike, or to check when a document is trained on. It reads the recipe and no logs, because the order
is a function of the recipe. Raw files are found through the lineage that verbs write beside their outputs
(`feedmill.documents.lineage`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.documents.lineage.chain import Lineages, Origin, read_raw
from feedmill.documents.lineage.shards import noun_of
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.rollouts.commits import Rollouts
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.loading.progress import read_state
from feedmill.planning import ledger
from feedmill.planning.given import bound_plan
from feedmill.planning.nodes.base import Located
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.read import is_dataset
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.resuming.resume import Allowed
from feedmill.planning.rollouts import steps_of
from feedmill.samples.preview import as_shown
from feedmill.tracing.document import LISTED, Documents, sightings
from feedmill.tracing.held import Held
from feedmill.tracing.options import Trace

_ALLOW = ("append", "skip", "change")
_NAMED = 5

Start = tuple[int, int]
"""Position of the first step, and its number."""


@dataclass(frozen=True, slots=True)
class TraceReport(VerbReport):
    """The samples of a step, or the positions of samples.

    Attributes:
        plan: the plan; not in `as_dict`. None for rollouts, whose ``groups`` are in `facts`.
        facts: for a step, ``entries`` with one entry per sample. For samples, ``found`` with one entry per requested
            sample, whose ``seen`` has the positions. For a raw document, ``documents`` with one entry per document,
            with its ``artefacts`` and ``seen``. For a log of losses, see `feedmill.tracing.losses.losses_of`.
        shown: the contents of the samples as from `feedmill.samples.preview.as_shown`, if requested.
    """

    plan: Plan | None
    facts: dict[str, Any]
    shown: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.facts)


@verb(Trace)
def trace(options: Trace) -> TraceReport:
    """Return the samples of the step, or the positions of the sample.

    Raises:
        ConfigError: options are missing or cannot be combined, or the state is of another run.
        FeedmillError: there is no such step or sample; or as `Recipe.load` and `Recipe.plan` do.
    """
    given = (options.step, options.key, options.document, options.source_document, options.losses)
    if sum(one is not None for one in given) != 1:
        what = "expected one of --step, --key, --document, --source-document and --losses"
        raise ConfigError(what, fix="Give exactly one of them.")
    if (recipe := _of_rollouts(options.recipe)) is not None:
        return _trace_rollouts(recipe, options)
    plan, path = bound_plan(options.recipe, proxy=options.proxy)
    proxy = None if plan.proxy is None else str(plan.proxy)
    by_budget = options.global_batch is None and plan.dealing is not None and plan.dealing.budget is not None
    if options.losses is None:
        _check_batches(options, by_budget=by_budget)
    unused: dict[str, Any]
    if options.losses is not None:
        names = ("rank", "source", "samples", "steps", "origins", "show")
        unused = {name: None if (value := getattr(options, name)) is False else value for name in names}
    elif options.step is not None:
        unused = {"source": options.source, "samples": options.samples, "steps": options.steps}
    else:
        unused = {"rank": options.rank, "world": None if by_budget else options.world}
        if options.source_document is not None:
            unused |= {"source": options.source, "origins": options.origins or None}
        elif options.samples is not None:
            unused |= {"steps": options.steps}
    unused |= {"by": options.by} if options.losses is None else {}
    asked = {name: getattr(options, name) for name in ("step", "key", "document", "source_document", "losses")}
    _check_used(unused, asked)
    state = None if options.from_state is None else Path(options.from_state)
    start = (_position(state, plan, options.allow), options.first_step)
    if options.step is not None:
        facts, shown = _samples_of_step(plan, options.step, options, start)
        if options.origins:
            _add_origins(plan, [(row, row["source"], row["index"]) for row in facts["entries"]], options.show)
        return TraceReport(plan, {"recipe": path, "proxy": proxy, **facts}, shown)
    if options.losses is not None:
        from feedmill.tracing.losses import losses_of

        found = losses_of(
            plan,
            options.losses,
            by=options.by,
            global_batch=options.global_batch,
            world=options.world,
            start=start[0],
            first_step=start[1],
        )
        return TraceReport(plan, {"recipe": path, "proxy": proxy, **found})
    samples = options.samples
    if options.steps is not None:
        assert options.global_batch is not None
        samples = start[0] + options.steps * options.global_batch
        samples = samples if plan.length is None else min(samples, plan.length)
    search = {"samples": samples, "global_batch": options.global_batch, "start": start[0], "first_step": start[1]}
    search["world_size"] = options.world if by_budget else None
    if options.source_document is not None:
        facts = _of_document(plan, options.source_document, search, options.show)
        return TraceReport(plan, {"recipe": path, "proxy": proxy, **facts})
    selected = _selected(plan, options)
    facts, shown = _positions_of_samples(plan, selected, search, options.show)
    if options.origins:
        _add_origins(plan, [(row, row["source"], row["index"]) for row in facts["found"]], options.show)
    return TraceReport(plan, {"recipe": path, "proxy": proxy, **facts}, shown)


def _of_rollouts(given: Any) -> Recipe | None:
    """Return the recipe if it has rollouts, which have no plan."""
    if isinstance(given, str | os.PathLike) and not is_dataset(os.fspath(given)):
        given = Recipe.load(given)
    return given if isinstance(given, Recipe) and given.model.rollouts is not None else None


def _trace_rollouts(recipe: Recipe, options: Trace) -> TraceReport:
    """Return the groups of a step that was drawn, or the steps that have drawn a group."""
    given = {field.name for field in fields(Trace) if getattr(options, field.name) != field.default}
    if unused := sorted(given - {"recipe", "step", "key"}):
        option = unused[0].replace("_", "-")
        what = f"--{option} has no effect: rollouts have --step and --key, for a group"
        raise ConfigError(what, kind="bad-option", fix=f"Omit --{option}.")
    steps, _ = steps_of(recipe)
    rollouts = steps.rollouts
    facts: dict[str, Any] = {"recipe": recipe.file, "proxy": None, "run": steps.run}
    if options.step is not None:
        record = steps.drawn(options.step)
        groups = steps.groups(record)
        facts |= record.as_dict() | {"groups": _group_rows(rollouts, groups.tolist())}
        return TraceReport(None, facts)
    assert options.key is not None
    rollouts.refresh()
    found = rollouts.find(options.key)
    if not found:
        raise NotFound(f"there is no group {options.key!r}", file=rollouts.path, fix="Give the name of a group.")
    rows = _group_rows(rollouts, found)
    for row in rows:
        row["steps"] = []
    for record in steps.records():
        for group in set(steps.groups(record).tolist()) & set(found):
            rows[found.index(group)]["steps"].append(record.step)
    return TraceReport(None, facts | {"groups": rows})


def _group_rows(rollouts: Rollouts, groups: list[int]) -> list[dict[str, Any]]:
    places = rollouts.place(np.array(groups, np.int64)).tolist()
    rewards = rollouts.numbers("reward")
    assert rewards is not None
    return [
        {
            "group": name,
            "commit": commit,
            "number": number,
            "answers": int(rollouts.sizes[group]),
            "version": int(rollouts.versions[group]),
            "reward": float(rewards[group]),
        }
        for group, name, (commit, number) in zip(groups, rollouts.names(groups), places, strict=True)
    ]


def _check_batches(options: Trace, *, by_budget: bool) -> None:
    """Raise `ConfigError` if steps are counted without what determines their samples."""
    if options.step is not None and options.global_batch is None and not (by_budget and options.world is not None):
        fix = "Give the number of ranks: --world." if by_budget else "Give the samples per step over all ranks."
        raise ConfigError("steps by budget require --world" if by_budget else "steps require --global-batch", fix=fix)
    if options.steps is not None and options.global_batch is None:
        raise ConfigError("--steps requires --global-batch", fix="Give both, or --samples.")


def _check_used(unused: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an option was given that has no effect on what is asked for."""
    name = next((option for option, value in unused.items() if value is not None), None)
    if name is not None:
        what = next(option.replace("_", "-") for option, value in asked.items() if value is not None)
        other = "samples" if name == "steps" and what != "step" else what
        raise ConfigError(f"--{name} has no effect with --{other}", kind="bad-option", fix=f"Omit --{name}.")


def _add_origins(plan: Plan, rows: list[tuple[dict[str, Any], str, int]], show: bool) -> None:
    """Add to each entry the raw documents of its sample, each with the files between; their lines with `show`.

    The line is None if a token file has no lineage, so that the raw document is unknown.
    """
    lineages = Lineages()
    held = Held.of(plan, lineages)
    wanted: dict[str, set[int]] = defaultdict(set)
    for entry, source, index in rows:
        parts = [lineages.follow(*row) for row in held.rows(source, index)]
        found = [raw for part in parts for raw in chains(part)]
        entry["origins"] = [
            {
                "file": chain[-1].path,
                "line": None if noun_of(chain[-1].path, "") == "row" else chain[-1].row + 1,
                "row": chain[-1].row,
                "through": [
                    {"file": one.path, "row": one.row, "noun": noun_of(one.path, one.verb), "verb": one.verb}
                    for one in chain[:-1]
                ],
            }
            for chain in found
        ]
        for origin in entry["origins"]:
            if origin["line"] is not None and show:
                wanted[origin["file"]].add(origin["row"])
    lines = {path: read_raw(path, numbers) for path, numbers in wanted.items()}
    for entry, _, _ in rows:
        for origin in entry["origins"]:
            if origin["file"] in lines:
                origin["text"] = lines[origin["file"]][origin["row"]].decode("utf-8", "replace")


def chains(origin: Origin) -> list[list[Origin]]:
    """Return the rows from a row to each raw row that it was made from."""
    if not origin.parents:
        return [[origin]]
    return [[origin, *chain] for parent in origin.parents for chain in chains(parent)]


def _of_document(plan: Plan, word: str, search: dict[str, Any], show: bool) -> dict[str, Any]:
    """Return the facts about a raw document."""
    if search["samples"] is None and plan.length is None:
        raise _endless()
    lineages = Lineages()
    held = Held.of(plan, lineages)
    if not held.paths:
        raise ConfigError(
            "the formats of the sources have no lineage",
            kind="no-lineage",
            fix="Trace a sample by its key: --key. Token files, shards, tables and JSONL files have lineage.",
        )
    found = []
    for document in Documents(held.paths, lineages).find([word])[word]:
        seen = sightings(plan, held, document, **search)
        shown = [asdict(one) for one in seen[:LISTED]]
        entry = {**document.as_dict(), "summary": document.summary(), "times": len(seen), "seen": shown}
        found.append(entry | ({"text": document.raw().decode("utf-8", "replace")} if show else {}))
    return {"samples": search["samples"] or plan.length, "documents": found}


def _endless() -> ConfigError:
    return ConfigError(
        "the plan is endless, so the search for a sample requires a limit",
        kind="endless",
        fix="Give --samples N, or --steps N --global-batch G.",
    )


def _position(path: Path | None, plan: Plan, allow: Sequence[str]) -> int:
    """Return the position of a saved loader state, after checking the state against the plan."""
    unknown = [name for name in allow if name not in _ALLOW]
    if unknown or (allow and path is None):
        raise ConfigError(
            f"--allow {unknown[0]} is unknown" if unknown else "--allow requires --from-state",
            fix=f"Use one of {', '.join(_ALLOW)}, together with --from-state.",
        )
    if path is None:
        return 0
    import orjson

    try:
        state = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(
            f"the state cannot be read ({error})", file=str(path), fix="Give a file with loader.state_dict() as JSON."
        ) from None
    seed = state.get("seed") if isinstance(state, dict) else None
    try:
        allowed = Allowed(**dict.fromkeys(allow, True))
        return read_state(state, plan, seed if isinstance(seed, int) else plan.seed, allowed)
    except FeedmillError as error:
        error.file = error.file or str(path)
        raise


def _samples_of_step(
    plan: Plan, step: int, options: Trace, start: Start
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the facts about a step, and the contents of its samples if `show` is set."""
    global_batch, rank, world, show = options.global_batch, options.rank, options.world, options.show
    begins: dict[str, Any] = {"start": start[0], "first_step": start[1]}
    if rank is None and world is not None:
        ranks = None if global_batch is not None else world  # a budget is per rank
        traced = ledger.batch(plan, step, global_batch, world_size=ranks, **begins)
        dealt = ledger.ranks_of(plan, step, global_batch, world, **begins)
        owner = {position: number for number, part in enumerate(dealt) for position in part.tolist()}
    else:
        traced = ledger.batch(plan, step, global_batch, rank=rank, world_size=world, **begins)
        owner = {}
    located = traced.located if isinstance(traced.located, Located) else None  # packed rows are located by spans
    entries = ledger.entries(plan, traced.positions, located)
    rows = [entry.as_dict() | ({"rank": owner[entry.position]} if owner else {}) for entry in entries]
    shown = _contents(plan, [(entry.source, entry.index, entry.span) for entry in entries]) if show else []
    for row, content in zip(rows, shown, strict=False):
        row["parts"] = content["parts"]
    facts = {
        "step": step,
        "global_batch": global_batch,
        "rank": rank,
        "world": world,
        "first": traced.first,
        "stop": traced.stop,
        "entries": rows,
    }
    return facts, shown


def _selected(plan: Plan, options: Trace) -> list[tuple[str, int]]:
    """Return the samples to trace: source and number."""
    key, document, source = options.key, options.document, options.source
    if key is not None:
        return ledger.find(plan, key, source)
    if source is None and len(plan.names) > 1:
        shown = ", ".join(plan.names[:_NAMED]) + (", ..." if len(plan.names) > _NAMED else "")
        raise ConfigError(
            "--document requires --source",
            fix=f"Give one of: {shown}. A raw document is traced by its id or line with --source-document.",
        )
    return [(source or plan.names[0], document or 0)]


def _positions_of_samples(
    plan: Plan, selected: list[tuple[str, int]], search: dict[str, Any], show: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the positions at which samples are seen, and the contents of the samples if `show` is set."""
    samples = search["samples"]
    if samples is None and plan.length is None:
        raise _endless()
    seen = [ledger.occurrences(plan, name, index, **search) for name, index in selected]
    contents = _contents(plan, [(name, index, None) for name, index in selected])
    entries = []
    for (name, index), times, shown in zip(selected, seen, contents, strict=True):
        parts = {"parts": shown["parts"]} if show else {}
        rows = [occurrence.as_dict() for occurrence in times]
        entries.append({"source": name, "index": index, "key": shown["key"], "times": len(rows), **parts, "seen": rows})
    facts = {"samples": plan.length if samples is None else samples, "found": entries}
    return facts, contents if show else []


def _contents(plan: Plan, selected: list[tuple[str, int, tuple[int, int] | None]]) -> list[dict[str, Any]]:
    """Return the contents of samples as `preview` shows them, or the error for a sample that cannot be read.

    Args:
        selected: source and number of each sample; of token data in a packed row also the tokens that are in the row.
    """
    out = []
    for name, index, span in selected:
        dataset = plan.source(name)
        try:
            out.append(as_shown(dataset.locate(index), dataset.read([index])[0], dataset, span))
        except FeedmillError as error:
            where = {"file": dataset.url, "offset": 0, "length": 0, "index": index}
            out.append({"key": "?", "source": where, "parts": {"error": str(error)}})
    return out
