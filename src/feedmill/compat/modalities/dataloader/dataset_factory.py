"""Modalities' `DatasetFactory`, at ``feedmill.compat.modalities.dataloader.dataset_factory``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedmill.compat.modalities.dataloader.dataset import (
    CombinedDataset,
    MemMapDataset,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)
from feedmill.formats.tokens.pbin import load_pairs
from feedmill.storage import open_store


class DatasetFactory:
    """Functions that make datasets from the fields of a configuration."""

    @staticmethod
    def get_mem_map_dataset(
        raw_data_path: Path,
        tokenizer: Any,
        sample_key: str,
        index_path: Path | None = None,
        jq_pattern: str = ".text",
    ) -> MemMapDataset:
        """Return the lines of a JSONL file; see `MemMapDataset`."""
        return MemMapDataset(raw_data_path, tokenizer, sample_key, index_path, jq_pattern)

    @staticmethod
    def get_raw_index(raw_index_path: Path) -> list[tuple[int, int]]:
        """Return the offset and the length of each line, read without unpickling."""
        path = Path(raw_index_path).absolute()
        starts, lengths = load_pairs(
            open_store(path.parent), path.name, 0, path.stat().st_size, fix="Write the index again."
        )
        return list(zip(starts.tolist(), lengths.tolist(), strict=True))

    @staticmethod
    def get_packed_mem_map_dataset_continuous(
        raw_data_path: Path, sequence_length: int, sample_key: str, reuse_last_target: bool
    ) -> PackedMemMapDatasetContinuous:
        """Return blocks of `sequence_length` inputs: with `reuse_last_target`, one token more."""
        block = sequence_length + 1 if reuse_last_target else sequence_length
        return PackedMemMapDatasetContinuous(raw_data_path, sample_key, block, reuse_last_target)

    @staticmethod
    def get_packed_mem_map_dataset_megatron(
        raw_data_path: Path, sequence_length: int, sample_key: str
    ) -> PackedMemMapDatasetMegatron:
        """Return blocks of ``sequence_length + 1`` tokens that begin with a document."""
        return PackedMemMapDatasetMegatron(raw_data_path, sample_key, sequence_length + 1)

    @staticmethod
    def get_combined_dataset(datasets: list[Any]) -> CombinedDataset:
        """Return the datasets, one after another."""
        return CombinedDataset(datasets)
