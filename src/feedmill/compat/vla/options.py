"""Parse the settings of a VLA Foundry run from YAML and dotted options, and describe their effect in Feedmill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.yamls import read_settings
from feedmill.planning.dialects.vla import as_list
from feedmill.samples.robotics.relative import PoseGroup, pose_groups
from feedmill.storage import open_store, split_url


class Meaning(NamedTuple):
    """A setting: its name and value, whether Feedmill uses it, and a description of its effect."""

    name: str
    value: Any
    used: bool
    words: str


USED: Mapping[str, str] = {
    "data.type": "modalities that may be combined",
    "data.dataset_manifest": "manifests of the datasets",
    "data.dataset_weighting": "exact fraction of samples from each dataset",
    "data.dataset_modality": "modality of each dataset, for decoding and batching",
    "data.val_dataset_manifest": "validation datasets, read one after another",
    "data.val_dataset_weighting": "one per validation dataset; validation reads each sample once",
    "data.allow_multiple_epochs": "whether samples may be repeated",
    "data.num_workers": "number of worker processes or threads",
    "data.prefetch_factor": "batches that each worker prefetches",
    "data.seq_len": "tokens per sequence",
    "data.shuffle": "false reads in stored order",
    "data.seed": "seed of the order, if hparams.seed is not set",
    "data.tokenizer": "tokenizer of untokenized text",
    "data.image_size": "size that images are resized to (bilinear); tensors are unchanged",
    "data.dataset_statistics": "statistics of robotics fields",
    "data.camera_names": "cameras",
    "data.image_indices": "time steps of images",
    "data.image_names": "images by name",
    "data.proprioception_fields": "fields of the robot's state",
    "data.action_fields": "fields of actions",
    "data.pose_groups": "poses from which relative fields are computed",
    "data.intrinsics_fields": "passed through",
    "data.extrinsics_fields": "passed through",
    "data.language_instruction_types": "types of instructions to choose from",
    "data.pad_missing_images": "replaces missing images with black ones",
    "data.normalization": "normalization of robotics fields",
    "data.lowdim_past_timesteps": "time steps before the anchor",
    "data.lowdim_future_timesteps": "time steps after the anchor",
    "hparams.seed": "seed of the order",
    "hparams.global_batch_size": "samples per step over all ranks",
    "hparams.per_gpu_batch_size": "batch size of gradient accumulation; the loader's batch is global / ranks",
    "total_train_samples": "length of the run in samples",
    "num_epochs": "length of the run as a multiple of the samples of all datasets",
    "num_checkpoints": "number of checkpoint windows",
}
"""Settings that have an effect in Feedmill."""

UNNEEDED: Mapping[str, str] = {
    "data.shuffle_buffer_size": "not needed: all samples are permuted, without a buffer",
    "data.shuffle_initial": "not needed: all samples are permuted, without a buffer",
    "data.dataloader_in_order": "not needed: batches are always in order",
    "data.dataset_cache": "not needed: see docs/storage.md for the cache of remote files",
    "data.use_hf_fast_tokenizer": "not needed: tokenizers are always fast",
    "data.hf_fast_tokenizers_parallelism": "not needed: the loader manages threads",
    "data.hf_fast_tokenizer_rayon_threads": "not needed: the loader manages threads",
    "data.val_dataset_statistics": "not needed: validation uses the normalization of training",
    "data.mask_padded_images": "not needed: image_mask marks the images that are not padding",
    "data.use_point_cloud": "left to the model's code",
    "data.point_cloud_num_points": "left to the model's code",
    "data.processor": "left to the model's code: batches have images and text",
    "data.processor_kwargs": "left to the model's code",
    "data.img_num_tokens": "left to the model's code",
    "data.max_text_seq_len": "left to the model's code",
    "data.augmentation": "left to the loader's transform",
    "data.tactile_fields": "unused, as in VLA Foundry",
    "data.action_dim": "determined by the fields",
    "data.proprioception_dim": "determined by the fields",
    "max_checkpoint_limit": "left to the training program",
    "total_val_samples": "left to the training program",
    "val_every_n_checkpoints": "left to the training program",
}
"""Known settings that have no effect in Feedmill."""

DEFAULTS: Mapping[str, Any] = {
    "num_checkpoints": 5,
    "hparams.global_batch_size": 512,
    "data.prefetch_factor": 4,
    "data.seq_len": 2048,
}
_SECTIONS = ("data", "hparams")
_LISTS = (
    "dataset_manifest",
    "dataset_weighting",
    "dataset_modality",
    "val_dataset_manifest",
    "val_dataset_weighting",
    "dataset_statistics",
)
_OTHERS = ("model", "optimizer", "ema", "distributed", "logging", "name", "output_dir", "resume", "checkpoint", "val")


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return options such as ``--data.seq_len 512`` or ``--data.seq_len=512`` as a nested mapping.

    Values are parsed as YAML.

    Raises:
        ConfigError: an argument is not such an option, or its value is not valid YAML.
    """
    out: dict[str, Any] = {}
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigError(
                f"{word!r} is not an option", kind="bad-usage", fix="Pass the file first, then --data.NAME VALUE."
            )
        if not equals:
            if not todo:
                raise ConfigError(f"the option {word} has no value", kind="bad-usage", fix="Write --data.NAME VALUE.")
            text = todo.pop(0)
        try:
            value = read_settings(text, f"--{name}")
        except ConfigError:
            raise ConfigError(f"the value of --{name} is not valid YAML: {text[:80]!r}", kind="bad-usage") from None
        _put(out, name.replace("-", "_").split("."), value, name)
    return out


