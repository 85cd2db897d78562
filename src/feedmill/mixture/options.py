"""Options of the verbs on mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Literal

from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Options, Path

Around = Literal["natural", "recipe"]


class Limits(Options, kw_only=True):
    """Which weights are allowed."""

    target: Annotated[
        int | None,
        Opt(
            "N",
            "Size of the target run, in what the recipe's weights count: tokens with 'unit: tokens', else samples.",
            more="By default `samples` of a recipe whose weights count samples.",
            min=1,
        ),
    ] = None
    max_repeats: Annotated[
        float | None,
        Opt(
            "R",
            "No source is repeated more than R times in the target run; default: each source's own max_repeats.",
            min=0,
        ),
    ] = None
    min_share: Annotated[
        Sequence[str], Opt("[NAME=]SHARE", "Smallest share of a source, or of every source; repeatable.")
    ] = ()
    max_share: Annotated[
        Sequence[str], Opt("[NAME=]SHARE", "Largest share of a source, or of every source; repeatable.")
    ] = ()


class Propose(DryRunnable, Limits):
    """Propose a swarm: recipes that differ in their weights alone, for small runs whose losses `fit` compares.

    The weights are drawn from Dirichlet distributions around what is at hand of each source. Each stage of the recipe
    has weights of its own.
    """

    recipe: Annotated[Path, Arg("RECIPE", "A recipe with a blend; a path or a URL.")]
    output: Annotated[Path, Opt("DIR", "Folder of the swarm: a recipe per run, mixtures.csv and swarm.json.", "-o")]
    _: KW_ONLY
    count: Annotated[int, Opt("N", "Number of mixtures.", "--count -n", min=1, max=100_000)] = 64
    seed: Annotated[int, Opt("N", "Another seed gives other mixtures.")] = 0
    around: Annotated[Around, Opt("natural|recipe", "Center: shares of what is at hand, or the recipe's weights.")] = (
        "natural"
    )
    concentration: Annotated[
        str | float | tuple[float, float],
        Opt(
            "C|LOW,HIGH",
            "Sum of the Dirichlet parameters: higher values stay near the center. Of a range, each draw takes one.",
            text=str,
            more="The logarithms of the values drawn from a range are uniform.",
        ),
    ] = "1,10"
    temperature: Annotated[
        float, Opt("T", "Power of the center's shares: 0.5 brings them nearer to equal ones.", min=0)
    ] = 1.0
    overwrite: Annotated[bool, Flag("Replace another swarm in the folder.")] = False
