"""The settings of VLA Foundry's training runs, and their nested form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.settings import Origin, Setting, Table, mapped, no_effect

_PARAMS = "vla_foundry/params"
_DATA = f"{_PARAMS}/data_params.py"
SECTIONS = ("data", "hparams")
"""Settings that are mappings of settings; the tables have their entries."""
_LISTS = (
    "dataset_manifest",
    "dataset_weighting",
    "dataset_modality",
    "val_dataset_manifest",
    "val_dataset_weighting",
    "dataset_statistics",
)
_PROGRAM = no_effect("left to the training program")
_MODEL = no_effect("left to the model's code")
_BUFFER = no_effect("not needed: all samples are permuted, without a buffer")
_THREADS = no_effect("not needed: the loader manages threads")


def _all(setting: Setting, names: str, prefix: str = "") -> dict[str, Setting]:
    return {prefix + name: setting for name in names.split()}


RECIPE: Mapping[str, Setting] = {
    "data.type": mapped("modalities that may be combined"),
    "data.dataset_manifest": mapped("manifests of the datasets"),
    "data.dataset_weighting": mapped("exact fraction of samples from each dataset"),
    "data.dataset_modality": mapped("modality of each dataset, for decoding and batching"),
    "data.val_dataset_manifest": mapped("validation datasets, read one after another"),
    "data.val_dataset_weighting": mapped("one per validation dataset; validation reads each sample once"),
    "data.allow_multiple_epochs": mapped("whether samples may be repeated"),
    "data.shuffle": mapped("false reads in stored order"),
    "data.seed": mapped("seed of the order, if hparams.seed is not set"),
    "hparams.seed": mapped("seed of the order"),
    "total_train_samples": mapped("length of the run in samples"),
    "num_epochs": mapped("length of the run as a multiple of the samples of all datasets"),
}
"""Settings that a recipe follows."""

RUN: Mapping[str, Setting] = {
    "data.num_workers": mapped("number of worker processes or threads"),
    "data.prefetch_factor": mapped("batches that each worker prefetches"),
    "data.seq_len": mapped("tokens per sequence"),
    "data.tokenizer": mapped("tokenizer of untokenized text"),
    "data.image_size": mapped("size that images are resized to (bilinear); tensors are unchanged"),
    "data.dataset_statistics": mapped("statistics of robotics fields"),
    "data.camera_names": mapped("cameras"),
    "data.image_indices": mapped("time steps of images"),
    "data.image_names": mapped("images by name"),
    "data.proprioception_fields": mapped("fields of the robot's state"),
    "data.action_fields": mapped("fields of actions"),
    "data.pose_groups": mapped("poses from which relative fields are computed"),
    **_all(mapped("passed through"), "intrinsics_fields extrinsics_fields", "data."),
    "data.language_instruction_types": mapped("types of instructions to choose from"),
    "data.pad_missing_images": mapped("replaces missing images with black ones"),
    "data.normalization": mapped("normalization of robotics fields"),
    "data.lowdim_past_timesteps": mapped("time steps before the anchor"),
    "data.lowdim_future_timesteps": mapped("time steps after the anchor"),
    "hparams.global_batch_size": mapped("samples per step over all ranks"),
    "num_checkpoints": mapped("number of checkpoint windows"),
}
"""Settings that `feedmill.compat.vla.VlaRun` follows beside those of its recipe."""

SETTINGS = Table(
    face="a run",
    origin=(
        Origin("fields", f"{_PARAMS}/base_data_params.py", "DataParams", "data."),
        *(
            Origin("fields", _DATA, f"{name}DataParams", "data.")
            for name in ("TextUntokenized", "ImageCaption", "Robotics")
        ),
        Origin("fields", f"{_PARAMS}/hyper_params.py", "HyperParams", "hparams."),
        Origin("fields", f"{_PARAMS}/train_experiment_params.py", "TrainExperimentParams", skip=SECTIONS),
    ),
    settings={
        **RECIPE,
        **RUN,
        **_all(_BUFFER, "shuffle_buffer_size shuffle_initial", "data."),
        "data.dataloader_in_order": no_effect("not needed: batches are always in order"),
        "data.dataset_cache": no_effect("not needed: see docs/storage.md for the cache of remote files"),
        "data.use_hf_fast_tokenizer": no_effect("not needed: tokenizers are always fast"),
        **_all(_THREADS, "hf_fast_tokenizers_parallelism hf_fast_tokenizer_rayon_threads", "data."),
        "data.val_dataset_statistics": no_effect("not needed: validation uses the normalization of training"),
        "data.mask_padded_images": no_effect("not needed: image_mask marks the images that are not padding"),
        "data.processor": no_effect("left to the model's code: batches have images and text"),
        **_all(
            _MODEL, "processor_kwargs use_point_cloud point_cloud_num_points img_num_tokens max_text_seq_len", "data."
        ),
        "data.augmentation": no_effect("left to the loader's transform"),
        "data.tactile_fields": no_effect("unused, as in VLA Foundry"),
        **_all(no_effect("determined by the fields"), "action_dim proprioception_dim", "data."),
        "hparams.per_gpu_batch_size": no_effect("gradient accumulation: the loader's batch is global / ranks"),
        **_all(
            _PROGRAM,
            "precision lr lr_scheduler warmup decay lr_cooldown_end force_min_lr optimizer wd beta1 beta2 eps"
            " loss_function z_loss_coefficient grad_clip_norm grad_checkpointing torchcompile world_size",
            "hparams.",
        ),
        **_all(_PROGRAM, "max_checkpoint_limit total_val_samples val_every_n_checkpoints"),
        **_all(
            _PROGRAM,
            "name resolve_configs resolve_configs_path save_path wandb db_logging wandb_entity wandb_project_name"
            " wandb_tags log_every_n_steps log_level remote_sync remote_sync_fixed_path distributed ema model",
        ),
    },
)
TABLES = (SETTINGS,)


def as_list(value: Any) -> Any:
    """Return comma-separated text or a single number as a list; other values unchanged."""
    if not isinstance(value, str):
        return [value] if isinstance(value, (int, float)) else value
    entries = [entry.strip() for entry in value.split(",")]
    try:
        return [float(entry) for entry in entries]
    except ValueError:
        return entries


def put(out: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    """Set a value at a path of keys. Raises `ConfigError` if it is below a value that is no mapping."""
    for key in path[:-1]:
        inner = out.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--{name} is below {key!r}, which has a value and not settings", kind="bad-option")
        out = inner
    out[path[-1]] = value


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in its nested form: data settings below ``data``, lists as lists, no dotted names."""
    out: dict[str, Any] = {}
    flat = "dataset_manifest" in config
    for key, value in config.items():
        if flat and f"data.{key}" in SETTINGS.settings:
            put(out, ["data", key], value, key)
        elif "." in str(key):
            put(out, str(key).split("."), value, str(key))
        else:
            out[key] = value
    data = out.get("data")
    if isinstance(data, Mapping):
        out["data"] = {key: as_list(value) if key in _LISTS else value for key, value in data.items()}
    return out


def named(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a nested configuration by its dotted name."""
    for key, value in config.items():
        if key in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield str(key), value
