"""Nanotron's `Nanoset`: ``from feedmill.compat.nanotron.data.nanoset import Nanoset``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.compat.datatrove.utils.dataset import DatatroveFolderDataset, TorchDataset
from feedmill.planning.orders.nanoset import DEFAULT_SEED, nanoset_index, normalized


class Nanoset(TorchDataset):
    """Folders of ``.ds`` files, mixed by weight and shuffled.

    Args:
        dataset_folders: the folders.
        sequence_length: tokens of a sample, without the last target.
        token_size: bytes per token, 2 or 4.
        train_split_num_samples: number of samples: training steps times the global batch.
        dataset_weights: one per folder; None to read each sample once per epoch.
        random_seed: seed of the order.
        use_cache: accepted without effect.
        eos_token_id: the id that ends documents, for positions; None to read their ends from the index.
        return_positions: whether samples have ``positions``.

    Attributes:
        dataset_index, dataset_sample_index: folder (uint64) and sample in it (int64) of each sample of the run.
        dataset_lengths, dataset_weights: samples and normalized weight of each folder.

    Raises:
        AssertionError: the numbers of weights and folders differ, as in Nanotron.
        ConfigError: the weights or the seed are invalid, or folders are empty.
        FileNotFoundError: a folder has no files.
    """

    def __init__(
        self,
        dataset_folders: list[str] | str,
        sequence_length: int,
        token_size: int,
        train_split_num_samples: int,
        dataset_weights: list[float] | None = None,
        random_seed: int = DEFAULT_SEED,
        use_cache: bool = True,
        eos_token_id: int | None = None,
        return_positions: bool = True,
    ) -> None:
        if isinstance(dataset_folders, str):
            warnings.warn("dataset_folders should be of type List[str] but str was provided", stacklevel=2)
            dataset_folders = [dataset_folders]
        assert dataset_weights is None or len(dataset_weights) == len(dataset_folders), (
            f"Specified {len(dataset_weights)} weights but {len(dataset_folders)} datasets were provided."
        )
        self.dataset_folders, self.sequence_length, self.token_size = dataset_folders, sequence_length, token_size
        self.train_split_num_samples, self.random_seed = train_split_num_samples, random_seed
        self.use_cache, self.eos_token_id, self.return_positions = use_cache, eos_token_id, return_positions
        self.datatrove_datasets = [
            DatatroveFolderDataset(
                folder,
                sequence_length,
                filename_pattern="*.ds",
                recursive=False,
                token_size=token_size,
                shuffle=True,
                return_positions=return_positions,
                positions_from_eos_token_id=eos_token_id,
            )
            for folder in dataset_folders
        ]
        self.dataset_lengths = [len(dataset) for dataset in self.datatrove_datasets]
        self.dataset_weights = normalized(self.dataset_lengths if dataset_weights is None else dataset_weights)
        self.dataset_index, self.dataset_sample_index = self.build_nanoset_index()

    def build_nanoset_index(self) -> tuple[Any, Any]:
        """Return the folder and the sample in it of each sample of the run."""
        dataset, sample = nanoset_index(
            self.dataset_lengths,
            self.dataset_weights.tolist(),
            self.train_split_num_samples,
            seed=self.random_seed,
            normalize=False,
        )
        return dataset.astype(np.uint64), sample.astype(np.int64)

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        dataset = int(self.dataset_index[idx])
        return self.datatrove_datasets[dataset][int(self.dataset_sample_index[idx]) % self.dataset_lengths[dataset]]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return read_blended(self.datatrove_datasets, self.dataset_index, self.dataset_sample_index, indices)


def read_blended(datasets: Sequence[Any], which: Any, sample: Any, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Return samples of several datasets with one read of each.

    Args:
        which, sample: the dataset, and the sample in it, of each index.
    """
    chosen, numbers = np.asarray(which)[indices].astype(np.int64), np.asarray(sample)[indices]
    out: list[dict[str, Any]] = [{} for _ in indices]
    for dataset in np.unique(chosen).tolist():
        mine = np.flatnonzero(chosen == dataset)
        for at, value in zip(mine.tolist(), datasets[dataset].__getitems__(numbers[mine].tolist()), strict=True):
            out[at] = value
    return out
