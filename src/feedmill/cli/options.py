"""Arguments and options shared by several verbs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from feedmill.cli.command import Json as Json
from feedmill.cli.command import _parameter
from feedmill.cli.engines import EngineOptions, run_on_engine
from feedmill.jobs.options import options_of

DatasetPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A dataset: folder, tar or JSONL file; a path or a URL.")
]
Split = Annotated[str | None, typer.Option("--split", metavar="NAME", help="Split to open (train, val, test, ...).")]
DatasetConfig = Annotated[
    str | None,
    typer.Option("--dataset-config", metavar="FILE", help="File in .nv-meta to use instead of dataset.yaml."),
]
SplitConfig = Annotated[
    str | None, typer.Option("--split-config", metavar="FILE", help="File in .nv-meta to use instead of split.yaml.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Allow the dataset to run its own code (sample_loader.py, pickles).")
]
Threads = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Threads; default: four per core."),
]
MediaThreads = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Threads; default: one per core."),
]
RecipePath = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (docs/recipes.md); a path or a URL.")]
Samples = Annotated[
    int | None, typer.Option("--samples", metavar="N", min=0, help="Use only the first N samples of the plan.")
]
GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", metavar="G", min=1, help="Samples per step over all ranks.")
]
Processes = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; default: one per core.")
]
TokenInputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT...", help="Token files or JSONL files, or folders of them; paths or URLs."),
]
TokenOutput = Annotated[str, typer.Argument(metavar="OUTPUT", help="The file to write; its suffix selects the format.")]
PartsOutput = Annotated[str, typer.Argument(metavar="OUTPUT", help="Files to write, e.g. 'x.{part}.pbin'.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of the order; default: a random one, which is shown.")
]
TokenSize = Annotated[
    int | None, typer.Option("--token-size", metavar="1|2|4", help="Bytes per token; required if the inputs differ.")
]
MixedTokenizers = Annotated[bool, typer.Option("--mixed-tokenizers", help="Allow inputs of different tokenizers.")]
DropLoss = Annotated[bool, typer.Option("--drop-loss", help="Drop the loss masks of the inputs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show what would be read and written.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OverwriteFiles = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Ids = Annotated[
    str | None,
    typer.Option("--id", metavar="FIELD|auto", help="Field of the ids; auto: file and row for documents without one."),
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Accept a result without documents or samples.")]
AllowStale = Annotated[
    bool, typer.Option("--allow-stale", help="Use attributes that were computed from other documents.")
]
MaxPerFile = Annotated[
    int | None,
    typer.Option("--max-tokens-per-file", metavar="N", help="Start a new file at N tokens; requires {part} in OUTPUT."),
]
MaxFileSize = Annotated[
    str | None,
    typer.Option(
        "--max-file-size", metavar="SIZE", help="Write numbered files of at most this size, such as 2GB or 500MiB."
    ),
]
ShownPaths = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Datasets of any format, recipes, pipelines, telemetry.")
]
LossLog = Annotated[
    str | None, typer.Option("--loss-log", metavar="FILE", help="Loss log of the run: CSV, JSON lines or TensorBoard.")
]
ShownTokenizer = Annotated[
    list[str] | None,
    typer.Option(
        "--tokenizer", "-t", metavar="PATH", help="Tokenizer that decodes token files, or encodes texts; repeatable."
    ),
]


def on_engine(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb with the options of engines."""
    added = [_parameter(option) for option in options_of(EngineOptions).values()]

    @wraps(verb)
    def run(*arguments: Any, **options: Any) -> None:
        chosen = {one.name: options.pop(one.name, one.default) for one in added}
        work = lambda: verb(*arguments, **options)  # noqa: E731
        run_on_engine(work, EngineOptions(**chosen), options, as_json=bool(options.get("json")))

    hints = get_type_hints(verb, include_extras=True)
    known = [
        inspect.Parameter(one.name, one.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in inspect.signature(verb).parameters.values()
    ]
    run.__signature__ = inspect.Signature([*known, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, **{one.name: one.annotation for one in added}}
    return run
