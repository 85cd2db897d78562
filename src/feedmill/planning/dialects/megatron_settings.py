"""The settings of Megatron-LM's runs that concern data, and those of megatron-core's `GPTDatasetConfig`."""

from __future__ import annotations

from collections.abc import Iterable

from feedmill.formats.settings import Origin, Setting, Table, mapped, no_effect, refused

FIELDS = "gpt_fields"
_ARGUMENTS = "megatron/training/arguments.py"
_TRAINING = "megatron/training/config/training_config.py"
_DATA = mapped("`source`, or `blend` with or without weights")
_CYCLIC = "its sampler draws other samples in each pass, by the number of ranks and the micro batch"
_VALIDATION = mapped("`samples` of the part `valid`")
_OTHER_MODELS = no_effect("for other datasets than that of GPT")
_BATCH = mapped(f"`{FIELDS}`, by `gpt_settings`")
_SAME = no_effect("the samples and their order are the same")
_CACHE = no_effect("how indices and files are opened; Feedmill reads both without it")


def _all(setting: Setting, names: str) -> dict[str, Setting]:
    return dict.fromkeys(names.split(), setting)


ARGUMENTS = Table(
    face="arguments of a run",
    origin=(
        Origin("options", _ARGUMENTS, "_add_data_args"),
        Origin("arguments", _TRAINING, "ValidationConfig"),
        Origin("options", _ARGUMENTS, "_add_sft_args"),
        Origin("arguments", _TRAINING, "TrainingConfig", whole=False),
        Origin("arguments", "megatron/training/config/common_config.py", "RNGConfig", whole=False),
        Origin("arguments", "megatron/core/model_parallel_config.py", "ModelParallelConfig", whole=False),
        Origin("options", _ARGUMENTS, whole=False),
        Origin("fields", "megatron/core/datasets/gpt_dataset.py", "GPTDatasetConfig", whole=False),
    ),
    settings={
        **_all(
            _DATA, "data_path data_args_path train_data_path valid_data_path test_data_path per_split_data_args_path"
        ),
        "split": mapped("`order: split`; 969,30,1 without it"),
        **_all(mapped("`order: seq_len`"), "seq_length encoder_seq_length"),
        "seed": mapped("`seed`; 1234 without it"),
        "train_samples": mapped("`samples`"),
        **_all(mapped("`samples`: iterations times the batch"), "train_iters global_batch_size"),
        **_all(
            _VALIDATION, "eval_interval eval_iters eval_global_batch_size start_eval_at_iter skip_train full_validation"
        ),
        "data_cache_path": mapped("`order: cache`"),
        "mid_level_dataset_surplus": mapped("`order: surplus`"),
        "add_extra_token_to_sequence": mapped("`order: extra_token`; only in `GPTDatasetConfig`"),
        "drop_last_partial_validation_sequence": mapped("`order: drop_last_partial`; only in `GPTDatasetConfig`"),
        "dataloader_inter_document_masking": mapped(
            "`order: positions` and `boundaries`: samples have positions that begin at 0 in each document, and the"
            " bounds of documents; make `cu_seqlens` of these"
        ),
        **_all(_BATCH, "reset_position_ids reset_attention_mask eod_mask_loss no_create_attention_mask_in_dataloader"),
        "allow_ambiguous_pad_tokens": no_effect(
            f"on the samples. `{FIELDS}` masks the id that you pass as `pad`: with this argument, pass the tokenizer's"
            " padding id; without it, only if no other special token has this id"
        ),
        "dataloader_type": refused(f"`single` is reproduced. `cyclic`: {_CYCLIC}. `external`: your own code", "single"),
        "no_data_sharding": no_effect("only with `--dataloader-type cyclic`"),
        "hybrid_context_parallel": refused("samples are dealt to ranks by their length"),
        "fim_data": refused("samples are rearranged to fill in the middle, at random"),
        **_all(
            no_effect("only with `--fim-data`"),
            "fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix fim_prefix_token fim_middle_token"
            " fim_suffix_token fim_pad_token fim_eod_token",
        ),
        "sft": refused("its dataset reads conversations and packs them: use `feedmill tokenize --chat` and `pack`"),
        "sft_tokenizer_prompt_format": no_effect("only with `--sft`"),
        "mock_data": refused("there is no data to read"),
        "phase_transition_iterations": refused("the order of several phases is not reproduced", "", []),
        "rampup_batch_size": refused("the global batch changes during the run: give `train_samples` instead", []),
        "step_batch_size_schedule": refused(
            "the global batch changes during the run: give `train_samples` instead", ""
        ),
        "multiple_validation_sets": refused("several validation sets are several datasets: write a recipe for each"),
        "validation_set_names": no_effect("only with `--multiple-validation-sets`"),
        **_all(
            _SAME, "micro_batch_size eval_micro_batch_size decrease_batch_size_if_needed iterations_to_skip test_mode"
        ),
        **_all(_SAME, "num_workers num_dataset_builder_threads sample_rate"),
        **_all(
            _CACHE,
            "per_dataset_sequences_path dataloader_fast_cache_load dataloader_defer_npy_index_mmap no_mmap_bin_files"
            " object_storage_cache_path",
        ),
        **_all(_OTHER_MODELS, "decoder_seq_length mask_prob short_seq_prob"),
    },
    open=True,
    likeness=0.9,
)

