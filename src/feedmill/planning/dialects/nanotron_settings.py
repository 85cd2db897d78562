"""The settings of Nanotron's configurations that concern data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedmill.formats.settings import Origin, Setting, Table, mapped, no_effect, refused

_CONFIG = "nanotron/config/config.py"
_HUB = refused("texts of Hugging Face datasets: tokenize them with `feedmill compat nanotron preprocess_data hf`")
_TRAINING = no_effect("about training")
_SAME = no_effect("the samples and their order are the same")
_TOKENIZER = no_effect("token files are tokenized already")


def _all(setting: Setting, names: str) -> dict[str, Setting]:
    return dict.fromkeys(names.split(), setting)


CONFIG = Table(
    face="a configuration",
    origin=(Origin("fields", _CONFIG, "Config", skip=("tokens", "parallelism", "data_stages")),),
    settings=_all(
        _TRAINING,
        "general model tokenizer checkpoints logging metrics_logging optimizer profiler lighteval s3_upload",
    ),
    open=True,
)
STAGE = Table(
    face="`data_stages`",
    origin=(Origin("fields", _CONFIG, "DatasetStageArgs", skip=("data",)),),
    settings={
        "name": mapped("name of the stage"),
        "start_training_step": mapped("first step of the stage"),
        "sequence_length": mapped("tokens of a sample, without the last target; the same in all stages"),
    },
)
DATA = Table(
    face="`data_stages: data`",
    origin=(Origin("fields", _CONFIG, "DataArgs", skip=("dataset",)),),
    settings={
        "seed": mapped("seed of the order; 42 without it"),
        "num_loading_workers": no_effect("the loader has its own `workers`"),
    },
)
DATASET = Table(
    face="`data_stages: data: dataset`",
    origin=(
        Origin("fields", _CONFIG, "NanosetDatasetsArgs"),
        Origin("fields", _CONFIG, "PretrainDatasetsArgs"),
        Origin("fields", _CONFIG, "SFTDatasetsArgs"),
    ),
    settings={
        "dataset_folder": mapped("the folders, or folders with weights"),
        "dataset_weights": mapped("weights of the folders"),
        "dataset_read_path": mapped("copies that are read instead of the folders"),
        "token_size_in_bytes": mapped("bytes per token; an error if a file has another size"),
        "return_positions": mapped(
            "samples have `positions`, from the index of documents; true without it, as in Nanotron, which finds"
            " documents by the end-of-text token instead"
        ),
        "shuffle_files": mapped("files of a folder are permuted with the seed"),
        **_all(_TOKENIZER, "tokenizer_name vocab_size"),
        "skip_in_stream": no_effect("a loader starts at any sample at once"),
        "pad_samples_to_global_batch_size": refused("samples are not repeated to fill a batch"),
        "dataset_max_tokens": refused("folders are not cut: write `subset` in a recipe"),
        "use_old_brrr_dataloader": refused("the order of this older loader is not reproduced"),
        **_all(
            _HUB,
            "hf_dataset_or_datasets hf_dataset_splits hf_dataset_config_name dataset_processing_num_proc_per_process"
            " dataset_overwrite_cache text_column_name sft_dataloader debug_max_samples",
        ),
    },
)
TOKENS = Table(
    face="`tokens`",
    origin=(Origin("fields", _CONFIG, "TokensArgs"),),
    settings={
        "sequence_length": mapped("tokens of a sample, without the last target"),
        "train_steps": mapped("last step of the last stage"),
        **_all(mapped("factor of the global batch"), "micro_batch_size batch_accumulation_per_replica"),
        **_all(_TRAINING, "val_check_interval limit_val_batches limit_test_batches"),
    },
)
PARALLELISM = Table(
    face="`parallelism`",
    origin=(Origin("fields", "nanotron/config/parallelism_config.py", "ParallelismArgs"),),
    settings={
        "dp": mapped("factor of the global batch"),
        **_all(
            _SAME,
            "pp tp pp_engine tp_mode tp_linear_async_communication recompute_layer tp_recompute_allgather"
            " expert_parallel_size context_parallel_size",
        ),
    },
)
TABLES = (CONFIG, STAGE, DATA, DATASET, TOKENS, PARALLELISM)


def without_empty(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dataset with None for a list in which nothing is set, such as ``[0, 0]``."""
    return {
        name: None if isinstance(value, list) and not any(value) and name != "dataset_weights" else value
        for name, value in dataset.items()
    }
