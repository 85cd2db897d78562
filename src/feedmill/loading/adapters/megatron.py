"""A plan as the dataset of Megatron-LM's data provider: sample *k* is row *k* of the plan.

Megatron-LM's sampler takes the samples in order from `consumed_train_samples` on, which is the position in the plan. A
run therefore resumes on any number of ranks and with any batch size, without a state of the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.loading.adapters.mapped import PlanDataset
from feedmill.loading.plan import PlainPlan
from feedmill.samples.targets import IGNORE, with_targets

TARGETS: Callable[[Sequence[Any]], dict[str, Any]] = partial(with_targets, targets="labels")
"""Makes inputs and labels of rows."""


class MegatronDataset(PlanDataset):
    """The rows of a plan of tokens in the fields that Megatron-LM's `get_batch` reads.

    ``tokens``, ``labels`` and ``position_ids`` are int64[w - 1] for rows of w tokens, ``loss_mask`` is float32[w - 1].
    Labels that do not count (padding, the first token of another document, a loss mask) are 0 with a mask of 0.
    Position ids start again at each document if the rows locate their documents. A causal ``attention_mask``,
    bool[1, w - 1, w - 1], True where attention is not allowed, is optional: fused attention does not need one.

    Args:
        plan: the plan; its recipe packs, or its sources are windows of tokens.
        samples: as for `PlanDataset`.
        attention_mask: whether to add the mask.
    """

    def __init__(self, plan: PlainPlan, *, samples: int | None = None, attention_mask: bool = False) -> None:
        super().__init__(plan, samples=samples)
        self._attention_mask = attention_mask

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the fields of the rows at these positions."""
        return [self._fields(row) for row in super().__getitems__(positions)]

    def _fields(self, row: Any) -> dict[str, Any]:
        made = TARGETS([row])
        tokens, labels = made["inputs"][0].astype(np.int64), made["labels"][0].astype(np.int64)
        width = len(tokens)
        positions = made["positions"][0] if "positions" in made else np.arange(width)
        kept = labels != IGNORE
        fields = {
            "tokens": tokens,
            "labels": np.where(kept, labels, 0),
            "loss_mask": kept.astype(np.float32),
            "position_ids": np.asarray(positions, np.int64),
        }
        if self._attention_mask:
            fields["attention_mask"] = ~np.tril(np.ones((1, width, width), np.bool_))
        return fields


def datasets_provider(
    train: PlainPlan, valid: PlainPlan | None = None, test: PlainPlan | None = None, *, attention_mask: bool = False
) -> Callable[..., tuple[MegatronDataset | None, ...]]:
    """Return the ``train_valid_test_datasets_provider`` for Megatron-LM's ``pretrain``.

    Every rank builds its datasets from the recipe alone (`is_distributed`), so no rank waits for another.

    Args:
        train, valid, test: plans of rows of tokens. Endless plans get the number of samples that Megatron-LM asks for.
        attention_mask: as for `MegatronDataset`.

    Raises:
        ConfigError: from the provider, if a plan has fewer samples than Megatron-LM needs: it would start over.
    """

    def provide(numbers: Sequence[int], *_: Any, **__: Any) -> tuple[MegatronDataset | None, ...]:
        return tuple(
            _dataset(name, plan, number, attention_mask)
            for name, plan, number in zip(("train", "valid", "test"), (train, valid, test), numbers, strict=True)
        )

    provide.is_distributed = True  # type: ignore[attr-defined]
    return provide


def _dataset(name: str, plan: PlainPlan | None, number: int | None, attention_mask: bool) -> MegatronDataset | None:
    if plan is None or number == 0:
        return None
    if plan.length is not None and number is not None and plan.length < number:
        raise ConfigError(
            f"the plan for {name} has {plan.length:,} rows, and Megatron-LM needs {number:,}",
            kind="too-few-samples",
            fix="Raise 'rows' or 'epochs' in the recipe, or lower --train-iters or --eval-iters.",
        )
    return MegatronDataset(plan, samples=number, attention_mask=attention_mask)
