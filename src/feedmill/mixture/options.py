"""Options of the verbs on mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Options, Path, Processes, WithProgress

Around = Literal["natural", "recipe"]


def columns_of(given: str | Sequence[Any]) -> list[Any]:
    """Return columns: names divided by commas, or mappings as YAML in braces."""
    found: list[Any] = []
    for item in [given] if isinstance(given, str) else given:
        if not isinstance(item, str):
            found.append(item)
        elif item.lstrip().startswith("{"):
            from feedmill.formats.yamls import read_settings

            found.append(read_settings(item, "--by"))
        else:
            found += [name for each in item.split(",") if (name := each.strip())]
    return found


def conditions_of(given: str) -> Any:
    """Return conditions written as YAML, with or without braces."""
    from feedmill.formats.yamls import read_settings

    return read_settings(given if given.lstrip().startswith("{") else f"{{{given}}}", "--where")


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
