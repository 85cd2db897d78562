"""Convert samples of any kind to a key and named parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from feedmill.errors import ConfigError, DataError
from feedmill.formats.sample import Sample
from feedmill.samples.fieldmap import Option, parse_expression

Parts = Iterable[tuple[str, Any]]


class Taker:
    """Converter of samples to parts: of a mapping with ``__key__``, a `Sample`, or a dataclass with ``__key__``.

    Args:
        field_map: field of a dataclass -> target of its value: a part (``"jpg"``), or an entry of a part
            (``"json[caption]"``; all entries of a part are written together). A field without a target must be None
            and is skipped.

    Raises (when called):
        DataError: ``no-key``, ``no-parts``, or the value is not a sample.
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
            kind="no-sample",
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
        kind="no-key",
        fix="Give each sample a key: text that is unique in the dataset.",
    )
