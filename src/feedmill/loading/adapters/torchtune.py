"""A loader in the recipes of torchtune that save the state of their data loader: fine-tuning, full or by LoRA.

torchtune saves at the end of an epoch, and begins its data anew in the next one: with ``max_steps_per_epoch``, every
epoch has the first samples. Here an epoch is so many further steps of the plan, and the position is in the recipe state
of each checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader
from feedmill.planning.dealing.grid import Grid

STATE = "dataloader"
"""torchtune's key of the loader's state in a recipe state."""


def feed(recipe: Any, loader: Loader) -> None:
    """Let a recipe train on the batches of a loader, and save and resume its position; call it before `setup`.

        recipe = FullFinetuneRecipeDistributed(cfg=cfg)
        feed(recipe, fm.Loader(plan, cfg.batch_size, transform=encode, output="torch"))
        recipe.setup(cfg=cfg)

    ``max_steps_per_epoch`` is the number of steps between checkpoints. `dataset` and `shuffle` of the configuration are
    ignored, because the plan has both. `resume_from_checkpoint` resumes on any number of ranks.

    Args:
        recipe: the recipe, before its `setup`. Its `_setup_data` and `_update_recipe_state` are changed.
        loader: the loader of this rank; its batches are what the model takes, and "labels", which torchtune shifts.

    Raises:
        ConfigError: the recipe does not save the state of its data loader. By `setup`: the loader has another batch
            size or other ranks than the recipe, or neither the plan nor ``max_steps_per_epoch`` ends an epoch; the
            checkpoint has no position, or that of another plan. By `train`: an epoch begins at the end of the plan.
    """
    if "dataloader_state_dict" not in inspect.signature(recipe._setup_data).parameters:
        raise ConfigError(
            f"{type(recipe).__name__} does not save the state of its data loader: a resume would lose the position",
            kind="bad-option",
            fix="Use a recipe of full fine-tuning or LoRA.",
        )
    update = recipe._update_recipe_state

    def load(state: Mapping[str, Any]) -> None:
        update(state)
        if not state.get(STATE):
            raise ConfigError(
                f"the checkpoint after epoch {recipe.epochs_run} has no position of a loader",
                kind="bad-state",
                fix="Save with a loader that is fed to the recipe, and without enable_async_checkpointing.",
            )
        Checkpoint(loader).load_state_dict(state[STATE])

    recipe._update_recipe_state = load
    recipe._setup_data = lambda **given: _Batches(recipe, loader, given["batch_size"])


class _Batches:
    """The batches as a recipe's data loader; each iteration has the next ones."""

    def __init__(self, recipe: Any, loader: Loader, size: int) -> None:
        ranks = getattr(recipe, "dp_size", 1)
        if isinstance(loader.layout.grid, Grid) and (loader.layout.size, loader.world_size) != (size, ranks):
            raise ConfigError(
                f"the loader has batches of {loader.layout.size} for {loader.world_size} ranks, and the recipe of"
                f" {size} for {ranks}",
                kind="bad-option",
                fix="Give the loader cfg.batch_size, and with tensor parallelism the ranks of the data.",
            )
        steps = recipe.max_steps_per_epoch
        try:
            self._length = len(loader)
        except TypeError as error:
            if steps is None:
                raise ConfigError(str(error), kind="endless", fix="Set max_steps_per_epoch.") from None
            self._length = steps * recipe._gradient_accumulation_steps
        self._loader, self.sampler = loader, self

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the plan has the order of each of its epochs."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for batch in self._loader:
            empty = False
            yield batch
        if empty:
            raise ConfigError(
                f"the plan ended at {self._loader.position:,} samples, and an epoch of the recipe begins there",
                kind="bad-option",
                fix="Set fewer epochs in the configuration, or more in the plan.",
            )

    def state_dict(self) -> dict[str, Any]:
        return dict(Checkpoint(self._loader).state_dict())
