"""Samples as members of a tar: names checked, values encoded.

A key and a part make the member ``key.part``, which readers cut at the first dot after the last slash. So a key has no
dot in its last component, and a part no slash; keys that would leave the folder when unpacked, or that readers skip,
are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.tar.write import BLOCK, encode_name
from feedmill.samples.encode import Encoder
from feedmill.writing.fields import Parts, Taker

_KEY = re.compile(r"(?:(?!\.{0,2}/)[^/\0]+/)*[^/.\0]+")
_SKIPPED = re.compile(r"__[^/]*__(?:/|$)")
_LONG = 100


class Encoded(NamedTuple):
    """A sample ready to be written: its key, parts and their contents, member names, and the bytes it takes in a tar
    (at most, where names are long)."""

    key: str
    parts: list[str]
    names: list[bytes]
    contents: list[bytes]
    size: int


class Encoding:
    """Sample -> `Encoded`. Pure but for a cache; called from several threads at once.

    Raises (when called):
        DataError: ``no-key``, ``bad-key``, ``bad-part-name``, ``no-parts``, ``not-encodable``; names the sample.
    """

    def __init__(self, encoder: Encoder, taker: Taker) -> None:
        self.encoder, self.taker = encoder, taker
        self._suffixes: dict[str, bytes] = {}

    def __call__(self, sample: Any) -> Encoded:
        key = self.taker.key(sample)
        try:
            parts = self.taker.parts(sample)
        except FeedmillError as error:
            error.record = key if error.record is None else error.record
            raise
        return self.of(key, parts)

    def of(self, key: str, given: Parts) -> Encoded:
        """Return a key and all its parts, those too that a mapping would have to say something about the sample."""
        base = encode_name(check_key(key))
        parts: list[str] = []
        names: list[bytes] = []
        contents: list[bytes] = []
        size = 0
        suffixes, encoder = self._suffixes, self.encoder
        try:
            for part, value in given:
                name = base + (suffixes.get(part) or self._suffix(part))
                content = value if type(value) is bytes else encoder(part, value)
                if base[:2] == b"__" and _SKIPPED.match(f"{key}.{part}"):
                    raise _bad_part(part, "readers skip members whose names begin with '__' and end with it")
                parts.append(part)
                names.append(name)
                contents.append(content)
                size += BLOCK + (len(content) + (BLOCK - 1) & -BLOCK)
                if len(name) > _LONG:
                    encode_name(f"{key}.{part}")
                    size += 2 * BLOCK + (len(name) & -BLOCK)
        except FeedmillError as error:
            error.record = key if error.record is None else error.record
            raise
        if not parts:
            raise DataError("the sample has no parts", record=key, kind="no-parts", fix="Give it at least one.")
        return Encoded(key, parts, names, contents, size)

    def batch(self, samples: Sequence[Any]) -> list[Encoded]:
        """Return many samples."""
        return [self(sample) for sample in samples]

    def _suffix(self, part: Any) -> bytes:
        if not isinstance(part, str) or not part or "/" in part or "\0" in part:
            raise _bad_part(part, "a part is named like a file's extension, without a slash ('jpg', 'detail.json')")
        self._suffixes[part] = encode_name(f".{part}")
        return self._suffixes[part]


def _bad_part(part: Any, why: str) -> DataError:
    return DataError(
        f"there can be no part named {part!r}: {why}", kind="bad-part-name", fix="Rename it, or leave it out."
    )


def check_key(key: str) -> str:
    """Return the key itself. Raises `DataError` if readers would see another key, or none."""
    if _KEY.fullmatch(key) and not (key.startswith("__") and _SKIPPED.match(key)):
        return key
    last = key.rpartition("/")[2]
    if "." in last:
        why, fix = "it has a dot, at which readers would cut it", "Replace the dots (a folder's name may have some)."
    elif key.startswith("__"):
        why, fix = "readers skip members whose names begin like this", "Let it begin with something else."
    else:
        why = "it is not a relative path of plain names" if key else "it is empty"
        fix = "Use a key without '..', empty components and NUL characters, such as 'folder/000001'."
    shown = key if len(key) <= 80 else f"{key[:60]}..."
    raise DataError(f"this cannot be a key: {why}", record=shown, kind="bad-key", fix=fix)
