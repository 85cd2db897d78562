"""Batches as Energon's users know them: of the samples' own type, tensors padded and stacked, the rest as lists."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from feedmill.errors import ConfigError, MissingExtra
from feedmill.formats.base import Source
from feedmill.samples.fields import named_fields
from feedmill.samples.types import TypedSample


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("batches of tensors need torch", extra="torch") from None
    return torch


def batch_stack(batch: list[Any]) -> Any:
    """Tensors of one shape as a tensor [n, ...]."""
    return _torch().stack(batch)


def batch_pad_stack(batch: list[Any]) -> Any:
    """Tensors of one number of dimensions as a tensor [n, ...], padded with zeros at their ends to the largest."""
    shape = [max(sizes) for sizes in zip(*(value.shape for value in batch), strict=True)]
    if all(list(value.shape) == shape for value in batch):
        return _torch().stack(batch)
    out = batch[0].new_zeros((len(batch), *shape))
    for row, value in zip(out, batch, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return out


def batch_list(batch: list[Any]) -> list[Any]:
    """Return the values as they are."""
    return batch


def generic_batch(batch: list[Any]) -> Any:
    """Values put together by what the first one is: tensors padded and stacked; mappings, dataclasses and named tuples
    field by field (a dataclass with ``from_samples`` by that); all else a list."""
    first = batch[0]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return batch_pad_stack(batch)
    if isinstance(first, Mapping):
        return {name: generic_batch([value[name] for value in batch]) for name in first}
    if dataclasses.is_dataclass(first) and hasattr(first, "from_samples"):
        return first.from_samples(batch)
    names = _field_names(first)
    if names is None:
        return batch
    return type(first)(**{name: generic_batch([getattr(value, name) for value in batch]) for name in names})


def batch_as(
    kind: type[Any], samples: Sequence[Any], actions: Mapping[str, Callable[[list[Any]], Any]] | None = None
) -> Any:
    """Return samples as one batch of a type, fields by name.

    Args:
        kind: a dataclass, a named tuple or dict; one with ``from_samples`` says itself how.
        samples: dataclasses, named tuples or mappings.
        actions: how to put the values of a field together, where not by `generic_batch`.
    """
    if dataclasses.is_dataclass(kind) and hasattr(kind, "from_samples"):
        return kind.from_samples(samples)
    put = actions or {}
    columns = {name: put.get(name, generic_batch)(values) for name, values in _columns(samples).items()}
    return made_as(kind, columns)


def _columns(samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the values of each field of the first sample, of all samples."""
    names = _field_names(samples[0])
    if names is not None and all(type(sample) is type(samples[0]) for sample in samples):
        return {name: list(map(attrgetter(name), samples)) for name in names}
    rows = [_fields(sample) for sample in samples]
    return {name: [row[name] for row in rows] for name in rows[0]}


def made_as(kind: type[Any], value: Any) -> Any:
    """Return a value of a type (dataclass, named tuple or dict) with the fields of another."""
    fields = _fields(value)
    return dict(fields) if issubclass(kind, dict) else kind(**fields)


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    names = _field_names(value)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    found = named_fields(value)
    if found is None:
        raise ConfigError(
            f"a {type(value).__name__} has no fields to be put into a batch by name",
            kind="bad-batch",
            fix="Give dataclasses, named tuples or dicts, or override 'batch'.",
        )
    return found


def _field_names(value: Any) -> list[str] | None:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(value._fields) if isinstance(value, tuple) and hasattr(value, "_fields") else None


@dataclass(kw_only=True, slots=True)
class Batch:
    """The fields that a batch of typed samples has; derive from it and add those of the task.

    Attributes:
        __key__: of each sample.
        __restore_key__: of each sample.
        __subflavors__: of the samples that have any.
        __sources__: of all samples, one after another.
    """

    __key__: list[str]
    __restore_key__: Any
    __subflavors__: list[Any] | None = None
    __sources__: tuple[Source, ...] | None = None

    @classmethod
    def derive_from(cls, base_batch: Batch, **fields: Any) -> Self:
        """Return a batch of this type with `fields`, and the base fields of another."""
        return cls(**{field.name: getattr(base_batch, field.name) for field in dataclasses.fields(Batch)}, **fields)

    @classmethod
    def from_samples(cls, samples: Sequence[TypedSample], **fields: Any) -> Self:
        """A batch of samples: each field a list of theirs, sources one after another; `fields` are taken as given."""
        given = dict(fields)
        for field in dataclasses.fields(cls):
            if field.name in given:
                continue
            values = [getattr(sample, field.name) for sample in samples]
            if field.name == "__sources__":
                given[field.name] = tuple(s for found in values for s in found or ()) or None
            elif field.name == "__subflavors__":
                given[field.name] = [value for value in values if value] or None
            else:
                given[field.name] = values
        return cls(**given)

    def pin_memory(self) -> Self:
        """Return this batch with its tensors in page-locked memory."""
        return pinned(self)  # type: ignore[no-any-return]


def pinned(value: Any) -> Any:
    """Return a copy with every tensor in page-locked memory; goes into dataclasses, mappings, tuples and lists."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if isinstance(value, dict):
        return {name: pinned(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pinned, value))
    if isinstance(value, list | tuple):
        return type(value)(map(pinned, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: pinned(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value
