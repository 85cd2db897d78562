"""Samples that are alike, part by part: what a batch is made of where nobody asks for the samples themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedmill.formats.base import Decode, Source


@dataclass(frozen=True, slots=True)
class Parts:
    """The undecoded parts of n samples that all have the same ones.

    Attributes:
        keys: of the samples.
        views: part name -> n views of its bytes; names in stored order. The memory behind the views is used again when
            the last of them is gone.
        decode: decodes one part; None leaves it bytes.
        source: where a sample came from, by its number among the n.
    """

    keys: Sequence[str]
    views: Mapping[str, Sequence[memoryview]]
    decode: Decode | None
    source: Callable[[int], Source]
