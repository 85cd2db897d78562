"""A `LightningDataModule` over plans, for PyTorch Lightning.

Lightning takes a batch before it needs it if it does not know the number of batches, and it decides by epochs whether a
checkpoint's loader state is loaded. This data module saves the position after the batches that were trained on, and
always loads it. The plan decides where training ends, not `max_epochs`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import LightningDataModule

from feedmill.loading.adapters.tracked import TrackedBatches
from feedmill.loading.loader import Loader
from feedmill.loading.plan import PlainPlan

logger = logging.getLogger("feedmill")


class FeedmillDataModule(LightningDataModule):  # type: ignore[misc]
    """Trains on the batches of a plan, and validates on those of other plans.

        trainer.fit(model, datamodule=FeedmillDataModule(plan, 8, transform=encode), ckpt_path="last")

    Args:
        plan: the plan to train on. A finite plan ends the training where it ends; an endless one requires `max_steps`,
            `max_time` or `limit_train_batches` of the `Trainer`.
        batch_size: as for `Loader`; it may differ from that of the saved run.
        validation: the plans to validate on, each from its beginning and as a whole.
        validation_batch_size: None for `batch_size`.
        options: other arguments of all loaders; by default ``output="torch"``. Rank and world size are those of the
            trainer.
    """

    def __init__(
        self,
        plan: PlainPlan,
        batch_size: Any = None,
        *,
        validation: PlainPlan | list[PlainPlan] | None = None,
        validation_batch_size: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.plan, self.batch_size, self.options = plan, batch_size, {"output": "torch", **options}
        self.validation = validation
        self.validation_batch_size = validation_batch_size
        self._batches: _Batches | None = None
        self._saved: Mapping[str, Any] | None = None

    def train_dataloader(self) -> Any:
        """Return the batches of this rank, after those that this trainer has trained on or the loaded state."""
        # The trainer calls this again in each `fit`, and within one with `reload_dataloaders_every_n_epochs`.
        if self._batches is None or self._batches.trainer is not self.trainer:
            self._batches = _Batches(self._loader(self.plan, self.batch_size), self.trainer)
            if self._saved is not None:
                self._batches.load(self._saved)
        loop = self.trainer.fit_loop
        if loop.max_epochs not in (None, -1):
            logger.info("max_epochs=%s is ignored: the plan or max_steps ends the training", loop.max_epochs)
        loop.max_epochs = -1
        return self._batches

    def val_dataloader(self) -> Any:
        """Return a loader for each plan to validate on."""
        if self.validation is None:
            return []
        plans = self.validation if isinstance(self.validation, list) else [self.validation]
        size = self.batch_size if self.validation_batch_size is None else self.validation_batch_size
        return [self._loader(plan, size, rewind=True) for plan in plans]

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were trained on."""
        return dict(self._saved or {}) if self._batches is None else self._batches.checkpoint()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the loader."""
        self._saved = state_dict
        if self._batches is not None:
            self._batches.load(state_dict)

    def _loader(self, plan: PlainPlan, batch_size: Any, **more: Any) -> Loader:
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        return Loader(plan, batch_size, **{**ranks, **self.options, **more})


class _Batches:
    """The batches for Lightning: without a length, and with a stop where the plan ends."""

    def __init__(self, loader: Loader, trainer: Any) -> None:
        self.taken, self.trainer = TrackedBatches(loader), trainer
        self._base: int | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.taken.count > self._used:
            # An earlier iterator was left with a batch that was fetched ahead and not trained on, as at a resume from
            # a checkpoint of an epoch's end: fetch it again.
            self.load(self.checkpoint())
        if self._base is None:
            self._base = self._trained
        yield from self.taken
        self.trainer.should_stop = True

    def load(self, state: Mapping[str, Any]) -> None:
        self.taken.load(state)
        self._base = None

    def checkpoint(self) -> dict[str, str]:
        return self.taken.checkpoint(self._used)

    @property
    def _used(self) -> int:
        """Return the number of batches that the trainer has used since the loader was made or a state was loaded."""
        return 0 if self._base is None else self._trained - self._base

    @property
    def _trained(self) -> int:
        """Return the number of batches that the trainer has used, in earlier runs too."""
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.total.processed)
