"""Arguments and options that several verbs share, so that they mean and read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.output import remember_json

DatasetPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A data set: folder, tar or JSONL file; a path or a URL.")
]
Split = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="Open this split only (train, val, test, ...).")
]
DatasetConfig = Annotated[
    str | None,
    typer.Option("--dataset-config", metavar="FILE", help="Use this file in .nv-meta instead of dataset.yaml."),
]
SplitConfig = Annotated[
    str | None, typer.Option("--split-config", metavar="FILE", help="Use this file in .nv-meta instead of split.yaml.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Allow the data set to run its own code (sample_loader.py, pickles).")
]
Threads = Annotated[
    int | None,
    typer.Option("--num-workers", "--workers", metavar="N", min=1, help="Threads; default: four for each core."),
]
RecipePath = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (docs/recipes.md); a path or a URL.")]
Samples = Annotated[int | None, typer.Option("--samples", min=0, help="Look at the first so many samples of the plan.")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", min=1, help="Samples per step over all ranks.")]
Json = Annotated[
    bool, typer.Option("--json", callback=remember_json, is_eager=True, help="Print one JSON document for programs.")
]
