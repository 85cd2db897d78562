"""Decode and batch samples by the modality of their dataset, with the hooks of a `feedmill.TaskEncoder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError
from feedmill.loading.encoder import TaskEncoder, drawn
from feedmill.loading.failures import SkipSample
from feedmill.samples.vla.modalities import Modality

_MODALITY = "__modality__"


class VlaEncoder(TaskEncoder):
    """Task encoder that decodes and batches each sample by the modality of its dataset.

    Text with too few tokens is skipped and counted. Any other problem is an error of that sample.

    With one modality, batches are those of the modality. With several, every batch is a dictionary with all of them, in
    the order of `modalities`: the batch of the samples of each modality, or None if this batch has no sample of it.

    Args:
        modalities: name -> modality, see `feedmill.samples.vla.modalities.modality`.
    """

    def __init__(self, modalities: Mapping[str, Modality]) -> None:
        self.modalities = dict(modalities)

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return the decoded fields of a sample."""
        name = (sample.subflavors or {}).get("modality")
        if name is None and len(self.modalities) == 1:
            name = next(iter(self.modalities))
        found = self.modalities.get(str(name))
        if found is None:
            raise ConfigError(
                f"unknown modality {name!r} of a dataset: the run has {', '.join(self.modalities)}",
                kind="bad-recipe",
                fix="Add it to dataset_modality.",
            )
        prepare = getattr(found, "prepare", found.cook)  # some modalities finish decoding in `batch`
        try:
            return {**prepare(sample, drawn(rng)), _MODALITY: name}
        except DataError as error:
            if error.kind == "too-short":
                raise SkipSample(str(error)) from None
            raise

    def batch(self, samples: Sequence[dict[str, Any]]) -> Any:
        """Return the columns of a batch; with several modalities, modality -> its columns, or None without samples."""
        groups: dict[str, list[dict[str, Any]]] = {name: [] for name in self.modalities}
        for sample in samples:
            groups[sample[_MODALITY]].append({k: v for k, v in sample.items() if k != _MODALITY})
        done = {name: self.modalities[name].batch(group) if group else None for name, group in groups.items()}
        return done if len(done) > 1 else next(iter(done.values()))
