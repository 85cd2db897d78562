"""``feedmill numbers``: convert between numbers of tokens, samples and steps."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.options import Json
from feedmill.cli.output import emit, facts


def numbers(
    seq_len: Annotated[int | None, typer.Option("--seq-len", metavar="N", min=1, help="Tokens per sample.")] = None,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", min=1, help="Data-parallel degree.")] = 1,
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", min=1, help="Samples per rank and forward pass.")
    ] = 1,
    accumulation: Annotated[
        int, typer.Option("--accumulation", metavar="N", min=1, help="Forward passes per step.")
    ] = 1,
    tokens: Annotated[int | None, typer.Option("--tokens", metavar="N", min=0, help="Convert N tokens.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", metavar="N", min=0, help="Convert N samples.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=0, help="Convert N steps.")] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FILE", help="Convert the number of windows of a token file or folder."),
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option("--lines", metavar="FILE", help="Convert the number of lines of a JSONL file or its .idx."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FOLDER", help="Read the numbers from the name of a checkpoint folder."),
    ] = None,
    own_targets: Annotated[
        bool, typer.Option("--own-targets", help="With --data: consecutive samples share no token.")
    ] = False,
    json: Json = False,
) -> None:
    """Convert between tokens, samples, batches and steps; rounds to whole steps."""
    from feedmill.tokens.numbers import numbers as count

    report = count(
        seq_len=seq_len,
        ranks=ranks,
        micro_batch=micro_batch,
        accumulation=accumulation,
        tokens=tokens,
        samples=samples,
        steps=steps,
        data=data,
        lines=lines,
        checkpoint=checkpoint,
        own_targets=own_targets,
    )
    found = report.as_dict()
    emit(found, json, lambda: facts((name.replace("_", " "), value) for name, value in found.items()))
