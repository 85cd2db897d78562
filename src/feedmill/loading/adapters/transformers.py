"""A loader in the `Trainer` of Hugging Face transformers, and of libraries built on it.

`Trainer` resumes by skipping batches of a torch `DataLoader`, counted with the current batch size. Here the position
is in the checkpoint's `trainer_state.json`, and is loaded before the first step. The batch size and the number of ranks
may change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from feedmill.errors import ConfigError
from feedmill.loading.adapters.tracked import batches_left
from feedmill.loading.checkpoint import Checkpoint
from feedmill.loading.loader import Loader

logger = logging.getLogger("feedmill")


def feed(trainer: Any, loader: Loader) -> FeedmillCallback:
    """Let a `Trainer` train on the batches of a loader, and save and resume its position.

        trainer = Trainer(model=model, args=args)
        feed(trainer, fm.Loader(plan, 8, transform=encode, output="torch"))
        trainer.train(resume_from_checkpoint=True)

    The plan or `max_steps` ends the training; `num_train_epochs` is ignored, because the recipe has the epochs.

    Args:
        trainer: the trainer, of any subclass. Its `get_train_dataloader` and `args` are changed.
        loader: the loader of this rank. Its batch size counts, not `per_device_train_batch_size`. For TRL's GRPO, a
            batch is a list of the prompts of one generation, each `num_generations` times.

    Raises:
        ConfigError: neither the plan nor `max_steps` ends the training; or TRL's GRPO would save while completions of
            a batch are left.
    """
    args = trainer.args
    if args.gradient_accumulation_steps % _uses(args):
        raise ConfigError(
            f"the trainer uses each batch {_uses(args)} times (steps_per_generation x num_iterations), and saves after"
            f" every {args.gradient_accumulation_steps} (gradient_accumulation_steps): a resume would lose the rest",
            kind="bad-option",
            fix="Make gradient_accumulation_steps a multiple of steps_per_generation x num_iterations.",
        )
    callback = FeedmillCallback(loader, ends=args.max_steps <= 0)
    if callback.ends:
        args.max_steps = _steps(loader, args)
        logger.info("the plan ends the training: max_steps=%d", args.max_steps)
    args.ignore_data_skip = True
    trainer.get_train_dataloader = lambda: _Batches(loader, _uses(args))
    trainer.add_callback(callback)
    return callback


class FeedmillCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the position of a loader in the state of the trainer, and loads it. `feed` adds it to a trainer.

    Args:
        loader: the loader of this rank.
        ends: whether the end of the plan sets the number of steps.
    """

    def __init__(self, loader: Loader, ends: bool) -> None:
        self.loader, self.ends = loader, ends
        self._checkpoint = Checkpoint(loader)
        self._saved: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Load the position of the checkpoint that the trainer resumes from."""
        name = type(self).__name__
        saved = state.stateful_callbacks.get(name, {}).get("attributes")
        if saved:
            self._checkpoint.load_state_dict(saved)
            if self.ends:
                state.max_steps = state.global_step + _steps(self.loader, args)
        elif state.global_step:
            raise ConfigError(
                f"the checkpoint of step {state.global_step} has no position of a loader",
                kind="bad-state",
                fix="Give its position with Loader(..., start=), and resume without the trainer's state.",
            )
        self._saved = dict(saved or {})
        state.stateful_callbacks[name] = self.state()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Note the position after the batches of a step. With packs, all ranks gather it if the trainer will save."""
        state_of_rank = self.loader.state_dict()
        if control.should_save or "windows" not in state_of_rank:
            self._saved = self._checkpoint.state_dict(state_of_rank)

    on_epoch_end = on_step_end

    def state(self) -> dict[str, Any]:
        """Return what the trainer saves."""
        return {"args": {}, "attributes": dict(self._saved)}


class _Batches:
    """The batches without a length, so that the trainer counts steps and not epochs."""

    def __init__(self, loader: Loader, uses: int) -> None:
        self._loader, self._uses = loader, uses

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            for _ in range(self._uses):
                yield batch


def _uses(args: Any) -> int:
    """Return how often the trainer takes each batch: TRL's GRPO generates once for several batches of a step."""
    return int(getattr(args, "steps_per_generation", None) or 1) * int(getattr(args, "num_iterations", None) or 1)


def _steps(loader: Loader, args: Any) -> int:
    """Return the number of steps from the position of the loader to the end of its plan."""
    try:
        batches = batches_left(loader)
    except TypeError as error:
        raise ConfigError(str(error), kind="endless", fix="Set max_steps in the TrainingArguments.") from None
    return math.ceil(batches * _uses(args) / int(args.gradient_accumulation_steps))
