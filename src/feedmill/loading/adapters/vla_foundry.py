"""A plan in VLA Foundry's `main`, which makes a data loader for each part of a training.

VLA Foundry saves at the end of a part: the number of shards that were used, whatever of them was trained on. Here the
position is in its checkpoint, in the place of the names of shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.loading.adapters.tracked import check_length
from feedmill.loading.checkpoint import KEY, Checkpoint
from feedmill.loading.loader import Loader
from feedmill.loading.plan import PlainPlan

_NAMES = ("get_datastring_input", "get_wds_dataloader", "load_data_chunks", "save_checkpoint")


def feed(script: Any, plan: PlainPlan, **options: Any) -> FedMain:
    """Let VLA Foundry's `main` train on a plan, and save and resume its position.

        from vla_foundry import main
        feed(main, fm.Recipe.load("recipe.yaml").plan())
        main.main()

    Manifests and weights of its configuration are not read: the recipe has them. Rows of tokens become
    ``{"input_ids": int64[n, w], "attention_mask": None}``, with w = ``data.seq_len + 1``; for other kinds of data, give
    `transform` or `collate`.

    Args:
        script: the module ``vla_foundry.main``, in which names are replaced.
        plan: the plan. It ends no training: it must have enough samples for ``total_train_samples``.
        options: options of the `Loader`. The batch size is that of the configuration.

    Raises:
        ConfigError: the module is another one; later, from `main`: a validation, which would read the plan too, too few
            samples, or a checkpoint without a position.
    """
    return FedMain(script, plan, options)


class FedMain:
    """The loader within VLA Foundry's `main`. `feed` makes it.

    Attributes:
        loader: the loader of this rank; None before the first part after a start or a resume.
    """

    def __init__(self, script: Any, plan: PlainPlan, options: Mapping[str, Any]) -> None:
        missing = [name for name in _NAMES if not hasattr(script, name)]
        if missing:
            raise ConfigError(
                f"{getattr(script, '__name__', script)!r} is not VLA Foundry's main: it has no {', '.join(missing)}",
                kind="bad-option",
                fix="Pass the module vla_foundry.main.",
            )
        self.loader: Loader | None = None
        self._plan, self._options = plan, options
        self._state: dict[str, str] | None = None
        self._seen = 0
        self._batches: Iterator[Any] = iter(())
        self._load, self._save = script.load_data_chunks, script.save_checkpoint
        for name, replaced in zip(_NAMES, (self.part, self.make, self.load, self.save), strict=True):
            setattr(script, name, replaced)

    def part(self, *, num_samples: int, **given: Any) -> tuple[list[str], list[int], Any, Any]:
        """Return what stands for the shards of a part, and its number of samples."""
        return [KEY], [num_samples], given["curr_shard_idx_per_dataset"], given["shard_shuffle_seed_per_dataset"]

    def make(self, _: Sequence[str], samples: Sequence[int], number: int, config: Any) -> Any:  # noqa: ARG002
        """Return the batches of a part of the training."""
        from vla_foundry.data.dataloader import DataInfo  # type: ignore[import-not-found]

        if config.total_val_samples is not None:
            raise ConfigError(
                "a validation would read the plan that is trained on",
                kind="bad-option",
                fix="Leave total_val_samples out, and validate on saved checkpoints.",
            )
        batch = config.hparams.global_batch_size
        if self.loader is None:
            self.loader = self._begin(config, batch)
        count = sum(samples) // batch
        part = _Part(islice(self._batches, count), num_batches=count, num_samples=count * batch)
        return DataInfo(dataloader=part, dataset_pipelines=[])

    def load(self, path: str) -> Any:
        """Return the cursors of a checkpoint, and keep its position for the loader."""
        from vla_foundry.file_utils import pt_load  # type: ignore[import-not-found]

        found = self._load(path)
        kept = pt_load(path, map_location="cpu")["datastrings"]
        if len(kept) != 1 or not kept[0].startswith("{"):
            raise ConfigError(
                f"the checkpoint {path} has no position of a loader",
                kind="bad-state",
                fix="Start a new run with model.resume_weights_only=true.",
            )
        self._state, self._seen, self.loader = {KEY: kept[0]}, int(found[1]), None
        return found

    def save(self, config: Any, number: int, folder: str, limit: Any, *rest: Any, **more: Any) -> Any:
        """Save a checkpoint; all ranks call it."""
        assert self.loader is not None, "a part was trained on"
        model, optimizer, _, *others = rest
        state = [Checkpoint(self.loader).state_dict()[KEY]]
        return self._save(config, number, folder, limit, model, optimizer, state, *others, **more)

    def _begin(self, config: Any, batch: int) -> Loader:
        given = {"rank": config.distributed.rank, "world_size": config.distributed.world_size}
        text = {"collate": _rows} if config.data.type.startswith("text") else {}
        size = batch // config.distributed.world_size
        loader = Loader(self._plan, size, **{"output": "torch", "workers": 1, **given, **text, **self._options})
        if self._state is not None:
            Checkpoint(loader).load_state_dict(self._state)
        check_length(loader, (config.total_train_samples - self._seen) // batch, "VLA Foundry", "total_train_samples")
        self._batches = iter(loader)
        return loader


class _Part(SimpleNamespace):
    """Batches with the numbers that `main` reads."""

    def __init__(self, batches: Iterator[Any], **numbers: int) -> None:
        super().__init__(**numbers)
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches


def _rows(rows: Sequence[Any]) -> dict[str, Any]:
    return {"input_ids": np.stack([row["input_ids"] for row in rows]).astype(np.int64), "attention_mask": None}