def _put(out: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    for key in path[:-1]:
        inner = out.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--{name} is below {key!r}, which has a value and not settings", kind="bad-usage")
        out = inner
    out[path[-1]] = value


def merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the settings of another merged into it; those of `more` override it."""
    out = dict(config)
    for key, value in more.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in its nested form: data settings below ``data``, lists as lists, no dotted names."""
    out: dict[str, Any] = {}
    flat = "dataset_manifest" in config
    for key, value in config.items():
        if flat and f"data.{key}" in {**USED, **UNNEEDED}:
            _put(out, ["data", key], value, key)
        elif "." in str(key):
            _put(out, str(key).split("."), value, str(key))
        else:
            out[key] = value
    data = out.get("data")
    if isinstance(data, Mapping):
        out["data"] = {key: as_list(value) if key in _LISTS else value for key, value in data.items()}
    return out


def understood(config: Mapping[str, Any], file: str | None = None) -> list[Meaning]:
    """Return the meaning of each setting.

    Raises:
        ConfigError: a setting is unknown.
    """
    out = []
    for name, value in _named(config):
        if name in USED or name in UNNEEDED:
            out.append(Meaning(name, value, name in USED, USED.get(name) or UNNEEDED[name]))
        elif name.split(".")[0] not in _OTHERS and (name.split(".")[0] in _SECTIONS[:1] or "." not in name):
            known = [*USED, *UNNEEDED]
            raise ConfigError(
                f"unknown setting {name!r}{did_you_mean(name, known)}",
                file=file,
                kind="unknown-setting",
                fix="Remove it. docs/vla.md lists the known settings.",
            )
        else:
            out.append(Meaning(name, value, False, "left to the training program"))
    return out


def _named(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in config.items():
        if key in _SECTIONS and isinstance(value, Mapping):
            out += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            out.append((str(key), value))
    return out


def read_pose_groups(url: str) -> tuple[PoseGroup, ...]:
    """Return the ``pose_groups`` of a YAML file: a run's, or VLA Foundry's file of action fields.

    Raises:
        NotFound: the file does not exist.
        ConfigError: the file has no valid ``pose_groups``.
    """
    folder, name = split_url(url)
    found = read_settings(open_store(folder).read(name), url)
    config = nested(found) if isinstance(found, Mapping) else {}
    groups = config.get("pose_groups") or get(config, "data.pose_groups")
    if not groups:
        raise ConfigError("the file has no pose_groups", file=url, fix="Name the YAML file that lists them.")
    try:
        return pose_groups(groups)
    except ConfigError as error:
        error.file = url
        raise


def get(config: Mapping[str, Any], name: str) -> Any:
    """Return a setting by its dotted name, or its default."""
    section, _, key = name.rpartition(".")
    inner = config.get(section, {}) if section else config
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return DEFAULTS.get(name) if value is None else value
