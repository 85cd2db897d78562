"""Translate VLA Foundry's mixtures, parallel lists of manifests, weights and modalities, to a recipe.

``data:`` of a configuration (or its content alone, or dotted keys ``data.dataset_manifest``) has one manifest, one
weight and one modality for each dataset. A dataset is the folder of its manifest. Validation uses the
``val_dataset_...`` lists, one dataset after another.

VLA Foundry selects whole shards, so its mixtures only approximate the requested weights; here they are exact. Its own
selection can be reproduced: see docs/order.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.settings import Origin, Setting, Table, alike, mapped, no_effect
from feedmill.formats.vla.manifest import read_rows
from feedmill.formats.yamls import Marks
from feedmill.planning.dialects import VALIDATION, Place, Translation
from feedmill.storage import join_url, open_store, split_url

_PARAMS = "vla_foundry/params"
_DATA = f"{_PARAMS}/data_params.py"
SECTIONS = ("data", "hparams")
"""Settings that are mappings of settings; the tables have their entries."""
_LIST_KEYS = (
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
    **alike(mapped("passed through"), "intrinsics_fields extrinsics_fields", "data."),
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
        **alike(_BUFFER, "shuffle_buffer_size shuffle_initial", "data."),
        "data.dataloader_in_order": no_effect("not needed: batches are always in order"),
        "data.dataset_cache": no_effect("not needed: see docs/storage.md for the cache of remote files"),
        "data.use_hf_fast_tokenizer": no_effect("not needed: tokenizers are always fast"),
        **alike(_THREADS, "hf_fast_tokenizers_parallelism hf_fast_tokenizer_rayon_threads", "data."),
        "data.val_dataset_statistics": no_effect("not needed: validation uses the normalization of training"),
        "data.mask_padded_images": no_effect("not needed: image_mask marks the images that are not padding"),
        "data.processor": no_effect("left to the model's code: batches have images and text"),
        **alike(
            _MODEL, "processor_kwargs use_point_cloud point_cloud_num_points img_num_tokens max_text_seq_len", "data."
        ),
        "data.augmentation": no_effect("left to the loader's transform"),
        "data.tactile_fields": no_effect("unused, as in VLA Foundry"),
        **alike(no_effect("determined by the fields"), "action_dim proprioception_dim", "data."),
        "hparams.per_gpu_batch_size": no_effect("gradient accumulation: the loader's batch is global / ranks"),
        **alike(
            _PROGRAM,
            "precision lr lr_scheduler warmup decay lr_cooldown_end force_min_lr optimizer wd beta1 beta2 eps"
            " loss_function z_loss_coefficient grad_clip_norm grad_checkpointing torchcompile world_size",
            "hparams.",
        ),
        **alike(_PROGRAM, "max_checkpoint_limit total_val_samples val_every_n_checkpoints"),
        **alike(
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
        out["data"] = {key: as_list(value) if key in _LIST_KEYS else value for key, value in data.items()}
    return out


def named(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a nested configuration by its dotted name."""
    for key, value in config.items():
        if key in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield str(key), value


MODALITIES: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "text_untokenized": ("text", "text_untokenized"),
    "image_caption": ("image_caption",),
    "robotics": ("robotics",),
    "mixed": ("text", "text_untokenized", "image_caption", "robotics"),
}
"""Type of a run -> supported modalities of its datasets. VLA Foundry has no ``mixed``."""

_LISTS = ("dataset_manifest", "dataset_weighting", "dataset_modality")
_DEFAULT_SEED = 42


def translate(data: Any, marks: Marks | None, file: str, *, mode: str, base: str = "") -> Translation:
    """Return the recipe of a configuration.

    Args:
        data: the settings, nested or with dotted names, or those of ``data`` alone.
        marks, file: where they come from, for errors.
        mode: whether the lists of validation data are read.
        base: folder or URL of the manifests.

    Raises:
        ConfigError: a setting is unknown, the lists differ in length or are empty, or a type or modality is unknown or
            does not match.
    """
    return _Lists(data, marks, file, "val_" if mode == VALIDATION else "", base).translate()


