"""Recipes in other tools' words, each translated to Feedmill's own as plain data, so that one compiler serves all.

A dialect is one file with a function that takes what was read and gives a `Translation`: the recipe's data, and for
its values where they were written. Validation and compiling happen as for any recipe, and complain about the lines of
the original files.
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

_DEEPEST = 100  # as in Feedmill's own recipes, which refuse what is nested deeper

MOST_NESTED = 64
MOST_FILES = 1_000
"""Files that may lead from one to the next."""

METADATASET, NANOTRON, VLA = "metadataset", "nanotron", "vla"

Place = tuple[int | str, ...]


@dataclass(slots=True)
class Translation:
    """A recipe as plain data, with the origin of its values; has the face of `Marks`.

    Attributes:
        file: the file that was read, or another name for it.
        data: what Feedmill's own YAML would say.
        origins: place in `data` -> ``file:line``.
        nested: the recipes of sources that stand in the same file, by the place of the source.
    """

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)
    nested: dict[Place, Translation] = field(default_factory=dict)

    def where(self, place: Any) -> str:
        """``file:line`` that a value came from, or the nearest value above it that has one."""
        keys: Place = tuple(place)
        while keys and keys not in self.origins:
            keys = keys[:-1]
        return self.origins.get(keys, self.file)

    def line(self, place: Any) -> int:
        """Return the line of that, 0 if it has none."""
        found = re.search(r":(\d+)$", self.where(place))
        return int(found[1]) if found else 0


def recognise(source: str | bytes | Mapping[str, Any]) -> str | None:
    """Return the dialect of a file's text or of plain data; None for Feedmill's own."""
    keys = set(source) if isinstance(source, Mapping) else _top_keys(source)
    if keys & {"splits", "__class__", "__module__"}:
        return METADATASET
    if "data_stages" in keys:
        return NANOTRON
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
    """Raises `ConfigError` if too many files have led to this one: through links they may do so without end."""
    if files > MOST_NESTED:
        raise ConfigError(
            f"more than {MOST_NESTED} files lead from one to the next",
            file=file,
            kind="recipe-cycle",
            fix="Check whether they contain each other, by way of a link.",
        )


def check_files(files: int, file: str | None) -> None:
    """Raises `ConfigError` if too many files are read for one recipe: two that name the next one twice, and so on,
    double with each level."""
    if files > MOST_FILES:
        raise ConfigError(
            f"recipes in it are read more than {MOST_FILES:,} times in all",
            file=file,
            kind="too-many-recipes",
            fix="Name each dataset once, with one weight, in place of recipes that repeat each other.",
        )


def check_mode(mode: str, file: str) -> None:
    """Raises `ConfigError` for another mode than ``train`` and ``validation``."""
    if mode not in MODES:
        raise ConfigError(f"there is no mode {mode!r}", file=file, kind="bad-mode", fix=f"Use {' or '.join(MODES)}.")
