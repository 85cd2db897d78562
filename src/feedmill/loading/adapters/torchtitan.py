"""A loader as torchtitan's `BaseDataLoader`: rows of tokens as ``({"input": ..., "positions": ...}, labels)``.

torchtitan builds it with the data-parallel rank of its mesh. Its own loader refuses a checkpoint of another degree of
data parallelism; this one resumes on any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

from feedmill.errors import ConfigError
from feedmill.loading.checkpoint import KEY, Checkpoint
from feedmill.loading.loader import Loader
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.targets import with_targets

INPUT, LABELS = "input", "labels"
Targets = Callable[[list[Any]], dict[str, Any]]
TARGETS: Targets = partial(with_targets, inputs=INPUT, targets=LABELS)
"""Makes the fields of a batch from rows of tokens."""


class FeedmillDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The rows of a recipe that packs, or whose sources are windows of tokens.

        config.dataloader = FeedmillDataLoader.Config(recipe="mixture.yaml")

    Rows must have ``seq_len + 1`` tokens: ``pack: {seq_len: 4097, method: best_fit}`` or
    ``pack: {seq_len: 4096, method: concat, overlap: true}`` for 4,096.

    Args:
        config: the recipe, and options of the loader.
        dp_world_size, dp_rank: data-parallel rank, from torchtitan's mesh.
        seq_len: tokens in a row of inputs.
        local_batch_size: rows per rank and batch.
        unused: what torchtitan passes to its own loaders.

    Raises:
        ConfigError: the rows have another length; raised at the first batch.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Options of the data loader.

        Attributes:
            recipe: path of the recipe.
            workers: threads that prefetch batches.
        """

        recipe: str = ""
        workers: int = 1

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **unused: Any,  # noqa: ARG002
    ) -> None:
        self._seq_len = seq_len
        self.loader = Loader(
            Recipe.load(config.recipe).plan(),
            local_batch_size,
            rank=dp_rank,
            world_size=dp_world_size,
            collate=TARGETS,
            output="torch",
            workers=config.workers,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for batch in self.loader:
            inputs = batch[INPUT]
            if inputs.shape[1] != self._seq_len:
                raise ConfigError(
                    f"rows have {inputs.shape[1] + 1} tokens, and torchtitan's seq_len is {self._seq_len}: expected one"
                    " token more, which is the last label",
                    kind="bad-option",
                    fix=f"Set seq_len: {self._seq_len + 1} under 'pack' of the recipe, or seq_len: {self._seq_len} with"
                    " 'overlap: true'.",
                )
            fields = {INPUT: inputs}
            if "positions" in batch:
                fields["positions"] = batch["positions"]
            yield fields, batch[LABELS]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank. All ranks must call it together."""
        return dict(Checkpoint(self.loader).state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a position, on any number of ranks. An empty state changes nothing."""
        if KEY in state_dict:
            Checkpoint(self.loader).load_state_dict(state_dict)
