"""A loader as OLMo-core's `DataLoaderBase`: rows of tokens as ``{"input_ids": ..., "labels": ...}``.

The position is in the trainer's state, which OLMo-core saves for each rank and loads on any number of ranks. The recipe
has the epochs, so OLMo-core sees one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from olmo_core.data import DataLoaderBase
from olmo_core.distributed.utils import get_rank, get_world_size

from feedmill.errors import ConfigError
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from feedmill.loading.plan import PlainPlan
from feedmill.planning.dealing.grid import Grid
from feedmill.samples.targets import with_targets


class FeedmillDataLoader(DataLoaderBase):  # type: ignore[misc]
    """The rows of a plan that packs, or whose sources are windows of tokens.

        data_loader = FeedmillDataLoader(plan, 16, seq_len=4096, group=train_module.dp_process_group)
        trainer = config.trainer.build(train_module, data_loader)

    A batch has ``input_ids`` and ``labels``, int64[n, seq_len], of rows of ``seq_len + 1`` tokens; labels that do not
    count are -100. OLMo-core averages the loss per rank: ranks with fewer labels that count weigh as much as others.

    Args:
        plan: the plan.
        batch_size: rows per rank and step.
        seq_len: tokens in a row of inputs.
        group: the process group of data parallelism; None for all ranks.
        workers: threads that prefetch batches.

    Raises:
        ConfigError: the rows have another length, raised at the first batch; or the trainer continues after the plan.
    """

    def __init__(self, plan: PlainPlan, batch_size: int, *, seq_len: int, group: Any = None, workers: int = 1) -> None:
        rank, ranks = get_rank(group), get_world_size(group)
        tokens = batch_size * ranks * seq_len
        super().__init__(work_dir=Path.cwd(), global_batch_size=tokens, dp_world_size=ranks, dp_rank=rank)
        collate = partial(with_targets, inputs="input_ids", targets="labels")
        options = {"rank": rank, "world_size": ranks, "output": "torch", "workers": workers}
        self.loader, self._seq_len = Loader(plan, batch_size, collate=collate, **options), seq_len

    @property
    def total_batches(self) -> int | None:
        """The number of batches, including those before a loaded state; None if it is unknown."""
        try:
            return len(self.loader)
        except TypeError:
            return None

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            width = batch["input_ids"].shape[1]
            if width != self._seq_len:
                raise ConfigError(
                    f"rows have {width + 1} tokens: expected {self._seq_len + 1}, one more than seq_len",
                    kind="bad-option",
                    fix=f"Pack rows of {self._seq_len + 1} tokens, or give seq_len={width}.",
                )
            yield {name: batch[name].long() for name in ("input_ids", "labels")}

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Do nothing in the first epoch. Raises `ConfigError` in a later one: the trainer would start over."""
        if epoch is not None and epoch > 1:
            raise ConfigError(
                f"the plan has ended, and OLMo-core begins epoch {epoch}",
                kind="too-few-samples",
                fix="Raise 'epochs' in the recipe, or give max_duration=Duration.epochs(1).",
            )

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:  # noqa: ARG002
        """Return the number of tokens of a batch over all ranks."""
        return int(self.global_batch_size)

    def get_mock_batch(self) -> dict[str, Any]:
        """Raise `NotImplementedError`, after which OLMo-core trains without a dry run."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank. All ranks must call it together."""
        return dict(Checkpoint(self.loader).state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a position, on any number of ranks and with any batch size."""
        Checkpoint(self.loader).load_state_dict(state_dict)
        grid = self.loader.layout.grid
        if isinstance(grid, Grid) and grid.steps is not None:
            self.batches_processed = grid.started_at(self.loader.position).first_number
