"""Check that all token data of a recipe was made with the same tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.errors import ConfigError
from feedmill.formats.tokens.identity import Identity, identities

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset


def check_tokenizers(sources: Sequence[Dataset], names: Sequence[str], places: Sequence[str]) -> None:
    """Raise an error if sources are known to be made with different tokenizers.

    Args:
        sources, names: the datasets of a plan and their names.
        places: ``file:line`` of each in the recipe.

    Raises:
        ConfigError: with the names of two sources and their tokenizers.
    """
    known: dict[tuple[str, str], tuple[Identity, str]] = {}  # one file per tokenizer is enough; there may be many
    for dataset, name, place in zip(sources, names, places, strict=True):
        for identity in identities(dataset):
            if identity[:2] in known:
                continue
            for other, its_name in known.values():
                if identity.differs(other):
                    raise _mixed(other, its_name, identity, name, place)
            known[identity[:2]] = identity, name


def _mixed(first: Identity, its_name: str, second: Identity, name: str, place: str) -> ConfigError:
    return ConfigError(
        f"the source {its_name!r} was tokenized with {first} and {name!r} with {second}: the same id means different"
        f" tokens ({first.file}, {second.file})",
        file=place,
        kind="mixed-tokenizers",
        fix="Tokenize both with the same tokenizer. If the two are the same under different names, set"
        " 'mixed_tokenizers: true' at the top of the recipe.",
    )
