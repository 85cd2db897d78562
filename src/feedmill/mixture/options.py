"""Options of the verbs on mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from feedmill.errors import ConfigError
from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Options, Path, Paths, Processes, WithProgress
from feedmill.jobs.policy import METAVAR, RAISE, OnError

Around = Literal["natural", "recipe"]
Model = Literal["best", "law", "trees"]


def columns_of(given: str | Sequence[Any]) -> list[Any]:
    """Return columns: names divided by commas, or mappings as YAML in braces."""
    found: list[Any] = []
    for item in [given] if isinstance(given, str) else given:
        if not isinstance(item, str):
            found.append(item)
        elif item.lstrip().startswith("{"):
            from feedmill.formats.yamls import read_settings

            found.append(read_settings(item, "--by", ours=True))
        elif "{" in item:
            raise ConfigError(
                f"--by {item!r} has names and a mapping",
                kind="bad-option",
                fix="Repeat the option: --by topic --by '{column: score, quantiles: 10}'.",
            )
        else:
            found += [name for each in item.split(",") if (name := each.strip())]
    return found


def conditions_of(given: str) -> Any:
    """Return conditions written as YAML, with or without braces."""
    from feedmill.formats.yamls import read_settings

    return read_settings(given if given.lstrip().startswith("{") else f"{{{given}}}", "--where", ours=True)


class Limits(Options, kw_only=True):
    """Which weights are allowed."""

    target: Annotated[
        int | None,
        Opt(
            "N",
            "Size of the target run, in what the recipe's weights count: tokens with 'unit: tokens', else samples.",
            more="By default `of` of the recipe's `proxy`, or `samples`, where they are in this unit.",
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

    The weights are drawn from Dirichlet distributions around the natural share of each source. Each stage of the recipe
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
            "Sum of the Dirichlet parameters: higher values stay near the center. Each draw takes one of a range.",
            text=str,
            more="The logarithms of the values drawn from a range are uniform.",
        ),
    ] = "1,10"
    temperature: Annotated[
        float, Opt("T", "Power of the center's shares: 0.5 brings them nearer to equal ones.", min=0)
    ] = 1.0
    overwrite: Annotated[bool, Flag("Replace another swarm in the folder.")] = False


class Fit(DryRunnable, Limits):
    """Fit the losses of a swarm's runs, and propose the mixture with the lowest predicted loss.

    Two models are fitted: a law, loss = c + exp(t . weights), and boosted trees. Held-out runs show their errors; the
    model with the lower one proposes. The limits are those of the swarm, unless others are given.
    """

    swarm: Annotated[Path, Arg("SWARM", "Folder that 'mixture propose' wrote.")]
    losses: Annotated[Path, Arg("LOSSES", "CSV with a row per run, or an export of Weights & Biases.")]
    output: Annotated[Path, Opt("FILE", "Recipe to write (.yaml), with a report beside it (.json).", "-o")]
    _: KW_ONLY
    metric: Annotated[
        Sequence[str],
        Opt("COLUMN[=WEIGHT]", "Column of losses; with several, their weighted mean is minimized. Default: all."),
    ] = ()
    exclude: Annotated[Sequence[str], Opt("RUN", "Leave out a run; repeatable.", "--exclude")] = ()
    model: Annotated[Model, Opt("best|law|trees", "Model that proposes; default: that with the lower error.")] = "best"
    beyond_tried: Annotated[
        bool, Flag("Allow shares that no run had; by default, they stay between the lowest and the highest tried.")
    ] = False
    seed: Annotated[int, Opt("N", "Of the folds, the trees and the draws.", min=0)] = 0
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at runs that cannot be used, or leave them out and report it.")] = (
        RAISE
    )
    overwrite: Annotated[bool, Flag("Replace existing files.")] = False


class Compare(Options):
    """Show recipes side by side: shares and repeats of each source, and how far the recipes are apart."""

    recipes: Annotated[Paths, Arg("RECIPE...", "Recipes, or folders of swarms.")]
    _: KW_ONLY
    samples: Annotated[int | None, Opt("N", "Size in samples; default: that of each recipe.", min=1)] = None
    tokens: Annotated[int | None, Opt("N", "Size in tokens; requires datasets with known lengths.", min=1)] = None
    max_repeats: Annotated[
        float | None, Opt("R", "Name sources that are repeated more often; default: the recipes' own max_repeats.")
    ] = None


class Cells(Processes, DryRunnable, WithProgress):
    """Find the cell of each document: by attributes, fields or index columns, once, for recipes that blend by cells.

    A cell has the documents with equal values of all columns. Run it again after a change: columns that did not change
    are not read again.
    """

    path: Annotated[Path, Arg("RECIPE|DATASET", "A recipe with 'cells' or 'where', or a dataset; a path or a URL.")]
    _: KW_ONLY
    by: Annotated[
        Sequence[str | Mapping[str, Any]],
        Opt(
            "COLUMN,...",
            "Columns of a dataset's cells, or '{column: NAME, quantiles: 10}'; repeatable.",
            more="Keys of a mapping: column, edges or quantiles, and missing: the value of documents without one."
            " 'max(NAME)' and first, min, mean, sum, count are for attributes with several spans.",
            text=list[str],
            parse=columns_of,
        ),
    ] = ()
    where: Annotated[
        Mapping[str, Any] | None,
        Opt(
            "COLUMN: VALUE",
            "Only documents with these values: 'lang: [en, de], score: {min: 0.5}'.",
            more="Column -> a value, a list, or a mapping of min, max and not.",
            text=str,
            parse=conditions_of,
        ),
    ] = None
    split: Annotated[str | None, Opt("NAME", "Split of the dataset.")] = None
    require_values: Annotated[
        bool, Flag("Documents without a value are an error; by default, they are in no cell.")
    ] = False
    overwrite: Annotated[bool, Flag("Read and write again what is up to date, too.")] = False
