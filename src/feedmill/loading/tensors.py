"""Batch functions with Energon's names: batches have the type of their samples, with padded and stacked tensors.

`TypedTaskEncoder` uses them by default. Call them in your own `batch` hook, or derive a batch type from `Batch`. All of
them need torch.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from feedmill.errors import ConfigError, MissingExtra
from feedmill.formats.sample import Source
from feedmill.samples.types import TypedSample, named_fields


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("batches of tensors need torch", extra="torch") from None
    return torch


def batch_stack(batch: list[Any]) -> Any:
    """Return tensors of one shape as one tensor [n, ...]."""
    return _torch().stack(batch)


def batch_pad_stack(batch: list[Any]) -> Any:
    """Return tensors with the same number of dimensions as one tensor [n, ...], padded with zeros at their ends."""
    shape = [max(sizes) for sizes in zip(*(value.shape for value in batch), strict=True)]
    if all(list(value.shape) == shape for value in batch):
        return _torch().stack(batch)
    out = batch[0].new_zeros((len(batch), *shape))
    for row, value in zip(out, batch, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return out


def batch_list(batch: list[Any]) -> list[Any]:
    """Return the list of values unchanged."""
    return batch


def generic_batch(batch: list[Any]) -> Any:
    """Return values as one batch, by the type of the first one.

    Tensors are padded and stacked. Mappings, dataclasses and named tuples are combined field by field, or by
    ``from_samples`` if a dataclass has it. Other values stay a list.
    """
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
    kind: type[Any],
    samples: Sequence[Any],
    actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
    otherwise: Callable[[list[Any]], Any] = generic_batch,
) -> Any:
    """Return samples as one batch of a type, with the fields of the samples by name.

    Args:
        kind: type of the batch: a dataclass, a named tuple or dict. A dataclass with ``from_samples`` is created by it.
        samples: dataclasses, named tuples or mappings.
        actions: field name -> function that combines the values of the field.
        otherwise: the function of all other fields.

    Raises:
        ConfigError: the samples have no named fields.
    """
    if dataclasses.is_dataclass(kind) and hasattr(kind, "from_samples"):
        return kind.from_samples(samples)
    functions = actions or {}
    columns = {name: functions.get(name, otherwise)(values) for name, values in _columns(samples).items()}
    return made_as(kind, columns)


def _columns(samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the values of all samples for each field of the first sample."""
    names = _field_names(samples[0])
    if names is not None and all(type(sample) is type(samples[0]) for sample in samples):
        return {name: list(map(attrgetter(name), samples)) for name in names}
    rows = [_fields(sample) for sample in samples]
    return {name: [row[name] for row in rows] for name in rows[0]}


def made_as(kind: type[Any], value: Any) -> Any:
    """Return an instance of a type (dataclass, named tuple or dict) with the fields of another value.

    Raises:
        ConfigError: the value has no named fields.
    """
    fields = _fields(value)
    return dict(fields) if issubclass(kind, dict) else kind(**fields)


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    names = _field_names(value)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    fields = named_fields(value)
    if fields is None:
        raise ConfigError(
            f"a {type(value).__name__} has no named fields, which a batch requires",
            kind="bad-batch",
            fix="Return dataclasses, named tuples or dicts, or override 'batch'.",
        )
    return fields


def _field_names(value: Any) -> list[str] | None:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(value._fields) if isinstance(value, tuple) and hasattr(value, "_fields") else None


@dataclass(kw_only=True, slots=True)
class Batch:
    """The fields of every batch of typed samples; derive from it and add the fields of the task.

    Attributes:
        __key__: key of each sample.
        __restore_key__: restore key of each sample.
        __subflavors__: subflavors of the samples that have any.
        __sources__: sources of all samples, concatenated.
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
        """Return a batch of samples, with a list of their values per field.

        Args:
            samples: the samples.
            fields: values of fields of the batch, used unchanged.
        """
        columns = dict(fields)
        for field in dataclasses.fields(cls):
            if field.name in columns:
                continue
            values = [getattr(sample, field.name) for sample in samples]
            if field.name == "__sources__":
                columns[field.name] = tuple(source for sources in values for source in sources or ()) or None
            elif field.name == "__subflavors__":
                columns[field.name] = [value for value in values if value] or None
            else:
                columns[field.name] = values
        return cls(**columns)

    def pin_memory(self) -> Self:
        """Return this batch with its tensors in page-locked memory."""
        return pinned(self)  # type: ignore[no-any-return]


def pinned(value: Any) -> Any:
    """Return a copy with every tensor in page-locked memory, also in dataclasses, mappings, tuples and lists."""
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
