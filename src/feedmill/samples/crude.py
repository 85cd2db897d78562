"""Present crude samples as the dicts that cookers written for Energon expect."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from feedmill.formats.objects import decode_json
from feedmill.formats.sample import Sample, Source
from feedmill.samples.types import BASE_FIELDS

_LATER: Any = object()


class CrudeSample(dict[str, Any]):
    """Dict of a sample's parts by name.

    It also has the keys ``__key__``, ``__shard__``, ``__restore_key__``, ``__subflavors__`` and ``__sources__``. Each
    value is decoded or created on first access. Values that are assigned stay as they are, as in any dict.

    Args:
        sample: A sample as a dataset returns it.
    """

    __slots__ = ("raw_sample",)

    def __init__(self, sample: Sample) -> None:
        own = dict.fromkeys(sample, _LATER)
        super().__init__(own, __key__=sample.key, __restore_key__=_LATER, __shard__=_LATER)
        super().__setitem__("__subflavors__", sample.subflavors)
        super().__setitem__("__sources__", _LATER)
        self.raw_sample = sample

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is _LATER:
            value = self._made(name)
            super().__setitem__(name, value)
        return value

    def _made(self, name: str) -> Any:
        sample = self.raw_sample
        if name == "__sources__":
            return sample.sources
        if name == "__shard__":
            return sample.source.file
        if name == "__restore_key__":
            return ("Webdataset", sample.source.index)
        value = sample[name]
        if isinstance(value, bytes) and sample.home is not None and sample.home.format == "jsonl":
            return decode_json(value)  # lines of a .jsonl file are always objects, whatever the decoder
        return value

    def __iter__(self) -> Iterator[str]:  # overridden, or ** would copy undecoded placeholders
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, decoded, or `default` if it is missing."""
        if name not in self:
            return default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a key and return its value, decoded."""
        if name in self:
            value = self[name]
            del self[name]
            return value
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, decoded, after setting it to `default` if it is missing."""
        if name not in self:
            self[name] = default
        return self[name]

    def items(self) -> Any:
        """Return a view of the keys and decoded values."""
        return ItemsView(self)

    def values(self) -> Any:
        """Return a view of the decoded values."""
        return ValuesView(self)

    def copy(self) -> dict[str, Any]:
        """Return a plain dict with every value decoded."""
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.copy()

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, CrudeSample) else other)

    __hash__ = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)

    def __repr__(self) -> str:
        return f"CrudeSample({self['__key__']!r}, {', '.join(name for name in self if not name.startswith('__'))})"


def basic_sample_keys(sample: Any, additional_source_info: tuple[Source, ...] = ()) -> dict[str, Any]:
    """Return the base fields of a sample cooked from a crude one: key, restore key, subflavors and sources.

    Args:
        sample: A `Sample`, or a mapping with those fields.
        additional_source_info: Further sources of the cooked sample.
    """
    if isinstance(sample, Sample):
        sample = CrudeSample(sample)
    found = {name: sample[name] for name in BASE_FIELDS if name in sample}
    if additional_source_info:
        found["__sources__"] = (*(found.get("__sources__") or ()), *additional_source_info)
    return found


def key_of(sample: Any) -> str | None:
    """Return the key of a sample of any kind; None if it has no key."""
    if isinstance(sample, Sample):
        return sample.key
    found = sample.get("__key__") if isinstance(sample, Mapping) else getattr(sample, "__key__", None)
    return None if found is None else str(found)
