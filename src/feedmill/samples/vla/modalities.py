"""The modalities by their names in ``dataset_modality``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.base import Sample
from feedmill.samples.robotics.normalize import Normalizer
from feedmill.samples.robotics.settings import RoboticsSettings
from feedmill.samples.robotics.statistics import merge_statistics, read_entries, read_statistics
from feedmill.samples.robotics.view import Robotics
from feedmill.samples.types import did_you_mean
from feedmill.samples.vla.captions import Captions
from feedmill.samples.vla.text import RawText, Tokenize, TokenizedText


class Modality(Protocol):
    """How samples are decoded, and how batches are made of them."""

    def cook(self, sample: Sample, rng: np.random.Generator | None = None) -> dict[str, Any]:
        """The fields of one sample."""

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A dict of columns."""


ROBOTICS = "robotics"
MODALITIES = ("text", "text_untokenized", "image_caption", ROBOTICS)


def modality(
    name: str, config: Mapping[str, Any] | None = None, folders: Sequence[str] = (), *, tokenize: Tokenize | None = None
) -> Modality:
    """Return a modality with VLA Foundry's settings.

    Args:
        config: the ``data`` settings of a run: ``seq_len``, ``image_size``, ``proprioception_fields``, ...
        folders: of the manifests, for what robotics settings leave to the data.
        tokenize: for untokenized text.

    Raises:
        ConfigError: there is no such modality, or a setting is wrong.
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
            f"the modality {name!r} is not known{did_you_mean(name, known)}", fix=f"Known: {', '.join(known)}."
        )
    settings = RoboticsSettings.of(given, folders)
    paths = given.get("dataset_statistics") or []
    if not settings.normalization.enabled:
        return Robotics(settings)
    if not paths:
        raise ConfigError(
            "normalisation needs statistics",
            kind="no-statistics",
            fix="Name a stats.json for each dataset in dataset_statistics ('feedmill vla stats' makes one),"
            " or set normalization.enabled to false.",
        )
    how = settings.normalization
    include = tuple(dict.fromkeys((*settings.proprioception_fields, *settings.action_fields)))
    if not include:
        raise ConfigError(
            "normalization is on, and no field is named: nothing would be normalized",
            kind="no-fields",
            fix="Set action_fields and proprioception_fields, or normalization.enabled to false.",
        )
    # as in VLA Foundry, an entry of field_configs counts for the field of exactly this name
    how = replace(how, include=include, fields={name: own for name, own in how.fields.items() if name in include})
    if len(paths) == 1:
        return Robotics(settings, Normalizer(read_entries(paths[0]), how))
    merged = merge_statistics([read_statistics(path) for path in paths])
    return Robotics(settings, Normalizer({field: one.as_dict() for field, one in merged.items()}, how))
