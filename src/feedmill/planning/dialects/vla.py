"""Translate VLA Foundry's mixtures, parallel lists of manifests, weights and modalities, to a recipe.

``data:`` of a configuration (or its content alone, or dotted keys ``data.dataset_manifest``) has one manifest, one
weight and one modality for each dataset. A dataset is the folder of its manifest. Validation uses the
``val_dataset_...`` lists, one dataset after another.

VLA Foundry selects whole shards, so its mixtures only approximate the requested weights; here they are exact. Its own
selection can be reproduced: see docs/order.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.vla.manifest import read_rows
from feedmill.formats.yamls import Marks
from feedmill.planning.dialects import VALIDATION, Place, Translation
from feedmill.planning.dialects.vla_settings import RECIPE, SETTINGS, as_list, named, nested
from feedmill.storage import join_url, open_store, split_url

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
