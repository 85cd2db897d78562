"""Nanotron's `BlendableDataset`: ``from feedmill.compat.nanotron.data.nemo_dataset import BlendableDataset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.compat.datatrove.utils.dataset import TorchDataset
from feedmill.compat.nanotron.data.nanoset import read_blended
from feedmill.kernels.order.greedy import greedy, ranks
from feedmill.planning.orders.nanoset import normalized


class BlendableDataset(TorchDataset):
    """Datasets blended by weight, each read in order from its offset on.

    Args:
        datasets: datasets such as `DatatroveFolderDataset`.
        weights: one per dataset; they are normalized.
        size: number of samples: training steps times the global batch.
        parallel_context, seed: accepted without effect, as they do not change the order in Nanotron.
        consumed_tokens_per_dataset_folder: tokens that the stage has read of each folder; kept in `consumed_tokens`.
        offsets_in_samples: samples of each folder that earlier stages have read.

    Attributes:
        dataset_index, dataset_sample_index: dataset (int16) and draw from it (int64) of each sample.
        dataset_num_samples: int64[datasets], draws from each.

    Raises:
        AssertionError: the numbers of weights and datasets differ, as in Nanotron.
        ConfigError: the weights are invalid.
        IndexError: at a sample beyond the end of its dataset; there is no second epoch.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float],
        size: int,
        parallel_context: Any = None,  # noqa: ARG002
        seed: int = 0,
        consumed_tokens_per_dataset_folder: Mapping[str, int] | None = None,
        offsets_in_samples: Mapping[str, int] | None = None,
    ) -> None:
        assert len(datasets) == len(weights)
        self.datasets, self.size, self.random_seed = list(datasets), size, seed
        choice, counts = greedy(normalized(weights), size)
        self.dataset_index = np.asarray(choice).astype(np.int16)
        self.dataset_num_samples = np.asarray(counts, np.int64)
        firsts = np.cumsum(self.dataset_num_samples) - self.dataset_num_samples
        self.dataset_sample_index = ranks(choice, counts).astype(np.int64) - firsts[self.dataset_index]
        names = [getattr(dataset, "folder_path", None) for dataset in self.datasets]
        consumed, offsets = consumed_tokens_per_dataset_folder or {}, offsets_in_samples or {}
        self.consumed_tokens = {number: consumed.get(name, 0) for number, name in enumerate(names)}  # type: ignore[arg-type]
        self.offsets_in_samples = {number: offsets.get(name, 0) for number, name in enumerate(names)}  # type: ignore[arg-type]
        self._sample = self.dataset_sample_index + np.array([*self.offsets_in_samples.values()])[self.dataset_index]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> Any:
        return self.datasets[int(self.dataset_index[idx])][int(self._sample[idx])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return read_blended(self.datasets, self.dataset_index, self._sample, indices)
