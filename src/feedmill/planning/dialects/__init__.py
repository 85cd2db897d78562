"""Dialects: recipes of other tools, translated to Feedmill's own recipes as plain data for the common compiler.

A dialect is one module with its tables of settings (`TABLES`) and a function that converts parsed data to a
`Translation`: the recipe's data, and the origin of its values. Recipes in a dialect are validated and compiled like any
other, and errors refer to the lines of the original files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from feedmill.errors import ConfigError

TRAIN, VALIDATION = "train", "validation"
MODES = (TRAIN, VALIDATION)

_DEEPEST = 100  # maximum nesting, as in Feedmill's own recipes

MOST_NESTED = 64
MOST_FILES = 1_000
"""Maximum depth of nested files, and maximum number of files of a recipe."""

METADATASET, NANOTRON, VLA, MEGATRON = "metadataset", "nanotron", "vla", "megatron"

_MEGATRON = ("data_path", "data_args_path")
"""How the names of Megatron-LM's arguments about data end."""

Place = tuple[int | str, ...]
"""Keys and list indices of a part of a recipe."""


@dataclass(slots=True)
class Translation:
    """A recipe as plain data, with the origin of its values; has the interface of `Marks`.

    Attributes:
        file: the file that was read, or a display name.
        data: the equivalent of Feedmill's own YAML.
        origins: place in `data` -> ``file:line``.
        nested: the recipes of sources that are defined in the same file, by the place of the source.
        counts_excluded: whether subsets count the samples that a split excludes, as Energon does.
        passes: passes over a source that its own tool counts as one, by the place of the source; 1 if missing.
        notes: what is in the file and has no effect.
    """

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)
    nested: dict[Place, Translation] = field(default_factory=dict)
    counts_excluded: bool = False
    passes: dict[Place, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def where(self, place: Any) -> str:
        """Return ``file:line`` of the origin of a value, or of its nearest ancestor with a known origin."""
        keys: Place = tuple(place)
        while keys and keys not in self.origins:
            keys = keys[:-1]
        return self.origins.get(keys, self.file)

    def line(self, place: Any) -> int:
        """Return the line of `where`, 0 if unknown."""
        match = re.search(r":(\d+)$", self.where(place))
        return int(match[1]) if match else 0


def recognize(source: str | bytes | Mapping[str, Any]) -> str | None:
    """Return the dialect of a file's text or of plain data; None for Feedmill's own."""
    keys = set(source) if isinstance(source, Mapping) else _top_keys(source)
    if keys & {"splits", "__class__", "__module__"}:
        return METADATASET
    if "data_stages" in keys:
        return NANOTRON
    if any(key.lstrip("-").replace("-", "_").endswith(_MEGATRON) for key in map(str, keys)):
        return MEGATRON
    return VLA if keys & {"dataset_manifest", "data", "data.dataset_manifest"} else None


def _top_keys(text: str | bytes) -> set[str]:
    """Return the keys of the document's mapping as far as it can be parsed; errors in it are reported later."""
    keys: set[str] = set()
    depth, is_key = 0, True
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if depth == 1 and isinstance(event, yaml.ScalarEvent) and is_key:
                keys.add(event.value)
            if depth == 1 and not isinstance(event, yaml.CollectionEndEvent):
                is_key = not is_key
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _DEEPEST:
                    break
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        pass
    return keys


def check_chain(files: int, file: str) -> None:
    """Raise `ConfigError` if files are nested too deeply, as in a cycle through links."""
    if files > MOST_NESTED:
        raise ConfigError(
            f"more than {MOST_NESTED} levels of nested files",
            file=file,
            kind="bad-recipe",
            fix="Check whether the files contain each other through a link.",
        )


def check_files(files: int, file: str | None) -> None:
    """Raise `ConfigError` if too many files are read for one recipe.

    If each file refers to the next one twice, their number doubles with each level.
    """
    if files > MOST_FILES:
        raise ConfigError(
            f"its nested recipes are read more than {MOST_FILES:,} times in total",
            file=file,
            kind="bad-recipe",
            fix="List each dataset once, with one weight, instead of repeating nested recipes.",
        )


def check_mode(mode: str, file: str) -> None:
    """Raise `ConfigError` if the mode is neither ``train`` nor ``validation``."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}", file=file, kind="bad-option", fix=f"Use {' or '.join(MODES)}.")
