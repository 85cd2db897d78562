"""The settings of a VLA Foundry run: from YAML and from dotted options, and what each means here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError
from feedmill.formats.yamls import read_settings
from feedmill.planning.dialects.vla import as_list
from feedmill.samples.types import did_you_mean


class Meaning(NamedTuple):
    """One setting: its value, whether it is used here, and how."""

    name: str
    value: Any
    used: bool
    words: str


USED: Mapping[str, str] = {
    "data.type": "which modalities may be mixed",
    "data.dataset_manifest": "the datasets",
    "data.dataset_weighting": "their exact shares of the samples",
    "data.dataset_modality": "how each is decoded and collated",
    "data.val_dataset_manifest": "datasets for validation, one after another",
    "data.val_dataset_weighting": "one for each of them; validation reads every sample once",
    "data.allow_multiple_epochs": "whether samples may come again",
    "data.num_workers": "processes or threads that make batches",
    "data.prefetch_factor": "batches made ahead by each worker",
    "data.seq_len": "tokens of a sequence",
    "data.shuffle": "false reads in stored order",
    "data.seed": "seed of the order, where hparams.seed is not given",
    "data.tokenizer": "tokenizer of untokenized text",
    "data.image_size": "images are resized to it (bilinear); tensors stay as they are",
    "data.dataset_statistics": "statistics of robotics fields",
    "data.camera_names": "cameras",
    "data.image_indices": "steps of images",
    "data.image_names": "images by name",
    "data.proprioception_fields": "fields of the robot's state",
    "data.action_fields": "fields of actions",
    "data.intrinsics_fields": "passed through",
    "data.extrinsics_fields": "passed through",
    "data.language_instruction_types": "kinds of instructions that are drawn from",
    "data.pad_missing_images": "black images where one is missing",
    "data.normalization": "how robotics fields are normalised",
    "data.lowdim_past_timesteps": "steps before the anchor",
    "data.lowdim_future_timesteps": "steps behind the anchor",
    "hparams.seed": "seed of the order",
    "hparams.global_batch_size": "samples of a step over all ranks",
    "hparams.per_gpu_batch_size": "with it batches are accumulated; here a rank's batch is global / ranks",
    "total_train_samples": "the run's length",
    "num_epochs": "the run's length in samples of all datasets",
    "num_checkpoints": "windows that the run is divided into",
}
"""Settings that decide something here."""

UNNEEDED: Mapping[str, str] = {
    "data.shuffle_buffer_size": "not needed: every sample is permuted, without a buffer",
    "data.shuffle_initial": "not needed: every sample is permuted, without a buffer",
    "data.dataloader_in_order": "not needed: batches always come in order",
    "data.dataset_cache": "not needed: see docs/storage.md for the cache of remote files",
    "data.use_hf_fast_tokenizer": "not needed: tokenizers are always fast ones",
    "data.hf_fast_tokenizers_parallelism": "not needed: threads are the loader's",
    "data.hf_fast_tokenizer_rayon_threads": "not needed: threads are the loader's",
    "data.val_dataset_statistics": "not needed: validation is normalised as training is",
    "data.mask_padded_images": "not needed: image_mask says which images are real",
    "data.use_point_cloud": "left to the model's code",
    "data.point_cloud_num_points": "left to the model's code",
    "data.processor": "left to the model's code: batches have images and text",
    "data.processor_kwargs": "left to the model's code",
    "data.img_num_tokens": "left to the model's code",
    "data.max_text_seq_len": "left to the model's code",
    "data.augmentation": "left to the loader's transform",
    "data.tactile_fields": "read by nothing, as in VLA Foundry",
    "data.pose_groups": "left to the model's code",
    "data.action_dim": "known from the fields",
    "data.proprioception_dim": "known from the fields",
    "max_checkpoint_limit": "of the training program",
    "total_val_samples": "of the training program",
    "val_every_n_checkpoints": "of the training program",
}
"""Settings that are understood and decide nothing here."""

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
    """``--data.seq_len 512`` and ``--data.seq_len=512`` as a nested mapping; values are read as YAML.

    Raises:
        ConfigError: something is no such option, or its value no YAML.
    """
    out: dict[str, Any] = {}
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigError(
                f"{word!r} is no option", kind="bad-usage", fix="Name the file first, then --data.NAME VALUE."
            )
        if not equals:
            if not todo:
                raise ConfigError(f"the option {word} has no value", kind="bad-usage", fix="Write --data.NAME VALUE.")
            text = todo.pop(0)
        try:
            value = read_settings(text, f"--{name}")
        except ConfigError:
            raise ConfigError(f"the value of --{name} is no YAML: {text[:80]!r}", kind="bad-usage") from None
        _put(out, name.replace("-", "_").split("."), value, name)
    return out


def _put(out: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    for key in path[:-1]:
        inner = out.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--{name} is inside of {key!r}, which has a value of its own", kind="bad-usage")
        out = inner
    out[path[-1]] = value


def merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the settings of another put into it."""
    out = dict(config)
    for key, value in more.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose settings of data stand below ``data``, and lists are lists, however it was written."""
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
    """Return what each setting means here.

    Raises:
        ConfigError: one is not known.
    """
    out = []
    for name, value in _named(config):
        if name in USED or name in UNNEEDED:
            out.append(Meaning(name, value, name in USED, USED.get(name) or UNNEEDED[name]))
        elif name.split(".")[0] not in _OTHERS and (name.split(".")[0] in _SECTIONS[:1] or "." not in name):
            known = [*USED, *UNNEEDED]
            raise ConfigError(
                f"the setting {name!r} is not known{did_you_mean(name, known)}",
                file=file,
                kind="unknown-setting",
                fix="Take it out; docs/vla.md lists the settings that are understood.",
            )
        else:
            out.append(Meaning(name, value, False, "of the training program"))
    return out


def _named(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in config.items():
        if key in _SECTIONS and isinstance(value, Mapping):
            out += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            out.append((str(key), value))
    return out


def get(config: Mapping[str, Any], name: str) -> Any:
    """Return a setting by its dotted name, or its default."""
    section, _, key = name.rpartition(".")
    inner = config.get(section, {}) if section else config
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return DEFAULTS.get(name) if value is None else value