def epochs_of(config: Mapping[str, Any], file: str | None = None) -> int | None:
    """Return the number of epochs of a run in nested form; None if another setting or the data limits it.

    Raises:
        ConfigError: the number is invalid, or does not fit the other settings.
    """
    given = dict(named(config))
    epochs = given.get("num_epochs")
    if epochs is None:
        return None
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(
            f"num_epochs must be a whole number of at least 1, found {epochs!r}",
            file=file,
            kind="bad-option",
            fix="Set num_epochs.",
        )
    if given.get("total_train_samples") is not None:
        raise ConfigError(
            "num_epochs and total_train_samples are both set", file=file, kind="bad-option", fix="Set only one of them."
        )
    if not given.get("data.allow_multiple_epochs"):
        raise ConfigError(
            "num_epochs requires allow_multiple_epochs: datasets with different weights end at different times",
            file=file,
            kind="bad-option",
            fix="Set data.allow_multiple_epochs to true, or set total_train_samples.",
        )
    return epochs


def samples_per_dataset(manifests: list[Any], base: str) -> list[int]:
    """Return the number of samples of each dataset: the sum of ``num_sequences`` in its manifest."""
    counts = []
    for manifest in manifests:
        folder, name = split_url(join_url(base, str(manifest)))
        counts.append(sum(row.samples for row in read_rows(open_store(folder), name)))
    return counts


