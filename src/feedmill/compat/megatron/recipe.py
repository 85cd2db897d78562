"""Write a recipe from the command line of a run of Megatron-LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from feedmill.errors import ConfigError
from feedmill.planning.dialects.megatron import DATA, attribute, translate


def recipe_of(words: Sequence[str], part: str) -> tuple[str, list[str]]:
    """Return the YAML of a recipe, and notes on the arguments that it does not follow.

    Args:
        words: the arguments of the run.
        part: train, valid or test.

    Raises:
        ConfigError: an argument about data is missing, invalid or unsupported.
    """
    given = arguments_of(words)
    if not any(given.get(name) for name in DATA):
        raise ConfigError(
            "the arguments name no data",
            kind="missing-option",
            fix=f"Add one of --{', --'.join(name.replace('_', '-') for name in DATA)}.",
        )
    found = translate(given, None, "arguments", mode="train", split=part, base=".")
    return yaml.safe_dump(found.data, sort_keys=False, allow_unicode=True), found.notes


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command line by name: one word, a list of words, or True.

    >>> arguments_of(["--seed", "7", "--data-path", "30", "a", "--split=1,1,1", "--bf16"])
    {'seed': '7', 'data_path': ['30', 'a'], 'split': '1,1,1', 'bf16': True}
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = found[attribute(name)] = [value] if equals else []
        else:
            current.append(word)
    return {name: values if len(values) > 1 else values[0] if values else True for name, values in found.items()}
