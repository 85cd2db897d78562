"""Token data of different tokenizers must not be mixed: their ids mean different things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedmill.errors import ConfigError
from feedmill.formats.tokens.identity import Identity, identities

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset


def check_tokenizers(sources: Sequence[Dataset], names: Sequence[str], places: Sequence[str]) -> None:
    """Refuse sources that are known to have been made by different tokenizers.

    Args:
        sources, names: the datasets of a plan and what they are called.
        places: where the recipe names each, as ``file:line``.

    Raises:
        ConfigError: with the names of two sources and their tokenizers.
    """
    known: dict[tuple[str, str], tuple[Identity, str]] = {}  # each tokenizer's first file: there may be many more
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
        f"the source {its_name!r} was tokenized with {first} and {name!r} with {second}: the same id means another"
        f" token in each ({first.file}, {second.file})",
        file=place,
        kind="mixed-tokenizers",
        fix="Tokenize both with one tokenizer; where the two are the same under different names, write"
        " 'mixed_tokenizers: true' at the top of the recipe.",
    )
