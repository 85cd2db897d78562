"""Propose a swarm: draw mixtures from Dirichlet distributions, and write each as a recipe.

The concentrations of the draws, the temperature of the center and draws within limits on repeats follow RegMix (Liu et
al. 2024, arXiv:2407.01492) and Olmix (Chen et al. 2026). Two rules differ. A draw beyond a limit is not lost: see
`_drawn`. And the sum of the Dirichlet's parameters is 1 to 10 by default, not 0.1 to 5: such low values give mixtures
of one source, which say little about few sources.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.options import verb
from feedmill.mixture.base import BaseRecipe, Floats
from feedmill.mixture.limits import Limits
from feedmill.mixture.options import Propose
from feedmill.mixture.swarm import FACTS, TABLE, facts_of, table_of, to_write
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.writing import text_of
from feedmill.storage import open_store

_TRIES = 100


@dataclass
class ProposeReport(JobReport):
    """Report of `propose`.

    Attributes:
        path: the folder of the swarm.
        recipe: the recipe whose weights vary.
        runs: number of mixtures.
        unit: what weights and sizes count.
        target: size of the target run; None if unknown.
        sources: of each its name, ``at_hand`` (units), ``natural`` (share), ``center`` (share around which mixtures are
            drawn, in the first stage), ``low``, ``mean`` and ``high`` (shares in the swarm), ``most_share`` (the limit)
            and ``most_repeats`` (in the target run; None if its size is unknown).
        stages: number of stages, each with weights of its own.
        redrawn: draws that were drawn again, as they broke a limit or were there before.
        clipped: mixtures whose draws broke a limit 100 times, and were moved to the limit.
        written: number of files that were written; those of a killed run are kept.
    """

    path: str
    recipe: str
    runs: int
    unit: str
    target: int | None
    sources: list[dict[str, Any]]
    stages: int
    redrawn: int
    clipped: int
    written: int = field(default=0)


@verb(Propose)
def propose(options: Propose) -> ProposeReport:
    """The same options give the same files with the same release of NumPy; ``count=64`` begins as ``count=32``.

    Raises:
        ConfigError: the recipe has no blend, no weights keep all limits, the limits leave too few mixtures, or the
            folder holds something else.
        FeedmillError: as `Recipe.load` and `Recipe.plan` do.
    """
    low, high = _concentrations(options.concentration)
    if options.temperature <= 0 or not math.isfinite(options.temperature):
        raise ConfigError(
            f"--temperature is {options.temperature:g}", kind="bad-option", fix="Pass a number above 0, such as 0.5."
        )
    base = BaseRecipe.load(options.recipe)
    limits = Limits.of(base, options)
    center = _center(base, limits, options)
    draws = _Draws(limits, center, (low, high), options.seed)
    mixtures = [draws.next(number) for number in range(options.count)]
    folder = os.fspath(options.output)
    folder = folder if "://" in folder else os.path.abspath(folder)
    files = _files(base, limits, center, mixtures, draws, options, folder)
    store = open_store(folder)
    report = _report(base, limits, center, np.array(mixtures) / draws.grid, draws, folder)

    def plan(dry: DryRun) -> ProposeReport:
        todo, stale = to_write(store, files, overwrite=options.overwrite)
        for path, data in todo.items():
            dry.writes(store, path, len(data))
        dry.deletes_all(store, stale)
        dry.counts["mixtures"] = options.count
        return report

    def execute() -> ProposeReport:
        todo, stale = to_write(store, files, overwrite=options.overwrite)
        if todo or stale:
            if store.exists(FACTS):
                store.delete(FACTS)  # while files of both lie there, it is no complete swarm
                todo[FACTS] = files[FACTS]
            for path in stale:
                if path != FACTS:
                    store.delete(path)
            store.write_together((path, data) for path, data in todo.items() if path != FACTS)
            store.write_bytes(FACTS, files[FACTS])
        report.written = len(todo)
        return report

    return perform(plan, execute)


def _concentrations(given: str | float | tuple[float, float]) -> tuple[float, float]:
    """Return the smallest and the largest sum of the Dirichlet parameters."""
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, tuple | list) else [given]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(1e-3 <= value <= 1e6 for value in values) or values[0] > values[-1]:
        raise ConfigError(
            f"--concentration is {given!r}: expected a number from 0.001 to 1,000,000, or two of them in order",
            kind="bad-option",
            fix="Pass a number such as 5, or a range such as 1,10.",
        )
    return values[0], values[-1]


def _center(base: BaseRecipe, limits: Limits, options: Propose) -> Floats:
    """Return the shares around which mixtures are drawn, float64[stages, sources]; all are above 0."""
    own = options.around == "recipe"
    shares = base.weights if own else np.tile(base.natural, (len(base.weights), 1))
    shares = np.where(shares > 0, shares, 0.0) ** options.temperature
    shares /= shares.sum(axis=1, keepdims=True)
    # A source whose weight is 0 in the recipe stays rare, but it is drawn: else nothing is learned about it.
    shares = np.maximum(shares, 1e-3 / shares.shape[1])
    center: Floats = limits.clipped(shares / shares.sum(axis=1, keepdims=True))
    return center


class _Draws:
    """Mixtures by number, as whole numbers of grid steps.

    Attributes:
        grid: steps of a share of 1, see `Limits.grid`.
        redrawn, clipped: see `ProposeReport`.
    """

    def __init__(self, limits: Limits, center: Floats, concentrations: tuple[float, float], seed: int) -> None:
        self.limits, self.center, self.seed = limits, center, seed
        self.logs = np.log(concentrations)
        self.grid = limits.grid(center)
        self.seen: set[bytes] = set()
        self.redrawn = self.clipped = 0

    def next(self, number: int) -> list[list[int]]:
        """Return the mixture of a run: steps of each source in each stage.

        A draw that breaks a limit, or was there before, is drawn again up to 100 times. Then each of its stages is
        clipped, see `Limits.clipped`.
        """
        generator = np.random.default_rng([abs(self.seed), int(self.seed < 0), number])
        for clip in (False, True):
            for _ in range(_TRIES):
                weights = self._drawn(generator)
                if clip:
                    weights = self.limits.clipped(weights)
                if self.limits.keep(weights):
                    steps = np.array([self.limits.in_steps(row, self.grid, clipped=clip) for row in weights])
                    if steps.tobytes() not in self.seen and self.limits.keep(steps / self.grid):
                        self.seen.add(steps.tobytes())
                        self.clipped += clip
                        return [[int(step) for step in row] for row in steps]
                self.redrawn += 1
        raise ConfigError(
            f"the limits leave too few mixtures: {number:,} different ones were found",
            kind="bad-option",
            fix=f"Pass --count {number:,}, allow more repeats or larger shares, or lower --concentration."
            if number
            else "Allow more repeats or larger shares.",
        )

    def _drawn(self, generator: np.random.Generator) -> Floats:
        """Return one draw, float64[stages, sources]: the stages are independent, with one concentration."""
        strength = math.exp(generator.uniform(*self.logs)) if self.logs[0] < self.logs[1] else math.exp(self.logs[0])
        return np.array([generator.dirichlet(np.maximum(strength * row, 1e-6)) for row in self.center])


def _files(
    base: BaseRecipe,
    limits: Limits,
    center: Floats,
    mixtures: list[list[list[int]]],
    draws: _Draws,
    options: Propose,
    folder: str,
) -> dict[str, bytes]:
    """Return the files of the swarm by name."""
    digits = max(3, len(str(len(mixtures))))
    runs = [f"run-{number + 1:0{digits}}" for number in range(len(mixtures))]
    weights = [[[step / draws.grid for step in row] for row in stages] for stages in mixtures]
    title = os.path.basename(base.file)
    files = {}
    for run, rows in zip(runs, weights, strict=True):
        text = f"# Mixture {run} of a swarm over {title}.\n{text_of(base.reweighted(rows, folder))}"
        files[f"{run}.yaml"] = text.encode()
    _check(files[f"{runs[0]}.yaml"], folder)
    files[TABLE] = table_of(runs, base.names, weights)
    files[FACTS] = facts_of(
        {
            "recipe": _from(folder, base.file),
            "fingerprint": base.recipe.fingerprint,
            "unit": base.unit,
            "target": limits.target,
            "sources": [
                {
                    "name": name,
                    "at_hand": at_hand,
                    "low": float(limits.low[number]),
                    "high": float(limits.high[number]),
                    "max_repeats": None if np.isinf(limits.repeats[number]) else float(limits.repeats[number]),
                    "center": [round(float(row[number]), 6) for row in center],
                }
                for number, (name, at_hand) in enumerate(zip(base.names, base.at_hand.tolist(), strict=True))
            ],
            "stages": [
                {"part": round(float(part), 9), "ramp": ramp}
                for part, ramp in zip(limits.parts, limits.ramps, strict=True)
            ],
            "options": {
                "count": options.count,
                "seed": options.seed,
                "around": options.around,
                "concentration": list(_concentrations(options.concentration)),
                "temperature": options.temperature,
            },
            "redrawn": draws.redrawn,
            "clipped": draws.clipped,
            "runs": runs,
        }
    )
    return files


def _check(text: bytes, folder: str) -> None:
    """Raise `ConfigError` unless the text of a recipe can be read."""
    Recipe.parse(text, base=folder)


def _from(folder: str, file: str) -> str:
    """Return a path as a file in the folder would name it."""
    return file if "://" in file or "://" in folder else os.path.relpath(file, folder)


def _report(
    base: BaseRecipe, limits: Limits, center: Floats, weights: Floats, draws: _Draws, folder: str
) -> ProposeReport:
    drawn = limits.drawn(weights)
    repeats = None if limits.target is None else (drawn * limits.target / base.at_hand).max(axis=0)
    sources = [
        {
            "name": name,
            "at_hand": float(base.at_hand[i]),
            "natural": float(base.natural[i]),
            "center": float(center[0, i]),
            "low": float(weights[..., i].min()),
            "mean": float(weights[..., i].mean()),
            "high": float(weights[..., i].max()),
            "most_share": float(min(limits.bound[i], 1)),
            "most_repeats": None if repeats is None else float(repeats[i]),
        }
        for i, name in enumerate(base.names)
    ]
    return ProposeReport(
        path=folder,
        recipe=base.file,
        runs=len(weights),
        unit=base.unit,
        target=limits.target,
        sources=sources,
        stages=len(center),
        redrawn=draws.redrawn,
        clipped=draws.clipped,
    )
