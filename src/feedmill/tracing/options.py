"""Options of the verbs that follow documents and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from feedmill.jobs.options import Arg, Flag, Opt, Path, Paths
from feedmill.planning.options import GlobalBatch, ProxySize, Samples

if TYPE_CHECKING:
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.recipe import Recipe


class Trace(GlobalBatch, Samples, ProxySize):
    """Show which samples a step sees (--step), or when a sample (--key) or raw document is seen.

    Or the loss of each source and cell (--losses), from a log of losses by step.
    """

    recipe: Annotated[Path | Recipe | Plan, Arg("RECIPE", "A recipe (docs/recipes.md); a path or a URL.")]
    _: KW_ONLY
    step: Annotated[int | None, Opt("N", "Show the samples of this step; from 0.", min=0)] = None
    rank: Annotated[int | None, Opt("R", "Only the part of this rank; requires --world.", min=0)] = None
    world: Annotated[
        int | None, Opt("N", "Number of ranks; without --rank, show which rank sees each sample.", min=1)
    ] = None
    key: Annotated[str | None, Opt("K", "Show when the sample with this key is seen.")] = None
    document: Annotated[int | None, Opt("N", "Like --key, by index in its source; requires --source.", "-d", min=0)] = (
        None
    )
    source: Annotated[str | None, Opt("NAME", "Name of the source, as 'plan' shows it.")] = None
    source_document: Annotated[
        str | None,
        Opt(
            "FILE:LINE|ID",
            "Show the files that hold a raw document, the rules that dropped it, and when it is seen.",
            more="A line of a file that Feedmill wrote stands for the document that it was made from.",
        ),
    ] = None
    losses: Annotated[
        Path | None,
        Opt(
            "FILE",
            "Show the loss of each source and cell, from CSV or JSON lines with 'step', 'loss' and perhaps 'rank'.",
            more="Or with ``position`` and ``loss``. Means of single sources are exact, others estimated.",
        ),
    ] = None
    by: Annotated[str | None, Opt("COLUMN", "With --losses: show the values of this column of cells.")] = None
    steps: Annotated[int | None, Opt("N", "Like --samples, in steps.", min=1)] = None
    from_state: Annotated[Path | None, Opt("FILE", "JSON state from which the run was resumed.")] = None
    first_step: Annotated[int, Opt("S", "Number of the first step after the state.", min=0)] = 0
    allow: Annotated[
        Sequence[str], Opt("append|skip|change", "What may differ from the run of the state; repeatable.")
    ] = ()
    origins: Annotated[bool, Flag("Show the raw file and line of each sample, through filter and tokenize.")] = False
    show: Annotated[bool, Flag("Show the content of the samples.")] = False


class Forget(GlobalBatch, Samples):
    """Find documents in raw files, in all that was made from them, and in the steps of recipes. Changes no data."""

    ids: Annotated[
        Sequence[str] | str,
        Arg(
            "IDS",
            "Ids, FILE:LINE, or attributes that mark documents; commas between. Or @FILE with one a line.",
            text=str,
            more="Such attributes are a folder ``attributes/NAME``, or a file or folder below it.",
        ),
    ]
    paths: Annotated[Paths | Path, Arg("PATH...", "Recipes, token files, and folders of outputs.")]
    _: KW_ONLY
    report: Annotated[Path | None, Opt("FOLDER", "Write the report, exclusions and skip lists to this folder.")] = None
