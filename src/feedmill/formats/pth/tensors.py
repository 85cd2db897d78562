"""Storages and the tensors on them, as NumPy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.pth.archive import bad

NUMPY, TORCH = "numpy", "torch"

STORAGES = {
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
"""Class of a storage -> dtype."""

SPECIAL = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}
"""Dtypes that NumPy lacks -> bytes per element."""

DTYPES = frozenset({*STORAGES.values(), "uint16", "uint32", "uint64", *SPECIAL})

LARGEST = 1 << 30
OVERLAP = 16


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype by torch's name. Raises `MissingExtra`."""
    if name not in SPECIAL:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtra(f"arrays of {name} require ml_dtypes", extra="dtypes") from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


@lru_cache(maxsize=64)
def element_size(name: str) -> int:
    """Return the bytes per element of this dtype."""
    return SPECIAL.get(name) or np.dtype(name).itemsize


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes ``[start, stop)`` of the file, with the dtype of the storage class."""

    key: str
    dtype: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor: the offset of its first element in the file, its shape, and its strides in elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def checked(storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None = None) -> Spec:
    """Return a tensor after checking that it is inside its storage. Raises `DataError`."""
    if not isinstance(storage, Storage):
        raise bad("a tensor does not refer to a storage")
    name = dtype or storage.dtype
    if not _numbers((offset,)) or not _numbers(shape) or not _numbers(strides) or len(shape) != len(strides):
        raise bad("a tensor's offset, shape and strides are not non-negative integers")
    if len(shape) > 32:
        raise bad(f"a tensor has {len(shape)} dimensions")
    size = element_size(name)
    stored = storage.stop - storage.start
    count = 1
    for length in shape:
        count *= length
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) if count else 0
    if count and (last + 1) * size > stored:
        raise DataError(
            f"a tensor {tuple(shape)} of {name} at element {offset} needs {(last + 1) * size} bytes of its storage"
            f" {storage.key!r:.40}, which has {stored}",
            kind="bad-pickle",
            fix="The file is truncated or malicious. Save it again with torch.save.",
        )
    if count * size > max(LARGEST, OVERLAP * stored) or (not count and max(shape, default=0) >= 2**48):
        raise DataError(
            f"a tensor {tuple(shape)} of {name} would need {count * size:,} bytes, but only {stored:,} are stored",
            kind="expands-too-far",
            fix="Save the tensor before expanding it.",
        )
    return Spec(storage, name, offset if count else 0, tuple(shape), tuple(strides))


def memory(spec: Spec, to: str) -> int:
    """Return the bytes of a tensor without sharing: contiguous, or for torch including the gaps between strides."""
    count = 1
    for length in spec.shape:
        count *= length
    most = max(count, _extent(spec)) if count and to == TORCH else count
    return most * element_size(spec.dtype)


def _extent(spec: Spec) -> int:
    """Return the number of elements from the first of a tensor to its last."""
    return 1 + sum((length - 1) * stride for length, stride in zip(spec.shape, spec.strides, strict=True))


def _numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 2**62 for value in values)


def maker(spec: Spec, swapped: bool, to: str) -> Callable[[bytes], Any]:
    """Return a function from a file's bytes to the tensor."""
    size, start = element_size(spec.dtype), spec.storage.start + spec.offset * element_size(spec.dtype)
    strides = tuple(stride * size for stride in spec.strides)
    plain = spec.strides == contiguous(spec.shape)
    if swapped and size > 1:
        return lambda data: _native(data, spec, start, strides, to)
    if to == TORCH:
        return _torch_maker(spec)
    dtype, shape, ndarray = numpy_dtype(spec.dtype), spec.shape, np.ndarray
    if not all(shape):
        start = min(start, spec.storage.start)
    if plain:
        return lambda data: ndarray(shape, dtype, data, start)
    return lambda data: ndarray(shape, dtype, data, start, strides)


def _native(data: bytes, spec: Spec, start: int, strides: tuple[int, ...], to: str) -> Any:
    """Return a tensor written on a machine of the other byte order."""
    size = element_size(spec.dtype)
    part = size // 2 if spec.dtype.startswith("complex") else size
    kind = f"u{part}" if part <= 8 else None
    found = np.ndarray(spec.shape, np.dtype(f"V{size}"), data, start, strides)
    array = np.frombuffer(found.tobytes(), kind).byteswap().view(np.uint8)
    if to == TORCH:
        import torch

        values = torch.from_numpy(array.copy()).view(getattr(torch, spec.dtype))
        return values.reshape(spec.shape)
    return np.ndarray(spec.shape, numpy_dtype(spec.dtype), array.tobytes())


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array without gaps."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def torch_module() -> Any:
    """Return torch. Raises `MissingExtra`."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("tensors require torch", extra="torch") from None
    return torch


def _torch_maker(spec: Spec) -> Callable[[bytes], Any]:
    """Return a function that creates a tensor with its own memory, because torch has no read-only tensors."""
    torch = torch_module()
    dtype, size = getattr(torch, spec.dtype), element_size(spec.dtype)
    start, shape, strides = spec.storage.start + spec.offset * size, spec.shape, spec.strides
    if not all(shape):
        return lambda _: torch.empty(shape, dtype=dtype)
    stop = start + _extent(spec) * size
    if len(shape) == 1 and strides == (1,):
        return lambda data: torch.frombuffer(bytearray(data[start:stop]), dtype=dtype)
    return lambda data: torch.frombuffer(bytearray(data[start:stop]), dtype=dtype).as_strided(shape, strides)
