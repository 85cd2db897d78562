"""Encode samples of any kind as members of a tar: a key and named parts, with their names checked.

A key and a part form the member ``key.part``, which readers divide at the first dot after the last slash. A key must
not have a dot in its last component, and a part must not have a slash. Keys that would lead outside the folder when
unpacked, and keys that readers skip, are rejected too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.sample import Sample
from feedmill.formats.tar.write import BLOCK, encode_name
from feedmill.samples.encode import Encoder
from feedmill.samples.fieldmap import Option, parse_expression

_KEY = re.compile(r"(?:\./)?(?:(?!\.{0,2}/)[^/\0]+/)*[^/.\0]+")  # tars of '.' have './' before all names
_SKIPPED = re.compile(r"__[^/]*__(?:/|$)")
_LONG = 100
Parts = Iterable[tuple[str, Any]]


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
        DataError: ``missing-field``, ``bad-name``, ``no-parts``, ``no-conversion``; it names the sample.
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
    return DataError(f"invalid part name {part!r}: {why}", kind="bad-name", fix="Rename the part, or remove it.")


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
    raise DataError(f"invalid key: {why}", record=shown, kind="bad-name", fix=fix)


class Taker:
    """Converter of samples to parts: of a mapping with ``__key__``, a `Sample`, or a dataclass with ``__key__``.

    Args:
        field_map: field of a dataclass -> target of its value: a part (``"jpg"``), or an entry of a part
            (``"json[caption]"``; all entries of a part are written together). A field without a target must be None
            and is skipped.

    Raises (when called):
        DataError: ``missing-field``, ``no-parts``, or the value is not a sample.
        ConfigError: the field map lacks a field of a dataclass.
    """

    def __init__(self, field_map: Mapping[str, str] | None = None) -> None:
        self._targets = {field: _target(field, text) for field, text in (field_map or {}).items()}
        self._fields: dict[type, tuple[str, ...]] = {}

    def key(self, sample: Any) -> str:
        """Return the sample's key, unchecked."""
        if type(sample) is dict:
            found = sample.get("__key__")
            if type(found) is str:
                return found
        if isinstance(sample, Sample):
            return sample.key
        found = sample.get("__key__") if isinstance(sample, Mapping) else getattr(sample, "__key__", None)
        if type(found) is not str:
            raise _no_key(sample, found)
        return found

    def parts(self, sample: Any) -> Parts:
        """Return names and values of the sample's parts. Entries that begin with ``__`` are metadata, not parts."""
        if type(sample) is dict:  # the usual case; checking abstract classes takes longer
            return [item for item in sample.items() if not is_about(item[0])]
        if isinstance(sample, Sample):
            return [(name, sample.raw(name)) for name in sample]
        if isinstance(sample, Mapping):
            return [item for item in sample.items() if not is_about(item[0])]
        if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
            return self._of_dataclass(sample)
        raise DataError(
            f"invalid sample: expected a mapping or a dataclass, found a {type(sample).__name__}",
            kind="no-such-sample",
            fix='Pass for example {"__key__": "000001", "jpg": data, "json": {"caption": "a cat"}}.',
        )

    def _of_dataclass(self, sample: Any) -> Parts:
        kind = type(sample)
        names = self._fields.get(kind)
        if names is None:
            names = tuple(f.name for f in dataclasses.fields(sample) if not f.name.startswith("__"))
            self._fields[kind] = names
        out: dict[str, Any] = {}
        for name in names:
            value = getattr(sample, name)
            if value is None:
                continue
            target = self._targets.get(name)
            if target is None:
                raise ConfigError(
                    f"the field map has no part for the field {name!r} of {kind.__name__}",
                    kind="bad-field-map",
                    fix='Pass a field map such as {"image": "jpg", "caption": "json[caption]"}.',
                )
            if target.keys:
                out.setdefault(target.part, {})[target.keys[0]] = value
            else:
                out[target.part] = value
        return out.items()


def is_about(name: Any) -> bool:
    """Return whether an entry of a mapping is metadata of the sample and not a part."""
    return isinstance(name, str) and name.startswith("__")


def _target(field: str, text: str) -> Option:
    """Return the target of a field: the first alternative of its expression."""
    option = parse_expression(text)[0]
    if len(option.keys) > 1:
        raise ConfigError(
            f"the field {field!r} cannot be written to {text!r}: only one level inside a part is supported",
            kind="bad-field-map",
            fix=f"Use for example {option.part}[{option.keys[0]}].",
        )
    return option


def _no_key(sample: Any, found: Any) -> DataError:
    what = "the sample has no '__key__'" if found is None else f"the sample's key is {found!r}, not text"
    names = list(sample)[:8] if isinstance(sample, Mapping) else []
    return DataError(
        what + (f" (it has {', '.join(map(repr, names))})" if names else f" (it is a {type(sample).__name__})"),
        kind="missing-field",
        fix="Give each sample a key: text that is unique in the dataset.",
    )
