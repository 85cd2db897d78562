"""Select a modality by its name in ``dataset_modality``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.sample import Sample
from feedmill.samples.robotics.normalize import Normalizer
from feedmill.samples.robotics.statistics import merge_statistics, read_entries, read_statistics
from feedmill.samples.robotics.view import Robotics, RoboticsSettings
from feedmill.samples.vla.text import Captions, RawText, Tokenize, TokenizedText


class Modality(Protocol):
    """Interface of a modality: decodes samples and collates batches."""

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """Return the fields of one sample."""

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch as a dict of columns."""


ROBOTICS = "robotics"
MODALITIES = ("text", "text_untokenized", "image_caption", ROBOTICS)


def modality(
    name: str, config: Mapping[str, Any] | None = None, folders: Sequence[str] = (), *, tokenize: Tokenize | None = None
) -> Modality:
    """Return a modality with VLA Foundry's settings.

    Args:
        name: Name of the modality.
        config: The ``data`` settings of a run: ``seq_len``, ``image_size``, ``proprioception_fields``, ...
        folders: Folders of the manifests, for robotics settings that come from the data.
        tokenize: Tokenizer of untokenized text.

    Raises:
        ConfigError: The modality is unknown, or a setting is invalid.
    """
    given = config or {}
    if name == "text":
        return TokenizedText(given.get("seq_len"))
    if name == "text_untokenized":
        return RawText(tokenize, given.get("seq_len"))
    if name == "image_caption":
        return Captions(given.get("image_size"))
    if name != ROBOTICS:
        known = list(MODALITIES)
        raise ConfigError(
            f"unknown modality {name!r}{did_you_mean(name, known)}", fix=f"Use one of {', '.join(known)}."
        )
    settings = RoboticsSettings.of(given, folders)
    paths = given.get("dataset_statistics") or []
    if not settings.normalization.enabled:
        return Robotics(settings)
    if not paths:
        raise ConfigError(
            "normalization requires statistics",
            kind="bad-statistics",
            fix="Set dataset_statistics to a stats.json for each dataset ('feedmill compat vla stats' computes it),"
            " or set normalization.enabled to false.",
        )
    how = settings.normalization
    include = tuple(dict.fromkeys((*settings.proprioception_fields, *settings.action_fields)))
    if not include:
        raise ConfigError(
            "normalization is enabled, but there are no fields to normalize",
            kind="no-parts",
            fix="Set action_fields and proprioception_fields, or normalization.enabled to false.",
        )
    # As in VLA Foundry, an entry of field_configs applies only to the field of exactly this name.
    how = replace(how, include=include, fields={name: own for name, own in how.fields.items() if name in include})
    if len(paths) == 1:
        return Robotics(settings, Normalizer(read_entries(paths[0]), how))
    merged = merge_statistics([read_statistics(path) for path in paths])
    return Robotics(settings, Normalizer({field: one.as_dict() for field, one in merged.items()}, how))
