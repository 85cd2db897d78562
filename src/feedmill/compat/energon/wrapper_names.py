"""Names of Energon's modules of wrappers, for `feedmill.compat.energon.modules`."""

from __future__ import annotations

_WRAPPERS = {
    "base": "BaseWrapperDataset",
    "batch_dataset": "BatchDataset",
    "blend_dataset": "BlendDataset",
    "concat_dataset": "ConcatDataset",
    "epochize_dataset": "EpochizeDataset",
    "filter_dataset": "FilterDataset",
    "gc_dataset": "GcDataset",
    "group_batch_dataset": "GroupBatchDataset",
    "iter_map_dataset": "IterMapDataset",
    "limit_dataset": "LimitDataset",
    "log_sample_dataset": "LogSampleDataset",
    "map_dataset": "MapDataset",
    "mix_batch_dataset": "MixBatchDataset concat_pad generic_concat homogeneous_concat_mix",
    "packing_dataset": "PackingDataset",
    "repeat_dataset": "RepeatDataset",
    "shuffle_buffer_dataset": "ShuffleBufferDataset",
    "skip": "SkipSample",
    "watchdog_dataset": "WatchdogDataset",
}

WRAPPERS = {"wrappers": " ".join(_WRAPPERS.values())} | {f"wrappers.{name}": names for name, names in _WRAPPERS.items()}
"""Module -> its names. The package precedes its modules."""