CONFIG = Table(
    face="`GPTDatasetConfig`, in the keys of a recipe",
    origin=(
        Origin("fields", "megatron/core/datasets/blended_megatron_dataset_config.py", "BlendedMegatronDatasetConfig"),
        Origin("fields", "megatron/core/datasets/gpt_dataset.py", "GPTDatasetConfig"),
    ),
    settings={
        "random_seed": mapped("`seed`"),
        "sequence_length": mapped("`order: seq_len`"),
        **_all(_DATA, "blend blend_per_split"),
        "split": mapped("`order: split`"),
        "split_matrix": no_effect("made of `split`"),
        "full_validation": mapped("no `samples`: one epoch of each dataset"),
        "path_to_cache": mapped("`order: cache`"),
        "mid_level_dataset_surplus": mapped("`order: surplus`"),
        "add_extra_token_to_sequence": mapped("`order: extra_token`"),
        "drop_last_partial_validation_sequence": mapped("`order: drop_last_partial`"),
        "inter_document_masking": mapped("`order: positions` and `boundaries`"),
        **_all(mapped(f"`{FIELDS}`"), "reset_position_ids reset_attention_mask eod_mask_loss create_attention_mask"),
        "allow_ambiguous_pad_tokens": no_effect(f"on the samples: `{FIELDS}` masks the id that you pass as `pad`"),
        "multiple_validation_sets": refused("several validation sets are several datasets: write a recipe for each"),
        "hybrid_context_parallel": refused("samples are dealt to ranks by their length"),
        **_all(
            refused("there is no data to read"), "mock sft_mock_dataset_config_json varlen_mock_dataset_config_json"
        ),
        "varlen_sbhd_validation": refused("samples of varying length are made by its own dataset"),
        "tokenizer": no_effect("token files are tokenized already"),
        **_all(
            _CACHE,
            "num_dataset_builder_threads mmap_bin_files fast_cache_load defer_npy_index_mmap object_storage_cache_path"
            " sequences_per_dataset token_dtype_code",
        ),
        **_all(_SAME, "data_parallel_size sequence_parallel_size context_parallel_size"),
    },
)

TABLES = (ARGUMENTS, CONFIG)


def batch_settings(names: Iterable[str]) -> list[str]:
    """Return the arguments that are those of `feedmill.compat.megatron.fields.gpt_fields`."""
    return [name for name in names if ARGUMENTS.settings.get(name) == _BATCH]
