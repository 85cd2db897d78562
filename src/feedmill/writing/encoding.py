"""Encode samples as members of a tar: check names and encode values.

A key and a part form the member ``key.part``, which readers divide at the first dot after the last slash. A key must
not have a dot in its last component, and a part must not have a slash. Keys that would lead outside the folder when
unpacked, and keys that readers skip, are rejected too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.tar.write import BLOCK, encode_name
from feedmill.samples.encode import Encoder
from feedmill.writing.fields import Parts, Taker

_KEY = re.compile(r"(?:\./)?(?:(?!\.{0,2}/)[^/\0]+/)*[^/.\0]+")  # tars of '.' have './' before all names
_SKIPPED = re.compile(r"__[^/]*__(?:/|$)")
_LONG = 100


class Encoded(NamedTuple):
    """A sample ready to be written: key, parts, member names, contents, and its size in a tar in bytes.

    If names are long, the size is an upper bound. `turned` counts the media that state an orientation, if their writer
    looked.
    """

    key: str
    parts: list[str]
    names: list[bytes]
    contents: list[bytes]
    size: int
    turned: int = 0


class Encoding:
    """Callable that encodes a sample as `Encoded`. It is safe to call from several threads at once.

    Raises (when called):
        DataError: ``no-key``, ``bad-key``, ``bad-part-name``, ``no-parts``, ``not-encodable``; it names the sample.
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
        """Encode a key and all given parts, including those whose names begin with ``__``."""
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
                    raise _bad_part(part, "readers skip members whose names begin and end with '__'")
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
            raise DataError("the sample has no parts", record=key, kind="no-parts", fix="Give it at least one part.")
        return Encoded(key, parts, names, contents, size)

    def batch(self, samples: Sequence[Any]) -> list[Encoded]:
        """Encode several samples."""
        return [self(sample) for sample in samples]

    def _suffix(self, part: Any) -> bytes:
        if not isinstance(part, str) or not part or "/" in part or "\0" in part:
            raise _bad_part(part, "expected text like a file extension, without a slash ('jpg', 'detail.json')")
        self._suffixes[part] = encode_name(f".{part}")
        return self._suffixes[part]


def _bad_part(part: Any, why: str) -> DataError:
    return DataError(f"invalid part name {part!r}: {why}", kind="bad-part-name", fix="Rename the part, or remove it.")


def check_key(key: str) -> str:
    """Return the key unchanged. Raises `DataError` if readers would see a different key or none."""
    if _KEY.fullmatch(key) and not (key.startswith("__") and _SKIPPED.match(key)):
        return key
    last = key.rpartition("/")[2]
    if "." in last:
        why, fix = "readers would end it at the dot", "Replace the dots (folder names may contain dots)."
    elif key.startswith("__"):
        why, fix = "readers skip members whose names begin like this", "Use another beginning."
    else:
        why = "it is not a relative path of plain names" if key else "it is empty"
        fix = "Use a key without '..', empty components and NUL characters, such as 'folder/000001'."
    shown = key if len(key) <= 80 else f"{key[:60]}..."
    raise DataError(f"invalid key: {why}", record=shown, kind="bad-key", fix=fix)
