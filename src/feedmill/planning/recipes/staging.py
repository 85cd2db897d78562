"""Convert the stages of a recipe to weights per source and lengths in samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from feedmill.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from feedmill.planning.recipes.fields import StageModel


def check_names(stages: Sequence[StageModel], names: Sequence[str], where: Callable[..., str]) -> None:
    """Check that the names in the stages match the sources.

    Args:
        stages: the stages of the recipe.
        names: the blend's sources.
        where: returns ``file:line`` of a value by its place in the list of stages.

    Raises:
        ConfigError: a weight for a source that does not exist, or a source without a weight in any stage.
    """
    for number, stage in enumerate(stages):
        for name in stage.weights:
            if name not in names:
                raise ConfigError(
                    f"stage {number + 1} has a weight for {name!r}, which is not a source of this blend",
                    file=where(number, "weights", name),
                    kind="no-such-source",
                    fix=suggestion(name, names, f"Its sources are: {', '.join(names)}."),
                )
    silent = [name for name in names if not any(name in stage.weights for stage in stages)]
    if silent:
        raise ConfigError(
            f"no stage has a weight for {', '.join(map(repr, silent))}",
            kind="bad-stage",
            fix="Give it a weight (0 pauses it), or remove it from the blend.",
        )


def stage_length(
    stage: StageModel,
    shares: Sequence[Fraction],
    mean: Callable[[int], Fraction],
    global_batch: int | None,
    run_length: int = 1,
) -> int | None:
    """Return the length of a stage in samples; None if it is open-ended.

    Steps are multiplied by the global batch. Tokens are divided by their mean per sample and rounded to the nearest
    whole run.

    Args:
        stage: the stage of the recipe.
        shares: weight of each source per sample.
        mean: returns the mean tokens per sample of a source.
        global_batch: samples per step.
        run_length: samples of one source at a time.

    Raises:
        ConfigError: steps without a global batch, or too few tokens for one sample.
    """
    if stage.samples is not None:
        return stage.samples
    if stage.steps is not None:
        if global_batch is None:
            raise ConfigError(
                f"a stage of {stage.steps:,} steps needs a batch size",
                kind="bad-stage",
                fix="Set 'global_batch' at the top of the recipe, or give 'samples'.",
            )
        return stage.steps * global_batch
    if stage.tokens is None:
        return None
    per_sample = sum((share * mean(i) for i, share in enumerate(shares) if share), Fraction(0))
    samples = round(stage.tokens / per_sample / run_length) * run_length
    if samples < 1:
        raise ConfigError(
            f"{stage.tokens:,} tokens are less than one {_unit(run_length)}, which has"
            f" {float(per_sample * run_length):.4g} on average in this stage",
            kind="bad-stage",
            fix=f"Give at least 'tokens: {ceil(per_sample * run_length)}'.",
        )
    return samples


def _unit(run_length: int) -> str:
    return "sample" if run_length == 1 else f"run of {run_length:,} samples"