class _Lists:
    def __init__(self, data: Any, marks: Marks | None, file: str, prefix: str, base: str) -> None:
        self.marks, self.file, self.prefix, self.base = marks, file, prefix, base
        self.top: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        self.dotted = any(str(key).startswith("data.") for key in self.top)
        nested = self.top.get("data")
        self.inside: Place = ("data",) if isinstance(nested, Mapping) else ()
        self.given: Mapping[str, Any] = nested if isinstance(nested, Mapping) else self.top

    def translate(self) -> Translation:
        config = nested(self.top)
        taken = SETTINGS.take(dict(named(config)), self.origin)
        manifests, weights = (
            self.listed(f"{self.prefix}dataset_manifest"),
            self.listed(f"{self.prefix}dataset_weighting"),
        )
        modalities = self.listed("dataset_modality")
        self.check_lengths(manifests, weights, modalities)
        self.check_modalities(modalities)
        result = Translation(self.file)
        validation = bool(self.prefix)
        kind = "concat" if validation else "blend"
        members = []
        for number, (manifest, weight, modality) in enumerate(zip(manifests, weights, modalities, strict=False)):
            member = {**self.source(manifest, number), "subflavors": {"modality": modality}}
            if not validation:
                member["weight"] = weight
                if not self.flag("allow_multiple_epochs", False):
                    member["max_repeats"] = 1
            for key, name in (("path", "manifest"), ("weight", "weighting")):
                result.origins[(kind, number, key)] = self.at(f"{self.prefix}dataset_{name}", number)
            result.origins[(kind, number)] = result.origins[(kind, number, "path")]
            members.append(member)
        result.origins[(kind,)] = self.at(f"{self.prefix}dataset_weighting")
        result.data = {kind: members, "seed": self.seed()}
        if validation:
            result.data |= {"shuffle": "none", "epochs": 1}
        elif not self.flag("shuffle", True):
            result.data["shuffle"] = "none"
        epochs, samples = epochs_of(config, self.origin("num_epochs")), self.top.get("total_train_samples")
        if epochs is not None and not validation:
            samples = epochs * sum(samples_per_dataset(manifests, self.base))
        if samples is not None and not validation:
            result.data["samples"] = samples
        only = [name for name in taken.used if name not in RECIPE]
        result.notes = taken.notes + ([f"not in the recipe, for VlaRun alone: {', '.join(only)}"] if only else [])
        return result

    def check_lengths(self, *lists: list[Any]) -> None:
        names = [f"{self.prefix}{name}" for name in _LISTS[:2]]
        manifests, weights, modalities = lists
        if not manifests:
            raise ConfigError(
                f"'{names[0]}' is empty", file=self.at(names[0]), kind="empty-source", fix="Name at least one manifest."
            )
        wanted = {names[0]: len(manifests), names[1]: len(weights), "dataset_modality": len(modalities)}
        if self.prefix and len(modalities) >= len(manifests):
            del wanted[
                "dataset_modality"
            ]  # the modalities of the training data are used, and there may be more of them
        if len(set(wanted.values())) > 1:
            listed = ", ".join(f"{name}: {count}" for name, count in wanted.items())
            odd = next(name for name, count in wanted.items() if count != len(manifests))
            raise ConfigError(
                f"the lists must have the same length ({listed})",
                file=self.at(odd),
                kind="bad-recipe",
                fix="Give one weight and one modality for each manifest.",
            )

    def check_modalities(self, modalities: list[Any]) -> None:
        kind = self.get("type")
        if not isinstance(kind, str) or kind not in MODALITIES:
            raise ConfigError(
                f"unknown type {kind!r}{did_you_mean(str(kind), list(MODALITIES))}",
                file=self.at("type"),
                fix=f"Known are {', '.join(MODALITIES)}.",
            )
        for number, modality in enumerate(modalities):
            if modality not in MODALITIES[kind]:
                raise ConfigError(
                    f"the modality {modality!r} cannot be used in a run of type {kind!r}",
                    file=self.at("dataset_modality", number),
                    kind="bad-recipe",
                    fix=f"It takes {' and '.join(MODALITIES[kind])}. A run of type 'mixed' takes all modalities.",
                )

    def source(self, manifest: Any, number: int) -> dict[str, Any]:
        """Return the folder of a manifest, with the manifest's name if it is not the usual one."""
        at = self.at(f"{self.prefix}dataset_manifest", number)
        if not isinstance(manifest, str) or not manifest:
            raise ConfigError(f"a manifest must be a path or URL, found {manifest!r:.60}", file=at, kind="bad-recipe")
        if "::" in manifest or manifest.startswith("pipe:"):
            raise ConfigError(
                f"{manifest[:60]!r} would run a command, which is not supported", file=at, fix="Give a path or URL."
            )
        folder, slash, name = manifest.rpartition("/")
        if not name:
            raise ConfigError(
                f"{manifest!r} is a folder", file=at, kind="bad-recipe", fix="Pass the path of the manifest in it."
            )
        found = {"path": (folder or slash) if slash else "."}
        return found if name == "manifest.jsonl" else {**found, "dataset_config": name}

    def seed(self) -> Any:
        own = self.top.get("hparams")
        nested = own.get("seed") if isinstance(own, Mapping) else self.top.get("hparams.seed")
        return self.get("seed", _DEFAULT_SEED) if nested is None else nested

    def get(self, name: str, default: Any = None) -> Any:
        value = self.given.get(f"data.{name}" if self.dotted else name)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if value not in (True, False):
            raise ConfigError(
                f"{name!r} must be true or false, found {value!r:.60}", file=self.at(name), kind="bad-recipe"
            )
        return bool(value)

    def listed(self, name: str) -> list[Any]:
        value = as_list(self.get(name, []))
        if not isinstance(value, list):
            raise ConfigError(
                f"{name!r} must be a list, found {value!r:.60}",
                file=self.at(name),
                kind="bad-recipe",
                fix="Write a list.",
            )
        return value

    def origin(self, name: str) -> str:
        """Return where a setting with its whole name is."""
        section, _, key = name.rpartition(".")
        if section == "data":
            return self.at(key)
        place: Place = (name,) if name in self.top or not section else (section, key)
        return self.file if self.marks is None else self.marks.where(place)

    def at(self, name: str, number: int | None = None) -> str:
        key = f"data.{name}" if self.dotted else name
        place: Place = (*self.inside, key) if number is None else (*self.inside, key, number)
        return self.file if self.marks is None else self.marks.where(place)
