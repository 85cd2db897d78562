"""``feedmill split``: split token files or JSONL files into several."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedmill.cli.merge import show
from feedmill.cli.options import (
    AllowEmpty,
    DropLoss,
    DryRun,
    Json,
    MixedTokenizers,
    OverwriteFiles,
    PartsOutput,
    Processes,
    Seed,
    TokenInputs,
    TokenSize,
    on_engine,
)
from feedmill.cli.output import emit_report


@on_engine
def split(
    inputs: TokenInputs,
    output: PartsOutput,
    chunks: Annotated[
        int | None, typer.Option("--chunks", metavar="N", help="Number of parts; each has consecutive documents.")
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option("--ratio", metavar="R", help="Random parts: 8,1,1 (train, val, test) or train=9,val=1."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="FILE", help="YAML or JSON file that lists the documents of each part by index."
        ),
    ] = None,
    seed: Seed = None,
    token_size: TokenSize = None,
    mixed_tokenizers: MixedTokenizers = False,
    drop_loss: DropLoss = False,
    allow_empty: AllowEmpty = False,
    dry_run: DryRun = False,
    overwrite: OverwriteFiles = False,
    workers: Processes = None,
    json: Json = False,
) -> None:
    """Split documents into parts: consecutive chunks, a random ratio with exact sizes, or an exact plan."""
    from feedmill.tokens.split import split as split_files

    report = split_files(
        inputs,
        output,
        chunks=chunks,
        ratio=None if ratio is None else parse_ratio(ratio),
        plan=None if plan is None else _read_plan(plan),
        seed=seed,
        token_size=token_size,
        mixed_tokenizers=mixed_tokenizers,
        drop_loss=drop_loss,
        allow_empty=allow_empty,
        overwrite=overwrite,
        workers=workers,
        dry_run=dry_run,
        progress=not json,
    )
    emit_report(report, json, lambda: show(report))


def parse_ratio(text: str) -> dict[str, float]:
    """Return weights by name, from ``8,1,1`` or ``train=8,val=2``. Raises `ConfigError`."""
    from feedmill.errors import ConfigError

    entries = [entry.strip() for entry in text.split(",")]
    names = [entry.partition("=")[0].strip() for entry in entries]
    weights = [entry.partition("=")[2] for entry in entries]
    if "=" not in text and 2 <= len(entries) <= 3:
        names, weights = ["train", "val", "test"][: len(entries)], entries
    try:
        if len(set(names)) < len(names):
            raise ValueError
        return dict(zip(names, map(float, weights), strict=True))
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a ratio", kind="bad-option", fix="Write 8,1,1 or train=8,val=1,test=1."
        ) from None


def _read_plan(path: str) -> dict[str, Any]:
    from feedmill.errors import ConfigError
    from feedmill.formats.yamls import read_yaml
    from feedmill.storage import open_store, split_url

    folder, name = split_url(path)
    plan = read_yaml(open_store(folder).read(name), path).value
    if not isinstance(plan, dict) or not all(isinstance(entries, list) for entries in plan.values()):
        raise ConfigError(
            "a plan names its parts, each with a list of documents",
            file=path,
            kind="bad-option",
            fix="For example: {train: [[0, 900]], val: [[900, 950], 960]}.",
        )
    return {str(name): entries for name, entries in plan.items()}
