"""Read what a conversion has written into a folder, from its proof (see `feedmill.converting.job`)."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from feedmill.storage import Store
from feedmill.structs import decode_as

VERSION = 1


class Versioned(Protocol):
    """Data with the version of its layout."""

    @property
    def version(self) -> int:
        """Return the version."""


T = TypeVar("T", bound=Versioned)


class Converted(msgspec.Struct, frozen=True):
    """The part of a proof that any room can compare with the data.

    Attributes:
        samples: number of samples.
        files: all data files of the destination, with their indices.
    """

    samples: int
    files: list[str]
    version: int


def proof_place(name: str) -> str:
    """Return the path of a file's proof in its folder, or of the folder's own proof if `name` is empty."""
    return f".feedmill/convert.{name}.json" if name else ".feedmill/convert.json"


def read_converted(store: Store, name: str, type: type[T]) -> T | None:
    """Return the proof of a file, or of the folder if `name` is empty, as a type with a version.

    None if there is none that this release can read.
    """
    if not store.exists(proof_place(name)):
        return None
    try:
        content = decode_as(store.read(proof_place(name)), type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return content if content.version == VERSION else None
