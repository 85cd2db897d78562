"""``feedmill numbers``: tokens, samples and steps, each from the others."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedmill.cli.options import Json
from feedmill.cli.output import emit, facts


def numbers(
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", metavar="N", min=1, help="Tokens per sample.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", min=1, help="Data-parallel degree.")] = 1,
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", min=1, help="Samples per rank and forward pass.")
    ] = 1,
    accumulation: Annotated[
        int, typer.Option("--accumulation", metavar="N", min=1, help="Forward passes per step.")
    ] = 1,
    tokens: Annotated[int | None, typer.Option("--tokens", metavar="N", min=0, help="From N tokens.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", metavar="N", min=0, help="From N samples.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=0, help="From N steps.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="From the windows of a token file or folder.")
    ] = None,
    lines: Annotated[
        str | None, typer.Option("--lines", metavar="FILE", help="From the lines of a JSONL file or its .idx.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FOLDER", help="From the name of a checkpoint folder.")
    ] = None,
    own_targets: Annotated[
        bool, typer.Option("--own-targets", help="With --data: samples do not share their last target.")
    ] = False,
    json: Json = False,
) -> None:
    """Say how many tokens, samples, batches and steps something is, in whole steps."""
    from feedmill.errors import ConfigError
    from feedmill.tokens import numbers as n

    given = [tokens, samples, steps, data, lines, checkpoint]
    if sum(value is not None for value in given) != 1:
        raise ConfigError(
            "there is one thing to count from",
            kind="bad-number",
            fix="Give one of --tokens, --samples, --steps, --data, --lines and --checkpoint.",
        )
    if checkpoint is not None:
        found = n.read_progress(checkpoint)
        told: dict[str, Any] = {**found._asdict(), "last_step": found.last_step}
        if None not in (found.seen_steps, found.seen_tokens, found.target_tokens):
            told["target_steps"] = n.target_steps(found)
    else:
        if lines is not None:
            samples = n.count_lines(lines)
        told = _counted(
            n.Step(sequence_length or 0, ranks, micro_batch, accumulation), tokens, samples, steps, data, own_targets
        )
    emit(told, json, lambda: facts((name.replace("_", " "), value) for name, value in told.items()))


def _counted(
    step: Any, tokens: int | None, samples: int | None, steps: int | None, data: str | None, own_targets: bool
) -> dict[str, Any]:
    """Everything that follows from one number; what takes a sequence length is None without one."""
    from feedmill.errors import ConfigError
    from feedmill.tokens import numbers as n

    if step.sequence < 1 and (tokens is not None or data is not None):
        raise ConfigError("tokens are divided into samples", kind="bad-number", fix="Give --sequence-length.")
    if data is not None:
        tokens = n.count_tokens(data)
        samples = n.windows(tokens, step.sequence, reuse_last_target=not own_targets)
    elif tokens is not None:
        samples = n.samples_from_tokens(tokens, step.sequence)
    elif steps is not None:
        samples = steps * step.samples
    samples = samples or 0
    whole = n.steps_from_samples(samples, *step[1:])
    return {
        "tokens": tokens,
        "samples": samples,
        "batches_per_rank": n.local_batches_from_samples(samples, step.ranks, step.micro_batch),
        "steps": whole,
        "samples_per_step": step.samples,
        "tokens_per_step": step.tokens or None,
        "trained_tokens": n.tokens_from_steps(whole, step) if step.sequence else None,
    }
