"""Samples and batches by their dataset's modality, as hooks of a `feedmill.TaskEncoder`."""

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
    """Decodes each sample by the modality of its dataset, and makes batches as that modality does.

    Args:
        modalities: by name, see `feedmill.samples.vla.modalities.modality`.

    Text with too few tokens is skipped, which is counted; everything else that is wrong is an error of that sample.
    """

    def __init__(self, modalities: Mapping[str, Modality]) -> None:
        self.modalities = dict(modalities)

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return the fields of a sample."""
        name = (sample.subflavors or {}).get("modality")
        if name is None and len(self.modalities) == 1:
            name = next(iter(self.modalities))
        found = self.modalities.get(str(name))
        if found is None:
            raise ConfigError(
                f"a dataset has the modality {name!r}, and there are {', '.join(self.modalities)}",
                kind="bad-modality",
                fix="Name it in dataset_modality.",
            )
        prepare = getattr(found, "prepare", found.cook)  # where a modality leaves something to its batch
        try:
            return {**prepare(sample, drawn(rng)), _MODALITY: name}
        except DataError as error:
            if error.kind == "too-short":
                raise SkipSample(str(error)) from None
            raise

    def batch(self, samples: Sequence[dict[str, Any]]) -> Any:
        """Columns; of samples of several modalities a dict of batches by modality."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for sample in samples:
            groups.setdefault(sample[_MODALITY], []).append({k: v for k, v in sample.items() if k != _MODALITY})
        done = {name: self.modalities[name].batch(some) for name, some in groups.items()}
        return next(iter(done.values())) if len(done) == 1 else done
