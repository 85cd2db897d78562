"""Energon's functions that print samples, and find the keys of batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import yaml

__all__ = ["default_get_batch_keys", "format_sample_compact", "format_sample_detailed"]

_EDGE = 3
"""Number of values shown of each end of an array."""
_MOST_FIELDS, _MOST_ITEMS, _LONGEST_TEXT, _LONGEST_OTHER = 25, 10, 1000, 200
_WIDTH = 120


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Return the keys of the samples of a batch; None if it has none.

    Args:
        batch: an object with ``__key__`` or ``__keys__``, a mapping with one of them or with ``keys``, or a list of
            such batches, of which the first is used.
    """
    if isinstance(batch, list):
        batch = batch[0] if batch else None
    if isinstance(batch, Mapping):
        candidates = [batch.get(name) for name in ("__key__", "__keys__", "keys")]
    else:
        candidates = [getattr(batch, name, None) for name in ("__key__", "__keys__")]
    for keys in candidates:
        if isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys):
            return list(keys)
    return None


def format_sample_compact(sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50) -> str:
    """Return a sample as one line, for logs.

    Args:
        sample: any value.
        depth: levels of containers to show.
        max_items: items of each container to show.
        max_str_len: characters of each text to show.
    """

    def shown(value: Any) -> str:
        return format_sample_compact(value, depth - 1, max_items, max_str_len)

    for kind, ends in ((dict, "{}"), (list, "[]"), (tuple, "()")):
        if isinstance(sample, kind):
            if depth <= 0:
                return f"{ends[0]}...{ends[1]}"
            if isinstance(sample, dict):
                items = [f"{key}: {shown(value)}" for key, value in islice(sample.items(), max_items)]
            else:
                items = [shown(value) for value in sample[:max_items]]
            return f"{ends[0]}{', '.join(items)}{ends[1]}"
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        fields = (f"{field.name}={shown(getattr(sample, field.name))}" for field in dataclasses.fields(sample))
        return f"{type(sample).__name__}({', '.join(fields)})"
    head = _array_head(sample)
    if head is not None:
        return f"{head})"
    text = sample if isinstance(sample, str) else repr(sample)
    text = text if len(text) <= max_str_len else f"{text[:max_str_len]}..."
    return repr(text) if isinstance(sample, str) else text


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """Return a sample as YAML with types, shapes and ranges of its arrays, for people.

    Args:
        sample: any value.
        indent: text at the beginning of each line.
    """
    text = yaml.safe_dump(_plain(sample), sort_keys=False, default_flow_style=False, width=_WIDTH)
    lines = text.rstrip().removesuffix("\n...").splitlines()
    return "\n".join(f"{indent}{line}" if line else line for line in lines)


def _plain(value: Any) -> Any:
    """Return a value as data for YAML."""
    head = _array_head(value)
    if head is not None:
        return _array(value, head)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, dict):
        shown: dict[Any, Any] = {_key(key): _plain(item) for key, item in islice(value.items(), _MOST_FIELDS)}
        return shown if len(value) <= _MOST_FIELDS else {**shown, "...": f"and {len(value) - _MOST_FIELDS} more items"}
    if isinstance(value, list | tuple):
        more = [f"... and {len(value) - _MOST_ITEMS} more items"] if len(value) > _MOST_ITEMS else []
        return [_plain(item) for item in value[:_MOST_ITEMS]] + more
    if isinstance(value, str):
        rest = len(value) - _LONGEST_TEXT
        return f"{value[:_LONGEST_TEXT]}... (and {rest} more characters)" if rest > 0 else value
    if value is None or isinstance(value, int | float):
        return value
    text = repr(value)
    return text if len(text) <= _LONGEST_OTHER else f"{text[:_LONGEST_OTHER]}..."


def _key(key: Any) -> Any:
    return key if key is None or isinstance(key, str | int | float) else repr(key)


def _array_head(value: Any) -> str | None:
    """Return the beginning of the text for an array or tensor; None for other values."""
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if kind == "numpy.ndarray":
        return f"np.ndarray(shape={value.shape}, dtype={value.dtype}"
    if kind in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        return f"Tensor(shape={value.shape}, dtype={value.dtype}, device={value.device}"
    return None


def _array(value: Any, head: str) -> str:
    item: Callable[[Any], Any] = (lambda one: one.item()) if head.startswith("Tensor") else (lambda one: one)
    try:
        low, high, flat = item(value.min()), item(value.max()), value.reshape(-1)
    except (RuntimeError, ValueError, TypeError):  # empty, or of a type without an order
        return f"{head})"
    if len(flat) > 2 * _EDGE:
        texts = [*(repr(item(one)) for one in flat[:_EDGE]), "...", *(repr(item(one)) for one in flat[-_EDGE:])]
    else:
        texts = [repr(item(one)) for one in flat]
    return f"{head}, min={low}, max={high}, values=[{', '.join(texts)}])"
